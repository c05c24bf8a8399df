"""Solving a controlled ODE, and saying honestly how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solvers import Adaptive, Fixed, SolverSetting, Tableau

Field = Callable[[Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]

# A state this large in any coordinate has left every model's validity; it is stopped there and called unhealthy.
SIZE_LIMIT = 1e8
# Relative to the time solved for. Far below any useful step, far above the spacing of float64 times: only a blow-up
# reaches it.
SMALLEST_STEP = 1e-13
MAX_STEPS = 1 << 16
FIRST_STEP_EVALUATIONS = 2
REFUSED = 1e6  # relative error of a step to no number: far beyond any tolerance, and its square is still a float32


class Solution(eqx.Module):
    """States at the times asked for, whether they can be trusted, and what they cost; of one trajectory or of many."""

    states: Float[Array, "*trajectory time state"]
    healthy: Bool[Array, "*trajectory"]
    work: Int[Array, "*trajectory"]  # evaluations of the field, rejected steps included


def solve(
    field: Field,
    start: Float[Array, " state"],
    times: Float[Array, " time"],
    setting: SolverSetting,
    *,
    breaks: Float[Array, " break"] | None = None,
    max_steps: int = MAX_STEPS,
    adjoint: diffrax.AbstractAdjoint | None = None,
) -> Solution:
    """Solve ``ds/dt = field(t, s)`` (`eq:ode-def`) from ``start`` at ``times[0]``, one trajectory; `vmap` for more.

    ``breaks`` are times at which the field jumps (held actions, kinks of a log): no step crosses one.
    A start that is not finite is replaced, a state that grows past `SIZE_LIMIT` stops there; neither is ever healthy.
    """
    sound = inside_limit(start)
    start = jnp.where(sound, start, jnp.zeros_like(start))
    stoppable = stopping(field)
    if breaks is not None and breaks.shape[0] == 0:
        breaks = None
    if isinstance(setting, Fixed):
        states, work = _solve_fixed(stoppable, start, times, setting, breaks)
        finished = jnp.asarray(True)
    else:
        states, finished, work = _solve_adaptive(stoppable, start, times, setting, breaks, max_steps, adjoint)
    return Solution(states, sound & finished & inside_limit(states), work)


def inside_limit(states: Float[Array, "..."]) -> Bool[Array, ""]:
    """Whether all numbers are finite and below `SIZE_LIMIT`."""
    return jnp.all(jnp.abs(states) < SIZE_LIMIT)  # a comparison with NaN is false


def stopping(field: Field) -> Field:
    """The same field inside `SIZE_LIMIT`, and no movement outside."""

    def stopped(time: Float[Array, ""], state: Float[Array, " state"]) -> Float[Array, " state"]:
        inside = inside_limit(state)
        rate = field(time, jnp.where(inside, state, jnp.zeros_like(state)))
        return jnp.where(inside, rate, jnp.zeros_like(rate))

    return stopped


def _solve_adaptive(
    field: Field,
    start: Float[Array, " state"],
    times: Float[Array, " time"],
    setting: Adaptive,
    breaks: Float[Array, " break"] | None,
    max_steps: int,
    adjoint: diffrax.AbstractAdjoint | None,
) -> tuple[Float[Array, "time state"], Bool[Array, ""], Int[Array, ""]]:
    span = times[-1] - times[0]
    controller = diffrax.PIDController(
        rtol=setting.rtol, atol=setting.atol, dtmin=SMALLEST_STEP * span, force_dtmin=False
    )
    if breaks is not None or setting.lands_on_times:
        controller = diffrax.ClipStepSizeController(
            controller,
            step_ts=times if setting.lands_on_times else None,
            jump_ts=None if breaks is None else jnp.sort(breaks),
        )
    step, _ = first_step(field, times[0], jax.lax.stop_gradient(start), setting)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda time, state, _: field(jnp.asarray(time), state)),
        setting.method(),
        t0=times[0],
        t1=times[-1],
        dt0=jnp.clip(jnp.nan_to_num(jax.lax.stop_gradient(step)), SMALLEST_STEP * span, span),
        y0=start,
        saveat=diffrax.SaveAt(ts=times, controller_state=True),
        stepsize_controller=_CountingJumps(controller),
        max_steps=max_steps,
        throw=False,
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
    )
    assert solution.ys is not None
    assert solution.controller_state is not None
    work = FIRST_STEP_EVALUATIONS + setting.stages * solution.stats["num_steps"]
    if setting.tableau.fsal:
        work = work + 1 + solution.controller_state[1]
    return solution.ys, solution.result == diffrax.RESULTS.successful, work


def first_step(
    rates: Callable[
        [Float[Array, "*trajectory"], Float[Array, "*trajectory state"]], Float[Array, "*trajectory state"]
    ],
    time: Float[Array, "*trajectory"],
    start: Float[Array, "*trajectory state"],
    setting: Adaptive,
) -> tuple[Float[Array, "*trajectory"], Float[Array, "*trajectory state"]]:
    """A first step by Hairer, Norsett, Wanner (Solving Ordinary Differential Equations I, II.4), and the rate there.

    Diffrax has the same rule and does not reach it: its terms are wrapped by then, and every first step is 0.01.
    """
    scale = setting.atol + setting.rtol * jnp.abs(start)
    first = rates(time, start)
    size, speed = norm(start / scale), norm(first / scale)
    slight = (size < 1e-5) | (speed < 1e-5)
    trial = jnp.where(slight, 1e-6, 0.01 * size / jnp.where(slight, 1.0, speed))
    second = rates(time + trial, start + trial[..., None] * first)
    bend = jnp.maximum(speed, norm((second - first) / scale) / trial)
    by_bend = (0.01 / jnp.maximum(bend, 1e-15)) ** (1 / setting.order)
    step = jnp.where(bend <= 1e-15, jnp.maximum(1e-6, 1e-3 * trial), by_bend)
    step = jnp.minimum(100 * trial, step)
    return jnp.where(jnp.isfinite(step), step, 1e-6), first  # a field without a number is found out by its first step


def norm(values: Float[Array, "*trajectory state"]) -> Float[Array, "*trajectory"]:
    """Root mean square over the coordinates of the state."""
    return jnp.sqrt(jnp.mean(values**2, axis=-1))


class _CountingJumps(diffrax.AbstractAdaptiveStepSizeController):
    """Counts the steps that begin behind a jump: the last slope of the step before is none of theirs."""

    controller: Any

    def __init__(self, controller: Any) -> None:
        self.controller = controller

    @property
    def rtol(self) -> Any:
        return self.controller.rtol

    @property
    def atol(self) -> Any:
        return self.controller.atol

    @property
    def norm(self) -> Any:
        return self.controller.norm

    def wrap(self, direction: Any) -> _CountingJumps:
        return _CountingJumps(self.controller.wrap(direction))

    def init(self, *args: Any, **named: Any) -> tuple[Any, Any]:
        first, inner = self.controller.init(*args, **named)
        return first, (inner, jnp.asarray(0), jnp.asarray(False))

    def adapt_step_size(
        self, left: Any, right: Any, before: Any, after: Any, args: Any, error: Any, order: Any, state: Any
    ) -> tuple[Any, ...]:
        inner, count, behind = state
        # An infinite error over an infinite state is NaN, and so would be the next step, and all gradients with it.
        sound = jnp.all(jnp.isfinite(after)) & jnp.all(jnp.isfinite(error))
        after = jnp.where(sound, after, before)
        error = jnp.where(sound, error, REFUSED * (1 + jnp.abs(before)))
        kept, left, right, jumped, inner, result = self.controller.adapt_step_size(
            left, right, before, after, args, error, order, inner
        )
        state = inner, count + behind, jnp.where(kept, jumped, behind)
        return kept, left, right, jumped, state, result


def _solve_fixed(
    field: Field,
    start: Float[Array, " state"],
    times: Float[Array, " time"],
    setting: Fixed,
    breaks: Float[Array, " break"] | None,
) -> tuple[Float[Array, "time state"], Int[Array, ""]]:
    grid = times if breaks is None else jnp.sort(jnp.concatenate([times, jnp.clip(breaks, times[0], times[-1])]))

    def interval(
        state: Float[Array, " state"], ends: tuple[Float[Array, ""], Float[Array, ""]]
    ) -> tuple[Float[Array, " state"], Float[Array, " state"]]:
        left, right = ends
        step = (right - left) / setting.inner_steps
        before = jnp.maximum(left, jnp.nextafter(right, left))  # a stage at the end still sees this interval's action

        def inner(i: Int[Array, ""], state: Float[Array, " state"]) -> Float[Array, " state"]:
            return explicit_step(
                setting.tableau,
                lambda node, state: field(jnp.minimum(left + (i + node) * step, before), state),
                step,
                state,
            )

        if setting.inner_steps == 1:
            state = inner(jnp.asarray(0), state)
        else:
            state, _ = jax.lax.scan(lambda s, i: (inner(i, s), None), state, jnp.arange(setting.inner_steps))
        return state, state

    _, states = jax.lax.scan(interval, start, (grid[:-1], grid[1:]))
    states = jnp.concatenate([start[None], states])
    if breaks is not None:
        states = states[jnp.searchsorted(grid, times)]
    work = jnp.sum(jnp.diff(grid) > 0) * (setting.inner_steps * len(setting.tableau.weights))
    return states, work


def explicit_step(
    tableau: Tableau,
    rate: Callable[[float, Float[Array, "..."]], Float[Array, "..."]],
    step: Float[Array, ""] | float,
    state: Float[Array, "..."],
) -> Float[Array, "..."]:
    """One explicit Runge-Kutta step of any state array; ``rate(node, state)`` is the field at that node of the step."""
    stages: list[Array] = []
    for node, weights in zip(tableau.nodes, tableau.stages, strict=True):
        shifted = state
        for weight, stage in zip(weights, stages, strict=True):
            if weight:
                shifted = shifted + (step * weight) * stage
        stages.append(rate(node, shifted))
    for weight, stage in zip(tableau.weights, stages, strict=True):
        state = state + (step * weight) * stage
    return state
