"""Learning curves and losses of a run, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlax.lab.gallery import COLORS, Panel, Picture

Row = dict[str, Any]
Curve = tuple[np.ndarray, np.ndarray]  # where, and what; one seed's
LOW, HIGH = 0.1, 0.9  # quantiles of the band over seeds


def learning(rows: Sequence[Row]) -> Picture | None:
    """Reward over rounds and over seconds of interaction, the trials that hold, and the work done."""
    if not rows:
        return None
    count = len({row["seed"] for row in rows})
    solved = sum(any(row["solved_round"] for row in of_seed) for of_seed in by_seed(rows).values())
    many = f"{count} seeds" if count > 1 else "one seed"
    caption = (
        f"Mean reward rate of ten trials in the true world, {many}: "
        + ("thin lines are seeds, the thick line is their median, the band their 10 and 90 % quantiles. " * (count > 1))
        + "A star marks the round in which a seed solved the task. "
        + (f"A solved seed may stop, and later medians are of those that go on; {solved} solved. " * (count > 1))
        + "Dashed: the reward rate the agent imagined, discounted and from states of its data, so it need not agree."
    )
    return Picture(
        "learning",
        "Learning",
        caption,
        (
            _reward("Reward over rounds", "round", "round", rows, whole=True),
            _reward("Reward over time in the true world", "interaction_seconds", "interaction [s]", rows),
            _held(rows),
            _work(rows),
        ),
    )


def losses(fits: Sequence[Row], improvements: Sequence[Row]) -> Picture | None:
    """Errors and losses within rounds; gradient matching, which has another loss, is left out."""
    fits = [row for row in fits if row["phase"] == "fit"]
    panels: list[Panel] = []
    if fits:
        panels += [
            _within("Model error on its windows", "rms error [data's std]", fits, "error", "blue", log=True),
            _within("Model loss", "loss [nats per point]", fits, "loss", "blue"),
        ]
    if improvements:
        panels += [
            _within("Critic loss", "mean squared error", improvements, "critic_loss", "purple", log=True),
            _within("What the actor maximises", "imagined value [reward rate x s]", improvements, "value", "orange"),
        ]
    if not panels:
        return None
    caption = (
        "Every round is one step on the axis, filled by its updates; lines break where a round ends, because new data "
        "and fresh optimiser states come in. Thin lines are seeds, thick ones their median."
    )
    return Picture("losses", "Losses within rounds", caption, tuple(panels))


def by_seed(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of every seed, in order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["seed"], []).append(row)
    return found


def number(value: float | int | None) -> float:
    """A recorded number; null, which is what was not finite, is NaN."""
    return np.nan if value is None else float(value)


def over_seeds(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Where any seed has a value, and ``[low, median, high]`` there of the seeds whose curves reach it."""
    curves = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return np.zeros(0), np.zeros((3, 0))
    where = np.unique(np.concatenate([x for x, _ in curves]))
    columns = []
    for place in where:
        there = [np.interp(place, x, y) for x, y in curves if x[0] <= place <= x[-1]]
        columns.append(np.quantile(there, [LOW, 0.5, HIGH]))
    return where, np.stack(columns, axis=1)


def _curves(rows: Sequence[Row], where: str, what: str) -> list[Curve]:
    return [
        (np.array([number(row[where]) for row in own]), np.array([number(row[what]) for row in own]))
        for own in by_seed(rows).values()
    ]


def _draw_seeds(axes: Any, curves: Sequence[Curve], color: str, label: str) -> None:
    mark = _mark(curves)
    if len(curves) > 1:
        for x, y in curves:
            axes.plot(x, y, color=COLORS[color], linewidth=0.7, alpha=0.5, marker=mark, markersize=2)
        where, (low, middle, high) = over_seeds(curves)
        axes.fill_between(where, low, high, color=COLORS[color], alpha=0.18, linewidth=0)
        axes.plot(where, middle, color=COLORS[color], marker=mark, markersize=4, label=label)
    else:
        axes.plot(*curves[0], color=COLORS[color], marker=mark, markersize=4, label=label)


def _mark(curves: Sequence[Curve]) -> str | None:
    return "o" if max(len(x) for x, _ in curves) <= 12 else None  # a single round is a point, and no line


def _reward(title: str, where: str, label: str, rows: Sequence[Row], *, whole: bool = False) -> Panel:
    last = max(row["round"] for row in rows)

    def draw(axes: Any) -> None:
        _draw_seeds(axes, _curves(rows, where, "reward"), "blue", "true world")
        dreamt = _curves(rows, where, "imagined_reward")
        x, (_, imagined, _) = over_seeds(dreamt)
        axes.plot(
            x, imagined, color=COLORS["orange"], linestyle=(0, (4, 2)), marker=_mark(dreamt), markersize=3,
            label="imagined",
        )  # fmt: skip
        solving = [row for row in rows if row["solved_round"] == row["round"]]
        if solving:
            axes.plot(
                [row[where] for row in solving], [number(row["reward"]) for row in solving], "*", color=COLORS["green"],
                markersize=13, markeredgecolor="white", markeredgewidth=0.6, label="solved", zorder=4,
            )  # fmt: skip
        _label(axes, title, label, "mean reward rate", last if whole else None)
        axes.legend(loc="best")

    return draw


def _held(rows: Sequence[Row]) -> Panel:
    trials = max(row["trials"] for row in rows)

    def draw(axes: Any) -> None:
        _draw_seeds(axes, _curves(rows, "round", "held"), "blue", "")
        axes.set_ylim(-0.04 * trials, 1.04 * trials)
        _label(axes, "Trials that hold the goal", "round", f"trials of {trials}", rows[-1]["round"])

    return draw


def _work(rows: Sequence[Row]) -> Panel:
    millions = [{**row, "millions": number(row["field_evaluations"]) / 1e6} for row in rows]

    def draw(axes: Any) -> None:
        _draw_seeds(axes, _curves(millions, "round", "millions"), "blue", "")
        axes.set_ylim(bottom=0)
        _label(axes, "Work: evaluations of the model's field", "round", "millions so far", rows[-1]["round"])

    return draw


def _within(title: str, label: str, rows: Sequence[Row], what: str, color: str, *, log: bool = False) -> Panel:
    most = max(row["iteration"] for row in rows)
    placed = [{**row, "place": row["round"] - 1 + row["iteration"] / most} for row in rows]
    rounds = sorted({row["round"] for row in rows})
    many = len({row["seed"] for row in rows}) > 1

    def draw(axes: Any) -> None:
        for round_number in rounds:
            curves = _curves([row for row in placed if row["round"] == round_number], "place", what)
            for x, y in curves:
                axes.plot(x, y, color=COLORS[color], linewidth=0.7 if many else 1.8, alpha=0.5 if many else 1)
            where, (_, middle, _) = over_seeds(curves)
            axes.plot(where, middle, color=COLORS[color])
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain_numbers())
            axes.yaxis.set_minor_formatter(_plain_numbers(few=True))
        _label(axes, title, "rounds done", label, rounds[-1], first=0)

    return draw


def _label(axes: Any, title: str, across: str, up: str, last: int | None, first: int = 1) -> None:
    """Rounds from ``first`` to ``last`` stand on the axis as whole numbers."""
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if last is not None:
        room = 0.04 * max(last - first, 1) if last > first else 0.5
        axes.set_xlim(first - room, last + room)
        axes.set_xticks(range(first, last + 1, 1 + (last - first) // 10))


def _plain_numbers(few: bool = False) -> Callable[[float, int], str]:
    def shown(value: float, _: int) -> str:
        leading = value / 10 ** np.floor(np.log10(value))
        return "" if few and round(leading) not in (2, 5) else f"{value:g}"

    return shown
