"""The rows of a recording as numbers, episode by episode, and the mending of those that cannot be learned from."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float, Int


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows sorted by episode, in file order within each; column 0 is time."""

    columns: tuple[str, ...]  # as the file names them
    values: Float[np.ndarray, "row column"]
    episodes: Int[np.ndarray, " row"]  # 0, 1, ... in the order of their first rows
    lines: Int[np.ndarray, " row"]  # where an editor shows the row

    @property
    def times(self) -> Float[np.ndarray, " row"]:
        return self.values[:, 0]

    @property
    def lengths(self) -> Int[np.ndarray, " episode"]:
        return np.bincount(self.episodes)

    def without_missing(self, how: str) -> Rows:
        """Without the rows that hold a non-finite number; ``split`` also cuts the episode there."""
        missing = np.logical_not(np.isfinite(self.values).all(axis=1))
        if not missing.any():
            return self
        # Both summands never fall from row to row, so their sum changes exactly where one of them does.
        episodes = self.episodes + np.cumsum(missing) if how == "split" else self.episodes
        return self._keep(np.logical_not(missing), self.values, episodes)

    def without_duplicates(self, how: str) -> Rows:
        """One row, the ``first`` or the ``mean``, for rows of one episode that follow each other at the same time."""
        repeated = (np.diff(self.times, prepend=np.nan) == 0) & (np.diff(self.episodes, prepend=-1) == 0)
        if not repeated.any():
            return self
        values = self.values
        if how == "mean":
            firsts = np.flatnonzero(~repeated)
            counts = np.diff(firsts, append=len(repeated))
            values = values.copy()
            values[firsts, 1:] = np.add.reduceat(self.values[:, 1:], firsts, axis=0) / counts[:, None]
        return self._keep(~repeated, values, self.episodes)

    def _keep(self, kept: np.ndarray, values: np.ndarray, episodes: np.ndarray) -> Rows:
        _, renumbered = np.unique(episodes[kept], return_inverse=True)
        return Rows(self.columns, values[kept], renumbered, self.lines[kept])


def gather(
    columns: Sequence[str],
    values: Float[np.ndarray, "row column"],
    labels: Sequence[Hashable] | None,
    lines: Int[np.ndarray, " row"],
) -> Rows:
    """Rows of one episode need not follow each other in the file; without labels all are one episode."""
    if labels is None:
        return Rows(tuple(columns), values, np.zeros(len(lines), np.int64), lines)
    numbers: dict[Hashable, int] = {}
    episodes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.int64, len(labels))
    if (np.diff(episodes) >= 0).all():
        return Rows(tuple(columns), values, episodes, lines)
    order = np.argsort(episodes, kind="stable")
    return Rows(tuple(columns), values[order], episodes[order], lines[order])
