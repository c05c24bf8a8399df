"""One-step errors of vanilla and modified PETS on regular and irregular steps of CartPole (claim 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.fitted import FitRun, fit
from ctrlax.lab.forecast import SECTION, Stretches, roll
from ctrlax.lab.gallery import Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, band, column, look, nothing, unique
from ctrlax.model.dataset import Dataset
from ctrlax.model.registry import families
from ctrlax.model.windows import pack
from ctrlax.ode.solvers import named
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.grids import draw_times
from ctrlax.world.load import make

ANSWERS = (3,)  # claims
TITLE = "Vanilla and modified PETS on regular and irregular steps"
CAPTION = (
    "CartPole under smooth random actions, observed every 0.1 s or at steps uniform over (0, 0.2] s: the root mean "
    "square error of the members' mean one step ahead, in units of the root mean square change over a step, on the "
    "training data and on unseen trajectories, against the updates of the fit. The text shows both over training."
)
MODELS, GRIDS = ("pets", "mpets"), ("fixed", "uniform")
STEP, POINTS = 0.1, 50
APART, ALIKE = np.log(3.0), np.log(1.5)
# trajectories, seeds, and the lengths of the fits
SIZES = {"smoke": (3, 2, (50,)), "small": (20, 5, (250, 1000, 4000)), "paper": (50, 20, (500, 2000, 8000, 20000))}


def wanted(scale: Scale) -> list[Wanted]:
    """No runs: two datasets are fitted. A model that is not here is named."""
    missing = [model for model in MODELS if model not in families()]
    return [Wanted({"model": model}, None, f"the model {model} is not in this ctrlax") for model in missing]


def table(made: Made) -> list[Row]:
    """A row for every model, grid, seed, length of fit, and whether the data were seen."""
    count, seeds, lengths = SIZES[made.scale.name]
    rows = []
    for grid in GRIDS:
        seen, unseen = _recorded(grid, count, 1), _recorded(grid, count, 2)
        for model in (each for each in MODELS if each in families()):
            for updates in lengths if not made.scale.smoke else lengths[:1]:
                run = fit(
                    seen, model=model, seeds=range(seeds), held_out=0.1,
                    **{"one_step.updates": updates, "one_step.patience": 0, "one_step.held_out": 0.0},
                )  # fmt: skip
                rows += [
                    {"model": model, "grid": grid, "updates": updates, "seed": seed, "data": which,
                     "error": _one_step(run, lane, data)}
                    for lane, seed in enumerate(run.seeds) for which, data in (("training", seen), ("test", unseen))
                ]  # fmt: skip
    return rows


def _recorded(grid: str, count: int, number: int) -> Dataset:
    environment = make("cartpole")
    time_key, path_key, key = jax.random.split(jax.random.key(number), 3)
    times = draw_times(grid, STEP, POINTS, key=time_key, trajectories=count)
    seen = simulate(environment, random_controls(environment, times, key=path_key), times, key=key)
    return Dataset.from_trajectory(seen, environment)


def _one_step(run: FitRun, lane: int, dataset: Dataset) -> float:
    pieces = _steps(dataset)
    said = np.asarray(_predicted(run.config.fit.solver, run.of(lane), pieces, jax.random.key(lane)))
    wrong = (said - pieces.targets[:, 0]) / np.asarray(run.system["unit"])
    moved = (pieces.targets[:, 0] - pieces.starts) / np.asarray(run.system["unit"])
    return float(np.sqrt((wrong**2).mean()) / np.sqrt((moved**2).mean()))


@partial(jax.jit, static_argnums=0)
def _predicted(solver, learned, pieces: Stretches, key) -> Any:
    with jax.default_matmul_precision("highest"):
        return roll(learned.dynamics, learned.dynamics.draw(key=key), pieces, named(solver))[0][:, :, 0].mean(axis=0)


def _steps(dataset: Dataset) -> Stretches:
    """Every single step of a dataset as a stretch whose other steps take no time."""
    recording = pack(dataset, trajectories=len(dataset.logs), points=POINTS)
    observations, steps, paths = (np.asarray(getattr(recording, name)) for name in ("observations", "steps", "paths"))
    flat = observations[:, :-1].reshape(-1, observations.shape[2])
    after = observations[:, 1:].reshape(-1, 1, observations.shape[2])
    taken: Float[np.ndarray, "start interval"] = np.zeros((len(flat), SECTION), np.float32)
    taken[:, 0] = steps[:, : POINTS - 1].reshape(-1)
    path = paths[:, : POINTS - 1].reshape(len(flat), 1, *paths.shape[2:])
    return Stretches(
        flat.astype(np.float32), np.repeat(after, SECTION, axis=1).astype(np.float32), taken,
        np.repeat(path, SECTION, axis=1), np.where(taken > 0, taken, np.nan).astype(np.float64),
    )  # fmt: skip


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """A panel for every grid, training and test as lines."""
    if not rows:
        return (lambda axes: nothing(axes, "pets and mpets are not in this ctrlax"),)

    def of(grid: str) -> Panel:
        def draw(axes: Any) -> None:
            for model in unique(rows, "model"):
                for data in ("training", "test"):
                    own = [r for r in rows if r["model"] == model and r["grid"] == grid and r["data"] == data]
                    style = look(model, MODELS) | {"linestyle": "-" if data == "training" else ":"}
                    band(axes, own, "updates", "error", f"{model}, {data}", style)
            axes.set_yscale("log")
            axes.set_xscale("log")
            axes.set_xlabel("updates")
            axes.set_ylabel("one-step error / change")
            axes.set_title("Every 0.1 s" if grid == "fixed" else "Steps uniform over (0, 0.2] s")
            axes.legend(fontsize=7)

        return draw

    return tuple(of(grid) for grid in GRIDS)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 3 on the longest fits: apart on irregular steps, alike on regular ones."""
    missing = [model for model in MODELS if not any(row["model"] == model for row in rows)]
    if missing:
        return [unanswered(3, f"{', '.join(missing)} not in this ctrlax")]
    longest = max(row["updates"] for row in rows)
    answers = []
    for grid, data in (("uniform", "training"), ("uniform", "test"), ("fixed", "training"), ("fixed", "test")):
        own = [r for r in rows if r["updates"] == longest and r["grid"] == grid and r["data"] == data]
        ratios = np.log(_of(own, "pets") / _of(own, "mpets"))
        where = f"log ratio of the {data} errors, vanilla to modified, {grid} steps, by seed"
        if grid == "uniform":
            answers.append(judge(3, f"{where}, above {APART:.2f} (three times)", ratios, above=float(APART)))
        else:
            answers.append(judge(3, f"{where}, below {ALIKE:.2f} (half as much again)", ratios, below=float(ALIKE)))
    return answers


def _of(rows: Sequence[Row], model: str) -> np.ndarray:
    return column(sorted((row for row in rows if row["model"] == model), key=lambda row: row["seed"]), "error")
