"""Which horizons are drawn, and the special cases of the critic's target (SPEC rows P2, P6)."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.imagine import imagine
from ctrlax.agent.policy import init_policy
from ctrlax.errors import UserError
from ctrlax.model.families.true import TrueDynamics
from ctrlax.ode.solvers import named

DISCOUNT_TIME = 2.0
HORIZON = 1.5


def field(state, action):
    return jnp.stack([state[1], -jnp.sin(state[0]) + action[0]])


def reward_rate(observation, action):
    return jnp.exp(-jnp.sum(observation**2)) - 0.1 * jnp.sum(action**2)


def identity(values):
    return values


DYNAMICS = TrueDynamics(field, identity, identity, jnp.ones(2))
STARTS = jnp.array([[0.3, -0.2], [1.0, 0.5]])


def agent():
    policy = init_policy(2, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(0), hidden=(8, 8))
    return policy, init_critic(2, gain=1.0, key=jax.random.key(1), hidden=(8, 8))


def target_of(settings, solver):
    policy, critic = agent()
    horizons = improve.draw_horizons(settings, key=jax.random.key(2))
    imagined = imagine(
        DYNAMICS, jnp.zeros(1), policy, reward_rate, STARTS[None], horizons.times, named(solver),
        discount_time=DISCOUNT_TIME,
    )  # fmt: skip
    return np.asarray(improve.horizon_target(imagined, critic, horizons, DISCOUNT_TIME)[0])


def network(layers, activation, inputs):
    for weight, bias in layers[:-1]:
        inputs = activation(weight @ inputs + bias)
    weight, bias = layers[-1]
    return weight @ inputs + bias


@cache
def numpy_agent():
    """The same two networks in NumPy."""
    policy, critic = jax.tree.map(np.asarray, agent())

    def act(state):
        return np.tanh(network(policy.layers, lambda x: np.maximum(x, 0), state))

    return act, lambda state: network(critic.layers, np.tanh, state)[0]


def moved(time, state):
    """The rate of the state and of its discounted reward, in NumPy."""
    act, _ = numpy_agent()
    (action,) = act(state[:2])
    reward = np.exp(-np.sum(state[:2] ** 2)) - 0.1 * action**2
    return np.array([state[1], -np.sin(state[0]) + action, np.exp(-time / DISCOUNT_TIME) * reward])


def stepped(start, step, count):
    """``s + h f(s, a)``, ``count`` times: states and discounted returns after each step."""
    states = [np.array([*np.asarray(start, float), 0.0])]
    for i in range(count):
        states.append(states[-1] + step * moved(i * step, states[-1]))
    return np.array(states)


def path(start, times):
    """By SciPy, to 1e-8."""
    begin = [*np.asarray(start, float), 0.0]
    return solve_ivp(moved, (0, times[-1]), begin, t_eval=times, rtol=1e-6, atol=1e-8).y.T


@pytest.mark.parametrize("law", ["uniform", "point"])
def test_horizons_are_stratified_and_never_of_zero_length(law):
    settings = config.Agent(horizon=HORIZON, horizons=7, horizon_law=law)
    keys = jax.random.split(jax.random.key(0), 4000)
    times, weights = jax.jit(jax.vmap(lambda key: improve.draw_horizons(settings, key=key)))(keys)
    assert (times[:, 0] == 0).all()
    assert (times[:, -1] == HORIZON).all()  # at H, not one step earlier
    assert np.diff(times, axis=1).min() > 1e-4 * HORIZON / 7
    inside = np.asarray(times[:, 1:-1])
    assert (np.floor(inside / HORIZON * 7) == np.arange(7)).all()  # one in each piece
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (weights[:, 0] == 0).all()
    if law == "uniform":
        assert (weights[:, -1] == 0).all()
        # Uniform overall: Kolmogorov's distance, whose 1e-6 quantile is 2.7 over the root of the count.
        drawn = np.sort(inside.ravel() / HORIZON)
        assert np.abs(drawn - np.linspace(0, 1, drawn.size)).max() < 2.7 / np.sqrt(drawn.size)
        piece = np.sort(inside[:, 3] * 7 / HORIZON - 3)
        assert np.abs(piece - np.linspace(0, 1, piece.size)).max() < 2.7 / np.sqrt(piece.size)
    else:
        assert (weights[:, -1] == 1).all()


def test_horizons_in_steps_end_at_the_horizon():
    settings = config.Agent(horizon=2.0, horizon_law="steps", horizon_step=0.1)
    times, weights = improve.draw_horizons(settings, key=jax.random.key(0))
    np.testing.assert_allclose(times, np.arange(21) * 0.1, rtol=1e-6)
    np.testing.assert_allclose(weights, [0] + [1 / 20] * 20)
    uneven = config.Agent(horizon=2.0, horizon_law="steps", horizon_step=0.3)
    times, _ = improve.draw_horizons(uneven, key=jax.random.key(0))
    np.testing.assert_allclose(times, [*np.arange(7) * 0.3, 2.0], rtol=1e-6)


@pytest.mark.parametrize("step", [None, 0.0, 3.0])
def test_horizons_in_impossible_steps_are_refused(step):
    settings = config.Agent(horizon=2.0, horizon_law="steps", horizon_step=step)
    with pytest.raises(UserError, match=f"but {step} came"):
        improve.draw_horizons(settings, key=jax.random.key(0))


def test_td_h_is_a_point_mass_on_one_horizon():
    """All of ``q`` on ``H``: ``int_0^H gamma^t r dt + gamma^H nu(s_H)``, discretised in one step and not at all."""
    settings = config.Agent(horizon=HORIZON, horizon_law="steps", horizon_step=HORIZON)
    point = config.Agent(horizon=HORIZON, horizon_law="point")
    _, critic = numpy_agent()
    for place, start in enumerate(STARTS):
        for value, after, exactness in (
            (target_of(settings, "discrete"), stepped(start, HORIZON, 1)[-1], 1e-5),
            (target_of(point, "rk4"), path(start, np.array([0, HORIZON]))[-1], 1e-4),
        ):
            expected = after[2] + np.exp(-HORIZON / DISCOUNT_TIME) * critic(after[:2])
            np.testing.assert_allclose(value[place], expected, rtol=exactness)


def test_steps_give_the_mean_of_h_step_returns():
    """Against a hand-written mean over h of ``sum_{i<h} kappa gamma^i r_i + gamma^h nu(s_h)``.

    The wrong variant, ending one step early, is another number.
    """
    settings = config.Agent(horizon=HORIZON, horizon_law="steps", horizon_step=0.1)
    _, critic = numpy_agent()
    gamma = np.exp(-0.1 / DISCOUNT_TIME)
    for value, start in zip(target_of(settings, "discrete"), STARTS, strict=True):
        states = stepped(start, 0.1, 15)
        each = states[:, 2] + gamma ** np.arange(16) * np.array([critic(state[:2]) for state in states])
        np.testing.assert_allclose(value, each[1:].mean(), rtol=1e-5)
        assert not np.isclose(value, each[1:-1].mean(), rtol=1e-3)


def test_the_continuous_target_is_the_mean_over_drawn_horizons_and_on_average_the_quadrature():
    """SciPy's path at the very horizons drawn; then many draws against trapezoids over that path."""
    settings = config.Agent(horizon=HORIZON, horizons=20)
    _, critic = numpy_agent()
    draw = jax.jit(jax.vmap(lambda key: improve.draw_horizons(settings, key=key).times))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(7), 500)))[:, 1:-1]
    times = np.linspace(0, HORIZON, 301)
    used = np.asarray(improve.draw_horizons(settings, key=jax.random.key(2)).times)[1:-1]
    for value, start in zip(target_of(settings, "rk4"), STARTS, strict=True):
        states = path(start, times)
        each = states[:, 2] + np.exp(-times / DISCOUNT_TIME) * np.array([critic(state[:2]) for state in states])
        np.testing.assert_allclose(value, np.interp(used, times, each).mean(), atol=1e-4)
        np.testing.assert_allclose(np.interp(drawn, times, each).mean(), np.trapezoid(each, times) / HORIZON, atol=4e-3)
