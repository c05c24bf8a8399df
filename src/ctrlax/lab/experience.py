"""The dataset of a run: every seed's trajectories, in arrays of one shape that a checkpoint can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ctrlax.agent.improve import Starts
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.windows import Recording, pack
from ctrlax.world.collect import Trajectory


class Experience(eqx.Module):
    """What every seed has seen so far; rows past a trajectory's count are padding."""

    times: Float[np.ndarray, "seed trajectory point"]
    observations: Float[np.ndarray, "seed trajectory point observation"]
    actions: Float[np.ndarray, "seed trajectory point action"]
    counts: Int[np.ndarray, "seed trajectory"]
    exploring: Bool[np.ndarray, "seed trajectory"]

    def joined(self, other: Experience) -> Experience:
        """With the other's trajectories after these."""
        points = max(self.times.shape[2], other.times.shape[2])
        parts = [_padded(part, points) for part in (self, other)]
        names = [field.name for field in dataclasses.fields(self)]
        return Experience(*(np.concatenate([getattr(p, name) for p in parts], axis=1) for name in names))

    def interaction_seconds(self) -> Float[np.ndarray, " seed"]:
        """Time spent on the true system, by seed."""
        last = np.take_along_axis(self.times, np.maximum(self.counts - 1, 0)[..., None], axis=2)[..., 0]
        return np.sum(last - self.times[..., 0], axis=1)

    def dataset(self, seed: int, names: tuple[tuple[str, ...], tuple[str, ...]], hold: str) -> Dataset:
        """One seed's trajectories as a dataset."""
        logs = tuple(
            Log(self.times[seed, i, :count], self.observations[seed, i, :count], self.actions[seed, i, :count])
            for i, count in enumerate(self.counts[seed])
            if count > 1
        )
        return Dataset(logs, *names, hold=hold)

    def recordings(
        self, names: tuple[tuple[str, ...], tuple[str, ...]], hold: str, *, capacity: int, length_scale: float
    ) -> Recording:
        """All seeds' datasets as learning sees them, padded to ``capacity`` trajectories."""
        points = self.times.shape[2]
        packed = [
            pack(self.dataset(seed, names, hold), trajectories=capacity, points=points, length_scale=length_scale)
            for seed in range(len(self.times))
        ]
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


def experience_of(trajectories: Sequence[Trajectory], *, exploring: bool) -> Experience:
    """One set of trajectories for every seed; an unhealthy one is kept as padding."""
    stacked = {
        name: np.stack([getattr(t, name) for t in trajectories]) for name in ("times", "observations", "actions")
    }
    healthy = np.stack([t.healthy for t in trajectories])
    counts = np.where(healthy, stacked["times"].shape[2], 0).astype(np.int64)
    return Experience(**stacked, counts=counts, exploring=np.full(counts.shape, exploring))


def _padded(experience: Experience, points: int) -> Experience:
    missing = points - experience.times.shape[2]
    if not missing:
        return experience

    def longer(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, 0), (0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 3), mode="edge")

    return Experience(
        longer(experience.times), longer(experience.observations), longer(experience.actions),
        experience.counts, experience.exploring,
    )  # fmt: skip
