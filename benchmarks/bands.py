"""Bands outside the training range against bands inside it (issue 3, must show 7).

CartPole and Acrobot: the model learns from random roll-outs (the start distribution, ten trajectories of 5 s) and is
asked for the rate of every state of held-out roll-outs: ten like those (held out) and ten under larger, longer actions
that reach states the training data has none of. A state is inside the training range if every observation coordinate
lies between the 1 % and 99 % quantiles of the training data, outside if any coordinate lies beyond its full range by a
tenth of it. The band's width is the members' standard deviation (without noise) at the end of a half-second prediction
begun at that state, in standard deviations of the training data, averaged over coordinates; every state counts once.

    PYTHONPATH=src python benchmarks/bands.py            # results/fit/bands.json and docs/images/bands-*.png
    PYTHONPATH=src python benchmarks/bands.py --quick    # a minute; writes nothing
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ctrlax
from ctrlax import config
from ctrlax.lab.configure import as_dict
from ctrlax.lab.fitted import FitRun, fit
from ctrlax.lab.forecast import HORIZONS, Forecast
from ctrlax.lab.header import make_header
from ctrlax.model.dataset import Dataset, Log
from ctrlax.ode.control import Squashed, draw_path
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.grids import fixed_times

STEP, SECONDS, NOISE = 0.1, 5.0, 0.025
TRAINING, HELD = 10, 10
VIGOROUS = 3.0  # scale of the actions' process under the tanh, against 0.5 in training
AHEAD = 0.5  # s, of each prediction whose band is measured
OUT = Path("results/fit/bands.json")
PICTURES = Path("docs/images")


def recorded(environment: ctrlax.Environment, count: int, vigorous: bool, *, key: Any) -> Dataset:
    """Random roll-outs; vigorous ones swing out of what the others show."""
    path_key, solve_key = jax.random.split(key)
    times = np.tile(fixed_times(STEP, SECONDS), (count, 1))
    controls = random_controls(environment, times, key=path_key)
    if vigorous:
        keys = jax.random.split(path_key, count)
        paths = [
            draw_path(row, environment.action_size, key=k, scale=VIGOROUS) for row, k in zip(times, keys, strict=True)
        ]
        controls = [Squashed(path, environment.action_middle, environment.action_reach) for path in paths]
    return Dataset.from_trajectory(simulate(environment, controls, times, key=solve_key, noise=NOISE), environment)


def range_of(training: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inside: low and high by quantiles; outside: low and high a tenth beyond the extremes."""
    seen = np.concatenate([log.observations for log in training.logs])
    low, high = seen.min(axis=0), seen.max(axis=0)
    inner = np.quantile(seen, [0.01, 0.99], axis=0)
    return inner[0], inner[1], low - 0.1 * (high - low), high + 0.1 * (high - low)


def bands(run: FitRun, training: Dataset, held: Dataset) -> dict[str, Any]:
    """Mean width where predictions start inside and where they start outside."""
    inner_low, inner_high, outer_low, outer_high = range_of(training)
    unit = np.asarray(run.system["unit"])
    points = round(AHEAD / STEP) + 1
    pieces = [
        Log(log.times[i : i + points], log.observations[i : i + points], log.actions[i : i + points])
        for log in held.logs
        for i in range(len(log.times) - points + 1)
    ]
    asked = Dataset(tuple(pieces), held.observation_names, held.action_names, hold=held.hold)
    told = run.forecast(asked)
    widths = np.array([(each.spread[-1] / unit).mean() for each in told])
    starts = np.array([piece.observations[0] for piece in pieces])
    inside = np.all((starts >= inner_low) & (starts <= inner_high), axis=1)
    outside = np.any((starts < outer_low) | (starts > outer_high), axis=1)
    return {
        "inside": float(widths[inside].mean()) if inside.any() else None,
        "outside": float(widths[outside].mean()) if outside.any() else None,
        "starts_inside": int(inside.sum()),
        "starts_outside": int(outside.sum()),
        "ratio": float(widths[outside].mean() / widths[inside].mean()) if inside.any() and outside.any() else None,
    }


def drawn(name: str, run: FitRun, training: Dataset, held: list[Dataset], path: Path) -> None:
    """One ordinary and one vigorous roll-out: band per coordinate, and the training range as a shade behind it."""
    import matplotlib.pyplot as plt

    _, _, low, high = range_of(training)
    names = held[0].observation_names
    figure, grid = plt.subplots(len(names), 2, sharex="col", sharey="row", layout="constrained", squeeze=False)
    figure.set_size_inches(8.4, 1.35 * len(names) + 0.8)
    for column, (title, data) in enumerate(zip(("as in training", "larger actions"), held, strict=True)):
        farthest = max(range(len(data.logs)), key=lambda i: float(np.abs(data.logs[i].observations).max()))
        log = data.logs[farthest if column else 0]
        alone = Dataset((log,), data.observation_names, data.action_names, hold=data.hold)
        told: Forecast = run.forecast(alone, restart=1.0)[0]
        for place, axes in enumerate(grid[:, column]):
            axes.axhspan(low[place], high[place], color="#eeeeee", zorder=0)
            axes.fill_between(log.times, told.low[:, place], told.high[:, place], color="#0072b2", alpha=0.3, lw=0)
            axes.plot(log.times, told.mean[:, place], color="#0072b2", lw=1.5)
            axes.plot(log.times, log.observations[:, place], ".", color="#2d323a", ms=3)
            seen = np.concatenate([one.logs[i].observations[:, place] for one in held for i in range(len(one.logs))])
            room = 0.3 * float(np.ptp(seen))
            axes.set_ylim(seen.min() - room, seen.max() + room)
        grid[0, column].set_title(title, loc="left", fontsize=10)
        grid[-1, column].set_xlabel("time [s]")
    for place, label in enumerate(names):
        grid[place, 0].set_ylabel(label)
    figure.suptitle(f"{name}: 90 % bands of predictions begun anew every second; grey: the training range", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures; none are drawn without matplotlib")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    settings: dict[str, Any] = {"model__structure": ()}
    if chosen.quick:
        settings |= {"model__members": 3, "fit__updates": 100, "fit__warmup_updates": 0, "fit__matching_updates": 50}
    record: dict[str, Any] = {}
    for name in ("cartpole",) if chosen.quick else ("cartpole", "acrobot"):
        environment = ctrlax.make(name)
        keys = jax.random.split(jax.random.key(3), 3)
        training = recorded(environment, TRAINING, False, key=keys[0])
        held = [recorded(environment, HELD, vigorous, key=keys[1 + vigorous]) for vigorous in (False, True)]
        run = fit(training, seeds=(0,), horizons=HORIZONS, **settings)
        both = Dataset(held[0].logs + held[1].logs, training.observation_names, training.action_names, training.hold)
        record[name] = bands(run, training, both) | {"error": run.summary()["error"], "noise": run.noise()}
        print(name, json.dumps(record[name]), flush=True)
        folder = chosen.pictures or (None if chosen.quick else PICTURES)
        if folder is not None:
            try:
                drawn(name, run, training, held, folder / f"bands-{name}.png")
            except ModuleNotFoundError:
                print("no matplotlib: no picture")
    out = chosen.out or (None if chosen.quick else OUT)
    if out is not None:
        header = make_header(
            "benchmarks/bands.py", {"settings": as_dict(config.fit_preset("default").replaced(**settings))}
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**header, "bands": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
