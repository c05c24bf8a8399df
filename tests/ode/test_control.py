import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.ode.control import (
    Constant,
    Exploring,
    Held,
    Kernel,
    Linear,
    PolicyControl,
    Squashed,
    draw_between,
    draw_path,
    kernel_matrix,
)

TIMES = np.array([0.0, 0.3, 0.4, 1.1, 1.5])
ACTIONS = np.random.default_rng(0).normal(size=(5, 2))
NOTHING = np.zeros(3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def along(control, times):
    return np.asarray(jax.vmap(lambda time: control(jnp.asarray(NOTHING), time))(jnp.asarray(times)))


def test_held_acts_from_its_time_on():
    control = Held(TIMES, ACTIONS)
    np.testing.assert_array_equal(along(control, control.breaks()), ACTIONS)
    np.testing.assert_array_equal(along(control, TIMES + 0.05), ACTIONS)
    np.testing.assert_array_equal(along(control, [-1.0, 9.0]), ACTIONS[[0, -1]])
    before = np.nextafter(np.asarray(control.breaks())[1:], -1)
    np.testing.assert_array_equal(along(control, before), ACTIONS[:-1])


def test_held_at_its_own_breaks_on_any_clock():
    for by in (0.05, -3.7, 1e4 / 3):
        control = Held(TIMES + 0.1, ACTIONS).delayed(by)
        np.testing.assert_array_equal(along(control, control.breaks()), ACTIONS)


def test_linear_is_straight_between():
    control = Linear(TIMES, ACTIONS)
    asked = np.linspace(-0.5, 2.0, 101)
    expected = np.stack([np.interp(asked, TIMES, column) for column in ACTIONS.T], axis=1)
    np.testing.assert_allclose(along(control, asked), expected, atol=1e-10)


def test_kernel_passes_through_up_to_its_jitter():
    times = np.arange(20) * 0.4
    actions = np.random.default_rng(1).normal(size=(20, 2))
    exact = Kernel(times, actions, jitter=1e-12)
    assert np.abs(along(exact, times) - actions).max() < 1e-8
    usual = Kernel(times, actions)
    weights = np.linalg.solve(kernel_matrix(times, times, 0.5) + 1e-5 * np.eye(20), actions)
    asked = np.linspace(0, 7.6, 77)
    np.testing.assert_allclose(along(usual, asked), kernel_matrix(asked, times, 0.5) @ weights, atol=1e-7)
    assert np.abs(along(usual, times) - actions).max() < 5e-3


@pytest.mark.parametrize("kind", [Held, Linear, Kernel])
def test_controls_are_float64_with_the_flag_off(kind):
    with jax.enable_x64(False):
        control = kind(TIMES + 1e4 / 3, ACTIONS)
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(control, eqx.is_array))}
    assert dtypes == {np.dtype(np.float64)}


@pytest.mark.parametrize("kind", [Held, Linear, Kernel])
def test_a_delayed_control_is_the_same_later(kind):
    control, asked = kind(TIMES, ACTIONS), np.linspace(0.01, 1.49, 30)
    np.testing.assert_allclose(along(control.delayed(100.0), asked + 100.0), along(control, asked), atol=1e-9)


def test_draws_have_the_process_statistics():
    times = np.arange(9) * 0.25
    keys = jax.random.split(jax.random.key(0), 1500)
    draws = np.stack([along_numpy(draw_path(times, 1, key=key, scale=0.5), times)[:, 0] for key in keys])
    covariance = draws.T @ draws / len(draws)
    np.testing.assert_allclose(np.diag(covariance), 0.25, rtol=0.12)
    np.testing.assert_allclose(covariance, 0.25 * kernel_matrix(times, times, 0.5), atol=0.03)
    # Half a length scale too short must show.
    assert np.abs(covariance - 0.25 * kernel_matrix(times, times, 0.25)).max() > 0.1
    assert np.abs(draws.mean(axis=0)).max() < 0.06


def along_numpy(kernel, times):
    return kernel_matrix(times - kernel.origin, kernel.knots, kernel.length_scale) @ kernel.weights


def test_draw_between_passes_through_and_spreads():
    times = np.array([0.0, 0.5, 1.0, 3.0])
    actions = np.random.default_rng(2).normal(size=(4, 1))
    keys = jax.random.split(jax.random.key(1), 300)
    samples = [draw_between(times, actions, key=key, scale=0.5) for key in keys]
    asked = np.array([0.0, 0.5, 1.0, 3.0, 0.25, 2.0])
    values = np.stack([along_numpy(sample, asked)[:, 0] for sample in samples])
    np.testing.assert_allclose(values[:, :4] - actions[:, 0], 0, atol=5e-3)
    gram = kernel_matrix(times, times, 0.5)
    cross = kernel_matrix(asked[4:], times, 0.5)
    spread = 0.5 * np.sqrt(1 - np.sum(cross * np.linalg.solve(gram, cross.T).T, axis=1))
    np.testing.assert_allclose(values[:, 4:].std(axis=0), spread, rtol=0.15)
    mean = cross @ np.linalg.solve(gram, actions[:, 0])
    np.testing.assert_allclose(values[:, 4:].mean(axis=0), mean, atol=4 * 0.5 / np.sqrt(300))


def test_same_key_same_draw():
    first, again, other = (along_numpy(draw_path(TIMES, 2, key=jax.random.key(k), scale=1.0), TIMES) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_exploring_is_clipped_to_the_bounds():
    low, high = np.array([-1.0]), np.array([0.5])
    wild = draw_path(np.arange(40) * 0.1, 1, key=jax.random.key(0), scale=3.0)
    control = Exploring(lambda observation: observation[:1] + 0.2, wild, low, high)
    asked = np.linspace(0, 3.9, 200)
    expected = np.clip(0.2 + along(wild, asked), low, high)
    np.testing.assert_allclose(along(control, asked), expected, atol=1e-12)
    assert expected.min() == -1.0
    assert expected.max() == 0.5


def test_squashed_policy_and_constant():
    control = Squashed(Linear(TIMES, 5 * ACTIONS), np.array([1.0, 0.0]), np.array([2.0, 3.0]))
    values = along(control, control.breaks())
    np.testing.assert_allclose(values, [1.0, 0.0] + np.array([2.0, 3.0]) * np.tanh(5 * ACTIONS), atol=1e-9)
    np.testing.assert_allclose(control.breaks(), TIMES, atol=1e-10)
    assert along(Constant(np.array([2.0])), [0.0, 1.0]).tolist() == [[2.0], [2.0]]
    policy = PolicyControl(lambda observation: observation[:1])
    assert policy.delayed(3.0) is policy
    assert policy.breaks().shape == (0,)
