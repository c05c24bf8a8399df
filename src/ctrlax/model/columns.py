"""Which column of a file plays which part, from its metadata or from the names the user gives."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from ctrlax.model.sheet import Head
from ctrlax.model.validation import Finding

FORMAT_VERSION = 1
HOLDS = ("gp", "linear", "hold")
OBSERVATION, ACTION = "obs.", "act."


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a file says about itself; empty for a foreign one."""

    hold: str = "gp"
    angles: tuple[str, ...] = ()
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sampling: Mapping[str, object] | str = dataclasses.field(default_factory=dict)
    rates: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The columns that are read, by the part they play."""

    time: str
    episode: str | None
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    reward: str | None
    circles: Mapping[str, str | None]  # observation column that is an angle -> its stated unit
    angles: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        return (self.time, *self.observations, *self.actions, *([self.reward] if self.reward else []))

    @property
    def observation_names(self) -> tuple[str, ...]:
        names: list[str] = []
        for column in self.observations:
            names += circle_names(column) if column in self.circles else [own_name(column)]
        return tuple(names)


def own_name(column: str) -> str:
    """The name of a coordinate: its column without the prefix."""
    return column.removeprefix(OBSERVATION).removeprefix(ACTION)


def described(head: Head) -> tuple[Metadata, list[Finding]]:
    """The file's own metadata, checked."""
    if head.metadata is None:
        return Metadata(), []
    remedy = "Write the file again with ctrlax, or remove the metadata and name the columns."
    try:
        fields = json.loads(head.metadata)
        version = fields["format_version"]
        told = Metadata(
            str(fields.get("hold", "gp")),
            tuple(map(str, fields.get("angles", ()))),
            {str(name): str(unit) for name, unit in fields.get("units", {}).items()},
            fields.get("sampling", {}),
            {str(name): str(position) for name, position in fields.get("rates", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Metadata(), [Finding("error", head.file, "the ctrlax metadata is damaged", remedy)]
    if version != FORMAT_VERSION:
        problem = f"expected format version {FORMAT_VERSION}, got {version}"
        return told, [Finding("error", head.file, problem, "Update ctrlax, or write the file with this version.")]
    if told.hold not in HOLDS:
        problem = f"expected hold to be one of {', '.join(HOLDS)}, got {told.hold}"
        return told, [Finding("error", head.file, problem, remedy)]
    return told, []


def assign(
    head: Head,
    metadata: Metadata,
    *,
    time: str | None,
    episode: str | None,
    obs: Sequence[str] | None,
    act: Sequence[str] | None,
    angles: Sequence[str] | None,
) -> tuple[Parts, list[Finding]]:
    """Every part's column; what is missing, named twice or without a name is found."""
    found = _ambiguous(head)
    observed = _named(head, obs, OBSERVATION, "observation", found)
    acted = _named(head, act, ACTION, "action", found)
    if not obs and not observed:
        problem = f"no observation columns (obs.<name>) among {', '.join(head.names)}"
        found.append(Finding("error", head.file, problem, "Name them, e.g. --obs x,theta --act u."))
    if act is None and not acted and observed:
        problem = f"no action columns (act.<name>) among {', '.join(head.names)}"
        found.append(
            Finding("note", head.file, problem, "Learned as a system without actions; else name them (--act u).")
        )
    time = time or "time"
    if time not in head.names:
        found.append(_absent(head, time, "Name the column of the times in seconds (--time t)."))
    if episode is not None and episode not in head.names:
        found.append(_absent(head, episode, "Name the column that tells the episodes apart, or none (--episode e)."))
    episode = episode or ("episode" if "episode" in head.names else None)
    reward = "reward" if "reward" in head.names and "reward" not in (*observed, *acted) else None
    on_circle, pairs = _angles(head, metadata, observed, angles, found)
    given: list[str] = [time, *observed, *acted, *([episode] if episode else [])]
    for column, times in Counter(given).items():
        if times > 1:
            found.append(Finding("error", head.file, "the column is given two parts", "Name it once.", column=column))
    return Parts(time, episode, observed, acted, reward, on_circle, pairs), found


def _ambiguous(head: Head) -> list[Finding]:
    remedy = "Rename one of them."
    return [
        Finding("error", head.file, f"{times} columns have this name", remedy, column=name)
        if name
        else Finding("error", head.file, "a column has no name", "Complete the header line.")
        for name, times in Counter(head.names).items()
        if times > 1 or not name
    ]


def _named(head: Head, names: Sequence[str] | None, prefix: str, part: str, found: list[Finding]) -> tuple[str, ...]:
    if names is None:
        return tuple(dict.fromkeys(name for name in head.names if name.startswith(prefix)))
    columns = []
    for name in names:
        column = name if name in head.names else prefix + name
        if column in head.names:
            columns.append(column)
        else:
            found.append(_absent(head, name, f"Name {part} columns that exist (--{prefix[:3]})."))
    return tuple(columns)


def _absent(head: Head, column: str, remedy: str) -> Finding:
    return Finding("error", head.file, f"no such column among {', '.join(head.names)}", remedy, column=column)


def _angles(
    head: Head, metadata: Metadata, observed: Sequence[str], angles: Sequence[str] | None, found: list[Finding]
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    columns = {own_name(column): column for column in observed}
    on_circle: dict[str, str | None] = {}
    names = []
    for entry in metadata.angles if angles is None else angles:
        plain = entry in columns or ":" not in entry
        name, unit = (entry, metadata.units.get(own_name(entry))) if plain else entry.rsplit(":", 1)
        name = own_name(name)
        if name in columns:
            on_circle[columns[name]] = unit
        elif f"cos_{name}" not in columns or f"sin_{name}" not in columns:
            problem = f"no observation of this angle (nor cos_{name} and sin_{name}) among {', '.join(columns)}"
            remedy = "Name an observation as the angle (--angles)."
            found.append(Finding("error", head.file, problem, remedy, column=name))
        names.append(name)
    return on_circle, tuple(dict.fromkeys(names))


def circle_names(column: str) -> tuple[str, str]:
    """The two observations an angle becomes."""
    return f"cos_{own_name(column)}", f"sin_{own_name(column)}"
