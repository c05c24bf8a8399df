"""Rolling out either kind of model: the one place of this room that tells fields and transitions apart."""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax import config
from ctrlax.agent.horizons import Horizons, draw_horizons, step_horizons
from ctrlax.agent.imagine import Imagined, RewardRate, imagine
from ctrlax.agent.particles import PROPAGATIONS, AbstractPropagation, imagine_steps
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, AbstractTransition, Members
from ctrlax.ode.solvers import named

Policy = Callable[[Float[Array, " observation"]], Float[Array, " action"]]


class AbstractImagination(eqx.Module):
    """Members and starts that are settled, waiting for a policy."""

    starts: eqx.AbstractVar[Float[Array, "member lane observation"]]

    @abc.abstractmethod
    def horizons(self, settings: config.Agent, *, key: PRNGKeyArray) -> Horizons:
        """Times to imagine to, and ``q(h)`` on them."""

    @abc.abstractmethod
    def run(
        self, settings: config.Agent, policy: Policy, reward_rate: RewardRate, times: Float[Array, " time"]
    ) -> Imagined:
        """The same members, starts and noise under any policy."""


class Solving(AbstractImagination):
    """A field's: an initial value problem for every member and start."""

    starts: Float[Array, "member lane observation"]
    dynamics: AbstractField
    members: Members

    def horizons(self, settings: config.Agent, *, key: PRNGKeyArray) -> Horizons:
        return draw_horizons(settings, key=key)

    def run(
        self, settings: config.Agent, policy: Policy, reward_rate: RewardRate, times: Float[Array, " time"]
    ) -> Imagined:
        setting, eta = named(settings.solver), settings.discount_time
        return imagine(self.dynamics, self.members, policy, reward_rate, self.starts, times, setting, discount_time=eta)


class Stepping(AbstractImagination):
    """A transition's: a cloud of particles from every start, in steps of kappa (P5)."""

    starts: Float[Array, "member lane observation"]
    dynamics: AbstractTransition
    members: Members
    propagation: AbstractPropagation
    noise_key: PRNGKeyArray

    def horizons(self, settings: config.Agent, *, key: PRNGKeyArray) -> Horizons:
        return step_horizons(settings)

    def run(
        self, settings: config.Agent, policy: Policy, reward_rate: RewardRate, times: Float[Array, " time"]
    ) -> Imagined:
        return imagine_steps(
            self.dynamics, self.members, policy, reward_rate, self.starts, times, self.propagation,
            discount_time=settings.discount_time, key=self.noise_key,
        )  # fmt: skip


def imagination_of(
    settings: config.Agent, dynamics: AbstractDynamics, begins: Float[Array, "start observation"], *, key: PRNGKeyArray
) -> Solving | Stepping:
    """``E_q(theta)`` of `eq:value2` from these starts, as the model's kind takes it."""
    if isinstance(dynamics, AbstractTransition):
        member_key, noise_key = jax.random.split(key)
        own = dynamics.cloud()
        propagation = PROPAGATIONS[settings.propagation or own.propagation]
        count = settings.particles or own.particles
        members = propagation.members(dynamics, count, key=member_key)
        return Stepping(jnp.broadcast_to(begins, (count, *begins.shape)), dynamics, members, propagation, noise_key)
    assert isinstance(dynamics, AbstractField)
    members, lanes = assigned(settings, dynamics, begins, key=key)
    return Solving(lanes, dynamics, members)


def assigned(
    settings: config.Agent, dynamics: AbstractField, begins: Float[Array, "start observation"], *, key: PRNGKeyArray
) -> tuple[Members, Float[Array, "member lane observation"]]:
    """``E_q(theta)`` of `eq:value2`: every start through every member, or an equal share of the starts through each.

    Starts are drawn independently, so which member gets which is no choice at all.
    """
    members = dynamics.draw(key=key)
    count = dynamics.member_count()
    if settings.members_per_start == "all":
        return members, jnp.broadcast_to(begins, (count, *begins.shape))
    return members, begins[: len(begins) // count * count].reshape(count, -1, begins.shape[-1])
