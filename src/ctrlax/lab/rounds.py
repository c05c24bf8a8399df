"""Runs of a figure round by round: what the policy earns, and how wrong the model is on the fixed test set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ctrlax.lab import policies
from ctrlax.lab.forecast import Stretches, roll, stretches
from ctrlax.lab.run import Run
from ctrlax.lab.scales import Made
from ctrlax.lab.strokes import Row, column, unique
from ctrlax.model.fit import Learned
from ctrlax.ode.solvers import named

HORIZONS = (0.5, 1.0, 1.5, 2.0)  # s ahead
STARTS = {"smoke": 12, "small": 100, "paper": 200}  # of the test set
CLIP = 100.0  # of errors, in pictures only


def table(made: Made, *, errors: bool = True) -> list[Row]:
    """A row for every run, seed and round: its labels, reward, trials held, and mean squared errors ahead."""
    rows: list[Row] = []
    for wanted, folder in made.runs:
        run = Run(folder)
        found = model_errors(run, made) if errors and run.laboratory.learns else {}
        for row in run.rows("round"):
            rows.append(
                {**wanted.labels, "seed": row["seed"], "round": row["round"], "reward": row["reward"],
                 "held": row["held"], "solved_round": row["solved_round"],
                 "interaction_seconds": row["interaction_seconds"], "field_evaluations": row["field_evaluations"],
                 "wall_seconds": row["wall_seconds"], **found.get((row["seed"], row["round"]), {})}
            )  # fmt: skip
    return rows


def model_errors(run: Run, made: Made) -> dict[tuple[int, int], Row]:
    """By seed and round: the squared error of the members' mean, averaged over coordinates and starts, unscaled."""
    try:
        known = policies.read(run.environment.name, *made.policies)
    except policies.MissingError:
        return {}
    dataset = policies.test_set(run.environment, known)
    pieces = stretches(dataset, max(HORIZONS), least=max(HORIZONS), most=STARTS[made.scale.name])
    found = {}
    for number, lanes in run.snapshots():
        for seed, (learned, _) in lanes.items():
            key = jax.random.fold_in(jax.random.key(seed), number)
            mean = np.asarray(_predicted(run.config.fit.solver, learned, pieces, key))
            found[seed, number] = {f"error_{horizon:g}": error for horizon, error in _errors(mean, pieces).items()}
    return found


@partial(jax.jit, static_argnums=0)
def _predicted(solver, learned: Learned, pieces: Stretches, key):
    with jax.default_matmul_precision("highest"):
        paths, _ = roll(learned.dynamics, learned.dynamics.draw(key=key), pieces, named(solver))
    return paths.mean(axis=0)


def _errors(mean: Float[np.ndarray, "start interval observation"], pieces: Stretches) -> dict[float, float]:
    answer = {}
    for horizon in HORIZONS:
        place = round(horizon / policies.TEST_STEP) - 1
        wrong = (mean[:, place] - pieces.targets[:, place]).astype(np.float64)
        answer[horizon] = float((wrong**2).mean())
    return answer


def last_rewards(rows: Sequence[Row], rounds: int = 1) -> Float[np.ndarray, " seed"]:
    """Every seed's mean reward over its last rounds."""
    answer = []
    for seed in sorted(unique(rows, "seed")):
        own = sorted((row for row in rows if row["seed"] == seed), key=lambda row: row["round"])
        answer.append(np.nanmean(column(own[-rounds:], "reward")))
    return np.array(answer)


def first_round(rows: Sequence[Row], what: str, *, least: float) -> Float[np.ndarray, " seed"]:
    """Every seed's first round in which a column is ``least`` or more; the round after the last where it never is."""
    answer = []
    for seed in sorted(unique(rows, "seed")):
        own = [row for row in rows if row["seed"] == seed]
        there = [row["round"] for row in own if row[what] is not None and row[what] >= least]
        answer.append(min(there, default=max(row["round"] for row in own) + 1))
    return np.array(answer, np.float64)


def rank_correlation(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    """Spearman's: of ranks; NaN of fewer than three values, or where one of both never changes."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    good = np.isfinite(one) & np.isfinite(other)
    if good.sum() < 3 or np.ptp(one[good]) == 0 or np.ptp(other[good]) == 0:
        return float("nan")
    first, second = (np.argsort(np.argsort(each[good])) for each in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def prediction_of_reward(rows: Sequence[Row], error: str) -> Float[np.ndarray, " seed"]:
    """Every seed's rank correlation, over rounds, of accuracy (less error) with reward."""
    answer = []
    for seed in sorted(unique(rows, "seed")):
        own = [row for row in rows if row["seed"] == seed and row.get(error) is not None]
        answer.append(rank_correlation(-column(own, error), column(own, "reward")) if own else float("nan"))
    return np.array(answer)


def run_folder(made: Made, **labels: Any) -> Path | None:
    """The folder of the run with these labels, if it was made."""
    for wanted, folder in made.runs:
        if all(wanted.labels.get(name) == value for name, value in labels.items()):
            return folder
    return None
