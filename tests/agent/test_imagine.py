"""What imagination does with members that explode and rewards that are not numbers (SPEC row P3, FACTS 7)."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.imagine import imagine
from ctrlax.agent.policy import init_policy
from ctrlax.model.dynamics import AbstractField
from ctrlax.ode.solvers import named

HIDDEN = (8, 8)
SOLVERS = ["rk4", "dopri5"]


class Growing(AbstractField):
    """``ds/dt = -s + a + g exp(s^2) s``, one ``g`` per member: a large one leaves all bounds, derivatives and all."""

    growth: Array

    def draw(self, *, key):
        return self.growth

    def rate(self, member, observation, action):
        return -observation + jnp.concatenate([action, -action]) + member * jnp.exp(observation**2) * observation

    def divergence(self):
        return jnp.zeros(())

    def member_count(self):
        return len(self.growth)

    def length_scales(self):
        return jnp.full(2, 1e3)


def reward_rate(observation, action):
    return -jnp.sum(observation**2) - 0.1 * jnp.sum(action**2)


def reward_rate_with_a_hole(observation, action):
    """Not a number for half of the world; so is its derivative."""
    return reward_rate(observation, action) + 0.0 * jnp.sqrt(observation[0]) * action[0]


def agent():
    policy_key, critic_key = jax.random.split(jax.random.key(0))
    policy = init_policy(2, jnp.zeros(1), jnp.ones(1), gain=1.0, key=policy_key, hidden=HIDDEN)
    return policy, init_critic(2, gain=1.0, key=critic_key, hidden=HIDDEN)


def loss_and_gradient(dynamics, rate, starts, solver):
    policy, critic = agent()
    settings = config.Agent(horizon=1.0, horizons=4)
    horizons = improve.draw_horizons(settings, key=jax.random.key(1))

    @jax.jit
    @jax.value_and_grad
    def loss(policy):
        members = dynamics.draw(key=jax.random.key(0))
        imagined = imagine(dynamics, members, policy, rate, starts, horizons.times, named(solver), discount_time=5.0)
        return improve.actor_loss(settings, critic, imagined, horizons, 1.0)

    return loss(policy)


def same(some, others):
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_exploding_member_is_left_out_and_leaves_no_trace_in_the_gradient(solver):
    starts = jax.random.uniform(jax.random.key(2), (6, 2), minval=0.5, maxval=1.0)
    calm, wild = jnp.zeros(1), jnp.array([0.0, 50.0])
    alone = loss_and_gradient(Growing(calm), reward_rate, starts[None], solver)
    both = loss_and_gradient(Growing(wild), reward_rate, jnp.stack([starts, starts]), solver)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(both))
    same(alone, both)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_reward_that_is_no_number_somewhere_does_not_poison_the_rest(solver):
    good = jax.random.uniform(jax.random.key(2), (6, 2), minval=3.0, maxval=4.0)
    bad = good.at[::2, 0].multiply(-1)
    alone = loss_and_gradient(Growing(jnp.zeros(1)), reward_rate_with_a_hole, good[None, 1::2], solver)
    both = loss_and_gradient(Growing(jnp.zeros(1)), reward_rate_with_a_hole, bad[None], solver)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(both))
    same(alone, both)


def test_without_the_guard_around_the_field_the_gradient_is_lost(monkeypatch):
    """The deliberately wrong variant: masking after the solve alone (FACTS 7)."""
    from ctrlax.agent import imagine as module

    monkeypatch.setattr(module, "_entering", module._passing)
    monkeypatch.setattr(module, "_leaving", module._passed)
    bad = jnp.array([[[3.0, 1.0], [-3.0, 1.0]]])
    _, gradient = loss_and_gradient(Growing(jnp.zeros(1)), reward_rate_with_a_hole, bad, "rk4")
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_a_derivative_that_is_no_number_on_a_healthy_trajectory_is_not_hidden():
    def kinked(observation, action):
        return reward_rate(observation, action) + jnp.sqrt(jnp.sum((action - action) ** 2))

    _, gradient = loss_and_gradient(Growing(jnp.zeros(1)), kinked, jnp.ones((1, 1, 2)), "rk4")
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("members_per_start", ["all", "one"])
def test_an_update_counts_what_it_leaves_out_and_goes_on(solver, members_per_start):
    settings = config.Agent(
        horizon=1.0, horizons=4, starts=8, solver=solver, members_per_start=members_per_start, critic_steps=2
    )
    observations = jax.random.uniform(jax.random.key(2), (20, 2), minval=0.5, maxval=1.0)
    starts = improve.Starts(observations, jnp.ones(20, bool))
    state = improve.begin(*agent(), starts, keep=10, key=jax.random.key(3))
    one = jnp.ones(())
    update = jax.jit(
        lambda dynamics, state: improve.agent_update(settings, reward_rate, dynamics, state, starts, one, one)
    )
    after, metrics = update(Growing(jnp.array([0.0, 50.0])), state)
    assert bool(metrics.applied)
    assert int(metrics.unhealthy) == (8 if members_per_start == "all" else 4)
    assert all(np.isfinite(value).all() for value in metrics)
    inexact = eqx.filter((after.policy, after.critic, after.policy_moments), eqx.is_inexact_array)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(inexact))
    kept = after.imagined
    assert np.isfinite(kept.observations[kept.present]).all()
    # With no healthy trajectory there is nothing to learn from: no update, and nothing moves.
    after, metrics = update(Growing(jnp.array([50.0, 50.0])), state)
    assert not bool(metrics.applied)
    same(eqx.filter(after.policy, eqx.is_inexact_array), eqx.filter(state.policy, eqx.is_inexact_array))
    assert not after.imagined.present.any()


def test_implicit_solvers_imagine_too():
    value, gradient = loss_and_gradient(Growing(jnp.zeros(1)), reward_rate, jnp.ones((1, 2, 2)), "kvaerno5")
    explicit, _ = loss_and_gradient(Growing(jnp.zeros(1)), reward_rate, jnp.ones((1, 2, 2)), "tsit5")
    np.testing.assert_allclose(value, explicit, rtol=1e-4)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_work_does_not_count_what_was_stopped():
    settings = dataclasses.replace(config.Agent(), horizon=1.0, horizons=4)
    horizons = improve.draw_horizons(settings, key=jax.random.key(1))
    policy, _ = agent()
    dynamics = Growing(jnp.zeros(1))
    imagined = imagine(
        dynamics,
        jnp.zeros(1),
        policy,
        reward_rate,
        jnp.ones((1, 3, 2)),
        horizons.times,
        named("rk4"),
        discount_time=5.0,
    )
    assert int(imagined.work) == 3 * 4 * 5  # starts, stages, intervals
