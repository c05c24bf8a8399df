"""Planning in place of a policy: the cross-entropy method in a receding horizon, on either kind of model."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.agent.imagine import RewardRate
from ctrlax.agent.roll import HeldModel
from ctrlax.errors import UserError

SPAN = 2.0  # standard deviations at which proposals are cut off (Chua et al. 2018)


@dataclasses.dataclass(frozen=True)
class Cem:
    """Settings of the planner; every one is an option of ``ctrlax eval --planner cem``."""

    horizon: float = 2.0  # s
    interval: float = 0.1  # s, for which a decision is held
    population: int = 100  # action sequences proposed in an iteration
    elites: int = 10  # the best of them, which the next proposals are made from
    iterations: int = 3
    momentum: float = 0.1  # share of the old mean and variance that stays
    discount_time: float = 5.0  # s, eta

    def __post_init__(self) -> None:
        for name in ("horizon", "interval", "population", "elites", "iterations", "discount_time"):
            if not getattr(self, name) > 0:
                raise UserError(f"the planner's {name} is {getattr(self, name)}, expected more than zero.")
        if self.elites > self.population:
            raise UserError(f"{self.elites} elites of a population of {self.population}: choose at most as many.")
        if not 0 <= self.momentum < 1:
            raise UserError(f"the planner's momentum is {self.momentum}, expected zero or more and below one.")
        if self.steps < 1:
            raise UserError(f"a horizon of {self.horizon} s holds no decision of {self.interval} s: plan further.")

    @property
    def steps(self) -> int:
        """Decisions in a plan."""
        return round(self.horizon / self.interval)


class Planner(eqx.Module):
    """A model, a reward rate and the actions' bounds: ``[low, high]`` in every coordinate."""

    settings: Cem = eqx.field(static=True)
    model: HeldModel
    reward_rate: RewardRate = eqx.field(static=True)
    low: Float[Array, " action"]
    high: Float[Array, " action"]

    def begin(self) -> Float[Array, "step action"]:
        """The plan before the first decision: the middle of the bounds throughout."""
        return jnp.broadcast_to((self.low + self.high) / 2, (self.settings.steps, self.low.shape[0]))

    def decide(
        self, observation: Float[Array, " observation"], plan: Float[Array, "step action"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " action"], Float[Array, "step action"]]:
        """The action to hold now, and the rest of the plan, shifted by one decision, to start the next one from.

        Every iteration proposes sequences ``a ~ N(mean, var)``, cut off at two standard deviations, with ``var`` at
        most a quarter of the squared distance to the nearer bound; the elites are those of the highest mean return over
        the model's particles; ``mean`` and ``var`` move to theirs but for the momentum (Chua et al. 2018).
        """
        settings = self.settings
        model_key, proposal_key = jax.random.split(key)
        widest = jnp.broadcast_to(((self.high - self.low) / 4) ** 2, plan.shape)

        def improved(proposal: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], None]:
            mean, variance = proposal
            nearest = jnp.minimum(mean - self.low, self.high - mean) / SPAN
            spread = jnp.sqrt(jnp.minimum(variance, nearest**2))
            shape = (settings.population, *plan.shape)
            drawn = mean + spread * jax.random.truncated_normal(key, -SPAN, SPAN, shape, plan.dtype)
            # The same noise for all proposals and iterations, so that they differ by their actions alone.
            found = self.returns(observation, drawn, key=model_key)
            best = drawn[jax.lax.top_k(found, settings.elites)[1]]
            old, new = settings.momentum, 1 - settings.momentum
            mean = old * mean + new * jnp.mean(best, axis=0)
            return (mean, old * variance + new * jnp.var(best, axis=0)), None

        keys = jax.random.split(proposal_key, settings.iterations)
        (mean, _), _ = jax.lax.scan(improved, (plan, widest), keys)
        return mean[0], jnp.concatenate([mean[1:], self.begin()[:1]])

    def returns(
        self,
        observation: Float[Array, " observation"],
        sequences: Float[Array, "sequence step action"],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, " sequence"]:
        """``int exp(-t/eta) r dt`` over the horizon under held actions, averaged over particles; -inf if no number."""
        settings = self.settings
        times = settings.interval * jnp.arange(settings.steps + 1)
        ends = jnp.exp(-times / settings.discount_time)
        # The discount's mean over each step: a field's rewards are integrated within it, undiscounted.
        weights = settings.discount_time * (ends[:-1] - ends[1:]) / settings.interval
        size = self.model.size()
        states = jnp.broadcast_to(observation, (size, sequences.shape[0], observation.shape[0]))

        def stepped(carry: tuple[Array, Array], piece: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
            states, total = carry
            actions, weight, key = piece
            held = jnp.broadcast_to(actions, (size, *actions.shape))
            states, reward = self.model.step(states, held, settings.interval, self.reward_rate, key=key)
            return (states, total + weight * jnp.mean(reward, axis=0)), None

        keys = jax.random.split(key, settings.steps)
        pieces = (jnp.moveaxis(sequences, 0, 1), weights, keys)
        (_, total), _ = jax.lax.scan(stepped, (states, jnp.zeros(sequences.shape[0])), pieces)
        return jnp.where(jnp.isfinite(total), total, -jnp.inf)
