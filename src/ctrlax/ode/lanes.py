"""Many adaptive solves in one loop, with gradients: the text's adaptive checkpoint adjoint, for trajectories in groups.

The way there keeps where each step began and how long it was. The way back takes the same steps again, from the last to
the first, one at a time, and differentiates each: the derivative of what the solver computed (P4), the lengths of its
steps taken as given. What trajectories share (a member's weights, a policy) is one array in every product, so that its
derivative is one product too, and not one for every trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int

from ctrlax.ode.solve import SMALLEST_STEP, Solution, inside_limit, solve, stopping
from ctrlax.ode.solvers import Adaptive
from ctrlax.ode.stepping import Lanes, Limits, Rates, attempt, begin

# (common, member, own, time, state) -> rate, of one trajectory: what all share, what its member's share, its own.
LaneField = Callable[[Any, Any, Any, Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]


class Kept(NamedTuple):
    """Where each step began and when it ended; a rejected one, or one of a trajectory at its end, has no length."""

    left: Float[Array, "seed step trajectory"]
    right: Float[Array, "seed step trajectory"]
    before: Float[Array, "seed step trajectory state"]


def solve_lanes(
    field: LaneField,
    common: Any,
    members: Any,
    own: Any,
    starts: Float[Array, "member lane state"],
    times: Float[Array, " time"],
    setting: Adaptive,
    *,
    jumps: bool = False,
    max_steps: int,
) -> Solution:
    """Solve ``ds/dt = field(common, member, own, t, s)`` from every start, as `solve` would each alone.

    ``members`` has the member axis first, ``own`` the axes of member and lane; all three may hold what is no array.
    With ``jumps`` the field may jump at the times asked for, and no step crosses one. Under `vmap` (seeds) it stays one
    loop. Differentiable in ``common``, ``members``, ``own`` and ``starts``, not in the times, and in reverse only.
    """
    if setting.tableau.implicit or setting.lands_on_times:
        return _each_alone(field, common, members, own, starts, times, setting, jumps, max_steps)
    arrays, rest = eqx.partition((common, members, own), eqx.is_array)

    def one(arrays: Any, time: Float[Array, ""], state: Float[Array, " state"]) -> Array:
        common, member, own = eqx.combine(arrays, rest)
        return stopping(lambda time, state: field(common, member, own, time, state))(time, state)

    states, healthy, work = _answered(_Problem(one, setting, jumps, max_steps), arrays, starts, times)
    return Solution(states, healthy, work)


def _each_alone(field, common, members, own, starts, times, setting, jumps, max_steps) -> Solution:
    breaks = times[1:-1] if jumps else None

    def one(member: Any, own: Any, start: Array) -> Solution:
        whole = lambda time, state: field(common, member, own, time, state)  # noqa: E731
        return solve(whole, start, times, setting, breaks=breaks, max_steps=max_steps)

    return eqx.filter_vmap(eqx.filter_vmap(one, in_axes=(None, 0, 0)))(members, own, starts)


class _Problem(NamedTuple):
    """What does not change with the numbers."""

    field: Callable[[Any, Float[Array, ""], Float[Array, " state"]], Float[Array, " state"]]
    setting: Adaptive
    jumps: bool
    max_steps: int

    def rates(self, arrays: Any, shape: tuple[int, ...]) -> Rates:
        """The field of all trajectories in one row; ``shape`` is seed, member, lane."""

        def one(common: Any, member: Any, own: Any, time: Array, state: Array) -> Array:
            return self.field((common, member, own), time, state)

        over = jax.vmap(jax.vmap(jax.vmap(one, (None, None, 0, 0, 0)), (None, 0, 0, 0, 0)))
        common, members, own = arrays

        def rates(at: Float[Array, " trajectory"], states: Float[Array, "trajectory state"]) -> Array:
            moved = over(common, members, own, at.reshape(shape), states.reshape(*shape, -1))
            return moved.reshape(states.shape)

        return rates


def _answered(problem: _Problem, arrays: Any, starts: Array, times: Array) -> tuple[Array, Array, Array]:
    there, back = _for_all_seeds(partial(_there, problem)), _for_all_seeds(partial(_back, problem))

    @jax.custom_vjp
    def answer(arrays: Any, starts: Array, times: Array) -> tuple[Array, Array, Array]:
        return there((arrays, starts, times))[0]

    def forwards(arrays: Any, starts: Any, times: Any) -> tuple[Any, Any]:
        # Only what a derivative is asked of gets one: the weights of a model that stands still are half the work.
        values, asked = _values((arrays, starts, times)), _asked(arrays)
        answers, kept = there(values)
        moving, still = eqx.partition(values[0], asked)
        return answers, (moving, still, *values[1:], answers[1], kept)

    def backwards(residuals: Any, slopes: Any) -> tuple[Any, Any, None]:
        asked_states = slopes[0]
        if isinstance(asked_states, jax.custom_derivatives.SymbolicZero):
            begins, times = residuals[2:4]
            asked_states = jnp.zeros((*begins.shape[:-1], len(times), begins.shape[-1]), begins.dtype)
        by_arrays, by_starts = back((*residuals, asked_states))
        return by_arrays, by_starts, None

    answer.defvjp(forwards, backwards, symbolic_zeros=True)
    return answer(arrays, starts, times)


def _values(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=_is_primal)


def _asked(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: bool(leaf.perturbed), tree, is_leaf=_is_primal)


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")


def _for_all_seeds(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``run(arguments)``, whose leaves have the seed axis first, for one seed; under `vmap` for all in one loop.

    Nested, `vmap`s make one axis of seeds. The innermost varies slowest: it may be spread over cores, and stays so.
    """

    @custom_vmap
    def all_seeds(arguments: Any) -> Any:
        return run(arguments)

    @all_seeds.def_vmap
    def more_seeds(size: int, batched: list[Any], arguments: Any) -> tuple[Any, Any]:
        def joined(leaf: Array, has: bool) -> Array:
            leaf = leaf if has else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])

        def parted(leaf: Array) -> Array:
            return jnp.swapaxes(leaf.reshape(-1, size, *leaf.shape[1:]), 0, 1)

        answers = jax.tree.map(parted, all_seeds(jax.tree.map(joined, arguments, batched[0])))
        return answers, jax.tree.map(lambda _: True, answers)

    def one_seed(arguments: Any) -> Any:
        answers = all_seeds(jax.tree.map(lambda leaf: leaf[None], arguments))
        return jax.tree.map(lambda leaf: leaf[0], answers)

    return one_seed


def _there(problem: _Problem, arguments: Any) -> tuple[tuple[Array, Array, Array], tuple[Array, Kept]]:
    arrays, starts, times = arguments
    shape = starts.shape[:-1]
    rates, setting = problem.rates(arrays, shape), problem.setting
    rows = starts.reshape(-1, starts.shape[-1])
    sound = jax.vmap(inside_limit)(rows)
    rows = jnp.where(sound[:, None], rows, 0.0)
    wanted = _by_trajectory(times, shape)
    breaks = wanted[:, 1:-1] if problem.jumps and wanted.shape[1] > 2 else None
    limits = Limits(wanted[:, -1], breaks, SMALLEST_STEP * (wanted[:, -1] - wanted[:, 0]), problem.max_steps)
    lanes = begin(rates, rows, wanted[:, 0], setting)
    by_seed = partial(_by_seed, len(starts))
    empty = [jnp.zeros_like(by_seed(part), shape=_with_steps(by_seed(part), problem)) for part in (lanes.time, rows)]
    states = jnp.broadcast_to(rows[:, None], (*wanted.shape, rows.shape[1]))

    def step(carry: tuple[Int[Array, ""], Lanes, Kept, Array]) -> tuple[Int[Array, ""], Lanes, Kept, Array]:
        place, lanes, kept, states = carry
        lanes, row = attempt(rates, lanes, setting, limits)
        here = (wanted > row.left[:, None]) & (wanted <= row.right[:, None])
        seen = _read(row.left, row.right, row.before, row.after, row.slopes, wanted, here, problem)
        kept = jax.tree.map(
            lambda all, new: all.at[:, place].set(by_seed(new)), kept, Kept(row.left, row.right, row.before)
        )
        return place + 1, lanes, kept, jnp.where(here[..., None], seen, states)

    count, lanes, kept, states = jax.lax.while_loop(
        lambda carry: jnp.any(limits.running(carry[1])), step, (jnp.asarray(0), lanes, Kept(empty[0], *empty), states)
    )
    healthy = sound & (lanes.time >= limits.end) & ~lanes.lost & jnp.all(jax.vmap(jax.vmap(inside_limit))(states), 1)
    answers = states.reshape(*shape, *states.shape[1:]), healthy.reshape(shape), lanes.work.reshape(shape)
    return answers, (jnp.broadcast_to(count, len(starts)), kept)


def _back(problem: _Problem, arguments: Any) -> tuple[Any, Float[Array, "seed member lane state"]]:
    moving, still, starts, times, healthy, (counts, kept), asked = arguments
    shape = starts.shape[:-1]
    healthy, wanted = healthy.reshape(-1), _by_trajectory(times, shape)
    rows = starts.reshape(-1, starts.shape[-1])
    rows = jnp.where(jax.vmap(inside_limit)(rows)[:, None], rows, 0.0)
    asked = jnp.where(healthy[:, None, None], asked.reshape(*wanted.shape, -1), 0.0)

    def step(carry: tuple[Int[Array, ""], Any, Array]) -> tuple[Int[Array, ""], Any, Array]:
        place, by_moving, by_state = carry
        left, right, before = (part[:, place - 1].reshape(-1, *part.shape[3:]) for part in kept)
        taken = healthy & (right > left)
        # Where nothing is learned from, the field is asked at the start, where it is finite.
        before, right = jnp.where(healthy[:, None], before, rows), jnp.where(taken, right, left)
        here = (wanted > left[:, None]) & (wanted <= right[:, None])

        def again(moving: Any, before: Array) -> tuple[Array, Array]:
            rates = problem.rates(eqx.combine(moving, still), shape)
            after, slopes = _replayed(rates, left, right, before, problem)
            seen = _read(left, right, before, after, slopes, wanted, here, problem)
            return jnp.where(taken[:, None], after, before), jnp.where(here[..., None], seen, 0.0)

        _, pulled = jax.vjp(again, moving, before)
        more, by_state = pulled((by_state, jnp.where(here[..., None], asked, 0.0)))
        return place - 1, jax.tree.map(jnp.add, by_moving, more), by_state

    begun = (jnp.max(counts), jax.tree.map(jnp.zeros_like, moving), jnp.zeros_like(rows))
    _, by_moving, by_state = jax.lax.while_loop(lambda carry: carry[0] > 0, step, begun)
    return by_moving, (by_state + asked[:, 0]).reshape(starts.shape)


def _by_trajectory(times: Float[Array, "seed time"], shape: tuple[int, ...]) -> Float[Array, "trajectory time"]:
    return jnp.broadcast_to(times[:, None, None], (*shape, times.shape[-1])).reshape(-1, times.shape[-1])


def _by_seed(seeds: int, rows: Float[Array, "trajectory *state"]) -> Float[Array, "seed _ *state"]:
    return rows.reshape(seeds, -1, *rows.shape[1:])


def _with_steps(rows: Float[Array, "seed _ *state"], problem: _Problem) -> tuple[int, ...]:
    return (rows.shape[0], problem.max_steps, *rows.shape[1:])


def _replayed(
    rates: Rates,
    left: Float[Array, " trajectory"],
    right: Float[Array, " trajectory"],
    before: Float[Array, "trajectory state"],
    problem: _Problem,
) -> tuple[Float[Array, "trajectory state"], Float[Array, "stage trajectory state"] | None]:
    """One step again: where it ends, and the slopes that tell of the times within it."""
    tableau, length = problem.setting.tableau, right - left
    latest = jnp.maximum(jnp.nextafter(right, left), left) if problem.jumps else right
    slopes = [rates(left, before)]
    # With nothing read off within a step, its last stage serves only the next step, which has it as its first.
    needed = len(tableau.c) - int(problem.jumps and tableau.fsal)
    for node, weights in list(zip(tableau.c, tableau.a_lower, strict=True))[:needed]:
        moved = sum(float(weight) * slope for weight, slope in zip(weights, slopes, strict=True) if weight)
        slopes.append(rates(jnp.minimum(left + float(node) * length, latest), before + length[:, None] * moved))
    weighed = sum(float(weight) * slope for weight, slope in zip(tableau.b_sol, slopes, strict=False) if weight)
    after = before + length[:, None] * weighed
    return after, None if problem.jumps else jnp.stack(slopes)


def _read(
    left: Float[Array, " trajectory"],
    right: Float[Array, " trajectory"],
    before: Float[Array, "trajectory state"],
    after: Float[Array, "trajectory state"],
    slopes: Float[Array, "stage trajectory state"] | None,
    wanted: Float[Array, "trajectory time"],
    here: Bool[Array, "trajectory time"],
    problem: _Problem,
) -> Float[Array, "trajectory time state"]:
    """States at the times ``here``; anything at the others."""
    if problem.jumps:  # a step that reaches a time ends there
        return jnp.broadcast_to(after[:, None], (*wanted.shape, after.shape[1]))
    assert slopes is not None

    def one(left: Array, right: Array, before: Array, after: Array, slopes: Array, times: Array, here: Array) -> Array:
        end = jnp.where(right > left, right, left + 1)
        within = problem.setting.method.interpolation_cls(t0=left, t1=end, y0=before, y1=after, k=(end - left) * slopes)
        return jax.vmap(within.evaluate)(jnp.where(here, times, end))

    return jax.vmap(one, in_axes=(0, 0, 0, 0, 1, 0, 0))(left, right, before, after, slopes, wanted, here)
