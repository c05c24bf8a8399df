"""What a data file holds before anybody says what it means: named columns of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from ctrlax.model.validation import Finding

_MISSING = {"", "na", "n/a", "nan", "null", "none", "-nan"}


@dataclasses.dataclass(frozen=True)
class Head:
    """A file's column names and its line of metadata, if it has one."""

    file: str
    names: tuple[str, ...]
    metadata: str | None
    before: int = 0  # lines above the first row of numbers
    delimiter: str = ","


@dataclasses.dataclass(frozen=True, eq=False)
class Sheet:
    """The wanted columns of a file, with the episode labels if it has any."""

    values: Float[np.ndarray, "row column"]
    labels: Sequence[Hashable] | None
    lines: Int[np.ndarray, " row"]
    findings: tuple[Finding, ...] = ()


def unlabelled(sheet: Sheet, file: str, column: str | None) -> list[Finding]:
    """Rows that do not say which episode they belong to."""
    without = [i for i, label in enumerate(sheet.labels or ()) if label is None or label == "" or label != label]
    if not without:
        return []
    row, more = int(sheet.lines[without[0]]), len(without) - 1
    remedy = "Give every row the label of its trajectory."
    return [Finding("error", file, "the row has no episode", remedy, row, column, "", more)]


def numbers_from(
    texts: list[str],
    lines: Int[np.ndarray, " row"],
    file: str,
    column: str,
    findings: list[Finding],
    sound: Bool[np.ndarray, " row"],
) -> Float[np.ndarray, " row"]:
    """Texts as float64, exactly; an empty field is NaN.

    The first text that is no number is added to ``findings``, and all rows with such a text are no longer ``sound``.
    """
    try:
        return np.fromiter(map(float, texts), float, len(texts))
    except ValueError:
        values, faults = _with_faults(texts)
    if faults:
        sound[faults] = False
        text = texts[faults[0]]
        shown = text if len(text) <= 40 else text[:37] + "..."
        comma = text.count(",") == 1 and text.replace(",", "").strip().lstrip("-").isdigit()
        remedy = (
            "Write decimals with a point." if comma else "Write a number, or leave the field empty if it is missing."
        )
        row, more = int(lines[faults[0]]), len(faults) - 1
        findings.append(Finding("error", file, f"expected a number, got '{shown}'", remedy, row, column, shown, more))
    return values


def _with_faults(texts: list[str]) -> tuple[np.ndarray, list[int]]:
    values, faults = np.full(len(texts), np.nan), []
    for i, text in enumerate(texts):
        if text.strip().lower() in _MISSING:
            continue
        try:
            values[i] = float(text)
        except ValueError:
            faults.append(i)
    return values, faults
