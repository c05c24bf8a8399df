"""What happens when numbers go bad: skip, count, roll back, stop.

Inside a compiled phase `model.update` leaves out an update whose loss or gradient is not finite, and counts it. Between
compiled chunks, on the host, `Guard` looks at the counts of every seed: one that skipped too often repeats the chunk
from the state before it with a smaller step; when that does not help, training stops and leaves a dump.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import Array, Bool, Float, Key, PyTree

from ctrlax.errors import UserError
from ctrlax.lab import checkpoint
from ctrlax.model.update import Health

SKIPPED_IN_A_ROW = 10  # fresh draws at parameters that stand still: ten bad ones in a row are not bad luck
SKIPPED_SHARE = 0.2  # of a chunk; beyond it the learning rates no longer mean what they say, though none is stuck
ROLLBACKS = 3  # per chunk: at an eighth of the step the cause is not the step
SMALLER = 0.5  # the step after a rollback; each good chunk undoes one halving

Chunk = Callable[[PyTree, Float[np.ndarray, " seed"]], tuple[PyTree, PyTree, Health]]


class Outcome(NamedTuple):
    """What a guarded chunk came to; every array has the seed axis first."""

    state: PyTree
    metrics: PyTree
    health: Health  # of all attempts together, those rolled back too
    step_scale: Float[np.ndarray, " seed"]  # for the next chunk


class TrainingStoppedError(RuntimeError):
    """Some seeds could not go on. ``outcome`` holds the others' chunk done and these at the state before it."""

    def __init__(
        self, message: str, *, seeds: list[int], lanes: Bool[np.ndarray, " seed"], dump: Path, outcome: Outcome
    ):
        super().__init__(message)
        self.seeds = seeds
        self.lanes = lanes
        self.dump = dump
        self.outcome = outcome


@dataclasses.dataclass(frozen=True)
class Guard:
    """Runs chunks of learning and decides, seed by seed, whether what came out is kept. Dumps go to ``folder``."""

    folder: Path
    skipped_in_a_row: int = SKIPPED_IN_A_ROW
    skipped_share: float = SKIPPED_SHARE
    rollbacks: int = ROLLBACKS

    def run(
        self,
        chunk: Chunk,
        state: PyTree,
        step_scale: Float[np.ndarray, " seed"],
        *,
        key: Key[Array, " seed"],
        seeds: Sequence[int],
        phase: str,
        iteration: int,
    ) -> Outcome:
        """``chunk(state, step_scale) -> (state, metrics, health)``, repeated for the seeds that went bad.

        ``chunk`` is a function of its arguments alone and does not donate ``state``, which is the last good one. Its
        health begins at `Health.none`. ``key`` (one per seed) is what the chunk draws from; it is here for the dump.
        Raises `TrainingStoppedError`.
        """
        before, step_scale = state, np.asarray(step_scale)
        after, metrics, health = chunk(before, step_scale)
        bad, total = self._bad(health), health
        for _ in range(self.rollbacks):
            if not bad.any():
                break
            repeated = bad
            step_scale = np.where(repeated, step_scale * SMALLER, step_scale)
            again, again_metrics, health = chunk(before, step_scale)
            after, metrics = select_lanes(repeated, (again, again_metrics), (after, metrics))
            total = select_lanes(repeated, total.then(_rolled_back(health)), total)
            bad = repeated & self._bad(health)
        if not bad.any():
            whole = np.asarray(total.rollbacks) == 0
            grown = np.where(whole, np.minimum(step_scale / SMALLER, 1), step_scale).astype(step_scale.dtype)
            return Outcome(after, metrics, total, grown)
        stopped = Outcome(select_lanes(bad, before, after), metrics, total, step_scale)
        raise self._stop(bad, stopped, key=key, seeds=seeds, phase=phase, iteration=iteration)

    def _bad(self, health: Health) -> Bool[np.ndarray, " seed"]:
        skipped, applied = np.asarray(health.skipped), np.asarray(health.updates)
        stuck = np.asarray(health.longest_skipped) >= self.skipped_in_a_row
        return stuck | (skipped > self.skipped_share * (skipped + applied))

    def _stop(
        self,
        bad: Bool[np.ndarray, " seed"],
        outcome: Outcome,
        *,
        key: Key[Array, " seed"],
        seeds: Sequence[int],
        phase: str,
        iteration: int,
    ) -> TrainingStoppedError:
        names = [int(seed) for seed, is_bad in zip(seeds, bad, strict=True) if is_bad]
        dump = self.folder / f"stopped-{phase}-{iteration:06d}.ckpt"
        content = {"state": outcome.state, "step_scale": outcome.step_scale, "key": key, "health": outcome.health}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.write(dump, take_lanes(bad, content), {"phase": phase, "iteration": iteration, "seeds": names})
            where = f"The state before it is in {dump}, to be replayed with `ctrlax.lab.guard.read_dump`."
        except OSError as error:  # the numbers went bad first; a full disk must not hide that
            where = f"No dump was written: {error}"
        return TrainingStoppedError(
            f"Seeds {names} stopped in phase {phase}, iteration {iteration}: updates stayed not finite after "
            f"{self.rollbacks} rollbacks, at {SMALLER**self.rollbacks:g} of the step. {where}",
            seeds=names,
            lanes=bad,
            dump=dump,
            outcome=outcome,
        )


class Dump(NamedTuple):
    """What is needed to repeat the chunk a seed stopped in; every array has the stopped seeds first."""

    state: PyTree
    step_scale: Float[np.ndarray, " seed"]
    key: Key[Array, " seed"]
    health: Health
    phase: str
    iteration: int
    seeds: list[int]


def read_dump(path: str | Path, like: PyTree) -> Dump:
    """A dump of `Guard`, its state in the tree ``like``, whose number of seeds is free."""
    try:
        contents = checkpoint.read(Path(path))
    except checkpoint.DamagedError as error:
        raise UserError(f"{path} is refused: {error}. Use another copy of it.") from None
    tree = {
        "state": checkpoint.any_shape(like),
        "step_scale": np.zeros(0, contents.leaves["['step_scale']"].dtype),
        "key": jax.ShapeDtypeStruct((), contents.leaves["['key']"].dtype),
        "health": checkpoint.any_shape(Health.none()),
    }
    return Dump(**checkpoint.restore(tree, contents), **contents.metadata)


def select_lanes(lanes: Bool[np.ndarray, " seed"], chosen: PyTree, otherwise: PyTree) -> PyTree:
    """``chosen`` for the seeds in ``lanes``, ``otherwise`` for the rest; every array has the seed axis first."""
    if not np.any(lanes):
        return otherwise

    def select(path: Any, inside: Any, outside: Any) -> Any:
        if not isinstance(outside, jax.Array | np.ndarray):
            return outside
        if inside.shape != outside.shape or outside.shape[:1] != lanes.shape:
            raise ValueError(
                f"{keystr(path)} has shapes {inside.shape} and {outside.shape}: "
                f"expected the same, with the {len(lanes)} seeds first"
            )
        mask = lanes.reshape((-1,) + (1,) * (outside.ndim - 1))
        return (np if isinstance(outside, np.ndarray) else jnp).where(mask, inside, outside)

    return tree_map_with_path(select, chosen, otherwise)


def take_lanes(lanes: Bool[np.ndarray, " seed"], tree: PyTree) -> PyTree:
    """The seeds in ``lanes`` alone."""
    rows = np.flatnonzero(lanes)
    return jax.tree.map(lambda leaf: leaf[rows] if isinstance(leaf, jax.Array | np.ndarray) else leaf, tree)


def _rolled_back(health: Health) -> Health:
    return dataclasses.replace(health, rollbacks=health.rollbacks + 1)
