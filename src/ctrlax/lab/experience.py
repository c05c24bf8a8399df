"""The dataset of a run: every seed's trajectories, in arrays of one shape that a checkpoint can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ctrlax.agent.improve import Starts
from ctrlax.model.columns import HOLDS
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.windows import Recording, action_paths, pack
from ctrlax.world.collect import Trajectory


class Experience(eqx.Module):
    """What every seed has seen so far; rows past a trajectory's count are padding."""

    times: Float[np.ndarray, "seed trajectory point"]
    observations: Float[np.ndarray, "seed trajectory point observation"]
    actions: Float[np.ndarray, "seed trajectory point action"]
    counts: Int[np.ndarray, "seed trajectory"]
    exploring: Bool[np.ndarray, "seed trajectory"]
    holds: Int[np.ndarray, "seed trajectory"]  # how actions act between their times, a place in HOLDS

    def joined(self, other: Experience) -> Experience:
        """With the other's trajectories after these."""
        points = max(self.times.shape[2], other.times.shape[2])
        parts = [part.padded(part.times.shape[1], points) for part in (self, other)]
        names = [field.name for field in dataclasses.fields(self)]
        return Experience(*(np.concatenate([getattr(p, name) for p in parts], axis=1) for name in names))

    def padded(self, trajectories: int, points: int) -> Experience:
        """With room for so many trajectories of so many points."""
        missing = trajectories - self.times.shape[1], points - self.times.shape[2]
        if not any(missing):
            return self

        def longer(array: np.ndarray) -> np.ndarray:
            widths = [(0, 0), (0, missing[0]), (0, missing[1])][: min(array.ndim, 3)]
            return np.pad(array, widths + [(0, 0)] * (array.ndim - 3), mode="edge")

        counts = np.pad(self.counts, [(0, 0), (0, missing[0])])
        return Experience(
            longer(self.times), longer(self.observations), longer(self.actions), counts,
            longer(self.exploring), longer(self.holds),
        )  # fmt: skip

    def interaction_seconds(self) -> Float[np.ndarray, " seed"]:
        """Time spent on the true system, by seed."""
        last = np.take_along_axis(self.times, np.maximum(self.counts - 1, 0)[..., None], axis=2)[..., 0]
        return np.sum(last - self.times[..., 0], axis=1)

    def dataset(self, seed: int, names: tuple[tuple[str, ...], tuple[str, ...]]) -> Dataset:
        """One seed's trajectories as a dataset, whose hold is that of the last."""
        logs = tuple(
            Log(self.times[seed, i, :count], self.observations[seed, i, :count], self.actions[seed, i, :count])
            for i, count in enumerate(self.counts[seed])
            if count > 1
        )
        return Dataset(logs, *names, hold=HOLDS[self._used_holds(seed)[-1]])

    def _used_holds(self, seed: int) -> Int[np.ndarray, " log"]:
        return self.holds[seed][self.counts[seed] > 1]

    def recordings(
        self, names: tuple[tuple[str, ...], tuple[str, ...]], *, capacity: int, length_scale: float
    ) -> Recording:
        """All seeds' datasets as learning sees them, padded to ``capacity`` trajectories."""
        points = self.times.shape[2]
        packed = []
        for seed in range(len(self.times)):
            data = self.dataset(seed, names)
            recording = pack(data, trajectories=capacity, points=points, length_scale=length_scale)
            for place, hold in enumerate(self._used_holds(seed)):
                if HOLDS[hold] != data.hold:  # a log's actions were held, our own are smooth
                    paths = action_paths(data.logs[place], HOLDS[hold], length_scale=length_scale)
                    np.asarray(recording.paths)[place, : len(paths)] = paths
            packed.append(recording)
        fields = [field.name for field in dataclasses.fields(Recording)]
        return Recording(*(jnp.asarray(np.stack([getattr(p, name) for p in packed])) for name in fields))

    def starts(self, *, recent: int, exploring: bool) -> Starts:
        """The states of the last ``recent`` trajectories; exploring ones only if they count."""
        chosen = [i for i in range(self.times.shape[1]) if exploring or not self.exploring[:, i].any()][-recent:]
        seen = self.observations[:, chosen].astype(np.float32)
        present = np.arange(seen.shape[2]) < self.counts[:, chosen][..., None]
        missing = (recent - len(chosen)) * seen.shape[2]
        flat = np.pad(seen.reshape(len(seen), -1, seen.shape[-1]), ((0, 0), (0, missing), (0, 0)))
        return Starts(jnp.asarray(flat), jnp.asarray(np.pad(present.reshape(len(seen), -1), ((0, 0), (0, missing)))))


def experience_of(trajectories: Sequence[Trajectory], *, exploring: bool, hold: str) -> Experience:
    """One set of trajectories for every seed; an unhealthy one is kept as padding."""
    stacked = {
        name: np.stack([getattr(t, name) for t in trajectories]) for name in ("times", "observations", "actions")
    }
    healthy = np.stack([t.healthy for t in trajectories])
    counts = np.where(healthy, stacked["times"].shape[2], 0).astype(np.int64)
    holds = np.full(counts.shape, HOLDS.index(hold))
    return Experience(**stacked, counts=counts, exploring=np.full(counts.shape, exploring), holds=holds)


def pieces_of(dataset: Dataset, points: int, seeds: int) -> Experience:
    """Logs as every seed's first data, cut into pieces of at most ``points`` that share their end points.

    So logs of any length lie in arrays a run needs for its own trajectories; only windows across a cut are lost.
    """
    pieces = []
    for log in dataset.logs:
        for first in range(0, max(len(log.times) - 1, 1), points - 1):
            here = slice(first, first + points)
            pieces.append(Log(log.times[here], log.observations[here], log.actions[here]))
    counts = np.array([len(piece.times) for piece in pieces])
    arrays = {
        name: np.stack([_lengthened(getattr(piece, name), points) for piece in pieces])
        for name in ("times", "observations", "actions")
    }
    alike = {name: np.repeat(array[None], seeds, axis=0) for name, array in arrays.items()}
    shape = (seeds, len(pieces))
    return Experience(
        **alike, counts=np.tile(counts, (seeds, 1)), exploring=np.zeros(shape, bool),
        holds=np.full(shape, HOLDS.index(dataset.hold)),
    )  # fmt: skip


def _lengthened(array: np.ndarray, points: int) -> np.ndarray:
    return np.pad(array, [(0, points - len(array))] + [(0, 0)] * (array.ndim - 1), mode="edge")
