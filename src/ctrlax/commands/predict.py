"""`ctrlax predict`: roll a fitted model along new data."""

from __future__ import annotations

import dataclasses
import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ctrlax.commands.columns import DATA_FORMATS, numbers_of, read_file
from ctrlax.commands.paths import check_writable
from ctrlax.errors import UserError

if TYPE_CHECKING:
    from ctrlax.lab.fitted import FitRun
    from ctrlax.model.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Predict:
    """Predict every trajectory of a file from its first point, and say how far it was from what happened."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that `ctrlax fit` wrote."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A .csv, .parquet or .npz file with the same observations and actions."""
    time: str | None = None
    """Column of the times in seconds."""
    episode: str | None = None
    """Column that tells the trajectories apart."""
    obs: str | None = None
    """Observation columns, as a,b,c."""
    act: str | None = None
    """Action columns, as a,b,c."""
    angles: str | None = None
    """Observations that are angles, as theta or theta:deg."""
    hold: Literal["gp", "linear", "hold"] | None = None
    """How actions act between their times; the file's own if left out."""
    on_nan: Literal["error", "drop", "split"] = "error"
    """What becomes of rows with a missing number."""
    on_duplicate: Literal["error", "first", "mean"] = "error"
    """What becomes of rows of one trajectory at the same time."""
    seed: int | None = None
    """Whose members; the first seed's if left out."""
    restart: float | None = None
    """Start anew from the data every so many seconds; never if left out."""
    horizons: str = "0.5,1,2"
    """Seconds ahead at which the error is reported."""
    out: Path | None = None
    """Write mean and 90 % band here: .csv, .parquet or .npz."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        horizons = numbers_of("--horizons", self.horizons)
        if self.restart is not None and not 0 < self.restart < float("inf"):
            raise UserError(f"--restart is {self.restart}, expected a positive number of seconds.")
        if self.out is not None:
            check_writable("--out", self.out, DATA_FORMATS)
        from ctrlax.lab.fitted import FitRun
        from ctrlax.lab.forecast import write_forecasts
        from ctrlax.lab.run import load

        run = load(self.folder)
        if not isinstance(run, FitRun):
            raise UserError(f"{self.folder} was made by `ctrlax train`; predict takes a run of `ctrlax fit`.")
        dataset = self._read()
        run.check(dataset)
        forecasts = run.forecast(dataset, seed=self.seed, restart=self.restart)
        if self.out is not None:
            write_forecasts(dataset, forecasts, self.out)
        scores = dataclasses.asdict(run.score(dataset, seed=self.seed, horizons=horizons))
        told = {
            "trajectories": len(forecasts),
            "points": dataset.points,
            "healthy": sum(each.healthy for each in forecasts),
            **{name: scores[name] for name in ("error", "nll", "coverage90")},
            "out": str(self.out) if self.out is not None else None,
        }
        if self.json:
            print(json_text.dumps(told))
        else:
            self._show(run, told)

    def _read(self) -> Dataset:
        parts = ("time", "episode", "obs", "act", "angles", "hold", "on_nan", "on_duplicate")
        return read_file(self.data, rates=None, **{name: getattr(self, name) for name in parts})

    def _show(self, run: FitRun, told: dict[str, Any]) -> None:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        console.print(
            f"[bold]{run.config.model.family}[/] of {self.folder} on {told['points']} points "
            f"in {told['trajectories']} trajectories of {self.data.name}"
        )
        for horizon, error in told["error"].items():
            shown = "-" if error is None else f"{error:.3g} standard deviations"
            console.print(f"  error at {horizon + ' s':6} {shown}")
        if told["nll"] is not None:
            console.print(f"  NLL            {told['nll']:.3g} nats per number")
            console.print(f"  90 % covers    {100 * told['coverage90']:.0f} %")
        if told["healthy"] < told["trajectories"]:
            console.print(f"  [red]{told['trajectories'] - told['healthy']} trajectories left the model's world[/]")
        if self.out is not None:
            console.print(f"  written        {self.out}", markup=False)
        else:
            console.print(f"  next           [bold]ctrlax predict {self.folder} {self.data} --out predicted.csv[/]")
