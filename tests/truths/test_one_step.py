"""One-step likelihood, bounds, bootstraps and early stopping against hand computations."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from ctrlax import config
from ctrlax.model import one_step, registry
from ctrlax.model.coordinates import Coordinates, Scaling
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import AbstractTransition, Gaussian
from ctrlax.model.families.pets import bounded
from ctrlax.model.fit import Learned
from ctrlax.model.windows import pack

NOISE = 0.05


def linear_data(trajectories=6, points=30, seed=0):
    """``x' = 0.9 x + 0.2 a + w`` with the action drawn anew at every step."""
    random = np.random.default_rng(seed)
    logs = []
    for _ in range(trajectories):
        states, actions = [random.normal(size=1)], random.uniform(-1, 1, (points, 1))
        for action in actions[:-1]:
            states.append(0.9 * states[-1] + 0.2 * action + NOISE * random.normal(size=1))
        logs.append(Log(0.1 * np.arange(points), np.stack(states), actions))
    return Dataset(tuple(logs), ("x",), ("a",), hold="hold")


def begun(family="pets", members=3, *, key=0):
    scaling = Scaling(jnp.zeros(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1), jnp.full(1, 2.0))
    model = registry.build(config.Model(family, (), members), Coordinates(1, 1), scaling, key=jax.random.key(key))
    assert isinstance(model, AbstractTransition)
    return one_step.begin(Learned(model, jnp.zeros(1)), key=jax.random.key(key))


def recording(**shape):
    data = linear_data(**shape)
    return pack(data, trajectories=len(data.logs) + 1, points=len(data.logs[0].times) + 2)  # with padding


def without_log_variance(of, change):
    return -0.5 * jnp.sum((change - of.mean) ** 2 * jnp.exp(-of.log_variance) + jnp.log(2 * jnp.pi), axis=-1)


def test_the_likelihood_is_that_of_independent_gaussians():
    random = np.random.default_rng(1)
    mean, spread, change = random.normal(size=(3, 7, 4))
    spread = np.exp(spread)
    said = Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(2 * np.log(spread), jnp.float32))
    expected = norm.logpdf(change, mean, spread).sum(axis=-1)
    seen = jnp.asarray(change, jnp.float32)
    np.testing.assert_allclose(one_step.log_density(said, seen), expected, rtol=1e-4, atol=1e-4)
    assert not np.allclose(without_log_variance(said, seen), expected, rtol=0.05)


def test_log_variances_stay_within_their_limits_and_follow_inside():
    wild = jnp.array([-1e4, -50.0, -4.0, 0.0, 50.0, 1e4])
    held = np.asarray(bounded(wild, jnp.asarray(-10.0), jnp.asarray(0.5)))
    assert (held >= -10).all()
    assert (held <= 0.5 + 1e-3).all()
    assert held[2] == pytest.approx(-4, abs=0.05)
    assert (np.diff(held) >= 0).all()
    slopes = jax.vmap(jax.grad(lambda x: bounded(x, jnp.asarray(-10.0), jnp.asarray(0.5))))(wild[2:4])
    assert (slopes > 0.1).all()


def test_a_bootstrap_per_learner_and_nothing_held_out_in_any():
    settings, state = config.OneStep(held_out=0.2), begun(members=4)
    seen = one_step.prepared(settings, state, recording())
    total, held = 6 * 29, round(0.2 * 6 * 29)
    assert int(seen.total) == total
    assert int(seen.count) == total - held
    assert int(seen.is_held.sum()) == held
    rows = [set(each[: int(seen.count)].tolist()) for each in np.asarray(seen.resampled)]
    waiting = set(np.asarray(seen.held)[np.asarray(seen.is_held)].tolist())
    _, present = one_step.steps_of(recording())
    for each in rows:
        assert not each & waiting
        assert np.asarray(present)[sorted(each)].all()
        assert 0.55 < len(each) / (total - held) < 0.72  # 1 - 1/e of them, 0.63
    assert len({frozenset(each) for each in rows}) == 4
    again = one_step.prepared(settings, state, recording())
    assert eqx.tree_equal(seen, again)  # every chunk of a phase sees the same
    alone = one_step.prepared(settings, begun("deep-pilco"), recording())
    assert len(set(alone.resampled[0, : int(alone.count)].tolist())) == total - held  # each once


def test_learners_keep_their_best_weights_and_stop_when_they_waited_long_enough():
    settings, state = config.OneStep(held_out=0.3, patience=2), begun(members=2)
    seen = one_step.prepared(settings, state, recording())
    look = jax.jit(lambda state: one_step.looked(settings, state, seen))
    first = look(dataclasses.replace(state, iteration=jnp.asarray(50)))
    assert np.isfinite(first.lowest).all()
    # The first member's mean becomes wrong, the second's stays.
    worse = eqx.tree_at(lambda s: s.trained.weights.layers[-1][1], first, replace_fn=lambda bias: bias.at[0].add(5.0))
    second = look(dataclasses.replace(worse, iteration=jnp.asarray(100)))
    assert second.kept.tolist() == [50, 50]
    assert second.waited.tolist() == [1, 1]
    assert eqx.tree_equal(second.learned.dynamics, first.learned.dynamics)
    third = look(dataclasses.replace(second, iteration=jnp.asarray(150)))
    assert one_step.stopped_learners(settings, third).tolist() == [True, True]
    # Better, but too late; and in time.
    better = jax.tree.map(lambda old: old, third)
    better = dataclasses.replace(better, lowest=jnp.full(2, jnp.inf), waited=jnp.array([2, 1]))
    fourth = look(dataclasses.replace(better, iteration=jnp.asarray(200)))
    assert fourth.kept.tolist() == [50, 200]


@pytest.mark.parametrize("family", ["pets", "deep-pilco"])
def test_a_linear_system_and_its_noise_are_found(family):
    settings = config.OneStep(patience=0)
    state = begun(family, 2, key=1)
    data = pack(linear_data(20, 40), trajectories=20, points=40)

    def chunk(state, _):
        seen = one_step.prepared(settings, state, data)
        state, metrics = jax.lax.scan(
            lambda state, _: one_step.update(settings, state, seen, jnp.ones(())), state, None, length=50
        )
        return one_step.looked(settings, state, seen), jnp.all(metrics.applied)

    state, applied = jax.jit(lambda state: jax.lax.scan(chunk, state, None, length=16))(state)
    assert applied.all()
    model = state.learned.dynamics
    assert isinstance(model, AbstractTransition)
    places = jnp.linspace(-0.8, 0.8, 9)[:, None]

    def asked(member):
        return jax.vmap(lambda x: model.change(member, x, -x, 0.1))(places)

    said = jax.jit(jax.vmap(asked))(model.draw(key=jax.random.key(2)))
    wrong = np.sqrt(np.mean((np.asarray(said.mean) + 0.3 * places) ** 2))
    assert wrong < 0.5 * NOISE
    assert not wrong > np.sqrt(np.mean(np.asarray(0.3 * places) ** 2))  # what no change at all would be off by
    assert float(np.exp(0.5 * np.asarray(said.log_variance)).mean()) == pytest.approx(NOISE, rel=0.25)
    assert float(jnp.exp(state.learned.log_noise)[0]) == pytest.approx(NOISE, rel=0.25)
