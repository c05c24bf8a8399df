"""Particles against finite differences and closed forms, each with a deliberately wrong variant that fails."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.horizons import step_horizons
from ctrlax.agent.particles import (
    PROPAGATIONS,
    AbstractPropagation,
    KeptMembers,
    MatchedMoments,
    RedrawnMembers,
    _taken,
    change_of,
    imagine_steps,
)
from ctrlax.agent.policy import init_policy
from ctrlax.agent.roll import imagination_of
from ctrlax.errors import UserError
from ctrlax.model import registry
from ctrlax.model.dynamics import AbstractTransition, Cloud, Gaussian
from ctrlax.model.network import apply_layers
from ctrlax.model.structure import Scaling

PENDULUM = ctrlax.make("pendulum")
DISCOUNT_TIME = 2.0


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


class Smooth(eqx.Module):
    """A policy without kinks."""

    layers: tuple

    def __call__(self, observation):
        return 2 * jnp.tanh(apply_layers(self.layers, jnp.tanh, observation))


def model_of(family, members=2):
    # Rates of ten seconds: untrained networks shall move a state as far in one step as trained ones do.
    scaling = Scaling(jnp.zeros(3), jnp.ones(3), jnp.zeros(1), jnp.full(1, 2.0), jnp.full(3, 10.0))
    model = registry.build(config.Model(family, (), members), PENDULUM, scaling, key=jax.random.key(0), step=0.1)
    assert isinstance(model, AbstractTransition)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), model)


def loss_of(family, propagation):
    """The actor's loss as a function of the policy's numbers, everything drawn held fixed."""
    model = model_of(family)
    settings = config.Agent(horizon=0.65, horizon_step=0.1, discount_time=DISCOUNT_TIME, particles=4)
    policy = init_policy(3, jnp.zeros(1), jnp.full(1, 2.0), gain=1.0, key=jax.random.key(1), hidden=(6,))
    critic = init_critic(3, gain=1.0, key=jax.random.key(2), hidden=(6,))
    flat, form = jax.flatten_util.ravel_pytree(policy.layers)
    flat = flat.astype(jnp.float64)
    starts = jnp.broadcast_to(jax.random.normal(jax.random.key(3), (3, 3), jnp.float64), (4, 3, 3))
    horizons = step_horizons(settings)
    members = propagation.members(model, 4, key=jax.random.key(4))

    def loss(flat):
        imagined = imagine_steps(
            model, members, Smooth(form(flat)), PENDULUM.reward_rate, starts, horizons.times.astype(jnp.float64),
            propagation, discount_time=DISCOUNT_TIME, key=jax.random.key(5),
        )  # fmt: skip
        return improve.actor_loss(settings, critic, imagined, horizons, 0.8)

    return jax.jit(jax.value_and_grad(loss)), flat


def disagreement(loss, flat, small=1e-5):
    """Relative difference between the gradient and central differences, along eight directions."""
    gradient = loss(flat)[1]
    directions = jax.random.normal(jax.random.key(6), (8, flat.size), jnp.float64)
    central = jnp.array([(loss(flat + small * d)[0] - loss(flat - small * d)[0]) / (2 * small) for d in directions])
    return float(jnp.linalg.norm(directions @ gradient - central) / jnp.linalg.norm(central))


class ShuffledInPlace(AbstractPropagation):
    """What public code does: states are dealt to the members by value, detached from their past."""

    def members(self, dynamics, particles, *, key):
        return dynamics.draw(key=key)

    def step(self, dynamics, members, states, actions, seconds, *, key):
        deal_key, noise_key = jax.random.split(key)
        dealt = jnp.argsort(jax.random.uniform(deal_key, states.shape[:2]), axis=0)
        states, actions = (part + jax.lax.stop_gradient(_taken(part, dealt) - part) for part in (states, actions))
        change = change_of(dynamics, members, states, actions, seconds)
        noise = jax.random.normal(noise_key, states.shape, states.dtype)
        return states + change.mean + jnp.exp(0.5 * change.log_variance) * noise


CASES = [("pets", "ts1"), ("mpets", "ts-inf"), ("deep-pilco", "moments")]


@pytest.mark.parametrize(("family", "propagation"), CASES)
def test_gradients_of_the_imagined_return_agree_with_finite_differences(float64, family, propagation):
    assert disagreement(*loss_of(family, PROPAGATIONS[propagation])) < 1e-5


def test_particles_shuffled_in_place_have_the_gradient_of_something_else(float64):
    assert disagreement(*loss_of("pets", ShuffledInPlace())) > 0.05


class Linear(AbstractTransition):
    """``s' = A s + B a + offset_m + w``, ``w ~ N(0, diag Q)``."""

    transition: jax.Array
    inputs: jax.Array
    noise: jax.Array
    offsets: jax.Array

    def draw(self, *, key):
        return self.offsets

    def change(self, member, observation, action, step):
        mean = self.transition @ observation - observation + self.inputs @ action + member
        return Gaussian(mean, jnp.broadcast_to(jnp.log(self.noise), mean.shape))

    def divergence(self):
        return jnp.zeros(())

    def member_count(self):
        return len(self.offsets)

    def length_scales(self):
        return jnp.array([1.0, 2.0], self.transition.dtype)

    def typical_step(self):
        return jnp.asarray(0.1)

    def penalty(self, weight_decay, bound_weight):
        return jnp.zeros(1)

    def learner_count(self):
        return 1

    def cloud(self):
        return Cloud("moments", 100)


A, B, Q = np.array([[1.0, 0.4], [-0.3, 0.9]]), np.array([[0.1], [0.5]]), np.array([0.02, 0.05])
GAIN = np.array([[-0.6, -0.8]])
STEPS, PARTICLES = 4, 20_000


def linear(offsets=((0.0, 0.0),), noise=Q):
    return Linear(*(jnp.asarray(each) for each in (A, B, noise, np.asarray(offsets))))


class Gain(eqx.Module):
    def __call__(self, observation):
        return jnp.asarray(GAIN) @ observation


def quadratic(observation, action):
    return -(observation[0] ** 2) - 0.5 * observation[1] ** 2


def rolled(propagation, particles=PARTICLES, model=None, policy=None):
    model = linear() if model is None else model
    starts = jnp.broadcast_to(jnp.array([[1.0, -0.5], [0.0, 2.0]]), (particles, 2, 2))
    members = propagation.members(model, particles, key=jax.random.key(1))
    times = 0.1 * jnp.arange(STEPS + 1)
    policy = Gain() if policy is None else policy
    return jax.jit(
        lambda: imagine_steps(
            model, members, policy, quadratic, starts, times, propagation, discount_time=DISCOUNT_TIME,
            key=jax.random.key(2),
        )
    )()  # fmt: skip


def moments_in_closed_form():
    """Mean and covariance after every step from the first start, and the expected discounted sum of rewards."""
    closed = A + B @ GAIN
    mean, covariance = np.array([1.0, -0.5]), np.zeros((2, 2))
    expected = 0.0
    for i in range(STEPS):
        weight = DISCOUNT_TIME * (np.exp(-0.1 * i / DISCOUNT_TIME) - np.exp(-0.1 * (i + 1) / DISCOUNT_TIME))
        expected -= weight * np.diag([1.0, 0.5]).ravel() @ (np.outer(mean, mean) + covariance).ravel()
        mean, covariance = closed @ mean, closed @ covariance @ closed.T + np.diag(Q)
    return mean, covariance, expected


def wrongness(propagation):
    """Largest error of mean, covariance and return, in units of what chance explains."""
    imagined = rolled(propagation)
    mean, covariance, expected = moments_in_closed_form()
    last, returns = np.asarray(imagined.states[:, 0, -1]), np.asarray(imagined.returns[:, 0, -1])
    chance = np.sqrt(np.diag(covariance) / PARTICLES)
    of_mean = np.abs(last.mean(axis=0) - mean) / chance
    scale = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / PARTICLES)
    of_covariance = np.abs(np.cov(last.T) - covariance) / scale
    of_return = np.abs(returns.mean() - expected) / (np.std(returns) / np.sqrt(PARTICLES))
    return max(of_mean.max(), of_covariance.max(), of_return)


class WithoutNoise(MatchedMoments):
    """The spread of the means alone, the transition's own variance forgotten."""

    def step(self, dynamics, members, states, actions, seconds, *, key):
        assert isinstance(dynamics, Linear)
        quiet = eqx.tree_at(lambda model: model.noise, dynamics, 1e-9 * dynamics.noise)
        return super().step(quiet, members, states, actions, seconds, key=key)


@pytest.mark.parametrize("propagation", [MatchedMoments(), KeptMembers()])
def test_a_linear_gaussian_system_keeps_its_moments_in_closed_form(float64, propagation):
    """Chance at every step adds up, and is not independent of what went before: five deviations of one step's."""
    assert wrongness(propagation) < 5


def test_moments_without_the_transitions_noise_are_others(float64):
    assert wrongness(WithoutNoise()) > 50


def returns_by_hand(imagined):
    """Of every trajectory by its own states."""
    states = np.asarray(imagined.states)
    edges = DISCOUNT_TIME * np.exp(-0.1 * np.arange(STEPS + 1) / DISCOUNT_TIME)
    rates = -(states[..., 0] ** 2) - 0.5 * states[..., 1] ** 2
    return np.cumsum(rates[..., :-1] * (edges[:-1] - edges[1:]), axis=-1)


class ShuffledStates(KeptMembers):
    """States change places between particles and their returns do not."""

    def step(self, dynamics, members, states, actions, seconds, *, key):
        states = _taken(states, jnp.argsort(jax.random.uniform(key, states.shape[:2]), axis=0))
        return super().step(dynamics, members, states, actions, seconds, key=key)


OFFSETS = ((0.0, 0.0), (0.3, 0.1), (-0.2, 0.4))


def continues_itself(propagation):
    """Whether a particle's next state is one step from its own last one, by one of the members."""
    imagined = rolled(propagation, 6, linear(OFFSETS, noise=1e-12 * Q))
    states = np.asarray(imagined.states)
    left_over = states[:, :, 1:] - states[:, :, :-1] @ (A + B @ GAIN).T
    missed = np.abs(left_over[..., None, :] - np.asarray(OFFSETS)).max(axis=-1)
    assert np.allclose(returns_by_hand(imagined), imagined.returns[..., 1:], atol=1e-9)
    return missed.min(axis=-1).max() < 1e-4, missed.argmin(axis=-1)


def test_every_trajectory_goes_on_from_itself_and_earns_its_own_return(float64):
    for propagation in (KeptMembers(), RedrawnMembers()):
        assert continues_itself(propagation)[0]
    assert not continues_itself(ShuffledStates())[0]


def test_members_are_kept_or_dealt_anew_equally_many_each(float64):
    _, kept = continues_itself(KeptMembers())
    _, dealt = continues_itself(RedrawnMembers())
    assert (kept == np.repeat(np.arange(3), 2)[:, None, None]).all()
    counts = (dealt[None] == np.arange(3)[:, None, None, None]).sum(axis=1)
    assert (counts == 2).all()  # for every start and step
    assert (dealt[:, :, 1:] != dealt[:, :, :-1]).any()
    with pytest.raises(UserError, match="7 particles cannot be shared equally by 3 members"):
        rolled(RedrawnMembers(), 7, linear(OFFSETS))


def test_a_constant_reward_gives_its_discounted_integral_at_every_horizon(float64):
    """Also where the last step is shorter: a horizon of H seconds ends at H."""
    settings = config.Agent(horizon=0.95, horizon_step=0.1, discount_time=DISCOUNT_TIME, particles=100)
    imagination = imagination_of(settings, linear(), jnp.zeros((2, 2)), key=jax.random.key(0))
    times = imagination.horizons(settings, key=jax.random.key(1)).times
    np.testing.assert_allclose(times, [*(0.1 * np.arange(10)), 0.95], atol=1e-6)
    imagined = imagination.run(settings, Gain(), lambda observation, action: jnp.asarray(0.7), times)
    assert imagined.states.shape == (100, 2, 11, 2)
    expected = 0.7 * DISCOUNT_TIME * (1 - np.exp(-np.asarray(times) / DISCOUNT_TIME))
    np.testing.assert_allclose(imagined.returns, np.broadcast_to(expected, (100, 2, 11)), rtol=1e-5)
    assert not np.isclose(expected[-1], 0.7 * 0.95, rtol=0.1)  # undiscounted is another number


def test_a_particle_that_leaves_the_world_is_left_out_and_harms_no_other():
    """Members that explode are unhealthy; the gradient is that of the others."""

    def value(policy, offsets):
        model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), linear(offsets))
        starts = jnp.zeros((2, 3, 2))
        imagined = imagine_steps(
            model, model.draw(key=jax.random.key(0)), policy, quadratic, starts, 0.1 * jnp.arange(5.0), KeptMembers(),
            discount_time=2.0, key=jax.random.key(1),
        )  # fmt: skip
        return improve.healthy_mean(imagined.returns[..., -1], imagined.healthy), imagined.healthy

    policy = init_policy(2, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(2), hidden=(4,))
    (one, healthy), gradient = eqx.filter_jit(eqx.filter_value_and_grad(value, has_aux=True))(
        policy, ((0.1, 0.0), (1e5, 0.0))
    )
    assert np.asarray(healthy).tolist() == [[True] * 3, [False] * 3]
    assert np.isfinite(one)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0
