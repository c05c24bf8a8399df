"""Is a recording fit to learn from? Everything that is wrong with it, found before any work and told at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ctrlax.errors import UserError
from ctrlax.model import angles
from ctrlax.model.rows import Rows

Severity = Literal["error", "warning", "note"]

# Times may be exponential: nine steps of ten are below 2.3 means, and one beyond 18 comes once in 1e8 draws.
_GAP = 8.0
_LONG_STEP = 5.0  # seconds between two points; mechanical systems are sampled more often
_SHORT_STEP = 1e-5
_UNIT_MIX = 300.0  # two episodes whose steps differ by this are rather seconds and milliseconds than two clocks


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found in a file: where (``row`` as an editor shows it), what, and what to do."""

    severity: Severity
    file: str
    problem: str
    remedy: str
    row: int | None = None
    column: str | None = None
    value: str | None = None
    more: int = 0  # further rows with the same problem in this column

    def __str__(self) -> str:
        place = self.file
        place += f", row {self.row}" if self.row is not None else ""
        place += f", column {self.column}" if self.column is not None else ""
        more = f" (and {self.more} more row{'s' if self.more > 1 else ''})" if self.more else ""
        return f"{place}: {self.problem}{more}. {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings of one file."""

    findings: tuple[Finding, ...] = ()

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def raise_errors(self) -> None:
        """All errors as one `UserError`, in the order of their rows; nothing if there are none."""
        if errors := sorted(self.of("error"), key=lambda finding: finding.row or 0):
            raise UserError("\n".join(map(str, errors)))

    def __str__(self) -> str:
        return "\n".join(f"{finding.severity}: {finding}" for finding in self.findings)


def examine(
    rows: Rows,
    *,
    file: str,
    circles: Mapping[str, str | None],
    time_unit: str | None = None,
    on_nan: str = "error",
    on_duplicate: str = "error",
    before: Sequence[Finding] = (),
) -> Report:
    """What is wrong with the rows of ``file``, and what is only worth knowing.

    ``circles`` names the angle columns with their stated unit; what was found ``before``, on loading, heads the report.
    A row that is reported once is left out of the later checks, so one mistake is one finding.
    """
    found = [*before, *_missing(rows, file, on_nan)]
    rows = rows.without_missing("split" if on_nan == "split" else "drop")
    found += _time_order(rows, file, on_duplicate)
    rows = rows.without_duplicates("first")
    if not Report(tuple(found)).of("error"):
        found += _lengths(rows, file)
    found += _time_unit(rows, file, time_unit) + _gaps(rows, file) + _constants(rows, file)
    for place, column in enumerate(rows.columns):
        if column in circles:
            found += _angle(rows, place, file, circles[column])
        elif place > 0:
            found += _wraps(rows, place, file)
    return Report(tuple(found))


def _first(rows: Rows, where: Bool[np.ndarray, " row"], place: int) -> dict:
    hits = np.flatnonzero(where)
    value = format(rows.values[hits[0], place], ".10g")
    return {"row": int(rows.lines[hits[0]]), "column": rows.columns[place], "value": value, "more": len(hits) - 1}


def _missing(rows: Rows, file: str, on_nan: str) -> list[Finding]:
    found = []
    for place in range(len(rows.columns)):
        bad = ~np.isfinite(rows.values[:, place])
        if not bad.any():
            continue
        at = _first(rows, bad, place)
        got = "nan or an empty field" if at["value"] == "nan" else at["value"]
        problem = f"expected a finite number, got {got}"
        remedy = "Mend it, or leave such rows out (--on-nan drop) or cut the episode there (--on-nan split)."
        if on_nan == "error":
            found.append(Finding("error", file, problem, remedy, **at))
        else:
            done = "Left out." if on_nan == "drop" else "The episode is cut there."
            found.append(Finding("warning", file, problem, done, **at))
    return found


def _time_order(rows: Rows, file: str, on_duplicate: str) -> list[Finding]:
    found = []
    steps, within = _steps(rows)
    if (back := within & (steps < 0)).any():
        at = _first(rows, back, 0)
        before = format(rows.times[np.flatnonzero(back)[0] - 1], ".10g")
        problem = f"time goes back within an episode, from {before} to {at['value']}"
        remedy = "Sort each episode by time, or name the column that tells the episodes apart (--episode)."
        found.append(Finding("error", file, problem, remedy, **at))
    if (same := within & (steps == 0)).any():
        at = _first(rows, same, 0)
        problem = f"the time {at['value']} comes twice in an episode"
        if on_duplicate == "error":
            remedy = "Remove one row, or keep the first (--on-duplicate first) or the mean (--on-duplicate mean)."
            found.append(Finding("error", file, problem, remedy, **at))
        else:
            done = f"The {'first row' if on_duplicate == 'first' else 'mean'} is kept."
            found.append(Finding("warning", file, problem, done, **at))
    return found


def _lengths(rows: Rows, file: str) -> list[Finding]:
    lengths = rows.lengths
    if not len(lengths):
        return [Finding("error", file, "no rows of numbers", "Record or export the rows below the names as well.")]
    if not (lengths > 1).any():
        problem = "no episode has two points or more"
        remedy = "Check the episode column (--episode): it must be the same for all rows of one trajectory."
        return [Finding("error", file, problem, remedy)]
    found = []
    if (single := (lengths[rows.episodes] == 1)).any():
        remedy = "Left out: one point says nothing about motion."
        found.append(Finding("warning", file, "an episode of a single point", remedy, **_first(rows, single, 0)))
    kept = lengths[lengths > 1]
    if kept.min() != kept.max():
        problem = f"the episodes have {kept.min()} to {kept.max()} points"
        found.append(Finding("note", file, problem, "Nothing to do: each keeps its own length."))
    return found


def _time_unit(rows: Rows, file: str, stated: str | None) -> list[Finding]:
    column = rows.columns[0]
    if stated not in (None, "s", "sec", "second", "seconds"):
        problem = f"time must be in seconds, the file's units say {stated}"
        return [Finding("error", file, problem, "Convert the column to seconds.", column=column, value=stated)]
    steps, within = _steps(rows)
    steps, episodes, places = steps[within], rows.episodes[within], np.flatnonzero(within)
    if not (steps > 0).any():
        return []
    middle = float(np.quantile(steps[steps > 0], 0.5, method="lower"))
    own, first = _median_steps(steps, episodes)
    if (odd := (own > middle * _UNIT_MIX) | ((own > 0) & (own < middle / _UNIT_MIX))).any():
        episode = int(np.flatnonzero(odd)[0])
        problem = f"this episode has a median step of {own[episode]:.4g} s, the file one of {middle:.4g} s"
        remedy = "Bring all episodes to seconds."
        row = int(rows.lines[places[first[episode]] - 1])
        return [Finding("error", file, problem, remedy, row, column, f"{own[episode]:.4g}")]
    if _SHORT_STEP <= middle <= _LONG_STEP:
        return []
    reach = float(np.ptp(rows.times))
    problem = f"the median step is {middle:.4g} s over a range of {reach:.4g} s"
    guess = "milliseconds, divide by 1000" if middle > _LONG_STEP else "hours or days, multiply"
    remedy = f"Times are read as seconds; if these are {guess}."
    return [Finding("warning", file, problem, remedy, column=column, value=f"{middle:.4g}")]


def _gaps(rows: Rows, file: str) -> list[Finding]:
    steps, within = _steps(rows)
    forward = steps[within & (steps > 0)]
    if len(forward) < 3:
        return []
    usual = float(np.quantile(forward, 0.9, method="lower"))
    if not (wide := within & (steps > _GAP * usual)).any():
        return []
    at = _first(rows, wide, 0)
    problem = f"a gap of {steps[wide][0]:.4g} s before this row, where nine steps of ten are at most {usual:.4g} s"
    remedy = "If the recording was interrupted, give the rows after it an episode of their own."
    return [Finding("warning", file, problem, remedy, **at)]


def _constants(rows: Rows, file: str) -> list[Finding]:
    found = []
    for place, column in enumerate(rows.columns[1:], start=1):
        values = rows.values[:, place]
        if len(values) > 1 and values.min() == values.max():
            value = format(values[0], ".10g")
            problem = f"the column is {value} in every row"
            remedy = "Nothing can be learned from it; leave it out, or record it while it changes."
            found.append(Finding("warning", file, problem, remedy, column=column, value=value))
    return found


def _angle(rows: Rows, place: int, file: str, stated: str | None) -> list[Finding]:
    values, column = rows.values[:, place], rows.columns[place]
    if not len(values):
        return []
    unit = angles.unit_of(values, stated)
    reach = f"{values.min():.4g} to {values.max():.4g}"
    name = column.removeprefix("obs.")
    if unit is None and stated is not None:
        remedy = "Give it in radians or in degrees."
        return [
            Finding("error", file, f"the unit {stated} is not one of an angle", remedy, column=column, value=stated)
        ]
    if unit is None:
        problem = f"the angle runs from {reach}, which may be radians or degrees"
        remedy = f"Say which (--angles {name}:rad or --angles {name}:deg)."
        return [Finding("error", file, problem, remedy, column=column, value=reach)]
    if unit == "deg" and stated is None:
        problem = f"the angle runs from {reach} and is read as degrees"
        remedy = f"If these are radians, say so (--angles {name}:rad)."
        return [Finding("warning", file, problem, remedy, column=column, value=reach)]
    return []


def _wraps(rows: Rows, place: int, file: str) -> list[Finding]:
    _, within = _steps(rows)
    if not (jumps := angles.wraps(rows.values[:, place], within)).any():
        return []
    at = _first(rows, jumps, place)
    name = at["column"].removeprefix("obs.")
    problem = f"jumps by a full turn to {at['value']}, as an angle does that wraps"
    return [Finding("warning", file, problem, f"If it is an angle, say so (--angles {name}).", **at)]


def _steps(rows: Rows) -> tuple[Float[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """Time since the row before, and whether that row is of the same episode."""
    steps = np.diff(rows.times, prepend=np.nan)
    within = np.diff(rows.episodes, prepend=-1) == 0
    return steps, within


def _median_steps(
    steps: Float[np.ndarray, " step"], episodes: Int[np.ndarray, " step"]
) -> tuple[Float[np.ndarray, " episode"], Int[np.ndarray, " episode"]]:
    """The median step of every episode, and where its steps begin; one sort for all of them."""
    _, first, counts = np.unique(episodes, return_index=True, return_counts=True)
    ordered = steps[np.lexsort((steps, episodes))]
    return ordered[first + counts // 2], first
