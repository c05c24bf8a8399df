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
from ctrlax.agent.imagine import IMAGINED_LIMIT, Imagined, RewardRate, imagine
from ctrlax.agent.particles import PROPAGATIONS, AbstractPropagation, imagine_steps
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, AbstractTransition, Members
from ctrlax.ode.cores import spread
from ctrlax.ode.solve import explicit_step
from ctrlax.ode.solvers import Fixed, named

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
    members = spread(dynamics.draw(key=key))
    count = dynamics.member_count()
    if settings.members_per_start == "all":
        return members, jnp.broadcast_to(begins, (count, *begins.shape))
    return members, begins[: len(begins) // count * count].reshape(count, -1, begins.shape[-1])


class HeldModel(eqx.Module):
    """A model under held actions, every particle with a member of its own: what a planner needs of either kind."""

    members: eqx.AbstractVar[Members]

    def size(self) -> int:
        """How many particles there are: one per member."""
        return jax.tree.leaves(self.members)[0].shape[0]

    @abc.abstractmethod
    def step(
        self,
        states: Float[Array, "particle start observation"],
        actions: Float[Array, "particle start action"],
        seconds: float,
        reward_rate: RewardRate,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "particle start observation"], Float[Array, "particle start"]]:
        """States after ``seconds`` of held actions, and the integrals of the reward rate until then."""


class HeldField(HeldModel):
    """One step of a fixed-step solver, its inner steps included, on state and reward integral together."""

    members: Members
    dynamics: AbstractField
    setting: Fixed = eqx.field(static=True)

    def step(
        self,
        states: Float[Array, "particle start observation"],
        actions: Float[Array, "particle start action"],
        seconds: float,
        reward_rate: RewardRate,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "particle start observation"], Float[Array, "particle start"]]:
        limit = IMAGINED_LIMIT * self.dynamics.length_scales()

        def one(member: Members, state: Array, action: Array) -> tuple[Array, Array]:
            def field(_: float, extended: Array) -> Array:
                observation = extended[:-1]
                inside = jnp.all(jnp.abs(observation) < limit)
                rate = self.dynamics.rate(member, jnp.where(inside, observation, 0.0), action)
                return jnp.append(jnp.where(inside, rate, 0.0), reward_rate(observation, action))

            extended = jnp.append(state, 0.0)
            for _ in range(self.setting.inner_steps):
                extended = explicit_step(self.setting.tableau, field, seconds / self.setting.inner_steps, extended)
            return extended[:-1], extended[-1]

        return jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)))(self.members, states, actions)


class HeldTransition(HeldModel):
    """One transition; the reward rate is held over it as the action is."""

    members: Members
    dynamics: AbstractTransition
    propagation: AbstractPropagation

    def step(
        self,
        states: Float[Array, "particle start observation"],
        actions: Float[Array, "particle start action"],
        seconds: float,
        reward_rate: RewardRate,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "particle start observation"], Float[Array, "particle start"]]:
        reward = seconds * jax.vmap(jax.vmap(reward_rate))(states, actions)
        ahead = self.propagation.step(self.dynamics, self.members, states, actions, seconds, key=key)
        inside = jnp.all(jnp.abs(ahead) < IMAGINED_LIMIT * self.dynamics.length_scales(), axis=-1, keepdims=True)
        return jnp.where(inside, ahead, states), reward


def held_model(settings: config.Agent, dynamics: AbstractDynamics, *, key: PRNGKeyArray) -> HeldField | HeldTransition:
    """One particle per member; ``settings`` say which solver, and how transitions propagate."""
    if isinstance(dynamics, AbstractTransition):
        propagation = PROPAGATIONS[settings.propagation or dynamics.cloud().propagation]
        members = propagation.members(dynamics, dynamics.member_count(), key=key)
        return HeldTransition(members, dynamics, propagation)
    assert isinstance(dynamics, AbstractField)
    setting = named(settings.solver)
    # Planning needs no more than imagining does with equal steps, and an adaptive one waits for its slowest lane.
    fixed = setting if isinstance(setting, Fixed) else named("rk4")
    assert isinstance(fixed, Fixed)
    return HeldField(dynamics.draw(key=key), dynamics, fixed)
