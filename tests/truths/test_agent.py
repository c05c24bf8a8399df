"""Acting against closed forms: discounted Riccati, a constant reward, finite differences, the greedy action.

Each with a deliberately wrong variant that fails the same check.
"""

from itertools import combinations

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_are

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.greedy import Greedy, greedy_policy
from ctrlax.agent.imagine import imagine
from ctrlax.agent.policy import init_policy
from ctrlax.agent.roll import assigned
from ctrlax.errors import UserError
from ctrlax.model.dynamics import AbstractField
from ctrlax.model.families.true import TrueDynamics
from ctrlax.model.network import apply_layers
from ctrlax.ode.solvers import named


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


# The linear system: ds/dt = A s + B a, r = -(s'Q s + c_a |a|^2).
A, B, Q, ACTION_COST = np.array([[0.3]]), np.array([[1.0]]), np.array([[1.0]]), 1.0
DISCOUNT_TIME, HORIZON, REACH = 2.0, 1.0, 10.0


def linear_field(state, action):
    return A.astype(np.float32) @ state + B.astype(np.float32) @ action


def linear_reward_rate(observation, action):
    return -(observation @ Q.astype(np.float32) @ observation) - ACTION_COST * jnp.sum(action**2)


def identity(state):
    return state


LINEAR = TrueDynamics(linear_field, identity, identity, jnp.ones(1))


def riccati():
    """Gain and value of ``max int exp(-t/eta) r dt``: with ``exp(-t/2 eta) s`` as state, A is A - 1/(2 eta)."""
    shifted = A - np.eye(1) / (2 * DISCOUNT_TIME)
    value = solve_continuous_are(shifted, B, Q, ACTION_COST * np.eye(1))
    return B.T @ value / ACTION_COST, value


def learned(updates=1500):
    """The library's own update on the true linear system; gain and value by regression over the states started from."""
    settings = config.Agent(
        horizon=HORIZON, horizons=8, starts=64, solver="rk4", discount_time=DISCOUNT_TIME, target_every=25,
        critic_steps=4, rate=3e-3,
    )  # fmt: skip
    policy_key, critic_key, start_key, key = jax.random.split(jax.random.key(0), 4)
    policy = init_policy(1, jnp.zeros(1), jnp.full(1, REACH), gain=0.5, key=policy_key, hidden=(16, 16))
    critic = init_critic(1, gain=1.0, key=critic_key, hidden=(16, 16))
    observations = jax.random.uniform(start_key, (500, 1), minval=-1.0, maxval=1.0)
    starts = improve.Starts(observations, jnp.ones(500, bool))
    state = improve.begin(policy, critic, starts, keep=0, key=key)

    def step(state, share):
        return improve.agent_update(
            settings, linear_reward_rate, LINEAR, state, starts, jnp.ones(()), jnp.minimum(1.0, 2 * (1.02 - share))
        )

    state, metrics = jax.jit(lambda state: jax.lax.scan(step, state, jnp.linspace(0, 1, updates)))(state)
    assert metrics.applied.all()
    states = np.asarray(observations, np.float64)
    actions = np.asarray(jax.vmap(state.policy)(observations), np.float64)
    values = np.asarray(jax.vmap(state.critic)(observations), np.float64)
    gain = -np.linalg.lstsq(states, actions)[0].T
    _, exact = riccati()
    expected = -np.einsum("ni,ij,nj->n", states, exact, states)
    return gain, np.sqrt(np.mean((values - expected) ** 2) / np.mean(expected**2))


def test_actor_and_critic_find_the_discounted_riccati_solution():
    gain, value_error = learned()
    exact, _ = riccati()
    np.testing.assert_allclose(gain, exact, rtol=0.02)
    assert value_error < 0.02


def undiscounted_bootstrap(imagined, critic, times, discount_time, bootstrap=1.0):
    return imagined.returns + bootstrap * jax.vmap(jax.vmap(jax.vmap(critic)))(imagined.states)


def one_step_early(imagined, critic, times, discount_time, bootstrap=1.0):
    returns = jnp.concatenate([jnp.zeros_like(imagined.returns[..., :1]), imagined.returns[..., :-1]], axis=-1)
    ahead = jax.vmap(jax.vmap(jax.vmap(critic)))(imagined.states)
    return returns + bootstrap * jnp.exp(-times / discount_time) * ahead


@pytest.mark.parametrize("wrong", [undiscounted_bootstrap, one_step_early])
def test_a_wrong_target_finds_another(monkeypatch, wrong):
    monkeypatch.setattr(improve, "values", wrong)
    _, value_error = learned()
    assert value_error > 0.05


# A constant reward rate gives r eta (1 - exp(-H / eta)).


def constant_return(solver, times):
    policy = init_policy(1, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(0), hidden=(4, 4))
    reward_rate = lambda observation, action: jnp.asarray(0.7)  # noqa: E731
    imagined = jax.jit(
        lambda times: imagine(
            LINEAR, jnp.zeros(1), policy, reward_rate, jnp.ones((1, 1, 1)), times, named(solver),
            discount_time=DISCOUNT_TIME,
        )
    )(times)  # fmt: skip
    assert imagined.healthy.all()
    return np.asarray(imagined.returns[0, 0])


@pytest.mark.parametrize(("solver", "law"), [("rk4", "uniform"), ("rk4", "steps"), ("dopri8", "uniform")])
def test_a_constant_reward_gives_its_discounted_integral_at_every_horizon(float64, solver, law):
    settings = config.Agent(horizon=2.0, horizons=6, horizon_law=law, horizon_step=0.3)
    times = np.asarray(improve.draw_horizons(settings, key=jax.random.key(1)).times)
    returns = constant_return(solver, jnp.asarray(times))
    np.testing.assert_allclose(returns, 0.7 * DISCOUNT_TIME * (1 - np.exp(-times / DISCOUNT_TIME)), rtol=1e-5)
    at_the_horizon = 0.7 * DISCOUNT_TIME * (1 - np.exp(-2.0 / DISCOUNT_TIME))
    np.testing.assert_allclose(returns[-1], at_the_horizon, rtol=1e-5)
    assert not np.isclose(returns[-2], at_the_horizon, rtol=1e-2)  # one step early is another number


# Gradients of the actor's loss.


class Pendula(AbstractField):
    """Pendula of different strength, one per member."""

    strength: jax.Array

    def draw(self, *, key):
        return self.strength

    def rate(self, member, observation, action):
        return jnp.stack([observation[1], -member * jnp.sin(observation[0]) + action[0]])

    def divergence(self):
        return jnp.zeros(())

    def member_count(self):
        return len(self.strength)

    def length_scales(self):
        return jnp.ones(2)


def hill(observation, action):
    return jnp.exp(-jnp.sum(observation**2)) - 0.1 * jnp.sum(action**2)


class Smooth(eqx.Module):
    """The policy with tanh for ReLU: through kinks a solution is exact to the tolerance, its derivative is not."""

    layers: tuple

    def __call__(self, observation):
        return jnp.tanh(apply_layers(self.layers, jnp.tanh, observation))


def actor_loss_of(settings, *, stopped=False, smooth=False):
    """The loss as a function of the policy's numbers, with members enumerated or drawn as the settings say."""
    policy = init_policy(2, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(0), hidden=(6,))
    critic = init_critic(2, gain=1.0, key=jax.random.key(1), hidden=(6,))
    dynamics = Pendula(jnp.array([1.0, 2.0]))
    begins = jax.random.normal(jax.random.key(2), (4, 2))
    members, lanes = assigned(settings, dynamics, begins, key=jax.random.key(3))
    horizons = improve.draw_horizons(settings, key=jax.random.key(4))
    flat, unflat = jax.flatten_util.ravel_pytree(policy.layers)
    policy = Smooth(policy.layers) if smooth else policy

    def loss(flat):
        acting = eqx.tree_at(lambda policy: policy.layers, policy, unflat(flat))
        imagined = imagine(
            dynamics, members, acting, hill, lanes, horizons.times, named(settings.solver), discount_time=DISCOUNT_TIME
        )
        if stopped:
            imagined = eqx.tree_at(lambda imagined: imagined.states, imagined, replace_fn=jax.lax.stop_gradient)
        return improve.actor_loss(settings, critic, imagined, horizons, 0.8)

    return jax.jit(loss), flat


def agreement(loss, flat, *, small=1e-4):
    """Relative difference between the gradient and central differences, along eight directions."""
    gradient = jax.jit(jax.grad(loss))(flat)
    directions = jax.random.normal(jax.random.key(5), (8, flat.size))
    central = jnp.array([(loss(flat + small * d) - loss(flat - small * d)) / (2 * small) for d in directions])
    return float(jnp.linalg.norm(directions @ gradient - central) / jnp.linalg.norm(central))


@pytest.mark.parametrize("members_per_start", ["all", "one"])
def test_policy_gradients_agree_with_finite_differences(float64, members_per_start):
    settings = config.Agent(horizon=1.0, horizons=3, solver="rk4", members_per_start=members_per_start)
    assert agreement(*actor_loss_of(settings)) < 1e-4


@pytest.mark.parametrize("members_per_start", ["all", "one"])
def test_policy_gradients_through_adaptive_steps_agree_too(float64, members_per_start):
    """Over a longer difference: step control makes the loss rough by its tolerance of 1e-8."""
    settings = config.Agent(horizon=1.0, horizons=3, solver="dopri8", members_per_start=members_per_start)
    assert agreement(*actor_loss_of(settings, smooth=True), small=1e-3) < 1e-4


def test_policy_gradients_of_the_mean_over_horizons_agree_too(float64):
    settings = config.Agent(
        horizon=1.0, solver="rk4", actor_objective="mean", horizon_law="steps", horizon_step=0.25
    )  # fmt: skip
    assert agreement(*actor_loss_of(settings)) < 1e-4


def test_a_gradient_stopped_before_the_critic_does_not_agree(float64):
    settings = config.Agent(horizon=1.0, horizons=3, solver="rk4")
    loss, flat = actor_loss_of(settings, stopped=True)
    assert agreement(loss, flat) > 1e-2


def test_drawn_members_have_the_gradient_of_enumerated_ones_on_average(float64):
    """Exactly: all ways to give four starts to two members, two each, against every start through both."""
    policy = init_policy(2, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(0), hidden=(6,))
    critic = init_critic(2, gain=1.0, key=jax.random.key(1), hidden=(6,))
    dynamics = Pendula(jnp.array([1.0, 2.0]))
    begins = jax.random.normal(jax.random.key(2), (4, 2))
    settings = config.Agent(horizon=1.0, horizons=3, solver="rk4")
    horizons = improve.draw_horizons(settings, key=jax.random.key(4))
    flat, unflat = jax.flatten_util.ravel_pytree(policy.layers)

    def gradient(members_per_start, begins):
        chosen = config.Agent(members_per_start=members_per_start)
        members, lanes = assigned(chosen, dynamics, begins, key=jax.random.key(3))

        def loss(flat):
            acting = eqx.tree_at(lambda policy: policy.layers, policy, unflat(flat))
            imagined = imagine(
                dynamics, members, acting, hill, lanes, horizons.times, named("rk4"), discount_time=DISCOUNT_TIME
            )
            return improve.actor_loss(settings, critic, imagined, horizons, 1.0)

        return jax.grad(loss)(flat)

    orders = jnp.array([[*pair, *(i for i in range(4) if i not in pair)] for pair in combinations(range(4), 2)])
    drawn = jax.jit(jax.vmap(lambda order: gradient("one", begins[order])))(orders)
    np.testing.assert_allclose(drawn.mean(axis=0), jax.jit(lambda: gradient("all", begins))(), rtol=1e-9, atol=1e-12)
    assert np.abs(drawn - drawn.mean(axis=0)).max() > 1e-3  # it is a draw
    # Always the same half to the same member is another expectation.
    assert not np.allclose(drawn[:3].mean(axis=0), gradient("all", begins), rtol=1e-3)


# The greedy policy of the HJB equation.


class Quadratic(eqx.Module):
    """``V(s) = -s'P s``, the critic of a linear system."""

    matrix: jax.Array

    def __call__(self, observation):
        return -observation @ self.matrix @ observation


def greedy_of(rate, cost=ACTION_COST, reach=REACH):
    _, value = riccati()
    critic = Quadratic(jnp.asarray(value, jnp.float32))
    dynamics = TrueDynamics(rate, identity, identity, jnp.ones(1))
    return greedy_policy(
        dynamics, jnp.zeros(1), critic, jnp.linspace(-1, 1, 30)[:, None], jnp.zeros(1), jnp.full(1, reach),
        action_cost=cost,
    )  # fmt: skip


def test_the_greedy_action_of_the_riccati_value_is_the_riccati_action():
    """And with the sign the text writes for costs it is the opposite one."""
    gain, _ = riccati()
    states = np.linspace(-2, 2, 9)[:, None]
    actions = jax.vmap(greedy_of(linear_field))(jnp.asarray(states, jnp.float32))
    np.testing.assert_allclose(actions, -states @ gain.T, rtol=1e-5, atol=1e-6)
    assert not np.allclose(-actions, -states @ gain.T, rtol=1e-2)


def test_the_greedy_action_maximises_the_right_side_of_hjb_within_its_bounds():
    greedy = greedy_of(linear_field, reach=0.5)
    grid = jnp.linspace(-0.5, 0.5, 2001)
    for state in jnp.array([[0.2], [-0.3], [2.0], [-2.0]]):
        slope = jax.grad(greedy.critic)(state)
        right = jax.vmap(lambda a: slope @ linear_field(state, a[None]) + linear_reward_rate(state, a[None]))(grid)  # noqa: B023
        np.testing.assert_allclose(greedy(state)[0], grid[jnp.argmax(right)], atol=1e-3)


def test_the_greedy_action_averages_over_members():
    dynamics = Pendula(jnp.array([1.0, 3.0]))
    critic = init_critic(2, gain=1.0, key=jax.random.key(0), hidden=(6, 6))
    states = jax.random.normal(jax.random.key(1), (5, 2))
    greedy = greedy_policy(
        dynamics, dynamics.strength, critic, states, jnp.zeros(1), jnp.full(1, 9.0), action_cost=0.2
    )  # fmt: skip
    assert isinstance(greedy, Greedy)
    expected = jax.vmap(jax.grad(critic))(states)[:, 1:] / 0.4
    np.testing.assert_allclose(jax.vmap(greedy)(states), expected, rtol=1e-5)


def test_the_greedy_policy_refuses_what_has_no_closed_form():
    with pytest.raises(UserError, match="affine in the action"):
        greedy_of(lambda state, action: linear_field(state, action) + 0.1 * action**3)
    with pytest.raises(UserError, match=r"action cost above zero, but 0\.0 came"):
        greedy_of(linear_field, cost=0.0)
