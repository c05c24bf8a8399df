"""The steps of many trajectories in one loop, each with a step length of its own.

Under `vmap`, Diffrax's loop copies the whole record of every trajectory in every step, and keeps the derivatives of
what trajectories share once for each. Here they are rows of the same arrays: for `solve_batch` and `solve_lanes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solve import FIRST_STEP_EVALUATIONS, first_step, norm
from ctrlax.ode.solvers import Adaptive

Rates = Callable[[Float[Array, " trajectory"], Float[Array, "trajectory state"]], Float[Array, "trajectory state"]]

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


class Limits(NamedTuple):
    """How far, and how far in how small steps."""

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


def begin(
    rates: Rates, starts: Float[Array, "trajectory state"], origin: Float[Array, " trajectory"], setting: Adaptive
) -> Lanes:
    """Every trajectory at its start, with a first step."""
    step, rate = first_step(rates, origin, starts, setting)
    none = jnp.zeros(len(starts), int)
    return Lanes(origin, step, starts, rate, none > 0, none > 0, none, none + FIRST_STEP_EVALUATIONS)


def attempt(rates: Rates, lanes: Lanes, setting: Adaptive, limits: Limits) -> tuple[Lanes, Steps]:
    """One step of every trajectory that still runs, kept where its error is within the tolerance."""
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
