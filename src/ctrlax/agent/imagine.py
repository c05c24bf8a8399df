"""Model x policy x starts -> Imagined: one solve yields states, running returns and health for both losses (P3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ctrlax.model.dynamics import AbstractField, Members
from ctrlax.ode.cores import each_core
from ctrlax.ode.lanes import solve_lanes
from ctrlax.ode.solve import Solution, solve
from ctrlax.ode.solvers import Adaptive, SolverSetting

# In units of the data's scale: an imagined state this far out is stopped and its trajectory left out.
IMAGINED_LIMIT = 1e2
IMAGINED_STEPS = 512  # solver steps a horizon may take before its trajectory counts as unhealthy

Policy = Callable[[Float[Array, " observation"]], Float[Array, " action"]]
RewardRate = Callable[[Float[Array, " observation"], Float[Array, " action"]], Float[Array, ""]]


class Imagined(eqx.Module):
    """Imagined trajectories at the times asked for, the member axis first; an unhealthy one stays at its start."""

    states: Float[Array, "member start time observation"]
    returns: Float[Array, "member start time"]  # the discounted reward integral from 0 to each time
    healthy: Bool[Array, "member start"]
    work: Int[Array, ""]


def imagine(
    dynamics: AbstractField,
    members: Members,
    policy: Policy,
    reward_rate: RewardRate,
    starts: Float[Array, "member start observation"],
    times: Float[Array, " time"],
    setting: SolverSetting,
    *,
    discount_time: float,
) -> Imagined:
    """`eq:img-st` and `eq:img-act` from ``times[0] = 0``, with ``dR/dt = exp(-t/eta) r(s, a)`` as one more state.

    Members enumerated or drawn is the caller's choice of ``starts``: the same under every member, or each under one.
    """
    field = partial(_moving, reward_rate, discount_time, setting)
    begins = jnp.concatenate([starts, jnp.zeros((*starts.shape[:2], 1), starts.dtype)], axis=-1)

    def solved(policy: Policy, members: Members, begins: Float[Array, "member start state"]) -> Solution:
        if isinstance(setting, Adaptive):
            agents = dynamics, policy
            return solve_lanes(field, agents, members, None, begins, times, setting, max_steps=IMAGINED_STEPS)

        def one(member: Members, begin: Float[Array, " state"]) -> Solution:
            return solve(partial(field, (dynamics, policy), member, None), begin, times, setting)

        return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(members, begins)

    solution = each_core(solved, policy, members, begins)
    near = jnp.abs(solution.states[..., :-1]) < IMAGINED_LIMIT * dynamics.length_scales()
    healthy = solution.healthy & jnp.all(near, axis=(-2, -1))
    # What is left out is nowhere else than at its start: no critic is asked about infinity, forwards or backwards.
    states = jnp.where(healthy[..., None, None], solution.states, begins[:, :, None])
    return Imagined(states[..., :-1], states[..., -1], healthy, jnp.sum(solution.work))


def _moving(
    reward_rate: RewardRate,
    discount_time: float,
    setting: SolverSetting,
    agents: tuple[AbstractField, Policy],
    member: Members,
    own: None,
    time: Float[Array, ""],
    state: Float[Array, " state"],
) -> Float[Array, " state"]:
    """The rate of observation and discounted reward integral under the policy; far outside nothing moves."""
    dynamics, policy = agents
    # An implicit method differentiates the field forwards, which `_entering` does not know.
    implicit = isinstance(setting, Adaptive) and setting.tableau.implicit
    entering, leaving = (_passing, _passed) if implicit else (_entering, _leaving)
    observation = state[:-1]
    inside = jnp.all(jnp.abs(observation) < IMAGINED_LIMIT * dynamics.length_scales())
    observation = jnp.where(inside, observation, 0.0)
    observation, action, asked = entering(observation, policy(observation))
    moved = dynamics.rate(member, observation, action)
    reward = jnp.exp(-time / discount_time) * reward_rate(observation, action)
    return jnp.where(inside, leaving(jnp.concatenate([moved, reward[None]]), asked), 0.0)


# A trajectory left out has the gradient zero, but zero times an infinite derivative is NaN, in all of the policy.
# So around each evaluation of the field: what asks for no derivative on leaving gets none on entering.


def _passing(observation: Array, action: Array) -> tuple[Array, Array, Array]:
    # The third carries nothing but a derivative back. Made of both, it is batched by `vmap` as they are.
    return observation, action, jnp.sum(observation) + jnp.sum(action)


def _passed(rate: Array, asked: Array) -> Array:
    return rate


_entering = jax.custom_vjp(_passing)
_leaving = jax.custom_vjp(_passed)


def _nothing_asked_nothing_given(_: None, gradients: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    by_observation, by_action, asked = gradients
    return jnp.where(asked != 0, by_observation, 0.0), jnp.where(asked != 0, by_action, 0.0)


def _ask(_: None, gradient: Array) -> tuple[Array, Array]:
    return gradient, jnp.any(gradient != 0).astype(gradient.dtype)


_entering.defvjp(lambda *inputs: (_passing(*inputs), None), _nothing_asked_nothing_given)
_leaving.defvjp(lambda *inputs: (_passed(*inputs), None), _ask)
