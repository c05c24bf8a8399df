"""Solving a controlled ODE, and saying honestly how it went."""

from __future__ import annotations

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solvers import Adaptive, Fixed, SolverSetting, Tableau

Field = Callable[[Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]

# A state this large in any coordinate has left every model's validity; its trajectory is stopped there and called unhealthy.
SIZE_LIMIT = 1e8
# Relative to the time solved for. Far below any useful step, far above the spacing of float64 times: reached only by a blow-up.
SMALLEST_STEP = 1e-13
MAX_STEPS = 1 << 16


class Solution(eqx.Module):
    """States at the times asked for, whether they can be trusted, and what they cost."""

    states: Float[Array, "time state"]
    healthy: Bool[Array, ""]
    work: Int[Array, ""]  # evaluations of the field, rejected steps included


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
    A start that is not finite is replaced, and a state that grows past `SIZE_LIMIT` stops there; neither is ever healthy.
    """
    sound = jnp.all(jnp.isfinite(start)) & jnp.all(jnp.abs(start) < SIZE_LIMIT)
    start = jnp.where(sound, start, jnp.zeros_like(start))
    stoppable = _stopping(field)
    if breaks is not None and breaks.shape[0] == 0:
        breaks = None
    if isinstance(setting, Fixed):
        states, work = _solve_fixed(stoppable, start, times, setting, breaks)
        finished = jnp.asarray(True)
    else:
        states, finished, work = _solve_adaptive(stoppable, start, times, setting, breaks, max_steps, adjoint)
    finite = jnp.all(jnp.isfinite(states)) & jnp.all(jnp.abs(states) < SIZE_LIMIT)
    return Solution(states, sound & finished & finite, work)


def _stopping(field: Field) -> Field:
    def stopping(time: Float[Array, ""], state: Float[Array, " state"]) -> Float[Array, " state"]:
        inside = jnp.all(jnp.abs(state) < SIZE_LIMIT)
        safe = jnp.where(inside, state, jnp.zeros_like(state))
        rate = field(time, safe)
        return jnp.where(inside, rate, jnp.zeros_like(rate))

    return stopping


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
    if breaks is not None:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=jnp.sort(breaks))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda time, state, _: field(time, state)),
        setting.method(),
        t0=times[0],
        t1=times[-1],
        dt0=None,
        y0=start,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=controller,
        max_steps=max_steps,
        throw=False,
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
    )
    assert solution.ys is not None
    finished = solution.result == diffrax.RESULTS.successful
    return solution.ys, finished, _evaluations(setting, solution.stats["num_steps"], breaks, times)


# Choosing the first step takes two evaluations, one of which the method uses again if its last stage is its next first.
_FIRST_STEP_EVALUATIONS = 2


def _evaluations(
    setting: Adaptive, steps: Int[Array, ""], breaks: Float[Array, " break"] | None, times: Float[Array, " time"]
) -> Int[Array, ""]:
    tableau = getattr(setting.method, "tableau")  # noqa: B009
    work = setting.stages * steps + _FIRST_STEP_EVALUATIONS + int(tableau.fsal)
    if breaks is not None and tableau.fsal:
        work = work + jnp.sum((breaks > times[0]) & (breaks < times[-1]))
    return work


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
