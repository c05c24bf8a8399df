"""Lines and bands of figures: one colour and mark per named thing, quantiles over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ctrlax.lab.gallery import COLORS

Row = dict[str, Any]
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
HUES = ("blue", "orange", "green", "purple", "ink")
# A model looks the same in every figure.
MODELS = ("enode", "pets", "benode", "ibnode", "deep-pilco", "mpets", "wnode", "true")


def look(name: Any, among: Sequence[Any]) -> dict[str, Any]:
    """Colour, dash and mark of one of several things; models keep theirs in every figure."""
    places = MODELS if name in MODELS else list(among)
    place = list(places).index(name)
    return {
        "color": COLORS[HUES[place % len(HUES)]],
        "linestyle": DASHES[(place // len(HUES)) % len(DASHES)],
        "marker": MARKS[place % len(MARKS)],
    }


def unique(rows: Iterable[Row], name: str) -> list[Any]:
    """The values of a column, in the order in which they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """A column as numbers; null, which is what was not finite, is NaN."""
    return np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)


def band(
    axes: Any,
    rows: Sequence[Row],
    across: str,
    up: str,
    label: str,
    style: dict[str, Any],
    *,
    limit: float | None = None,
) -> None:
    """The mean over rows that share ``across``, and their 10 and 90 % quantiles; clipped at ``limit`` here alone."""
    where, middle, low, high = [], [], [], []
    for place in sorted(unique(rows, across)):
        values = column([row for row in rows if row[across] == place], up)
        values = np.where(np.isnan(values), np.inf, values) if limit is not None else values[np.isfinite(values)]
        if limit is not None:
            values = np.minimum(values, limit)
        if len(values):
            where.append(place)
            middle.append(values.mean())
            low.append(np.quantile(values, 0.1))
            high.append(np.quantile(values, 0.9))
    few = len(where) <= 12
    axes.plot(where, middle, label=label, markersize=3.5 if few else 0, **style)
    if any(a != b for a, b in zip(low, high, strict=True)):
        axes.fill_between(where, low, high, color=style["color"], alpha=0.15, linewidth=0)


def nothing(axes: Any, why: str) -> None:
    """Says in a panel why it is empty."""
    axes.text(0.5, 0.5, why, ha="center", va="center", wrap=True, transform=axes.transAxes, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def whole_numbers(axes: Any, last: int) -> None:
    """Rounds 1 to ``last`` on the axis."""
    axes.set_xticks(range(1, last + 1, 1 + (last - 1) // 10))
