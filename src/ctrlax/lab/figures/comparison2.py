"""ENODE and MPETS with noise, at random and fixed steps of several mean lengths (claims 9, 10 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlax.lab import rounds
from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.gallery import Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.scales import wanted as run_of
from ctrlax.lab.strokes import Row, band, look, unique, whole_numbers

ANSWERS = (9, 10, 11)  # claims
TITLE = "Noise and irregular steps, ENODE and MPETS"
CAPTION = (
    "Mean reward rate over rounds with observation noise 0.025, for fixed, uniform and exponential steps of the same "
    "mean kappa, mean over seeds and 10 and 90 % quantiles; dotted without noise. Trajectories have 50 observations at "
    "every kappa, so they are shorter in time where kappa is small. The text has four kappas."
)
MODELS, GRIDS, NOISE = ("enode", "mpets"), ("fixed", "uniform", "exponential"), 0.025
KAPPAS = {"small": (0.025, 0.1), "paper": (0.025, 0.05, 0.1, 0.2)}
TASKS = {"small": ("cartpole",)}  # the other scales take all of theirs
USUAL = 0.1  # s, the step that small ones are compared with
DROP, SAME = 0.2, 0.1  # of a reward rate: a breakdown, and roughly unaffected
LAST = 3


def wanted(scale: Scale) -> list[Wanted]:
    """The grid with noise, and fixed steps of 0.1 s without it."""
    environments = TASKS.get(scale.name, scale.environments)
    grids, kappas = (("fixed",), (0.1,)) if scale.smoke else (GRIDS, KAPPAS[scale.name])
    conditions = [(grid, kappa, NOISE) for grid in grids for kappa in kappas]
    conditions = [("fixed", 0.1, 0.0)] if scale.smoke else [*conditions, ("fixed", USUAL, 0.0)]
    return [
        run_of(
            scale, environment, model,
            labels={"environment": environment, "grid": grid, "kappa": kappa, "noise": noise, "model": model},
            sampling__grid=grid, sampling__dt=kappa, sampling__noise=noise,
        )
        for environment in environments for grid, kappa, noise in conditions for model in MODELS
    ]  # fmt: skip


def table(made: Made) -> list[Row]:
    """A row for every condition, model, seed and round."""
    return rounds.table(made, errors=False)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """A panel for every task, spacing and kappa."""
    places = list(dict.fromkeys((r["environment"], r["grid"], r["kappa"]) for r in rows))

    def of(environment: str, grid: str, kappa: float) -> Panel:
        def draw(axes: Any) -> None:
            own = [r for r in rows if (r["environment"], r["grid"], r["kappa"]) == (environment, grid, kappa)]
            for model in unique(own, "model"):
                for noise in unique(own, "noise"):
                    mine = [row for row in own if row["model"] == model and row["noise"] == noise]
                    style = look(model, MODELS) | ({} if noise else {"linestyle": ":"})
                    label = model if noise else f"{model}, no noise"
                    band(axes, mine, "round", "reward", label, style)
            axes.set_title(f"{environment.capitalize()}, {grid}, {kappa:g} s")
            axes.set_xlabel("round")
            axes.set_ylabel("mean reward rate")
            whole_numbers(axes, max(row["round"] for row in own))
            axes.legend(fontsize=7)

        return draw

    return tuple(of(*place) for place in places)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claims 9, 10 and 11, task by task and model by model."""
    answers: list[Claim] = []
    for environment in unique(rows, "environment"):
        for model in unique(rows, "model"):
            own = [row for row in rows if row["environment"] == environment and row["model"] == model]
            answers += _steps(environment, model, own) + _grids(environment, model, own)
            answers += _noise(environment, model, own)
    missing = [model for model in MODELS if not any(row["model"] == model for row in rows)]
    for number in (9, 10, 11):
        if missing:
            answers.append(unanswered(number, f"no runs of {', '.join(missing)}"))
        elif not any(claim.number == number for claim in answers):
            answers.append(unanswered(number, "the conditions to compare were not run"))
    return answers


def _last(rows: Sequence[Row], **labels: Any) -> Any:
    own = [row for row in rows if all(row[name] == value for name, value in labels.items())]
    return rounds.last_rewards(own, LAST)


def _steps(environment: str, model: str, rows: Sequence[Row]) -> list[Claim]:
    answers = []
    for grid in unique(rows, "grid"):
        usual = _last(rows, grid=grid, kappa=USUAL, noise=NOISE)
        small = _last(rows, grid=grid, kappa=min(unique(rows, "kappa")), noise=NOISE)
        if min(unique(rows, "kappa")) == USUAL or not len(usual) or not len(small):
            continue
        breaks = model == "mpets"
        side = f"above {DROP:g}" if breaks else f"below {DROP:g}"
        measure = f"reward lost from kappa {USUAL:g} s to the smallest, {model}, {grid}, {environment}, {side}"
        answers.append(judge(9, measure, usual - small, above=DROP if breaks else None, below=None if breaks else DROP))
    return answers


def _grids(environment: str, model: str, rows: Sequence[Row]) -> list[Claim]:
    answers = []
    for kappa in unique(rows, "kappa"):
        fixed = _last(rows, grid="fixed", kappa=kappa, noise=NOISE)
        for grid in GRIDS[1:]:
            random = _last(rows, grid=grid, kappa=kappa, noise=NOISE)
            if len(fixed) and len(random):
                measure = f"last rewards, {grid} less fixed, {model}, kappa {kappa:g} s, {environment}, above -{SAME:g}"
                answers.append(judge(10, measure, random - fixed, above=-SAME))
    return answers


def _noise(environment: str, model: str, rows: Sequence[Row]) -> list[Claim]:
    fixed = [row for row in rows if row["grid"] == "fixed" and row["kappa"] == USUAL]
    noisy, clean = ([row for row in fixed if row["noise"] == noise] for noise in (NOISE, 0.0))
    if not noisy or not clean:
        return []
    level = 0.9 * float(rounds.last_rewards(clean, LAST).mean())
    late, soon = (rounds.first_round(each, "reward", least=level) for each in (noisy, clean))
    measure = (
        f"rounds to nine tenths of the last reward without noise, with noise less without, {model}, {environment}, "
        "by seed, above 0"
    )
    return [judge(11, measure, late - soon, above=0.0)]
