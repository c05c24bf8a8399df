"""Every built-in environment, found in its folder, keeps the same promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax.errors import UserError
from ctrlax.world.check import check
from ctrlax.world.load import names

VARIANTS = ("paper", "reference")
SAMPLES = 200
SPREAD = 6.0  # how far from zero states are tried, in their units


def batched(function):
    return jax.jit(jax.vmap(function))


@pytest.fixture(params=[(name, variant) for name in names() for variant in VARIANTS], ids="-".join)
def environment(request):
    name, variant = request.param
    made = ctrlax.make(name, variant=variant)
    assert made.variant == variant
    assert made.source == name
    return made


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def states(environment):
    low, high = -np.full(environment.state_size, SPREAD), np.full(environment.state_size, SPREAD)
    for i, name in enumerate(environment.state_names):
        if name in environment.angles:
            low[i], high[i] = -0.999 * np.pi, 0.999 * np.pi
    return jnp.asarray(np.random.default_rng(0).uniform(low, high, (SAMPLES, environment.state_size)))


@pytest.fixture
def actions(environment):
    random = np.random.default_rng(1).uniform(-1, 1, (SAMPLES, environment.action_size))
    return jnp.asarray(environment.action_middle + environment.action_reach * random)


def test_passes_what_a_users_own_system_must_pass(environment):
    check(environment, environment.source)


def test_names_units_and_bounds_go_together(environment):
    assert (
        environment.state_size
        == len(environment.start_low)
        == len(environment.start_high)
        == len(environment.state_units)
    )
    assert (
        environment.action_size
        == len(environment.action_low)
        == len(environment.action_high)
        == len(environment.action_units)
    )
    every = environment.state_names + environment.action_names
    assert len(set(every)) == len(every)
    assert len(set(environment.observation_names)) == environment.observation_size
    assert set(environment.angles) | set(environment.velocities) | set(environment.rates_of) <= set(
        environment.state_names
    )
    assert len(environment.rates_of) == len(environment.velocities)
    assert len(environment.actuated) == environment.action_size
    assert set(environment.actuated) <= set(environment.velocities)
    assert np.all(environment.action_reach > 0)
    assert np.all(np.asarray(environment.start_low) <= np.asarray(environment.start_high))


def test_the_field_is_finite_float64_with_a_finite_gradient(environment, states, actions):
    rates = batched(environment.field)(states, actions)
    assert rates.shape == states.shape
    assert rates.dtype == jnp.float64
    assert jnp.all(jnp.isfinite(rates))
    by_state, by_action = batched(jax.jacfwd(environment.field, (0, 1)))(states, actions)
    assert jnp.all(jnp.isfinite(by_state))
    assert jnp.all(jnp.isfinite(by_action))
    assert jnp.any(by_action != 0)


def test_the_field_keeps_float32_where_it_is_learned_on(environment):
    with jax.enable_x64(False):
        state, action = (
            jnp.asarray(environment.start_low, jnp.float32),
            jnp.asarray(environment.action_high, jnp.float32),
        )
        assert environment.field(state, action).dtype == jnp.float32
        assert environment.reward_rate(environment.observe(state), action).dtype == jnp.float32


def test_velocities_are_the_rates_of_their_positions(environment, states, actions):
    rates = batched(environment.field)(states, actions)
    for velocity, position in zip(environment.velocities, environment.rates_of, strict=True):
        place, rate = environment.state_names.index(position), environment.state_names.index(velocity)
        np.testing.assert_allclose(rates[:, place], states[:, rate], rtol=1e-12)


def test_each_action_pushes_its_velocity_the_way_it_points(environment, states, actions):
    by_action = batched(jax.jacfwd(environment.field, 1))(states, actions)
    for i, velocity in enumerate(environment.actuated):
        assert jnp.all(by_action[:, environment.state_names.index(velocity), i] > 0)


def test_restore_inverts_observe(environment, states):
    observations = batched(environment.observe)(states)
    assert observations.shape == (SAMPLES, environment.observation_size)
    assert observations.dtype == jnp.float64
    np.testing.assert_allclose(batched(environment.restore)(observations), states, atol=1e-12)


def test_the_reward_rate_is_at_most_one_and_at_least_its_action_cost(environment, states, actions):
    observations = batched(environment.observe)(states)
    rewards = batched(environment.reward_rate)(observations, actions)
    assert rewards.shape == (SAMPLES,)
    assert rewards.dtype == jnp.float64
    assert jnp.all(rewards <= 1)
    still = batched(environment.reward_rate)(observations, jnp.zeros_like(actions))
    assert jnp.all(still >= 0)
    assert jnp.all(rewards <= still)
    by_observation = batched(jax.grad(environment.reward_rate))(observations, actions)
    assert jnp.all(jnp.isfinite(by_observation))
    assert jnp.any(by_observation != 0)


def test_starts_are_in_the_box_and_follow_from_the_key(environment):
    starts = environment.draw_starts(SAMPLES, key=jax.random.key(0))
    assert starts.shape == (SAMPLES, environment.state_size)
    assert starts.dtype == np.float64
    assert np.all(starts >= environment.start_low)
    assert np.all(starts <= environment.start_high)
    np.testing.assert_array_equal(starts, environment.draw_starts(SAMPLES, key=jax.random.key(0)))
    assert np.any(starts != environment.draw_starts(SAMPLES, key=jax.random.key(1)))


def test_begin_observations_are_observed_starts(environment):
    draw = jax.jit(lambda count, key: environment.begin_observations(count, key=key), static_argnums=0)
    seen = draw(SAMPLES, jax.random.key(0))
    assert seen.dtype == np.float32
    back = np.asarray(jax.vmap(environment.restore)(seen), np.float64)
    low, high = np.asarray(environment.start_low), np.asarray(environment.start_high)
    turns = np.array([2 * np.pi if name in environment.angles else 0.0 for name in environment.state_names])
    inside = [np.all((back + k * turns > low - 1e-5) & (back + k * turns < high + 1e-5), axis=1) for k in (-1, 0, 1)]
    assert np.all(np.any(inside, axis=0))
    spread = np.std(np.asarray(draw(SAMPLES, jax.random.key(1))), axis=0)
    assert np.any(spread > 0)
    assert np.any(seen != draw(SAMPLES, jax.random.key(1)))


def test_energy_where_it_exists_is_kept_without_action(environment, states):
    if environment.energy is None:
        return
    assert environment.energy_scale is not None
    assert environment.energy_scale > 0
    still = jnp.asarray(np.zeros(environment.action_size))

    def power(state):
        return jax.jvp(environment.energy, (state,), (environment.field(state, still),))[1]

    np.testing.assert_allclose(batched(power)(states), 0, atol=1e-10 * environment.energy_scale)


def test_budgets_are_sensible(environment):
    assert environment.initial_trajectories >= 1
    assert environment.exploring_trajectories >= 0
    assert environment.time_limit > 0
    assert 0 < environment.rise_time < 30
    assert callable(environment.draw)


@pytest.mark.parametrize("name", names())
def test_unknown_variants_and_settings_are_told(name):
    with pytest.raises(UserError, match="reference"):
        ctrlax.make(name, variant="papre")
    with pytest.raises(UserError, match="colour"):
        ctrlax.make(name, colour="red")
