"""The picture of a fit: held-out trajectories, what the model says of them from their first points, and the band."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctrlax.lab import checkpoint
from ctrlax.lab.fitted import FitRun
from ctrlax.lab.forecast import HORIZONS, Forecast
from ctrlax.lab.gallery import COLORS, PANEL, STYLE
from ctrlax.model.dataset import Dataset, Log

NAME = "held-out"
SHOWN = 3  # trajectories, one in a column
REACH = 2.5  # horizons that a picture spans: past the last number of the table, where bands should open


def held_out_picture(
    run: FitRun, dataset: Dataset, folder: Path, *, horizons: Sequence[float] = HORIZONS, seed: int | None = None
) -> list[Path]:
    """``held-out.svg`` and ``held-out.png`` in ``folder``: one seed's members against trajectories it has not seen."""
    chosen = np.unique(np.linspace(0, len(dataset.logs) - 1, SHOWN).round().astype(int))
    logs = tuple(_beginning(dataset.logs[place], REACH * max(horizons)) for place in chosen)
    shown = dataclasses.replace(dataset, logs=logs)
    forecasts = run.forecast(shown, seed=seed)
    title = f"{run.config.model.family} from the first point of held-out trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for form in ("svg", "png"):
        paths.append(folder / f"{NAME}.{form}")
        checkpoint.write_aside(paths[-1], [drawn(shown, forecasts, title, form)])
    return paths


def _beginning(log: Log, seconds: float) -> Log:
    count = max(int(np.searchsorted(log.times, log.times[0] + seconds * (1 + 1e-9), side="right")), 2)
    return Log(log.times[:count], log.observations[:count], log.actions[:count])


def drawn(dataset: Dataset, forecasts: Sequence[Forecast], title: str, form: str) -> bytes:
    """Rows are observations, columns trajectories; a row's scale is the data's, not that of a band that left it."""
    import matplotlib
    from matplotlib.figure import Figure

    rows, columns = len(dataset.observation_names), len(forecasts)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": NAME}):
        figure = Figure(figsize=(PANEL[0] * max(columns, 2) * 0.8, PANEL[1] * rows * 0.55 + 0.6), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10.5)
        grid = figure.subplots(rows, columns, sharex="col", sharey="row", squeeze=False)
        for place, name in enumerate(dataset.observation_names):
            unit = dataset.units.get(name)
            grid[place][0].set_ylabel(f"{name} [{unit}]" if unit else name)
            seen = np.concatenate([log.observations[:, place] for log in dataset.logs])
            room = 0.35 * max(float(np.ptp(seen)), 1e-6)
            grid[place][0].set_ylim(seen.min() - room, seen.max() + room)
        for column, (log, told) in enumerate(zip(dataset.logs, forecasts, strict=True)):
            grid[-1][column].set_xlabel("time [s]")
            for place in range(rows):
                _panel(grid[place][column], log, told, place)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        content = io.BytesIO()
        figure.savefig(content, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return content.getvalue()


def _panel(axes: Any, log: Log, told: Forecast, place: int) -> None:
    times = told.times - told.times[0]
    band = (told.low[:, place], told.high[:, place])
    axes.fill_between(times, *band, color=COLORS["blue"], alpha=0.22, linewidth=0, label="90 % band")
    axes.plot(times, told.mean[:, place], color=COLORS["blue"], label="predicted")
    seen = log.observations[:, place]
    axes.plot(log.times - log.times[0], seen, ".", color=COLORS["ink"], markersize=3.5, label="seen")
