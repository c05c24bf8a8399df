"""Many adaptive solves in one loop, with gradients: the text's adaptive checkpoint adjoint, for trajectories in groups.

The way there keeps where each step began and how long it was. The way back takes the same steps again, from the last to
the first, one at a time, and differentiates each: the derivative of what the solver computed (P4), the lengths of its
steps taken as given. What trajectories share (a member's weights, a policy) is one array in every product, so that its
derivative is one product too, and not one for every trajectory.

The loop lasts as long as the trajectory with the most steps, and all the others would be computed until then. So it
has two stages: when few of each member's trajectories still run, the others are put aside and these go on alone.
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

SHARE_LEFT = 4  # the second stage has room for one in so many of a member's trajectories
FEWEST = 8  # trajectories of a member below which nobody is put aside: a product so small costs no less when smaller

Standing = Any  # `Lanes` with the axes of member and lane, the state apart: it is differentiated

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

    problem = _Problem(one, setting, jumps, max_steps)
    sound = jax.vmap(jax.vmap(inside_limit))(starts)
    begins = jnp.where(sound[..., None], starts, 0.0)
    standing = _begun(problem, *jax.lax.stop_gradient((arrays, begins)), times)
    lanes = starts.shape[1]
    few = -(-lanes // SHARE_LEFT) if lanes >= FEWEST else 0
    ends, seen, standing = _stage(problem, few, arrays, begins, standing, times)
    if few:
        seen, standing = _alone(problem, few, arrays, ends, seen, standing, times)
    reached = (times > times[0]) & (times <= standing.time[..., None])
    states = jnp.where(reached[..., None], seen, begins[:, :, None])
    finite = jnp.all(jax.vmap(jax.vmap(jax.vmap(inside_limit)))(states), axis=-1)
    healthy = sound & (standing.time >= times[-1]) & ~standing.lost & finite
    states = jnp.where(healthy[..., None, None], states, jax.lax.stop_gradient(states))
    return Solution(states, healthy, standing.work)


def _alone(
    problem: _Problem,
    few: int,
    arrays: Any,
    ends: Float[Array, "member lane state"],
    seen: Float[Array, "member lane time state"],
    standing: Standing,
    times: Float[Array, " time"],
) -> tuple[Float[Array, "member lane time state"], Standing]:
    """The second stage: every member's trajectories that still run, ``few`` of them or fewer, and nobody else."""
    running = (standing.time < times[-1]) & ~standing.lost & (standing.steps < problem.max_steps)
    chosen = jnp.argsort(~running, axis=1, stable=True)[:, :few]
    common, members, own = arrays

    def taken(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.vmap(lambda rows, places: rows[places])(leaf, chosen), tree)

    _, later, stood = _stage(problem, 0, (common, members, taken(own)), taken(ends), taken(standing), times)
    put = jax.vmap(lambda rows, places, new: rows.at[places].set(new))
    standing = jax.tree.map(lambda leaf, new: put(leaf, chosen, new), standing, stood)
    return jax.vmap(lambda rows, places, new: rows.at[places].add(new))(seen, chosen, later), standing


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


def _begun(problem: _Problem, arrays: Any, begins: Float[Array, "member lane state"], times: Array) -> Standing:
    """Every trajectory with its first step."""
    shape = (1, *begins.shape[:2])
    rates = problem.rates(jax.tree.map(lambda leaf: leaf[None], arrays), shape)
    rows = begins.reshape(-1, begins.shape[-1])
    lanes = begin(rates, rows, jnp.full(len(rows), times[0]), problem.setting)
    shaped = jax.tree.map(lambda leaf: leaf.reshape(*shape[1:], *leaf.shape[1:]), lanes)
    return shaped._replace(state=None)


def _stage(
    problem: _Problem,
    few: int,
    arrays: Any,
    begins: Float[Array, "member lane state"],
    standing: Standing,
    times: Array,
) -> tuple[Float[Array, "member lane state"], Float[Array, "member lane time state"], Standing]:
    """Steps until at most ``few`` of every member's trajectories run: where they end, and what was passed.

    States at times that were not passed are zero.
    """
    there, back = _for_all_seeds(partial(_there, problem, few)), _for_all_seeds(partial(_back, problem))

    @jax.custom_vjp
    def stage(arrays: Any, begins: Array, standing: Standing, times: Array) -> tuple[Array, Array, Standing]:
        return there((arrays, begins, standing, times))[0]

    def forwards(arrays: Any, begins: Any, standing: Any, times: Any) -> tuple[Any, Any]:
        # Only what a derivative is asked of gets one: the weights of a model that stands still are half the work.
        values, asked = _values((arrays, begins, standing, times)), _asked(arrays)
        answers, kept = there(values)
        moving, still = eqx.partition(values[0], asked)
        return answers, (moving, still, values[1], values[3], kept)

    def backwards(residuals: Any, slopes: Any) -> tuple[Any, Any, None, None]:
        begins, times = residuals[2:4]
        seen = (*begins.shape[:-1], len(times), begins.shape[-1])
        asked = [
            jnp.zeros(shape, begins.dtype) if isinstance(slope, jax.custom_derivatives.SymbolicZero) else slope
            for slope, shape in zip(slopes[:2], (begins.shape, seen), strict=True)
        ]
        by_arrays, by_begins = back((*residuals, *asked))
        return by_arrays, by_begins, None, None

    stage.defvjp(forwards, backwards, symbolic_zeros=True)
    return stage(arrays, begins, standing, times)


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


def _there(
    problem: _Problem, few: int, arguments: Any
) -> tuple[tuple[Array, Array, Standing], tuple[Int[Array, " seed"], Kept]]:
    arrays, begins, standing, times = arguments
    shape = begins.shape[:-1]
    rates = problem.rates(arrays, shape)
    wanted = _by_trajectory(times, shape)
    breaks = wanted[:, 1:-1] if problem.jumps and wanted.shape[1] > 2 else None
    limits = Limits(wanted[:, -1], breaks, SMALLEST_STEP * (wanted[:, -1] - wanted[:, 0]), problem.max_steps)
    lanes = jax.tree.map(partial(_in_a_row, 3), standing._replace(state=begins))
    by_seed = partial(_by_seed, len(begins))
    empty = [
        jnp.zeros_like(by_seed(part), shape=_with_steps(by_seed(part), problem)) for part in (lanes.time, lanes.state)
    ]

    def going(carry: tuple[Int[Array, ""], Lanes, Kept, Array]) -> Bool[Array, ""]:
        return jnp.any(jnp.sum(limits.running(carry[1]).reshape(shape), axis=-1) > few)

    def step(carry: tuple[Int[Array, ""], Lanes, Kept, Array]) -> tuple[Int[Array, ""], Lanes, Kept, Array]:
        place, lanes, kept, states = carry
        lanes, row = attempt(rates, lanes, problem.setting, limits)
        here = (wanted > row.left[:, None]) & (wanted <= row.right[:, None])
        seen = _read(row.left, row.right, row.before, row.after, row.slopes, wanted, here, problem)
        kept = jax.tree.map(
            lambda all, new: all.at[:, place].set(by_seed(new)), kept, Kept(row.left, row.right, row.before)
        )
        return place + 1, lanes, kept, jnp.where(here[..., None], seen, states)

    nothing = jnp.zeros((*wanted.shape, begins.shape[-1]), begins.dtype)
    count, lanes, kept, states = jax.lax.while_loop(
        going, step, (jnp.asarray(0), lanes, Kept(empty[0], *empty), nothing)
    )
    lanes = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), lanes)
    answers = lanes.state, states.reshape(*shape, *states.shape[1:]), lanes._replace(state=None)
    return answers, (jnp.broadcast_to(count, len(begins)), kept)


def _back(problem: _Problem, arguments: Any) -> tuple[Any, Float[Array, "seed member lane state"]]:
    moving, still, begins, times, (counts, kept), asked_end, asked = arguments
    shape = begins.shape[:-1]
    rows, asked_end, asked = (_in_a_row(3, part) for part in (begins, asked_end, asked))
    wanted = _by_trajectory(times, shape)
    learned = jnp.any(asked_end != 0, axis=-1) | jnp.any(asked != 0, axis=(-2, -1))

    def step(carry: tuple[Int[Array, ""], Any, Array]) -> tuple[Int[Array, ""], Any, Array]:
        place, by_moving, by_state = carry
        left, right, before = (part[:, place - 1].reshape(-1, *part.shape[3:]) for part in kept)
        taken = learned & (right > left)
        # Where nothing is learned from, the field is asked at the start, where it is finite.
        before, right = jnp.where(learned[:, None], before, rows), jnp.where(taken, right, left)
        here = (wanted > left[:, None]) & (wanted <= right[:, None])

        def again(moving: Any, before: Array) -> tuple[Array, Array]:
            rates = problem.rates(eqx.combine(moving, still), shape)
            after, slopes = _replayed(rates, left, right, before, problem)
            seen = _read(left, right, before, after, slopes, wanted, here, problem)
            return jnp.where(taken[:, None], after, before), jnp.where(here[..., None], seen, 0.0)

        _, pulled = jax.vjp(again, moving, before)
        more, by_state = pulled((by_state, jnp.where(here[..., None], asked, 0.0)))
        return place - 1, jax.tree.map(jnp.add, by_moving, more), by_state

    begun = (jnp.max(counts), jax.tree.map(jnp.zeros_like, moving), asked_end)
    _, by_moving, by_state = jax.lax.while_loop(lambda carry: carry[0] > 0, step, begun)
    return by_moving, by_state.reshape(begins.shape)


def _in_a_row(axes: int, leaf: Array) -> Array:
    return leaf.reshape(-1, *leaf.shape[axes:])


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
