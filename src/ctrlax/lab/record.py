"""A run on disk: header, metrics, checkpoints, resume. `docs/runs.md` says what lies where.

The one idea: a checkpoint holds the length the metrics file had when it was taken. Metrics are synced before the
checkpoint is written, and cut back to that length when it is resumed, so a run that was killed and resumed leaves the
file an undisturbed one leaves.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import PyTree

from ctrlax.errors import UserError
from ctrlax.lab import checkpoint
from ctrlax.lab.header import check_resumable

HEADER = "header.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
REFUSED = ".refused"  # the end of a damaged checkpoint's name once its run went on from an earlier one
KEPT = 2  # the newest may be damaged; then the one before it is used

log = logging.getLogger("ctrlax")


class Record:
    """The folder of one run. One process writes it; any number may read it, meanwhile too.

    A new record begins empty. An opened one is only read until the first `append` or `save`, which goes on from the
    checkpoint given by `restore`: whatever the folder holds beyond it is cut away then.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]):
        self.folder = folder
        self.header = dict(header)
        self.refused: list[str] = []  # what `restore` has to say about checkpoints it could not use
        self._damaged: list[Path] = []
        self._lines: list[bytes] = []  # rows appended and not yet written
        self._length: int | None = None  # bytes of the metrics file that belong to this run's state
        self._file: BinaryIO | None = None

    @classmethod
    def create(cls, folder: str | Path, header: Mapping[str, Any]) -> Record:
        """Begin a run in ``folder``, which is empty, or holds the same run killed before its first checkpoint."""
        folder = Path(folder)
        found = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        found = [name for name in found if not name.endswith(checkpoint.ASIDE)]
        if HEADER in found:
            earlier = cls.open(folder)
            if earlier.steps():
                raise UserError(
                    f"{folder} already holds a run, kept up to step {earlier.steps()[-1]}. "
                    f"Go on with it by `ctrlax resume {folder}`, or name another folder with --out."
                )
            check_resumable(earlier.header, header["configuration"])
        elif found:
            raise UserError(f"{folder} is not empty and holds no run. Name a new or an empty folder with --out.")
        try:
            folder.mkdir(parents=True, exist_ok=True)  # the header first: nothing else tells whose folder it is
            checkpoint.write_aside(folder / HEADER, [_json(header, indent=2), b"\n"])
            checkpoint.sync_folder(folder.absolute().parent)
        except OSError as error:
            raise UserError(f"A run cannot be kept in {folder}: {error}. Name another folder with --out.") from error
        return cls(folder, header)

    @classmethod
    def open(cls, folder: str | Path) -> Record:
        """The record of an earlier run, to read or to go on with."""
        folder = Path(folder)
        path = folder / HEADER
        try:
            header = json.loads(path.read_text())
        except FileNotFoundError:
            raise UserError(
                f"{folder} is no run: expected a file {HEADER} there. Start one with `ctrlax train` or `ctrlax fit`."
            ) from None
        except ValueError as error:
            raise UserError(f"{path} is not the header ctrlax wrote ({error}). Put the original back.") from None
        if not isinstance(header, dict) or "configuration" not in header:
            raise UserError(f"{path} is not the header ctrlax wrote: no configuration. Put the original back.")
        return cls(folder, header)

    def rewrite_header(self) -> None:
        """Write the header anew, as when a run is resumed with more rounds."""
        checkpoint.write_aside(self.folder / HEADER, [_json(self.header, indent=2), b"\n"])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row of metrics; ``row["kind"]`` names its table. It is written at the next `save` or `flush`.

        Numbers that are not finite become null; arrays become lists.
        """
        if not isinstance(row.get("kind"), str):
            raise TypeError(f"a row of metrics needs its kind, a string; this one has {sorted(row)}")
        self._begin_writing()
        self._lines.append(_json(row) + b"\n")

    def flush(self) -> None:
        """Write the rows appended so far, for those who watch. Raises `checkpoint.NotWrittenError`, losing none."""
        file = self._begin_writing()
        try:
            file.seek(self._length or 0)
            rows = memoryview(b"".join(self._lines))
            written = 0
            while written < len(rows):
                written += file.write(rows[written:])
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(self._length or 0)
            raise checkpoint.not_written(self.folder / METRICS, error) from error
        self._length = file.tell()
        self._lines.clear()

    def save(self, state: PyTree, *, step: int) -> None:
        """Keep ``state``, and with it all rows appended so far. Of the checkpoints the newest two stay.

        Raises `checkpoint.NotWrittenError` when there is no room; the checkpoints there were stay valid.
        """
        self.flush()
        earlier = self.steps()
        if earlier and step < earlier[-1]:
            raise ValueError(f"step {step} comes after step {earlier[-1]} was kept: steps count upwards")
        checkpoint.write(self._path(step), state, {"step": step, "metrics_bytes": self._length})
        for old in self.steps()[:-KEPT]:
            self._path(old).unlink()

    def steps(self) -> list[int]:
        """The steps that were kept, in order; none in a run killed before its first `save`, which then starts over."""
        paths = (self.folder / CHECKPOINTS).glob("step-[0-9]*.ckpt")
        return sorted(int(path.stem.removeprefix("step-")) for path in paths)

    def restore(self, like: PyTree) -> tuple[PyTree, int]:
        """The newest state that is whole, in the tree ``like`` (see `checkpoint.restore`), and its step.

        A damaged checkpoint is refused by name, in `refused` and in the log, and the one before it is used.
        """
        if self._file is not None:
            raise RuntimeError("a record that is being written is not restored: open it anew")
        contents = self.newest()
        state = checkpoint.restore(like, contents)
        size = self._metrics_path.stat().st_size if self._metrics_path.exists() else 0
        if size < contents.metadata["metrics_bytes"]:
            raise UserError(
                f"{self._metrics_path} has {size} bytes, and its checkpoint knows of "
                f"{contents.metadata['metrics_bytes']}: rows were removed. Put the original file back."
            )
        self._length = contents.metadata["metrics_bytes"]
        return state, contents.metadata["step"]

    def newest(self) -> checkpoint.Contents:
        """The newest checkpoint that is whole, its tree not asked for."""
        steps = self.steps()
        if not steps:
            raise UserError(
                f"{self.folder} was stopped before its first checkpoint. Start it again with `ctrlax train`."
            )
        self.refused, self._damaged = [], []
        for step in reversed(steps):
            try:
                return checkpoint.read(self._path(step))
            except FileNotFoundError:  # the run goes on while we read, and has newer ones by now
                return self.newest()
            except (checkpoint.DamagedError, OSError) as error:
                self._damaged.append(self._path(step))
                self.refused.append(f"{self._path(step)} is refused: {error}")
                log.warning("%s", self.refused[-1])
        raise UserError(
            "No checkpoint of this run is whole:\n  "
            + "\n  ".join(self.refused)
            + "\nRestore one of these files from a copy, or start the run again in another folder."
        )

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The rows of one kind, or all, in order; after `restore`, those up to the checkpoint.

        A torn last line is left out.
        """
        content = self._metrics_path.read_bytes()[: self._length] if self._metrics_path.exists() else b""
        lines = content.split(b"\n")[:-1] + [line.rstrip(b"\n") for line in self._lines]
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{self._metrics_path}, line {number}, is not what was written: {error}") from None
        return [row for row in found if kind is None or row["kind"] == kind]

    def write_tables(self) -> list[Path]:
        """Write ``metrics-KIND.csv`` for every kind of row, from `rows`; lists and dicts spread over columns."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows():
            tables.setdefault(row["kind"], []).append(dict(_cells(row)))
        paths = []
        for kind, rows in tables.items():
            table = io.StringIO(newline="")
            writer = csv.DictWriter(
                table, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
            paths.append(self.folder / f"metrics-{kind}.csv")
            checkpoint.write_aside(paths[-1], [table.getvalue().encode()])
        return paths

    def close(self) -> None:
        """Let go of the folder. Rows not yet written are dropped: what is to stay was kept by `save` or `flush`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _metrics_path(self) -> Path:
        return self.folder / METRICS

    def _path(self, step: int) -> Path:
        return self.folder / CHECKPOINTS / f"step-{step:09d}.ckpt"

    def _begin_writing(self) -> BinaryIO:
        if self._file is not None:
            return self._file
        steps = self.steps()
        if self._length is None and steps:
            raise RuntimeError(f"{self.folder} holds checkpoints: restore before writing to it")
        file = open(os.open(self._metrics_path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the system however this process ends
        except OSError:
            file.close()
            raise UserError(f"Another process is writing {self.folder}. Wait for it or stop it, then resume.") from None
        self._length = self._length or 0
        file.truncate(self._length)
        (self.folder / CHECKPOINTS).mkdir(exist_ok=True)
        self._clear_leftovers()
        checkpoint.sync_folder(self.folder)
        weakref.finalize(self, file.close)
        self._file = file
        return file

    def _clear_leftovers(self) -> None:
        for leftover in (self.folder / CHECKPOINTS).glob(f"*{checkpoint.ASIDE}"):
            leftover.unlink()
        for path in self._damaged:
            os.replace(path, path.with_name(path.name + REFUSED))


def wait_until_free(folder: Path, seconds: float = 60.0) -> None:
    """Until no process writes the run in ``folder``, or for so long: one whose node is lost may not know it yet."""
    path, end = folder / METRICS, time.monotonic() + seconds
    while path.exists() and time.monotonic() < end:
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.5)
            else:
                return


def plain(value: Any) -> Any:
    """``value`` as JSON knows it; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "dtype"):
        return plain(np.asarray(value).tolist())
    raise TypeError(f"expected numbers, strings, lists or dicts of them, got {value!r}")


def _json(value: Any, indent: int | None = None) -> bytes:
    return json.dumps(plain(value), indent=indent, allow_nan=False).encode()


def _cells(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield name, value
    else:
        for key, part in inner:
            yield from _cells(part, f"{name}.{key}" if name else str(key))
