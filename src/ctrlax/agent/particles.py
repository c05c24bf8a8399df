"""Transition x policy x starts -> Imagined: particles stepped with held actions, integrals as sums (P5)."""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ctrlax.agent.imagine import IMAGINED_LIMIT, Imagined, RewardRate
from ctrlax.errors import UserError
from ctrlax.model.dynamics import AbstractTransition, Gaussian, Members

JITTER = 1e-6  # on a cloud's covariance in units of the length scales: a Cholesky factor in float32 needs it

States = Float[Array, "particle start observation"]
Actions = Float[Array, "particle start action"]
Policy = Callable[[Float[Array, " observation"]], Float[Array, " action"]]


class AbstractPropagation(eqx.Module):
    """How a cloud of particles takes one step. Particles are in the order of their members, equally many each."""

    @abc.abstractmethod
    def members(self, dynamics: AbstractTransition, particles: int, *, key: PRNGKeyArray) -> Members:
        """The members for so many particles, fixed for the whole roll-out."""

    @abc.abstractmethod
    def step(
        self,
        dynamics: AbstractTransition,
        members: Members,
        states: States,
        actions: Actions,
        seconds: Float[Array, ""] | float,
        *,
        key: PRNGKeyArray,
    ) -> States:
        """The particles after ``seconds``; differentiable in states and actions, all noise drawn by ``key``."""


class KeptMembers(AbstractPropagation):
    """TS-infinity of PETS: a particle stays with its member, ``s' = s + mu_m(s, a) + sigma_m(s, a) eps``."""

    def members(self, dynamics: AbstractTransition, particles: int, *, key: PRNGKeyArray) -> Members:
        return _one_draw(dynamics, particles, key=key)

    def step(
        self,
        dynamics: AbstractTransition,
        members: Members,
        states: States,
        actions: Actions,
        seconds: Float[Array, ""] | float,
        *,
        key: PRNGKeyArray,
    ) -> States:
        return _sampled(states, change_of(dynamics, members, states, actions, seconds), key=key)


class RedrawnMembers(AbstractPropagation):
    """TS1 of PETS: at every step each start's particles are dealt to the members anew, equally many each.

    Particles stay where they are. What each is told is gathered by index there and back inside what is differentiated,
    so that state, return and gradient of a trajectory belong together. Shuffling the states themselves, as public code
    does on detached values, gives a gradient of something else (`tests/truths/test_particles.py`).
    """

    def members(self, dynamics: AbstractTransition, particles: int, *, key: PRNGKeyArray) -> Members:
        return _one_draw(dynamics, particles, key=key)

    def step(
        self,
        dynamics: AbstractTransition,
        members: Members,
        states: States,
        actions: Actions,
        seconds: Float[Array, ""] | float,
        *,
        key: PRNGKeyArray,
    ) -> States:
        deal_key, noise_key = jax.random.split(key)
        dealt = jnp.argsort(jax.random.uniform(deal_key, states.shape[:2]), axis=0)
        back = jnp.argsort(dealt, axis=0)
        told = change_of(dynamics, members, _taken(states, dealt), _taken(actions, dealt), seconds)
        change = Gaussian(_taken(told.mean, back), _taken(told.log_variance, back))
        return _sampled(states, change, key=noise_key)


class MatchedMoments(AbstractPropagation):
    """Deep PILCO: a start's particles become a draw of the Gaussian with the moments of their successors.

    ``s' = mu + L eps`` with ``mu = mean_k(s_k + mu_k)`` and ``L L^T = Cov_k(s_k + mu_k) + mean_k diag sigma_k^2``, each
    particle with weights drawn for itself and kept. Differentiable through both moments.
    """

    def members(self, dynamics: AbstractTransition, particles: int, *, key: PRNGKeyArray) -> Members:
        draws = -(-particles // dynamics.member_count())
        drawn = jax.vmap(lambda key: dynamics.draw(key=key))(jax.random.split(key, draws))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:particles], drawn)

    def step(
        self,
        dynamics: AbstractTransition,
        members: Members,
        states: States,
        actions: Actions,
        seconds: Float[Array, ""] | float,
        *,
        key: PRNGKeyArray,
    ) -> States:
        change = change_of(dynamics, members, states, actions, seconds)
        scales = dynamics.length_scales()
        ahead = (states + change.mean) / scales
        mean = jnp.mean(ahead, axis=0)
        wrong = ahead - mean
        noise = jnp.mean(jnp.exp(change.log_variance), axis=0) / scales**2
        within = jnp.einsum("psi,psj->sij", wrong, wrong) / states.shape[0]
        own = jax.vmap(jnp.diag)(noise + JITTER)
        factor = jnp.linalg.cholesky(within + own)
        drawn = jax.random.normal(key, states.shape, states.dtype)
        return scales * (mean + jnp.einsum("sij,psj->psi", factor, drawn))


PROPAGATIONS: dict[str, AbstractPropagation] = {
    "ts1": RedrawnMembers(),
    "ts-inf": KeptMembers(),
    "moments": MatchedMoments(),
}


def _one_draw(dynamics: AbstractTransition, particles: int, *, key: PRNGKeyArray) -> Members:
    if particles % dynamics.member_count():
        raise UserError(
            f"{particles} particles cannot be shared equally by {dynamics.member_count()} members: choose a multiple"
        )
    return dynamics.draw(key=key)


def change_of(
    dynamics: AbstractTransition,
    members: Members,
    states: States,
    actions: Actions,
    seconds: Float[Array, ""] | float,
) -> Gaussian:
    """What every particle's member says of it."""
    count = jax.tree.leaves(members)[0].shape[0]
    size, starts = states.shape[0] // count, states.shape[1]

    def one(member: Members, states: Array, actions: Array) -> Gaussian:
        return jax.vmap(lambda o, a: dynamics.change(member, o, a, seconds))(states, actions)

    grouped = (part.reshape(count, size * starts, -1) for part in (states, actions))
    told = jax.vmap(one)(members, *grouped)
    return Gaussian(*(part.reshape(states.shape) for part in told))


def _taken(array: Float[Array, "particle start _n"], order: Int[Array, "particle start"]) -> Array:
    return jnp.take_along_axis(array, order[..., None], axis=0)


def _sampled(states: States, change: Gaussian, *, key: PRNGKeyArray) -> States:
    noise = jax.random.normal(key, states.shape, states.dtype)
    return states + change.mean + jnp.exp(0.5 * change.log_variance) * noise


def imagine_steps(
    dynamics: AbstractTransition,
    members: Members,
    policy: Policy,
    reward_rate: RewardRate,
    starts: States,
    times: Float[Array, " time"],
    propagation: AbstractPropagation,
    *,
    discount_time: float,
    key: PRNGKeyArray,
) -> Imagined:
    """`eq:img-st` and `eq:img-act` in steps from ``times[0] = 0``, the action ``pi(s_i)`` held over a step.

    The return is ``R_n = sum_{i<n} r(s_i, a_i) w_i``, ``w_i`` the integral of ``exp(-t/eta)`` over step ``i``: the
    reward rate is held as the action is, the discount integrated exactly. Particles are `Imagined`'s member axis.
    """
    limit = IMAGINED_LIMIT * dynamics.length_scales()
    ends = jnp.exp(-times / discount_time)
    weights = discount_time * (ends[:-1] - ends[1:])
    keys = jax.random.split(key, times.shape[0] - 1)

    def within(states: States) -> Array:
        return jnp.all(jnp.abs(states) < limit, axis=-1)  # what is no number is not within

    def stepped(carry: tuple[Array, Array, Array], piece: tuple[Array, Array, Array]):
        states, returns, healthy = carry
        seconds, weight, key = piece
        actions = jax.vmap(jax.vmap(policy))(states)
        rewards = jax.vmap(jax.vmap(reward_rate))(states, actions)
        ahead = propagation.step(dynamics, members, states, actions, seconds, key=key)
        healthy = healthy & within(ahead)
        # What has left stands still, so that nobody is asked about infinity.
        states = jnp.where(healthy[..., None], ahead, states)
        returns = returns + weight * rewards
        return (states, returns, healthy), (states, returns)

    none = jnp.zeros(starts.shape[:2], starts.dtype)
    begin = (starts, none, within(starts))
    (_, returns, healthy), (states, along) = jax.lax.scan(stepped, begin, (jnp.diff(times), weights, keys))
    healthy = healthy & jnp.isfinite(returns)
    states = jnp.concatenate([starts[:, :, None], jnp.moveaxis(states, 0, 2)], axis=2)
    along = jnp.concatenate([none[:, :, None], jnp.moveaxis(along, 0, 2)], axis=2)
    states = jnp.where(healthy[..., None, None], states, starts[:, :, None])
    along = jnp.where(healthy[..., None], along, 0.0)
    work = starts.shape[0] * starts.shape[1] * (times.shape[0] - 1)
    return Imagined(states, along, healthy, jnp.asarray(work, jnp.int32))
