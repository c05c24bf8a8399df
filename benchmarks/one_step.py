"""One-step errors of vanilla and modified PETS on regular and irregular times (issue 6, must show 1; `fig:pets-comp`).

CartPole, random actions, noise-free, T = 50, steps fixed at 0.1 s or U(0, 0.2] s. Both models on both grids, five seeds
(data and weights) as lanes of one program; errors on what was trained on and on trajectories recorded in the same way.

    PYTHONPATH=src python benchmarks/one_step.py           # minutes; writes results/baselines/one_step.json
    PYTHONPATH=src python benchmarks/one_step.py --quick   # a few updates; writes nothing unless --out
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import ROOT, write_record

import ctrlax
from ctrlax import config
from ctrlax.lab.fitted import data_scaling, dataset_coordinates, fresh_lanes
from ctrlax.lab.fitting import fit_lanes, material
from ctrlax.lab.guard import Guard
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.one_step import changes, steps_of
from ctrlax.model.windows import pack
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.grids import draw_times

STEP, POINTS = 0.1, 50
GRIDS, MODELS = ("fixed", "uniform"), ("pets", "mpets")
OUT = ROOT / "results" / "baselines" / "one_step.json"


def recorded(environment: ctrlax.Environment, grid: str, trajectories: int, *, key: Any) -> Dataset:
    """Random actions from the start distribution."""
    time_key, path_key, solve_key = jax.random.split(key, 3)
    times = draw_times(grid, STEP, POINTS, key=time_key, trajectories=trajectories)
    seen = simulate(environment, random_controls(environment, times, key=path_key), times, key=solve_key)
    logs = [Log(*each) for each in zip(seen.times, seen.observations, seen.actions, strict=True)]
    return Dataset(tuple(logs), environment.observation_names, environment.action_names, hold="gp")


def errors(learned: Any, data: Dataset) -> dict[str, float]:
    """Of the ensemble's mean: root mean squared, over the standard deviation of each observation and of its change."""
    packed = pack(data, trajectories=len(data.logs), points=POINTS)
    steps, present = steps_of(jax.tree.map(jax.numpy.asarray, packed))
    rows = np.flatnonzero(present)

    @jax.jit
    def asked(learned: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            members = learned.dynamics.draw(key=jax.random.key(0))
            said, seen = changes(learned.dynamics, members, steps, jax.numpy.asarray(rows))
            return said.mean.mean(axis=0), seen[0]

    mean, seen = (np.asarray(part, np.float64) for part in asked(learned))
    wrong = np.sqrt(((mean - seen) ** 2).mean(axis=0))
    unit = np.concatenate([log.observations for log in data.logs]).std(axis=0)
    return {"of_state": float((wrong / unit).mean()), "of_change": float((wrong / seen.std(axis=0)).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trajectories", type=int, default=20, help="to train on, and as many to test on")
    parser.add_argument("--updates", type=int, default=3000, help="mini-batches at most")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    load = os.getloadavg()
    environment = ctrlax.make("cartpole")
    updates = 100 if options.quick else options.updates
    lanes = [(grid, seed) for grid in GRIDS for seed in range(options.seeds)]
    keys = [jax.random.fold_in(jax.random.key(seed), GRIDS.index(grid)) for grid, seed in lanes]
    training = [
        recorded(environment, grid, options.trajectories, key=jax.random.fold_in(key, 0))
        for (grid, _), key in zip(lanes, keys, strict=True)
    ]
    test = [
        recorded(environment, grid, options.trajectories, key=jax.random.fold_in(key, 1))
        for (grid, _), key in zip(lanes, keys, strict=True)
    ]
    rows = []
    one_step = config.OneStep(updates=updates)
    for model in MODELS:
        chosen = config.fit_preset("default").replaced(model__family=model, sampling__dt=STEP, fit__held_out=0.0)
        stacked = jax.numpy.stack(keys)
        fresh = fresh_lanes(
            chosen, dataset_coordinates(training[0]), [data_scaling(each) for each in training], stacked
        )
        seen = material(training, chosen.fit, shared=False)
        begun = time.perf_counter()
        done = fit_lanes(
            chosen.fit, fresh, seen, key=stacked, guard=Guard(Path(tempfile.gettempdir())), seeds=range(len(lanes)),
            one_step=one_step,
        )  # fmt: skip
        print(f"{model}: {time.perf_counter() - begun:.0f} s, updates {done.updates.tolist()}", flush=True)
        for lane, (grid, seed) in enumerate(lanes):
            own = jax.tree.map(lambda leaf, lane=lane: leaf[lane], done.learned)
            row = {"model": model, "grid": grid, "seed": seed, "updates": int(done.updates[lane])}
            row |= {"kept": int(done.kept[lane]), "train": errors(own, training[lane]), "test": errors(own, test[lane])}
            rows.append(row)
    table = summary(rows)
    report(table)
    out = options.out or (None if options.quick else OUT)
    if out is not None:
        shapes = {"trajectories": options.trajectories, "points": POINTS, "step": STEP, "members": 10}
        write_record(out, {"shapes": shapes, "one_step": vars(one_step), "table": table, "rows": rows}, load)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and ranges over seeds."""
    table = []
    for model in MODELS:
        for grid in GRIDS:
            own = [row for row in rows if (row["model"], row["grid"]) == (model, grid)]
            line: dict[str, Any] = {"model": model, "grid": grid}
            for side in ("train", "test"):
                for unit in ("of_state", "of_change"):
                    each = [row[side][unit] for row in own]
                    line[f"{side}_{unit}"] = {"mean": float(np.mean(each)), "low": min(each), "high": max(each)}
            table.append(line)
    return table


def report(table: list[dict[str, Any]]) -> None:
    """For people."""
    print(f"{'':18}{'train / change':>16}{'test / change':>16}{'train / state':>16}{'test / state':>16}")
    for line in table:
        cells = [line[f"{side}_{unit}"]["mean"] for unit in ("of_change", "of_state") for side in ("train", "test")]
        print(f"{line['model']:8}{line['grid']:10}" + "".join(f"{cell:16.4f}" for cell in cells))


if __name__ == "__main__":
    main()
