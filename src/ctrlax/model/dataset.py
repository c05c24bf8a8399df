"""Trajectories, each on its own clock; read from and written to CSV, Parquet and .npz."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from jaxtyping import Float64, PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.model import formats
from ctrlax.model.angles import cosine_and_sine
from ctrlax.model.columns import (
    ACTION,
    FORMAT_VERSION,
    HOLDS,
    OBSERVATION,
    Parts,
    assign,
    circle_names,
    described,
    own_name,
)
from ctrlax.model.rows import Rows, gather
from ctrlax.model.sheet import unlabelled
from ctrlax.model.validation import Report, examine
from ctrlax.ode.randomness import host_generator

if TYPE_CHECKING:
    from ctrlax.world.collect import Trajectory
    from ctrlax.world.environment import Environment


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """One trajectory: what was observed and done at its own times."""

    times: Float64[np.ndarray, " time"]
    observations: Float64[np.ndarray, "time observation"]
    actions: Float64[np.ndarray, "time action"]
    rewards: Float64[np.ndarray, " time"] | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            array = np.asarray(value, np.float64)
            axes = 2 if field.name in ("observations", "actions") else 1
            if array.ndim != axes or len(array) != len(self.times):
                raise UserError(
                    f"a log's {field.name} need {axes} axes, the first as long as its times ({len(self.times)}); "
                    f"got shape {array.shape}."
                )
            if not np.isfinite(array).all():
                raise UserError(f"a log's {field.name} must be finite numbers; leave such points out.")
            object.__setattr__(self, field.name, array)
        if not (np.diff(self.times) > 0).all():
            raise UserError("a log's times must increase from point to point; sort them and remove repeated ones.")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Logs of one system, with what their numbers mean.

    ``hold`` says how actions act between their times: ``gp`` (kernel interpolation), ``linear`` or ``hold`` (kept until
    the next). ``angles`` names the states that are recorded as ``cos_<name>`` and ``sin_<name>``. ``rates`` says of
    which position or angle a velocity is the rate. ``report`` is what reading the file found.
    """

    logs: tuple[Log, ...]
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    hold: str = "gp"
    angles: tuple[str, ...] = ()
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sampling: Mapping[str, object] | str = dataclasses.field(default_factory=dict)
    report: Report = dataclasses.field(default_factory=Report)
    rates: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("logs", "observation_names", "action_names", "angles"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.hold not in HOLDS:
            raise UserError(f"hold must be one of {', '.join(HOLDS)}; got {self.hold}.")
        expected = (len(self.observation_names), len(self.action_names))
        for place, log in enumerate(self.logs):
            if (got := (log.observations.shape[1], log.actions.shape[1])) != expected:
                raise UserError(
                    f"log {place} has {got[0]} observations and {got[1]} actions; "
                    f"expected {expected[0]} and {expected[1]} "
                    f"({', '.join(self.observation_names + self.action_names)})."
                )
        if len({log.rewards is None for log in self.logs}) > 1:
            raise UserError("either all logs of a dataset carry rewards or none does.")
        for name in self.angles:
            if not {f"cos_{name}", f"sin_{name}"} <= set(self.observation_names):
                raise UserError(
                    f"the angle {name} must be recorded as cos_{name} and sin_{name}; "
                    f"the observations are {', '.join(self.observation_names)}."
                )
        for velocity, position in self.rates.items():
            if unknown := [n for n in (velocity, position) if not {n, f"cos_{n}"} & set(self.observation_names)]:
                raise UserError(
                    f"rates says that {velocity} is the rate of {position}, but {' and '.join(unknown)} is not "
                    f"observed; the observations are {', '.join(self.observation_names)}."
                )

    @property
    def interaction_seconds(self) -> float:
        """Time spent in the world: the sum of the logs' durations."""
        return float(sum(log.times[-1] - log.times[0] for log in self.logs if len(log.times)))

    @property
    def points(self) -> int:
        """How many observations there are in all logs."""
        return sum(len(log.times) for log in self.logs)

    def with_logs(self, logs: Sequence[Log]) -> Dataset:
        """The same system with more logs."""
        return dataclasses.replace(self, logs=self.logs + tuple(logs))

    def split(self, held_out: float | int, *, key: PRNGKeyArray) -> tuple[Dataset, Dataset]:
        """(kept, held out), by whole logs: ``held_out`` is a fraction below 1 or a count. Both keep the logs' order."""
        total = len(self.logs)
        count = held_out if isinstance(held_out, int) else max(1, round(held_out * total))
        if held_out <= 0 or not 1 <= count < total:
            raise UserError(
                f"holding out {held_out} of {total} trajectories leaves one side empty; "
                f"give a fraction between 0 and 1 or a count from 1 to {max(total - 1, 1)}, or record more."
            )
        chosen = set(host_generator(key).permutation(total)[:count].tolist())
        kept = tuple(log for place, log in enumerate(self.logs) if place not in chosen)
        other = tuple(log for place, log in enumerate(self.logs) if place in chosen)
        return dataclasses.replace(self, logs=kept), dataclasses.replace(self, logs=other)

    @classmethod
    def from_trajectory(
        cls,
        trajectory: Trajectory,
        environment: Environment,
        hold: str = "gp",
        sampling: Mapping[str, object] | str = (),  # type: ignore[assignment]
    ) -> Dataset:
        """The healthy trajectories of a simulation, as a learner may see them: without the states."""
        fields = zip(
            trajectory.times,
            trajectory.observations,
            trajectory.actions,
            trajectory.rewards,
            trajectory.healthy,
            strict=True,
        )
        logs = tuple(Log(*log) for *log, healthy in fields if healthy)
        if not logs:
            raise UserError("no simulated trajectory is healthy; choose another solver or smaller actions.")
        names = environment.observation_names
        units = dict(zip(environment.state_names, environment.state_units, strict=False))
        units = {name: unit for name, unit in units.items() if name in names}
        units |= dict(zip(environment.action_names, environment.action_units, strict=False))
        angles = tuple(name for name in environment.angles if f"cos_{name}" in names and f"sin_{name}" in names)
        told = sampling if isinstance(sampling, str) else dict(sampling)
        seen = {*names, *angles}
        pairs = zip(environment.velocities, environment.rates_of, strict=False)
        rates = {velocity: position for velocity, position in pairs if {velocity, position} <= seen}
        return cls(logs, names, environment.action_names, hold, angles, {"time": "s"} | units, told, rates=rates)


def read(
    path: str | Path,
    *,
    time: str | None = None,
    episode: str | None = None,
    obs: Sequence[str] | None = None,
    act: Sequence[str] | None = None,
    angles: Sequence[str] | None = None,
    rates: Mapping[str, str] | None = None,
    hold: str | None = None,
    on_nan: str = "error",
    on_duplicate: str = "error",
) -> Dataset:
    """A dataset from a .csv, .parquet or .npz file: ctrlax's own columns, or those named here.

    A column named in ``angles`` (``theta``, ``theta:rad`` or ``theta:deg``) is learned as its cosine and sine, in its
    place. ``rates`` says of which position or angle a velocity is the rate. ``on_nan`` (error, drop, split) and
    ``on_duplicate`` (error, first, mean) say what becomes of rows with a non-finite number and of rows of one episode
    at the same time. All errors come as one `UserError`; warnings and notes are the dataset's ``report``.
    """
    _one_of("on_nan", on_nan, ("error", "drop", "split"))
    _one_of("on_duplicate", on_duplicate, ("error", "first", "mean"))
    path = Path(path)
    form = formats.named(path.suffix)
    with _opened(path) as file:
        head = form.head(file, path.name)
        metadata, found = described(head)
        parts, more = assign(head, metadata, time=time, episode=episode, obs=obs, act=act, angles=angles)
        found += more
        Report(tuple(found)).raise_errors()
        sheet = form.sheet(file, head, parts.numbers, parts.episode)
    found += [*sheet.findings, *unlabelled(sheet, path.name, parts.episode)]
    rows = gather(parts.numbers, sheet.values, sheet.labels, sheet.lines)
    report = examine(
        rows,
        file=path.name,
        circles=parts.circles,
        time_unit=metadata.units.get("time"),
        on_nan=on_nan,
        on_duplicate=on_duplicate,
        before=found,
    )
    report.raise_errors()
    rows = _circled(rows.without_missing(on_nan), parts).without_duplicates(on_duplicate)
    names, units = parts.observation_names, dict(metadata.units)
    if rates is None:
        rates = {rate: of for rate, of in metadata.rates.items() if {rate, of} <= {*names, *parts.angles}}
    for column in parts.circles:
        units.pop(own_name(column), None)
    return Dataset(
        _logs(rows, parts, len(names)),
        names,
        tuple(map(own_name, parts.actions)),
        hold or metadata.hold,
        parts.angles,
        units,
        metadata.sampling,
        report,
        rates,
    )


def write(dataset: Dataset, path: str | Path) -> None:
    """The dataset as a .csv, .parquet or .npz file that `read` brings back bit for bit.

    An existing file is replaced in one step, or not at all.
    """
    path = Path(path)
    form = formats.named(path.suffix)
    if not dataset.logs:
        raise UserError("a dataset without trajectories cannot be written.")
    fields = {"format_version": FORMAT_VERSION, "hold": dataset.hold, "angles": list(dataset.angles)}
    if dataset.rates:
        fields["rates"] = dict(dataset.rates)
    metadata = formats.as_metadata(fields | {"units": dict(dataset.units), "sampling": dataset.sampling})
    lengths = [len(log.times) for log in dataset.logs]
    columns = {"episode": np.repeat(np.arange(len(lengths)), lengths)}
    columns["time"] = np.concatenate([log.times for log in dataset.logs])
    observations = np.concatenate([log.observations for log in dataset.logs])
    actions = np.concatenate([log.actions for log in dataset.logs])
    columns |= {OBSERVATION + name: observations[:, i] for i, name in enumerate(dataset.observation_names)}
    columns |= {ACTION + name: actions[:, i] for i, name in enumerate(dataset.action_names)}
    rewards = [log.rewards for log in dataset.logs if log.rewards is not None]
    if rewards:
        columns["reward"] = np.concatenate(rewards)
    with _replacing(path) as file:
        form.encode(file, columns, metadata)


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{name} must be one of {', '.join(known)}; got {value}.")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as refused:
        raise UserError(f"{path} cannot be read ({refused.strerror}). Check the path.") from refused
    with file:
        yield file


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("xb") as file:
            yield file
        os.replace(aside, path)
    except OSError as refused:
        raise UserError(f"{path} cannot be written ({refused.strerror}). Check that the folder exists.") from refused
    finally:
        aside.unlink(missing_ok=True)


def _circled(rows: Rows, parts: Parts) -> Rows:
    """Every angle column becomes two, its cosine and sine, in its place."""
    columns, values = [], []
    for place, column in enumerate(rows.columns):
        if column in parts.circles:
            columns += circle_names(column)
            values.append(cosine_and_sine(rows.values[:, place], parts.circles[column]))
        else:
            columns.append(column)
            values.append(rows.values[:, place : place + 1])
    return dataclasses.replace(rows, columns=tuple(columns), values=np.concatenate(values, axis=1))


def _logs(rows: Rows, parts: Parts, observed: int) -> tuple[Log, ...]:
    logs = []
    ends = np.cumsum(rows.lengths)
    acted = 1 + observed + len(parts.actions)
    for start, end in zip(ends - rows.lengths, ends, strict=True):
        piece = rows.values[start:end].copy()
        if len(piece) > 1:
            rewards = piece[:, -1] if parts.reward else None
            logs.append(Log(piece[:, 0], piece[:, 1 : 1 + observed], piece[:, 1 + observed : acted], rewards))
    return tuple(logs)
