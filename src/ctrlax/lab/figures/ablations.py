"""ENODE on CartPole with other horizons and other numbers of members (claims 7 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlax.lab import rounds
from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.gallery import Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.scales import wanted as run_of
from ctrlax.lab.strokes import Row, band, look, unique, whole_numbers

ANSWERS = (7, 8)  # claims
TITLE = "Horizon and number of members, ENODE on CartPole"
CAPTION = (
    "Mean reward rate over rounds, mean over seeds and 10 and 90 % quantiles, with the horizon H of imagination (left) "
    "and the number of members of the ensemble (right) changed one at a time; H = 2 s and ten members are in both. "
    "Without noise, steps of 0.1 s, as in the text's two panels."
)
HORIZONS, MEMBERS = (1.0, 1.5, 2.0, 3.0, 4.0), (1, 3, 5, 10, 15)
USUAL = {"horizon": 2.0, "members": 10}
SEEDS = {"small": 3}  # where fewer than the scale's are drawn, said on the figure
SAME = 0.1  # of a reward rate
LAST = 3  # rounds whose mean reward is compared


def wanted(scale: Scale) -> list[Wanted]:
    """One run for every value; smoke has what the other figures have anyway."""
    if scale.smoke:
        labels = {"varied": "horizon", "horizon": 2.0, "members": 2}
        return [run_of(scale, scale.environments[0], "enode", labels=labels)]
    runs = []
    for varied, values in (("horizon", HORIZONS), ("members", MEMBERS)):
        for value in values:
            chosen = {**USUAL, varied: value}
            runs.append(
                run_of(
                    scale, "cartpole", "enode", labels={"varied": varied, **chosen}, seeds=SEEDS.get(scale.name),
                    agent__horizon=chosen["horizon"], model__members=chosen["members"],
                )
            )  # fmt: skip
    return runs


def table(made: Made) -> list[Row]:
    """A row for every value, seed and round."""
    return rounds.table(made, errors=False)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Horizons left, members right."""

    def of(varied: str, title: str) -> Panel:
        def draw(axes: Any) -> None:
            own = [row for row in rows if row["varied"] == varied]
            values = sorted(unique(own, varied))
            for value in values:
                label = f"{value:g} s" if varied == "horizon" else f"{value}"
                band(axes, [r for r in own if r[varied] == value], "round", "reward", label, look(value, values))
            axes.set_title(title)
            axes.set_xlabel("round")
            axes.set_ylabel("mean reward rate")
            whole_numbers(axes, max(row["round"] for row in own))
            axes.legend(fontsize=7)

        return draw

    titles = {"horizon": "Horizon H", "members": "Number of members"}
    return tuple(of(varied, titles[varied]) for varied in unique(rows, "varied"))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 7 by the last rewards against ten members, claim 8 against H = 2 s."""
    answers = []
    usual = {varied: _last(rows, varied, value) for varied, value in USUAL.items()}
    for members in MEMBERS:
        own = _last(rows, "members", members)
        if members != USUAL["members"] and len(own) and len(usual["members"]):
            measure = f"last rewards with {members} members less those with 10, by seed, above -{SAME:g}"
            answers.append(judge(7, measure, own - usual["members"], above=-SAME))
    for horizon in (min(HORIZONS), max(HORIZONS)):
        own = _last(rows, "horizon", horizon)
        if len(own) and len(usual["horizon"]):
            measure = f"last rewards with H = 2 s less those with {horizon:g} s, by seed, above 0"
            answers.append(judge(8, measure, usual["horizon"] - own, above=0.0))
    for number in (7, 8):
        if not any(claim.number == number for claim in answers):
            answers.append(unanswered(number, "only one value was run"))
    return answers


def _last(rows: Sequence[Row], varied: str, value: float | int) -> Any:
    return rounds.last_rewards([row for row in rows if row["varied"] == varied and row[varied] == value], LAST)
