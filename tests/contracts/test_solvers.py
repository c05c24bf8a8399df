"""What every solver setting promises, whichever there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.errors import UserError
from ctrlax.ode.solve import SIZE_LIMIT, solve
from ctrlax.ode.solvers import SOLVERS, Adaptive, named

TIMES = np.array([0.0, 0.02, 0.05, 0.1])


def decay(time, state):
    return -state


@pytest.fixture(params=SOLVERS)
def setting(request):
    return named(request.param)


@pytest.mark.parametrize("precision", [jnp.float32, jnp.float64])
def test_solves_and_says_so(setting, precision):
    with jax.enable_x64(precision == jnp.float64):
        start, times = jnp.array([1.0, -2.0], precision), jnp.asarray(TIMES, precision)
        solution = jax.jit(lambda start: solve(decay, start, times, setting))(start)
        assert solution.states.dtype == precision
        np.testing.assert_array_equal(solution.states[0], start)
        np.testing.assert_allclose(solution.states, start * np.exp(-TIMES)[:, None], atol=5e-3)
        assert bool(solution.healthy)
        assert int(solution.work) > 0


def test_failure_is_never_success_and_never_the_others(setting):
    lanes = {  # what the rate is multiplied with, what its square is, the start
        "sound": (-1.0, 0.0, 1.0),
        "nan start": (-1.0, 0.0, np.nan),
        "infinite start": (-1.0, 0.0, np.inf),
        "start too large": (-1.0, 0.0, SIZE_LIMIT),
        "nan field": (np.nan, 0.0, 1.0),
        "infinite field": (np.inf, 0.0, 1.0),
        "explosion": (0.0, 1e3, 1.0),
        "sound as well": (-2.0, 0.0, 3.0),
    }

    def one(slope, square, start):
        return solve(lambda t, s: slope * s + square * s**2, start[None], jnp.asarray(TIMES), setting)

    solution = jax.jit(jax.vmap(one))(*(jnp.asarray(column) for column in zip(*lanes.values(), strict=True)))
    healthy = dict(zip(lanes, np.asarray(solution.healthy).tolist(), strict=True))
    assert healthy == {lane: lane.startswith("sound") for lane in lanes}


def test_description_and_tolerances(setting):
    assert setting.description
    if isinstance(setting, Adaptive):
        closer = setting.at(1e-9, None)
        assert (closer.rtol, closer.atol) == (1e-9, setting.atol)
    else:
        with pytest.raises(UserError, match="no tolerance"):
            setting.at(1e-9, None)


def test_unknown_names_list_the_known_ones():
    for name in SOLVERS:
        with pytest.raises(UserError) as error:
            named(name + "x")
        assert f"did you mean {name!r}" in str(error.value) or all(known in str(error.value) for known in SOLVERS)
