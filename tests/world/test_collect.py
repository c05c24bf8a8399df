import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.errors import UserError
from ctrlax.ode.control import Constant, Held, Kernel, Linear
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import GRIDS, draw_times
from ctrlax.world.systems import cartpole, pendulum

KEY = jax.random.key(0)
TIMES = np.linspace(0.0, 2.0, 21)
PENDULUM = pendulum.make()


class Network(eqx.Module):
    weights: jax.Array
    bound: float = eqx.field(static=True)

    def __call__(self, observation):
        return self.bound * jnp.tanh(self.weights @ observation)


def network(env, seed):
    weights = jax.random.normal(jax.random.key(seed), (env.action_size, env.observation_size))
    return Network(weights, float(env.action_high[0]))


def still(observation):
    return jnp.zeros(1)


def system(field, name="test"):
    return Environment(
        name=name,
        state_names=("x",),
        action_names=("a",),
        action_low=(-1.0,),
        action_high=(1.0,),
        start_low=(0.5,),
        start_high=(1.0,),
        field=field,
        reward_rate=lambda observation, action: -(observation[0] ** 2),
    )


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", ["policy", "random", "delayed", "held", "linear"])
def test_hours_on_the_clock_change_nothing(grid, kind):
    env, shift = PENDULUM, 1e4
    times = draw_times(grid, 0.1, 21, key=KEY, trajectories=3)
    starts = env.draw_starts(3, key=KEY)
    actions = np.random.default_rng(0).uniform(-2, 2, size=(3, 21, 1))

    def control(times, by):
        if kind == "policy":
            return network(env, 0)
        if kind == "random":
            return random_controls(env, times, key=KEY)
        if kind == "delayed":
            return [each.delayed(by) for each in random_controls(env, times - by, key=KEY)]
        return [{"held": Held, "linear": Linear}[kind](*log) for log in zip(times, actions, strict=True)]

    near, far = (
        simulate(env, control(times + by, by), times + by, key=KEY, starts=starts, noise=0.1) for by in (0.0, shift)
    )
    np.testing.assert_array_equal(far.times, times + shift)
    assert near.healthy.all()
    for part in ("states", "observations", "actions", "rewards"):
        np.testing.assert_allclose(getattr(far, part), getattr(near, part), rtol=0, atol=1e-9, err_msg=part)


def test_shapes_types_and_meaning():
    env = cartpole.make()
    path = simulate(env, network(env, 0), TIMES, key=KEY, starts=env.draw_starts(4, key=KEY))
    assert path.states.shape == (4, 21, 4)
    assert path.observations.shape == (4, 21, 5)
    assert path.actions.shape == (4, 21, 1)
    assert path.rewards.shape == path.times.shape == (4, 21)
    assert {part.dtype for part in (path.times, path.states, path.rewards)} == {np.dtype(np.float64)}
    assert path.healthy.all()
    assert (path.work > 0).all()
    np.testing.assert_array_equal(path.observations[..., 2], np.cos(path.states[..., 2]))
    assert jnp.zeros(1).dtype == jnp.float32


def test_noise_is_on_observations_only():
    starts = np.tile([[1.0, 0.0]], (200, 1))
    clean, noisy = (simulate(PENDULUM, still, TIMES, key=KEY, starts=starts, noise=noise) for noise in (0.0, 0.025))
    np.testing.assert_array_equal(clean.states, noisy.states)
    np.testing.assert_array_equal(clean.rewards, noisy.rewards)
    assert (noisy.observations - clean.observations).std() == pytest.approx(0.025, rel=0.03)


def test_starts_and_noise_come_from_the_key():
    first, again, other = (simulate(PENDULUM, still, TIMES, key=jax.random.key(seed), noise=0.1) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.observations, again.observations)
    assert np.abs(first.observations - other.observations).max() > 0.01


def test_new_parameters_do_not_compile_again():
    env, traced = PENDULUM, []

    class Counted(Network):
        def __call__(self, observation):
            traced.append(1)
            return super().__call__(observation)

    def policy(seed):
        return Counted(network(env, seed).weights, 2.0)

    paths = [simulate(env, policy(0), TIMES, key=KEY)]
    once = len(traced)
    assert once > 0
    paths += [simulate(env, policy(seed), TIMES + 5, key=jax.random.key(seed)) for seed in (1, 2)]
    assert len(traced) == once
    assert np.abs(paths[0].actions - paths[1].actions).max() > 0.01


def test_one_control_per_trajectory():
    policies = [network(PENDULUM, seed) for seed in range(3)]
    starts = PENDULUM.draw_starts(3, key=KEY)
    together = simulate(PENDULUM, policies, TIMES, key=KEY, starts=starts)
    for i, policy in enumerate(policies):
        alone = simulate(PENDULUM, policy, TIMES, key=KEY, starts=starts[i : i + 1])
        np.testing.assert_allclose(alone.states[0], together.states[i], atol=1e-12)
        assert alone.work[0] == together.work[i]
    with pytest.raises(UserError, match="2 controls, 3 starts"):
        simulate(PENDULUM, policies[:2], TIMES, key=KEY, starts=starts)
    with pytest.raises(UserError, match="of one kind"):
        simulate(PENDULUM, [Constant(np.zeros(1)), policies[0]], TIMES, key=KEY)


def test_random_controls_stay_in_bounds_and_fill_them():
    times = np.tile(TIMES, (20, 1))
    path = simulate(PENDULUM, random_controls(PENDULUM, times, key=KEY), times, key=KEY)
    assert np.abs(path.actions).max() <= 2.0
    # E tanh(N(0, 0.5^2))^2 is 0.17; 20 draws of about four length scales each.
    assert (path.actions / 2).std() == pytest.approx(np.sqrt(0.17), rel=0.2)


def test_a_replayed_log_gives_the_same_path():
    times, start = np.tile(TIMES, (1, 1)), PENDULUM.draw_starts(1, key=KEY)
    control = random_controls(PENDULUM, times, key=KEY)
    path = simulate(PENDULUM, control, times, key=KEY, starts=start)
    again = simulate(PENDULUM, Kernel(TIMES, path.actions[0], jitter=1e-8), TIMES, key=KEY, starts=start)
    assert np.abs(path.states - again.states).max() < 0.05


BAD_TIMES = {
    "unsorted": ([0.0, 0.2, 0.1], "increase"),
    "repeated": ([0.0, 0.1, 0.1], "drop repeated"),
    "nan": ([0.0, np.nan, 0.1], "not a finite number"),
    "infinite": ([0.0, 0.1, np.inf], "not a finite number"),
    "one": ([0.0], "at least 2 points"),
}


@pytest.mark.parametrize("which", BAD_TIMES)
def test_bad_times_are_told(which):
    times, said = BAD_TIMES[which]
    with pytest.raises(UserError, match=said):
        simulate(PENDULUM, still, np.array(times), key=KEY)


def test_bad_starts_and_noise_are_told():
    with pytest.raises(UserError, match="must be finite, but omega of trajectory 1"):
        simulate(PENDULUM, still, TIMES, key=KEY, starts=np.array([[0.0, 0.0], [0.0, np.nan]]))
    with pytest.raises(UserError, match="2 coordinates"):
        simulate(PENDULUM, still, TIMES, key=KEY, starts=np.zeros((1, 3)))
    for noise in (-1.0, np.nan):
        with pytest.raises(UserError, match="noise"):
            simulate(PENDULUM, still, TIMES, key=KEY, noise=noise)


BAD_CONTROLS = {
    "two actions": (
        lambda observation: jnp.zeros(2),
        r"shape \(2,\), expected \(1,\): one number per action \(torque\)",
    ),
    "numpy inside": (lambda observation: np.asarray(observation[:1]), "cannot be compiled[.] NumPy cannot compute"),
    "a branch": (lambda observation: observation[:1] if observation[0] > 0 else jnp.zeros(1), "jnp.where"),
    "a log of two": (Held(TIMES, np.zeros((21, 2))), r"shape \(2,\)"),
    "none of them": ([], "the list is empty"),
}


@pytest.mark.parametrize("which", BAD_CONTROLS)
def test_bad_controls_are_told(which):
    control, said = BAD_CONTROLS[which]
    with pytest.raises(UserError, match=said):
        simulate(PENDULUM, control, TIMES, key=KEY)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_tolerance_that_is_none_is_told(wrong):
    with pytest.raises(UserError, match="tolerance must be a positive number"):
        simulate(PENDULUM, still, TIMES, key=KEY, rtol=wrong)


TROUBLES = {
    "blow-up": (system(lambda state, action: state**2 + 1), still, "dopri8"),
    "blow-up past every number": (system(lambda state, action: jnp.exp(300 * state)), still, "dopri8"),
    "blow-up in fixed steps": (system(lambda state, action: state**2 + 1), still, "euler-10"),
    "unstable in fixed steps": (system(lambda state, action: -500 * state), still, "euler-10"),
    "nan policy": (PENDULUM, lambda observation: jnp.full(1, jnp.nan), "dopri8"),
    "nan policy, fixed": (PENDULUM, lambda observation: jnp.full(1, jnp.nan), "rk4"),
    "policy that turns nan": (PENDULUM, lambda observation: jnp.sqrt(observation[:1] - 0.2), "dopri5"),
    "infinite policy": (PENDULUM, lambda observation: jnp.full(1, jnp.inf), "dopri5"),
}


@pytest.mark.parametrize("which", TROUBLES)
def test_trouble_is_a_health_flag_within_a_second(which):
    env, policy, solver = TROUBLES[which]
    starts = np.full((3, env.state_size), 1.0)
    times = np.linspace(0.0, 30.0, 301)
    simulate(env, policy, times, key=KEY, starts=starts, solver=solver)
    before = time.perf_counter()
    path = simulate(env, policy, times, key=KEY, starts=starts, solver=solver)
    assert time.perf_counter() - before < 1.0
    assert not path.healthy.any()
    assert path.work.max() < 2e5  # given up, not worn out


def test_trouble_of_one_leaves_the_others():
    env = system(lambda state, action: jnp.where(state > 0, state**2, -state), "half")
    path = simulate(env, still, TIMES, key=KEY, starts=np.array([[1.0], [-1.0]]))
    np.testing.assert_array_equal(path.healthy, [False, True])
    np.testing.assert_allclose(path.states[1, :, 0], -np.exp(-TIMES), atol=1e-7)


def test_what_is_recorded_at_a_knot_is_the_action_from_there_on():
    knots, actions = np.arange(20) * 0.1, np.random.default_rng(3).uniform(-2, 2, size=(20, 1))
    for span in (0.4, 1.9, 7.0, 300.0):  # the log's clock and the trajectory's tick apart
        times = np.append(knots[knots < span], span)
        path = simulate(PENDULUM, Held(knots, actions), times, key=KEY)
        np.testing.assert_array_equal(path.actions[0, :-1], actions[: len(times) - 1])
