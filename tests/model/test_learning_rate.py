"""The learning rate of the dynamics: the text's warm-up, and the fall that a single fit adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.config import Fit
from ctrlax.model.fit import learning_rate

ITERATIONS = np.arange(1400)


def rates(**settings):
    return np.asarray(jax.vmap(lambda iteration: learning_rate(Fit(**settings), iteration))(jnp.asarray(ITERATIONS)))


def test_the_texts_warm_up_is_geometric_and_then_constant():
    found = rates()
    assert found[0] == pytest.approx(1e-4)
    np.testing.assert_allclose(found[1:101] / found[:100], 10 ** (1 / 100), rtol=1e-5)
    np.testing.assert_allclose(found[100:], 1e-3, rtol=1e-6)
    straight = np.linspace(1e-4, 1e-3, 101)
    assert np.abs(found[:101] / straight - 1).max() > 0.1, "a straight warm-up must show"


def test_decay_is_a_straight_line_after_the_warm_up():
    found = rates(decay=0.9, updates=1000)
    np.testing.assert_allclose(found[:101], rates()[:101], rtol=1e-6)
    np.testing.assert_allclose(found[100:1101], np.linspace(1e-3, 1e-4, 1001), rtol=1e-5)
    np.testing.assert_allclose(found[1101:], 1e-4, rtol=1e-5)
