"""`ctrlax fit`: learn the dynamics of a system that was recorded."""

from __future__ import annotations

import dataclasses
import itertools
import json as json_text
import shlex
import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ctrlax.commands.columns import listed, numbers_of, read_file
from ctrlax.commands.train import parse_seeds, parse_settings

if TYPE_CHECKING:
    from ctrlax.lab.fitted import FitRun
    from ctrlax.lab.fitting import Progress
    from ctrlax.model.dataset import Dataset

RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fit Bayesian neural ODEs to recorded trajectories, and say how well they predict some that were held out."""

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A .csv, .parquet or .npz file: ctrlax's own columns, or those named here."""
    time: str | None = None
    """Column of the times in seconds."""
    episode: str | None = None
    """Column that tells the trajectories apart."""
    obs: str | None = None
    """Observation columns, as a,b,c."""
    act: str | None = None
    """Action columns, as a,b,c."""
    angles: str | None = None
    """Observations that are angles, as theta or theta:deg: learned as cosine and sine."""
    rates: str | None = None
    """Which velocity is the rate of which position, as omega:theta,v:x; for second-order and hamiltonian."""
    hold: Literal["gp", "linear", "hold"] | None = None
    """How actions act between their times: smoothly, linearly, or kept; the file's own if left out."""
    on_nan: Literal["error", "drop", "split"] = "error"
    """What becomes of rows with a missing number."""
    on_duplicate: Literal["error", "first", "mean"] = "error"
    """What becomes of rows of one trajectory at the same time."""
    model: str | None = None
    """Which model (see `ctrlax list models`); the preset's if left out."""
    structure: str | None = None
    """What is known of the field, as second-order,affine."""
    preset: str = "default"
    """default, paper or reference."""
    seeds: str = "0"
    """Independent fits side by side: 0:5 (without 5), or 0,3,5."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Any other setting, as --set fit.updates=500 --set model.members=5."""
    held_out: float = 0.2
    """Share of the data that only the table and the picture see."""
    horizons: str = "0.5,1,2"
    """Seconds ahead at which the error is reported."""
    out: Path | None = None
    """Folder of the run; runs/fit-NAME if left out."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        seeds, horizons = parse_seeds(self.seeds), numbers_of("--horizons", self.horizons)
        settings: dict[str, Any] = dict(parse_settings(self.set))
        dataset = self._read()
        if dataset.report.findings:
            print(dataset.report, file=sys.stderr)

        from ctrlax.lab.bands import held_out_picture
        from ctrlax.lab.fitted import fit

        out = self.out or _free(f"fit-{self.data.stem}")
        with _Bar(self.json) as bar:
            run = fit(
                dataset,
                preset=self.preset,
                model=self.model,
                structure=listed(self.structure),
                seeds=seeds,
                held_out=self.held_out,
                horizons=horizons,
                out=out,
                watch=bar.see,
                **settings,
            )
        assert run.held_out is not None
        held_out_picture(run, run.held_out, out / "pictures", horizons=horizons)
        if self.json:
            print(json_text.dumps(run.summary()))
        else:
            self._show(run, dataset)

    def _read(self) -> Dataset:
        parts = ("time", "episode", "obs", "act", "angles", "rates", "hold", "on_nan", "on_duplicate")
        return read_file(self.data, **{name: getattr(self, name) for name in parts})

    def _show(self, run: FitRun, dataset: Dataset) -> None:
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False, soft_wrap=True)
        assert run.held_out is not None
        held = f"{run.held_out.points} points in {len(run.held_out.logs)} trajectories held out"
        console.print(f"[bold]{run.config.model.family}[/] on {dataset.points} points of {self.data.name}, {held}")
        row = run.rows[0]
        table = Table(box=None, pad_edge=False)
        table.add_column("seed")
        for horizon in row["error"]:
            table.add_column(f"error at {horizon} s", justify="right")
        for name in ("NLL", "90 % covers", "updates"):
            table.add_column(name, justify="right")
        for each in run.rows:
            table.add_row(str(each["seed"]), *_cells(each), str(each["updates"]))
        if len(run.rows) > 1:
            table.add_row("mean", *_cells(run.summary()), "", style="bold")
        console.print(table)
        console.print("  errors in standard deviations of each observation; NLL in nats per number")
        noise = run.summary()["noise"]
        console.print(f"  noise          {', '.join(f'{name} {value:.3g}' for name, value in noise.items())}")
        console.print(f"  fitted in      {row['seconds']:.1f} s, and {row['compile_seconds']:.1f} s of compiling")
        if out := sum(each["diverged"] for each in run.rows):
            console.print(f"  [red]{out} predictions of single members ran away[/]; the errors count them")
        console.print(f"  kept in        {run.folder}, picture in pictures/held-out.png", markup=False)
        console.print(f"  next           [bold]ctrlax predict {shlex.quote(str(run.folder))} {self.data}[/]")


def _cells(row: Any) -> list[str]:
    coverage = row["coverage90"]
    numbers = [*row["error"].values(), row["nll"]]
    covered = "-" if coverage is None else f"{100 * coverage:.0f} %"
    return [*("-" if number is None else f"{number:.3g}" for number in numbers), covered]


def _free(name: str) -> Path:
    taken = {path.name for path in RUNS.iterdir()} if RUNS.is_dir() else set()
    names = (name if count == 1 else f"{name}-{count}" for count in itertools.count(1))
    return RUNS / next(free for free in names if free not in taken)


class _Bar:
    """Progress with the time left, on standard error; one line per phase where that is no terminal."""

    def __init__(self, quiet: bool):
        self.quiet = quiet

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
        )
        self._progress = Progress(*columns, console=console, disable=self.quiet or not console.is_terminal)
        self._progress.start()
        self._task = self._progress.add_task("compiling", total=None, told="")
        self._said, self._terminal = clock.monotonic(), console.is_terminal
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def see(self, progress: Progress) -> None:
        phase = {"match": "matching gradients", "fit": "fitting"}[progress.phase]
        told = f"loss {float(progress.metrics['loss'].mean()):.3g}"
        if progress.held_out is not None:
            told += f", held out {float(progress.held_out.mean()):.3g}"
        self._progress.update(self._task, description=phase, total=progress.total, completed=progress.done, told=told)
        if not self.quiet and not self._terminal and clock.monotonic() - self._said > 10:
            print(f"{phase}: {progress.done} of at most {progress.total} updates, {told}", file=sys.stderr, flush=True)
            self._said = clock.monotonic()
