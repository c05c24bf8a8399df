"""Many trajectories in one loop: what `solve` does for one, without gradients and several times faster.

Under `vmap`, `solve` copies the whole record of every trajectory in every step. Here the steps of a stretch are kept as
they come, one row for all trajectories, and the times asked for are read off once per stretch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solve import (
    FIRST_STEP_EVALUATIONS,
    MAX_STEPS,
    SMALLEST_STEP,
    Solution,
    first_step,
    inside_limit,
    norm,
    solve,
    stopping,
)
from ctrlax.ode.solvers import Adaptive, SolverSetting

# One trajectory's field; the first argument is whatever is that trajectory's own, such as its control.
OwnField = Callable[[Any, Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]
Rates = Callable[[Float[Array, " trajectory"], Float[Array, "trajectory state"]], Float[Array, "trajectory state"]]

STRETCH = 128  # steps kept before they are read off: some megabytes for 200 trajectories
# The step control of `diffrax.PIDController` as `solve` uses it, so that both take the same steps.
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
CLOSE_TO_END = 1e-9  # of a step: what would remain to be stepped after it is added to it


class Lanes(NamedTuple):
    """Where each trajectory stands."""

    time: Float[Array, " trajectory"]
    step: Float[Array, " trajectory"]  # proposed for the next step
    state: Float[Array, "trajectory state"]
    rate: Float[Array, "trajectory state"]  # of the field at `state`, unless `stale`
    stale: Bool[Array, " trajectory"]
    lost: Bool[Array, " trajectory"]
    steps: Int[Array, " trajectory"]
    work: Int[Array, " trajectory"]


class Steps(NamedTuple):
    """What a step leaves behind for reading off the times within it; a rejected one has no length."""

    left: Float[Array, "*step trajectory"]
    right: Float[Array, "*step trajectory"]
    before: Float[Array, "*step trajectory state"]
    after: Float[Array, "*step trajectory state"]
    slopes: Float[Array, "*step stage trajectory state"]


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

    limits = _Limits(times[:, -1], breaks, SMALLEST_STEP * (times[:, -1] - times[:, 0]), max_steps)
    lanes, states = _all_stretches(rates, _begin(rates, starts, times[:, 0], setting), times, setting, limits)
    finished = (lanes.time >= limits.end) & ~lanes.lost
    finite = jnp.all(jax.vmap(jax.vmap(inside_limit))(states), axis=1)
    return Solution(states, sound & finished & finite, lanes.work)


class _Limits(NamedTuple):
    end: Float[Array, " trajectory"]
    breaks: Float[Array, "trajectory break"] | None
    smallest_step: Float[Array, " trajectory"]
    max_steps: int

    def running(self, lanes: Lanes) -> Bool[Array, " trajectory"]:
        return (lanes.time < self.end) & ~lanes.lost & (lanes.steps < self.max_steps)

    def next_stop(self, time: Float[Array, " trajectory"]) -> Float[Array, " trajectory"]:
        """The next break or the end: no step goes beyond."""
        if self.breaks is None:
            return self.end
        later = jnp.where(self.breaks > time[:, None], self.breaks, jnp.inf)
        return jnp.minimum(jnp.min(later, axis=1), self.end)


def _begin(
    rates: Rates, starts: Float[Array, "trajectory state"], origin: Float[Array, " trajectory"], setting: Adaptive
) -> Lanes:
    step, rate = first_step(rates, origin, starts, setting)
    none = jnp.zeros(len(starts), int)
    return Lanes(origin, step, starts, rate, none > 0, none > 0, none, none + FIRST_STEP_EVALUATIONS)


def _all_stretches(
    rates: Rates, lanes: Lanes, times: Float[Array, "trajectory time"], setting: Adaptive, limits: _Limits
) -> tuple[Lanes, Float[Array, "trajectory time state"]]:
    slopes = jnp.zeros((setting.tableau.num_stages, *lanes.state.shape), lanes.state.dtype)
    row = Steps(lanes.time, lanes.time, lanes.state, lanes.state, slopes)
    empty = jax.tree.map(lambda part: jnp.zeros((STRETCH, *part.shape), part.dtype), row)

    def going(lanes: Lanes) -> Bool[Array, ""]:
        return jnp.any(limits.running(lanes))

    def one_step(carry: tuple[Int[Array, ""], Lanes, Steps]) -> tuple[Int[Array, ""], Lanes, Steps]:
        place, lanes, rows = carry
        lanes, row = _step(rates, lanes, setting, limits)
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


def _step(rates: Rates, lanes: Lanes, setting: Adaptive, limits: _Limits) -> tuple[Lanes, Steps]:
    running = limits.running(lanes)
    stop = limits.next_stop(lanes.time)
    clipped = lanes.time + lanes.step * (1 + CLOSE_TO_END) >= stop
    right = jnp.where(running, jnp.where(clipped, stop, lanes.time + lanes.step), lanes.time)
    length = right - lanes.time
    slopes = _slopes(rates, lanes, right, setting, limits.breaks is not None)
    tableau = setting.tableau
    after = lanes.state + length[:, None] * jnp.tensordot(tableau.b_sol, slopes, 1)
    largest = jnp.maximum(jnp.abs(lanes.state), jnp.abs(after))
    scale = setting.atol + setting.rtol * jnp.where(jnp.isfinite(largest), largest, 0.0)
    error = length * norm(jnp.tensordot(tableau.b_error, slopes, 1) / scale)
    error = jnp.where(jnp.isfinite(error), error, jnp.inf)
    kept = running & (error < 1)
    factor = SAFETY * error ** (-1 / setting.order)
    step = length * jnp.clip(factor, jnp.where(kept, 1.0, SHRINK), jnp.where(kept, GROW, SAFETY))
    # A step cut short by a break says nothing against the longer one that was proposed.
    step = jnp.where(kept & clipped, jnp.maximum(step, lanes.step), step)
    moved = Lanes(
        time=jnp.where(kept, right, lanes.time),
        step=jnp.where(running, step, lanes.step),
        state=jnp.where(kept[:, None], after, lanes.state),
        rate=jnp.where(kept[:, None], slopes[-1], slopes[0]),
        stale=kept & clipped,
        lost=lanes.lost | (running & ~kept & ~(step >= limits.smallest_step)),
        steps=lanes.steps + running,
        work=lanes.work + jnp.where(running, setting.stages + (lanes.stale if tableau.fsal else 0), 0),
    )
    return moved, Steps(lanes.time, moved.time, lanes.state, after, slopes)


def _slopes(
    rates: Rates, lanes: Lanes, right: Float[Array, " trajectory"], setting: Adaptive, jumps: bool
) -> Float[Array, "stage trajectory state"]:
    tableau = setting.tableau
    matrix = np.zeros((tableau.num_stages, tableau.num_stages))
    for row, weights in enumerate(tableau.a_lower, 1):
        matrix[row, : len(weights)] = weights
    nodes = jnp.asarray(np.concatenate([[0.0], tableau.c]))
    length = right - lanes.time
    # Just before its end a step still sees the action from before a break there.
    latest = jnp.maximum(jnp.nextafter(right, lanes.time), lanes.time) if jumps else right

    def stage(place: Int[Array, ""], slopes: Array) -> Array:
        shifted = lanes.state + length[:, None] * jnp.tensordot(jnp.asarray(matrix)[place], slopes, 1)
        return slopes.at[place].set(rates(jnp.minimum(lanes.time + nodes[place] * length, latest), shifted))

    slopes = jnp.zeros((tableau.num_stages, *lanes.state.shape), lanes.state.dtype)
    if not tableau.fsal:
        return jax.lax.fori_loop(0, tableau.num_stages, stage, slopes)
    first = lanes.rate
    if jumps:
        # The last slope of the step before saw the action from before the break.
        first = jax.lax.cond(
            jnp.any(lanes.stale),
            lambda: jnp.where(lanes.stale[:, None], rates(lanes.time, lanes.state), first),
            lambda: first,
        )
    return jax.lax.fori_loop(1, tableau.num_stages, stage, slopes.at[0].set(first))


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
