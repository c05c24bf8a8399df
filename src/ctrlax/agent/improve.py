"""Imagined -> losses -> better agent: lines 9 to 13 of Algorithm 1, pure, one seed; `vmap` adds more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ctrlax import config
from ctrlax.agent.critic import Critic
from ctrlax.agent.imagine import Imagined, RewardRate, imagine
from ctrlax.agent.policy import Policy
from ctrlax.errors import UserError
from ctrlax.model.dynamics import AbstractDynamics, Members
from ctrlax.model.update import guarded_update
from ctrlax.ode.solvers import named


class Starts(eqx.Module):
    """Observations that imagination may start from; ``q(s)`` of `eq:actor-loss` is uniform over those present."""

    observations: Float[Array, "*seed candidate observation"]
    present: Bool[Array, "*seed candidate"]


class AgentState(eqx.Module):
    """Between two updates."""

    policy: Policy
    critic: Critic
    target: Critic
    policy_moments: optax.OptState
    critic_moments: optax.OptState
    imagined: Starts  # states of the update before, to start from again
    iteration: Int[Array, ""]
    key: PRNGKeyArray


class AgentMetrics(NamedTuple):
    """Of one update."""

    value: Float[Array, ""]  # the actor's objective: mean of V^H over the starts
    reward: Float[Array, ""]  # mean imagined reward rate, discounted and averaged alike
    critic_loss: Float[Array, ""]
    effort: Float[Array, ""]  # mean |action| at the starts, in units of its bounds
    unhealthy: Int[Array, ""]
    applied: Bool[Array, ""]
    work: Int[Array, ""]


DrawStarts = Callable[..., Float[Array, "start observation"]]  # (count, *, key): from a system's start distribution

RIM = 1e-3  # of a piece: no stratified horizon is closer to its piece's ends
_ADAM = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


def begin(policy: Policy, critic: Critic, starts: Starts, *, keep: int, key: PRNGKeyArray) -> AgentState:
    """Fresh optimiser moments and a fresh target, as at the start of every round. ``keep``: imagined states kept."""
    policy_moments = _ADAM.init(eqx.filter(policy, eqx.is_inexact_array))
    critic_moments = _ADAM.init(eqx.filter(critic, eqx.is_inexact_array))
    size = starts.observations.shape[-1]
    imagined = Starts(jnp.zeros((keep, size)), jnp.zeros(keep, bool))
    zero = jnp.zeros((), jnp.int32)
    return AgentState(policy, critic, critic, policy_moments, critic_moments, imagined, zero, key)


class Horizons(NamedTuple):
    """``q(h)`` of `eq:critic-loss` on the times of one solve, which run from 0 to ``H`` and end there."""

    times: Float[Array, " time"]
    weights: Float[Array, " time"]  # how much of q is on each time; they sum to one


def draw_horizons(settings: config.Agent, *, key: PRNGKeyArray) -> Horizons:
    """Times and ``q(h)`` by ``horizon_law``, whose special cases the text names (`eq:critic-loss`).

    ``uniform``: ``h ~ U[0, H]``, stratified: one in each of ``horizons`` equal pieces, all at the same place of their
    piece. Each is then as uniform as if drawn alone, and no step of a fixed-step solver, which goes from horizon to
    horizon, is longer than ``H / horizons``: with independent places it could be twice that, where RK4 is unstable for
    a pole at 8 rad/s. ``point``: all of q on ``H``, and the critic learns by TD-H. ``steps``: the same on every
    multiple of ``horizon_step`` up to ``H``, and it learns from the mean of the h-step returns.
    """
    if settings.horizon_law == "steps":
        times = _multiples(settings.horizon, settings.horizon_step)
        count = len(times) - 1
        return Horizons(jnp.asarray(times), jnp.full(count + 1, 1 / count).at[0].set(0.0))
    count = settings.horizons
    pieces = jnp.arange(count)
    # A draw on the rim of the pieces would leave a step of length zero: keep a little inside.
    inside = jnp.clip(jax.random.uniform(key), RIM, 1 - RIM)
    times = settings.horizon * jnp.concatenate([jnp.zeros(1), (pieces + inside) / count, jnp.ones(1)])
    drawn = 1 / count if settings.horizon_law == "uniform" else 0.0
    return Horizons(times, jnp.full(count + 2, drawn).at[0].set(0.0).at[-1].set(1.0 - count * drawn))


def _multiples(horizon: float, step: float | None) -> list[float]:
    """``0, step, 2 step, ..``; a horizon that is no multiple is kept as the last."""
    if step is None or not 0 < step <= horizon:
        raise UserError(
            f"horizons in steps need a horizon_step between 0 and the horizon of {horizon} s, but {step} came: "
            "give it in seconds, or choose the horizon law uniform"
        )
    whole = int(horizon / step * (1 + 1e-9))
    times = [step * i for i in range(whole + 1)]
    return [*times[:-1], horizon] if horizon - times[-1] < 1e-6 * horizon else [*times, horizon]


def draw_starts(starts: Starts, count: int, *, key: PRNGKeyArray) -> Float[Array, "start observation"]:
    """``count`` states uniform over those present (line 10)."""
    weights = jnp.where(starts.present, 0.0, -jnp.inf)
    return starts.observations[jax.random.categorical(key, weights, shape=(count,))]


def values(
    imagined: Imagined,
    critic: Critic,
    times: Float[Array, " time"],
    discount_time: float,
    bootstrap: Float[Array, ""] | float = 1.0,
) -> Float[Array, "member start time"]:
    """``V^h(s)`` of `eq:value2` for every horizon in ``times``: the reward integral plus the discounted critic."""
    ahead = jax.vmap(jax.vmap(jax.vmap(critic)))(imagined.states)
    return imagined.returns + bootstrap * jnp.exp(-times / discount_time) * ahead


def actor_loss(
    settings: config.Agent,
    critic: Critic,
    imagined: Imagined,
    horizons: Horizons,
    bootstrap: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """`eq:actor-loss`, negated: the mean over starts and members of ``V^H``, or of ``E_h V^h``.

    The policy's gradient comes through the trajectory, the critic's input at its end included. ``bootstrap`` weighs the
    critic: less than one is the code's, while its critic is young.
    """
    if settings.actor_objective == "horizon":
        end = Imagined(imagined.states[:, :, -1:], imagined.returns[:, :, -1:], imagined.healthy, imagined.work)
        objective = values(end, critic, horizons.times[-1:], settings.discount_time, bootstrap)[..., 0]
    else:
        objective = values(imagined, critic, horizons.times, settings.discount_time, bootstrap)
        objective = jnp.sum(objective * horizons.weights, axis=-1)
    return -healthy_mean(objective, imagined.healthy)


def horizon_target(
    imagined: Imagined, target: Critic, horizons: Horizons, discount_time: float
) -> Float[Array, "member start"]:
    """``E_h V^h(s)`` of `eq:critic-loss`, without gradient."""
    marginal = jnp.sum(values(imagined, target, horizons.times, discount_time) * horizons.weights, axis=-1)
    return jax.lax.stop_gradient(marginal)


def healthy_mean(value: Float[Array, "member start"], healthy: Bool[Array, "member start"]) -> Float[Array, ""]:
    """Over healthy trajectories only; NaN where there is none."""
    return jnp.sum(jnp.where(healthy, value, 0.0)) / jnp.sum(healthy)


def agent_update(
    settings: config.Agent,
    reward_rate: RewardRate,
    dynamics: AbstractDynamics,
    state: AgentState,
    starts: Starts,
    bootstrap: Float[Array, ""],
    step_scale: Float[Array, ""],
    fresh: DrawStarts | None = None,
) -> tuple[AgentState, AgentMetrics]:
    """Lines 10 to 12 of Algorithm 1. ``bootstrap`` weighs the critic in the actor's loss.

    ``fresh`` draws where trials begin, which ``fresh_starts`` asks for.
    """
    key, horizon_key, start_key, member_key = jax.random.split(state.key, 4)
    horizons = draw_horizons(settings, key=horizon_key)
    begins = draw_begins(settings, state, starts, fresh, key=start_key)
    members, lanes = _assign(settings, dynamics, begins, key=member_key)
    target = _refreshed(state, settings.target_every)
    trained, rest = eqx.partition(state.policy, eqx.is_inexact_array)

    def loss_of(trained: Policy) -> tuple[Array, Imagined]:
        imagined = imagine(
            dynamics, members, eqx.combine(trained, rest), reward_rate, lanes, horizons.times, named(settings.solver),
            discount_time=settings.discount_time,
        )  # fmt: skip
        return actor_loss(settings, state.critic, imagined, horizons, bootstrap), imagined

    (loss, imagined), gradient = jax.value_and_grad(loss_of, has_aux=True)(trained)
    rate = learning_rate(settings, state.iteration) * step_scale
    trained, policy_moments, applied = guarded_update(_ADAM, gradient, loss, state.policy_moments, trained, rate)
    regressed = horizon_target(imagined, target, horizons, settings.discount_time)
    critic, critic_moments, critic_loss, critic_applied = _critic_steps(
        settings, state, lanes, regressed, imagined.healthy, rate
    )
    metrics = AgentMetrics(
        value=-loss,
        reward=healthy_mean(imagined.returns[..., -1], imagined.healthy) / _discounted_time(settings),
        critic_loss=critic_loss,
        effort=jnp.mean(jnp.abs(jax.vmap(state.policy)(begins) - state.policy.middle) / state.policy.reach),
        unhealthy=jnp.sum(~imagined.healthy),
        applied=applied & critic_applied,
        work=imagined.work,
    )
    kept = _kept(imagined, state.imagined)
    policy = eqx.combine(trained, rest)
    state = AgentState(policy, critic, target, policy_moments, critic_moments, kept, state.iteration + 1, key)
    return state, metrics


def learning_rate(settings: config.Agent, iteration: Int[Array, ""]) -> Float[Array, ""]:
    """From ``rate`` down in a straight line to ``1 - decay`` of it at the last of the round's updates."""
    return settings.rate * (1 - settings.decay * jnp.minimum(iteration / settings.updates, 1.0))


def _discounted_time(settings: config.Agent) -> float:
    """``eta (1 - exp(-H/eta))``: what a reward rate of one integrates to."""
    return -settings.discount_time * math.expm1(-settings.horizon / settings.discount_time)


def draw_begins(
    settings: config.Agent, state: AgentState, starts: Starts, fresh: DrawStarts | None, *, key: PRNGKeyArray
) -> Float[Array, "start observation"]:
    """From data, but with the shares asked for from the update before's imagined states and from where trials begin."""
    seen_key, imagined_key, choice_key = jax.random.split(key, 3)
    begins = draw_starts(starts, settings.starts, key=seen_key)
    if settings.imagined_starts:
        again_key, choice_key = choice_key, jax.random.fold_in(choice_key, 1)
        again = draw_starts(state.imagined, settings.starts, key=imagined_key)
        share = jnp.where(jnp.any(state.imagined.present), settings.imagined_starts, 0.0)
        begins = jnp.where(jax.random.bernoulli(again_key, share, (settings.starts, 1)), again, begins)
    if settings.fresh_starts and fresh is not None:
        draw_key, choice_key = jax.random.split(choice_key)
        chosen = jax.random.bernoulli(choice_key, settings.fresh_starts, (settings.starts, 1))
        begins = jnp.where(chosen, fresh(settings.starts, key=draw_key), begins)
    return begins


def _assign(
    settings: config.Agent, dynamics: AbstractDynamics, begins: Float[Array, "start observation"], *, key: PRNGKeyArray
) -> tuple[Members, Float[Array, "member lane observation"]]:
    """``E_q(theta)`` of `eq:value2`: every start through every member, or an equal share of the starts through each.

    Starts are drawn independently, so which member gets which is no choice at all.
    """
    members = dynamics.draw(key=key)
    count = dynamics.member_count()
    if settings.members_per_start == "all":
        return members, jnp.broadcast_to(begins, (count, *begins.shape))
    return members, begins[: len(begins) // count * count].reshape(count, -1, begins.shape[-1])


def _refreshed(state: AgentState, every: int) -> Critic:
    copied = state.iteration % every == 0
    return jax.tree.map(lambda new, old: jnp.where(copied, new, old), state.critic, state.target)


def _critic_steps(settings, state, lanes, regressed, healthy, rate):
    """`eq:critic-loss`: ``critic_steps`` steps towards the same targets."""
    trained, rest = eqx.partition(state.critic, eqx.is_inexact_array)
    if settings.members_per_start == "all":  # the expectation over members stands inside the square
        count = jnp.sum(healthy, axis=0, keepdims=True)
        regressed = jnp.sum(jnp.where(healthy, regressed, 0.0), axis=0, keepdims=True) / jnp.maximum(count, 1)
        healthy, lanes = count > 0, lanes[:1]

    def critic_loss(trained: Critic) -> Array:
        predicted = jax.vmap(jax.vmap(eqx.combine(trained, rest)))(lanes)
        return healthy_mean((predicted - regressed) ** 2, healthy)

    def step(carry, _):
        trained, moments = carry
        loss, gradient = jax.value_and_grad(critic_loss)(trained)
        trained, moments, applied = guarded_update(_ADAM, gradient, loss, moments, trained, rate)
        return (trained, moments), (loss, applied)

    (trained, moments), (losses, applied) = jax.lax.scan(
        step, (trained, state.critic_moments), None, length=settings.critic_steps
    )
    return eqx.combine(trained, rest), moments, losses[0], jnp.all(applied)


def _kept(imagined: Imagined, before: Starts) -> Starts:
    """States along the way of healthy trajectories, as many as are kept."""
    size = before.observations.shape[0]
    states = imagined.states[:, :, 1:]
    healthy = jnp.broadcast_to(imagined.healthy[..., None], states.shape[:3]).reshape(-1)
    flat = jax.lax.stop_gradient(states).reshape(-1, states.shape[-1])
    chosen = jnp.linspace(0, len(flat) - 1, size).astype(jnp.int32) if size else jnp.zeros(0, jnp.int32)
    return Starts(flat[chosen], healthy[chosen])
