"""Five models on three tasks: reward and error two seconds ahead over rounds (claims 4, 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlax.lab import rounds
from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.gallery import Panel
from ctrlax.lab.rounds import CLIP
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.scales import wanted as run_of
from ctrlax.lab.strokes import Row, band, column, look, nothing, unique, whole_numbers

ANSWERS = (4, 5, 6)  # claims
TITLE = "Five models, without noise, at steps of 0.1 s"
CAPTION = (
    "Top: mean reward rate of ten trials of 30 s after every round, mean over seeds and 10 and 90 % quantiles. Bottom: "
    "mean squared error of the members' mean two seconds ahead on one fixed test set, roll-outs of policies that solve "
    "the task, clipped at 100 in the picture only. The text shows the same panels for twenty experiments."
)
NODES = ("enode", "benode", "ibnode")
MODELS = (*NODES, "pets", "deep-pilco")
SMOKE = ("enode", "pets")
COMPARABLE = 0.1  # of a reward rate that is 1 at most
ACCURATE = 0.1  # mean squared error two seconds ahead


def wanted(scale: Scale) -> list[Wanted]:
    """Every model on every task."""
    models = SMOKE if scale.smoke else MODELS
    return [
        run_of(scale, environment, model, labels={"environment": environment, "model": model})
        for environment in scale.environments for model in models
    ]  # fmt: skip


def table(made: Made) -> list[Row]:
    """A row for every model, task, seed and round."""
    return rounds.table(made)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Rewards above, errors below, a column for every task."""
    environments = unique(rows, "environment")
    columns = [*environments, *["none"] * (0 if len(environments) in (1, 3) else 3 - len(environments))]

    def of(environment: str, what: str, title: str, label: str) -> Panel:
        def draw(axes: Any) -> None:
            own = [row for row in rows if row["environment"] == environment and row.get(what) is not None]
            axes.set_title(title)
            if not own:
                nothing(axes, "no runs here yet")
                return
            for model in unique(own, "model"):
                mine = [row for row in own if row["model"] == model]
                limit = CLIP if what != "reward" else None
                band(axes, mine, "round", what, model, look(model, MODELS), limit=limit)
            axes.set_xlabel("round")
            axes.set_ylabel(label)
            whole_numbers(axes, max(row["round"] for row in own))
            if what != "reward":
                axes.set_yscale("log")
            axes.legend(fontsize=7)

        return draw

    top = [of(each, "reward", each.capitalize(), "mean reward rate") for each in columns]
    below = [of(each, "error_2", f"{each.capitalize()}, 2 s ahead", "mean squared error") for each in columns]
    return (*top, *below)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claims 4, 5 and 6, task by task."""
    answers = []
    for environment in unique(rows, "environment"):
        own = {model: [r for r in rows if r["environment"] == environment and r["model"] == model] for model in MODELS}
        answers += _rewards(environment, own) + _accuracy(environment, own)
        if own["pets"] and own["pets"][0].get("error_2") is not None:
            early = [row for row in own["pets"] if row["round"] <= 2]
            seeds = [[row for row in early if row["seed"] == seed] for seed in unique(early, "seed")]
            errors = [np.log10(np.maximum(column(each, "error_2"), 1e-12)).mean() for each in seeds]
            measure = f"log10 error of PETS 2 s ahead, mean of rounds 1 and 2, {environment}, by seed, above 2 (100)"
            answers.append(judge(6, measure, errors, above=2.0))
    missing = [model for model in MODELS if not any(row["model"] == model for row in rows)]
    if "pets" in missing:
        answers.append(unanswered(6, "no runs of pets"))
    if missing:
        answers.append(unanswered(4, f"no runs of {', '.join(missing)}"))
    return answers


def _rewards(environment: str, own: dict[str, list[Row]]) -> list[Claim]:
    if not own["enode"]:
        return []
    ours, answers = rounds.last_rewards(own["enode"]), []
    for model in (*NODES[1:], "pets"):
        if own[model]:
            theirs = rounds.last_rewards(own[model])
            least = min(len(ours), len(theirs))
            measure = f"last reward of {model} less that of ENODE, {environment}, by seed, above -{COMPARABLE:g}"
            answers.append(judge(4, measure, theirs[:least] - ours[:least], above=-COMPARABLE))
    if own["deep-pilco"]:
        level = 0.9 * float(ours.mean())
        late, soon = (rounds.first_round(own[model], "reward", least=level) for model in ("deep-pilco", "enode"))
        least = min(len(late), len(soon))
        measure = f"rounds of Deep PILCO to nine tenths of ENODE's last reward less ENODE's, {environment}, above 0"
        answers.append(judge(4, measure, late[:least] - soon[:least], above=0.0))
    return answers


def _accuracy(environment: str, own: dict[str, list[Row]]) -> list[Claim]:
    answers = []
    for model in NODES:
        mine = [row for row in own[model] if row.get("error_2") is not None]
        if not mine:
            continue
        accurate = rounds.first_round([{**row, "right": -row["error_2"]} for row in mine], "right", least=-ACCURATE)
        good = rounds.first_round(mine, "reward", least=0.9 * float(rounds.last_rewards(mine).mean()))
        measure = (
            f"rounds of {model} to nine tenths of its last reward less rounds to an error of {ACCURATE:g}, "
            f"{environment}, by seed, above 0"
        )
        answers.append(judge(5, measure, good - accurate, above=0.0))
        found = rounds.prediction_of_reward(mine, "error_2")
        measure = f"rank correlation of accuracy 2 s ahead and reward over rounds, {model}, {environment}, below 0.7"
        answers.append(judge(5, measure, found, below=0.7))
    return answers
