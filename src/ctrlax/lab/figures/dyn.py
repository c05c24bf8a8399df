"""Errors of the models half a second, one and one and a half seconds ahead, over rounds (claim 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlax.lab import rounds
from ctrlax.lab.claims import Claim, judge
from ctrlax.lab.figures import comparison5
from ctrlax.lab.gallery import Panel
from ctrlax.lab.rounds import CLIP
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, band, column, look, unique, whole_numbers

ANSWERS = (13,)  # claims
TITLE = "Errors of the models at shorter horizons"
CAPTION = (
    "Mean squared error of the members' mean half a second, one and one and a half seconds ahead, on the fixed test "
    "set and from the runs of comparison5, clipped at 100 in the picture only. The text shows the same panels."
)
SHORTER = (0.5, 1.0, 1.5)
MUCH = np.log10(1 / 3)  # "much lower": less than a third


def wanted(scale: Scale) -> list[Wanted]:
    """The runs of comparison5: what is there is used."""
    return comparison5.wanted(scale)


def table(made: Made) -> list[Row]:
    """A row for every model, task, seed and round."""
    return rounds.table(made)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """A row of panels for every horizon, a column for every task."""

    def of(environment: str, horizon: float) -> Panel:
        what = f"error_{horizon:g}"

        def draw(axes: Any) -> None:
            own = [row for row in rows if row["environment"] == environment and row.get(what) is not None]
            for model in unique(own, "model"):
                mine = [row for row in own if row["model"] == model]
                band(axes, mine, "round", what, model, look(model, comparison5.MODELS), limit=CLIP)
            axes.set_title(f"{environment.capitalize()}, {horizon:g} s ahead")
            axes.set_xlabel("round")
            axes.set_ylabel("mean squared error")
            if own:
                axes.set_yscale("log")
                whole_numbers(axes, max(row["round"] for row in own))
                axes.legend(fontsize=7)

        return draw

    return tuple(of(environment, horizon) for horizon in SHORTER for environment in unique(rows, "environment"))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 13 for every model and task, over all rounds."""
    answers = []
    for environment in unique(rows, "environment"):
        for model in unique(rows, "model"):
            own = [
                row for row in rows
                if row["environment"] == environment and row["model"] == model and row.get("error_2") is not None
            ]  # fmt: skip
            if not own:
                continue
            for horizon in SHORTER[:2]:
                ratios = [_ratio([row for row in own if row["seed"] == seed], horizon) for seed in unique(own, "seed")]
                measure = (
                    f"log10 ratio of the errors {horizon:g} s and 2 s ahead, {model}, {environment}, by seed, "
                    f"below {MUCH:.2f} (a third)"
                )
                answers.append(judge(13, measure, ratios, below=float(MUCH)))
            found = rounds.prediction_of_reward(own, "error_1")
            measure = f"rank correlation of accuracy 1 s ahead and reward, {model}, {environment}, below 0.7"
            answers.append(judge(13, measure, found, below=0.7))
    return answers


def _ratio(rows: Sequence[Row], horizon: float) -> float:
    short, long = column(rows, f"error_{horizon:g}"), column(rows, "error_2")
    return float(np.mean(np.log10(np.maximum(short, 1e-15) / np.maximum(long, 1e-15))))
