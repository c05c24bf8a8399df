"""Many trajectories in one loop: what `solve` does for one, without gradients and several times faster.

The steps of a stretch are kept as they come, one row for all trajectories, and the times asked for are read off once
per stretch. Each trajectory has times of its own, as many as are wanted: the world's roll-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solve import MAX_STEPS, SMALLEST_STEP, Solution, inside_limit, solve, stopping
from ctrlax.ode.solvers import Adaptive, SolverSetting
from ctrlax.ode.stepping import Lanes, Limits, Rates, Steps, attempt, begin

# One trajectory's field; the first argument is whatever is that trajectory's own, such as its control.
OwnField = Callable[[Any, Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]

STRETCH = 128  # steps kept before they are read off: some megabytes for 200 trajectories


def solve_batch(
    field: OwnField,
    own: Any,
    starts: Float[Array, "trajectory state"],
    times: Float[Array, "trajectory time"],
    setting: SolverSetting,
    *,
    breaks: Float[Array, "trajectory break"] | None = None,
    max_steps: int = MAX_STEPS,
) -> Solution:
    """Solve ``ds/dt = field(own, t, s)`` from every start; ``own`` has the trajectory axis first. Not differentiable.

    The answers are those of `solve` for each trajectory, which also serves the settings this loop does not know:
    fixed steps, which have no such copies, and implicit methods.
    """
    if breaks is not None and breaks.shape[1] == 0:
        breaks = None
    if not isinstance(setting, Adaptive) or setting.tableau.implicit or setting.lands_on_times:

        def one(own: Any, start: Array, times: Array, breaks: Array | None) -> Solution:
            return solve(lambda t, s: field(own, t, s), start, times, setting, breaks=breaks, max_steps=max_steps)

        return eqx.filter_vmap(one)(own, starts, times, breaks)
    sound = jax.vmap(inside_limit)(starts)
    starts = jnp.where(sound[:, None], starts, 0.0)

    def rates(at: Float[Array, " trajectory"], states: Float[Array, "trajectory state"]) -> Array:
        return eqx.filter_vmap(lambda own, t, s: stopping(lambda t, s: field(own, t, s))(t, s))(own, at, states)

    limits = Limits(times[:, -1], breaks, SMALLEST_STEP * (times[:, -1] - times[:, 0]), max_steps)
    lanes, states = _all_stretches(rates, begin(rates, starts, times[:, 0], setting), times, setting, limits)
    finished = (lanes.time >= limits.end) & ~lanes.lost
    finite = jnp.all(jax.vmap(jax.vmap(inside_limit))(states), axis=1)
    return Solution(states, sound & finished & finite, lanes.work)


def _all_stretches(
    rates: Rates, lanes: Lanes, times: Float[Array, "trajectory time"], setting: Adaptive, limits: Limits
) -> tuple[Lanes, Float[Array, "trajectory time state"]]:
    slopes = jnp.zeros((setting.tableau.num_stages, *lanes.state.shape), lanes.state.dtype)
    row = Steps(lanes.time, lanes.time, lanes.state, lanes.state, slopes)
    empty = jax.tree.map(lambda part: jnp.zeros((STRETCH, *part.shape), part.dtype), row)

    def going(lanes: Lanes) -> Bool[Array, ""]:
        return jnp.any(limits.running(lanes))

    def one_step(carry: tuple[Int[Array, ""], Lanes, Steps]) -> tuple[Int[Array, ""], Lanes, Steps]:
        place, lanes, rows = carry
        lanes, row = attempt(rates, lanes, setting, limits)
        return place + 1, lanes, jax.tree.map(lambda rows, new: rows.at[place].set(new), rows, row)

    def stretch(carry: tuple[Lanes, Array, Steps]) -> tuple[Lanes, Array, Steps]:
        before, states, rows = carry
        count, lanes, rows = jax.lax.while_loop(
            lambda carry: (carry[0] < STRETCH) & going(carry[1]), one_step, (jnp.asarray(0), before, rows)
        )
        here = (times > before.time[:, None]) & (times <= lanes.time[:, None])
        return lanes, jnp.where(here[:, :, None], _read_off(rows, count, times, here, setting), states), rows

    states = jnp.broadcast_to(lanes.state[:, None], (*times.shape, lanes.state.shape[1]))
    lanes, states, _ = jax.lax.while_loop(lambda carry: going(carry[0]), stretch, (lanes, states, empty))
    return lanes, states


def _read_off(
    rows: Steps, count: Int[Array, ""], times: Float[Array, "trajectory time"], here: Array, setting: Adaptive
) -> Float[Array, "trajectory time state"]:
    ends = jnp.where(jnp.arange(STRETCH)[:, None] < count, rows.right, jnp.inf)

    def one(ends: Array, left: Array, before: Array, after: Array, slopes: Array, times: Array, here: Array) -> Array:
        place = jnp.minimum(jnp.searchsorted(ends, times), STRETCH - 1)
        right = jnp.where(here, ends[place], left[place] + 1)

        def at(place: Array, right: Array, time: Array) -> Array:
            within = setting.method.interpolation_cls(
                t0=left[place], t1=right, y0=before[place], y1=after[place], k=(right - left[place]) * slopes[place]
            )
            return within.evaluate(time)

        return jax.vmap(at)(place, right, times)

    return jax.vmap(one, in_axes=(1, 1, 1, 1, 2, 0, 0))(
        ends, rows.left, rows.before, rows.after, rows.slopes, times, here
    )
