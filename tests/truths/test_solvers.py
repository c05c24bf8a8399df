"""Every solver setting where the solution is known: order, tolerance, gradients; and its work, counted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.ode.batch import solve_batch
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import SOLVERS, Adaptive, Fixed

ADAPTIVE = [name for name, setting in SOLVERS.items() if isinstance(setting, Adaptive)]
FIXED = [name for name, setting in SOLVERS.items() if isinstance(setting, Fixed)]
START = np.array([0.2, -0.7])
BREAKS = np.array([0.35, 0.8])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def known(time, library=jnp):
    return library.stack([library.sin(3 * time) + 0.2, library.cos(2 * time) - 1.7], axis=-1)


def field(time, state, strength=1.0):
    """Pulled towards `known` by a nonlinear spring, which is what a start on it never leaves."""
    velocity = jnp.stack([3 * jnp.cos(3 * time), -2 * jnp.sin(2 * time)])
    away = state - known(time)
    return velocity - strength * (away + away**3) + 0.5 * away[::-1] * state


def jumping(time, state):
    return field(time, state) + jnp.where(time < BREAKS[0], 0.0, jnp.where(time < BREAKS[1], 3.0, -2.0))


def error_at(setting, times):
    solution = jax.jit(lambda times: solve(field, jnp.asarray(START), times, setting))(jnp.asarray(times))
    assert bool(solution.healthy)
    return np.abs(np.asarray(solution.states) - known(np.asarray(times), np))


@pytest.mark.parametrize("name", FIXED)
def test_fixed_steps_show_their_order(name):
    setting = SOLVERS[name]
    assert isinstance(setting, Fixed)
    intervals = 8 if setting.order > 1 or setting.inner_steps > 1 else 64
    errors = [error_at(setting, np.linspace(0, 2, count + 1))[-1].max() for count in (intervals, 2 * intervals)]
    order = np.log2(errors[0] / errors[1])
    print(f"{name}: order {order:.2f} of {setting.order}")
    assert order == pytest.approx(setting.order, abs=0.3)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("tolerance", [1e-4, 1e-7])
def test_adaptive_steps_meet_their_tolerance(name, tolerance):
    # Times that no step would hit by itself: what is interpolated must be as good as what was stepped to.
    times = np.concatenate([[0.0], np.sort(np.random.default_rng(0).uniform(0, 5, 200)), [5.0]])
    errors = error_at(SOLVERS[name].at(tolerance, tolerance), times)
    at_end = errors[-1].max() / tolerance
    print(f"{name} at {tolerance:g}: {errors.max() / tolerance:.2f} tolerances, at the end {at_end:.2f}")
    # The tolerance is a step's; what steps add up to, and what is read off between them, is some times it.
    assert at_end < 15
    assert errors.max() < 50 * tolerance


def test_coarse_interpolation_would_not():
    times = np.concatenate([[0.0], np.sort(np.random.default_rng(0).uniform(0, 5, 200)), [5.0]])
    setting = SOLVERS["kvaerno5"].at(1e-7, 1e-7)

    def error(setting):
        return error_at(setting, times).max()

    assert error(dataclasses.replace(setting, lands_on_times=False)) > 20 * error(setting)


@pytest.mark.parametrize("name", SOLVERS)
def test_gradients_are_those_of_finite_differences(name):
    setting = SOLVERS[name]
    # Steps must not change between the two sides of a difference: their choice is noise of the size of the tolerance.
    setting = (
        setting if isinstance(setting, Fixed) else setting.at(*((1e-6, 1e-6) if setting.order < 3 else (1e-10, 1e-10)))
    )
    times = jnp.array([0.0, 0.2, 0.5, 0.6])
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)))

    @jax.jit
    def loss(inputs):
        def own(time, state):
            return field(time, state, inputs[2])

        return jnp.sum(weights * solve(own, inputs[:2] + 0.3, times, setting, breaks=jnp.array([0.33])).states)

    at = jnp.array([*START, 1.3])
    slopes = np.asarray(jax.jit(jax.grad(loss))(at))
    small = 1e-5 if isinstance(setting, Fixed) else 1e-3
    for place, step in enumerate(small * np.eye(3)):
        near = (loss(at + step) - loss(at - step)) / (2 * small)
        far = (loss(at + 2 * step) - loss(at - 2 * step)) / (4 * small)
        assert slopes[place] == pytest.approx(float(4 * near - far) / 3, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("broken", [False, True])
def test_work_is_the_number_of_evaluations(name, broken):
    setting = SOLVERS[name]
    calls = []

    def counted(time, state):
        jax.debug.callback(lambda: calls.append(1))
        return jumping(time, state)

    breaks = jnp.asarray(BREAKS) if broken else None
    times = jnp.linspace(0.0, 1.0, 3)
    solution = jax.jit(lambda: solve(counted, jnp.asarray(START), times, setting, breaks=breaks))()
    jax.effects_barrier()
    if isinstance(setting, Adaptive) and setting.tableau.implicit:
        assert int(solution.work) < len(calls)  # the iterations inside a stage are not counted, and it says so
    else:
        assert int(solution.work) == len(calls)


def test_many_are_solved_as_each_alone():
    starts = jnp.asarray(START) + 0.3 * np.random.default_rng(2).normal(size=(4, 2))
    times = jnp.asarray(np.sort(np.random.default_rng(3).uniform(0, 3, (4, 30)), axis=1))
    strengths = jnp.array([0.5, 1.0, 2.0, 30.0])  # of different speeds: they do not step together

    def own(strength, time, state):
        return field(time, state, strength)

    # A setting that lands on times is solved by `solve` itself, here as there.
    for name in (name for name in ADAPTIVE if not dataclasses.asdict(SOLVERS[name])["lands_on_times"]):
        setting = SOLVERS[name]
        many = jax.jit(lambda setting=setting: solve_batch(own, strengths, starts, times, setting))()

        def alone(strength, start, times, setting=setting):
            return solve(lambda t, s: own(strength, t, s), start, times, setting)

        each = jax.jit(jax.vmap(alone))(strengths, starts, times)
        np.testing.assert_allclose(many.states, each.states, atol=1e-9, err_msg=name)
        np.testing.assert_array_equal(many.healthy, each.healthy)
        assert np.abs(np.asarray(many.work - each.work)).max() <= 1, name  # one evaluation at the start is not repeated


def test_one_lane_among_many_steps_as_alone():
    starts, times = jnp.asarray(np.stack([START, 5 * START])), jnp.linspace(0.0, 2.0, 5)
    setting = SOLVERS["dopri5"]

    def run(starts):
        count = len(starts)
        breaks = jnp.tile(jnp.asarray(BREAKS), (count, 1))
        return solve_batch(
            lambda own, t, s: jumping(t, s),
            jnp.zeros(count),
            starts,
            jnp.tile(times, (count, 1)),
            setting,
            breaks=breaks,
        )

    both, first = jax.jit(run)(starts), jax.jit(run)(starts[:1])
    np.testing.assert_allclose(both.states[0], first.states[0], atol=1e-13)
    assert int(both.work[0]) == int(first.work[0])
