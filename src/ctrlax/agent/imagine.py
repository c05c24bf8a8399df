"""Model x policy x starts -> Imagined: one solve yields states, running returns and health for both losses (P3)."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ctrlax.model.dynamics import AbstractDynamics, Members
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import SolverSetting

# In units of the data's scale: an imagined state this far out is stopped and its trajectory left out.
IMAGINED_LIMIT = 1e2
IMAGINED_STEPS = 512  # solver steps a horizon may take before its trajectory counts as unhealthy

Policy = Callable[[Float[Array, " observation"]], Float[Array, " action"]]
RewardRate = Callable[[Float[Array, " observation"], Float[Array, " action"]], Float[Array, ""]]


class Imagined(eqx.Module):
    """Imagined trajectories at the times asked for, the member axis first."""

    states: Float[Array, "member start time observation"]
    returns: Float[Array, "member start time"]  # the discounted reward integral from 0 to each time
    healthy: Bool[Array, "member start"]
    work: Int[Array, ""]


def imagine(
    dynamics: AbstractDynamics,
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
    limit = IMAGINED_LIMIT * dynamics.length_scales()

    def one(member: Members, start: Float[Array, " observation"]) -> tuple[Array, Array, Array]:
        def field(time: Float[Array, ""], state: Float[Array, " state"]) -> Float[Array, " state"]:
            observation = state[:-1]
            inside = jnp.all(jnp.abs(observation) < limit)
            observation = jnp.where(inside, observation, 0.0)
            action = policy(observation)
            moved = dynamics.rate(member, observation, action)
            reward = jnp.exp(-time / discount_time) * reward_rate(observation, action)
            return jnp.where(inside, jnp.concatenate([moved, reward[None]]), 0.0)

        begin = jnp.concatenate([start, jnp.zeros(1)])
        solution = solve(field, begin, times, setting, max_steps=IMAGINED_STEPS)
        healthy = solution.healthy & jnp.all(jnp.abs(solution.states[:, :-1]) < limit)
        return solution.states, healthy, solution.work

    states, healthy, work = jax.vmap(jax.vmap(one, in_axes=(None, 0)))(members, starts)
    return Imagined(states[..., :-1], states[..., -1], healthy, jnp.sum(work))
