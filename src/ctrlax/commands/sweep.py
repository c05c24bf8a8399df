"""`ctrlax sweep`: a grid of runs from a file."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ctrlax.commands.train import console_for
from ctrlax.errors import UserError

if TYPE_CHECKING:
    from ctrlax.lab.jobs import Outcome
    from ctrlax.lab.sweep import Sweep as Grid


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Run every combination of settings in a TOML file; what is done is kept, what was begun goes on."""

    spec: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC.toml")]
    """The grid: a list is an axis, any other value is the same for all runs (docs/sweeps.md)."""
    backend: str = "local"
    """Where the runs go (see `ctrlax list backends`): local, or ray."""
    address: str | None = None
    """The Ray cluster, as auto or ray://host:10001; this machine's own if left out."""
    workers: int | None = None
    """Runs at a time; one if left out, on Ray as many as fit."""
    cpus: float | None = None
    """Cores that a run asks Ray for."""
    gpus: float | None = None
    """GPUs that a run asks Ray for, also a part such as 0.5; one where the cluster has any."""
    out: Path | None = None
    """The sweep's folder; runs/sweep-NAME if left out. The same folder again goes on."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the runs and what is there of each; run nothing."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        from ctrlax.lab.jobs import backend_named
        from ctrlax.lab.sweep import read

        backend_named(self.backend, self._options())
        grid, out = read(self.spec), self.out or Path("runs") / f"sweep-{self.spec.stem}"
        if out.exists() and not out.is_dir():
            raise UserError(f"--out {out} is a file, expected a folder.")
        if self.dry_run:
            _list(grid, out, json=self.json)
            return
        outcomes = self._execute(grid, out)
        failed = _tell(grid, outcomes, out, json=self.json)
        if failed:
            sys.stdout.flush()
            sys.exit(1)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("address", "workers", "cpus", "gpus")}

    def _execute(self, grid: Grid, out: Path) -> list[Outcome]:
        from ctrlax.lab.board import board_on
        from ctrlax.lab.jobs import execute
        from ctrlax.lab.keeper import Interrupted
        from ctrlax.lab.sweep import write_plan

        command = f"ctrlax sweep {shlex.quote(str(self.spec))} --backend {self.backend} --out {shlex.quote(str(out))}"
        write_plan(out, grid, command, {})
        labels = {each.job.name: each.label for each in grid.runs}
        try:
            with board_on(console_for(self.json), labels, out) as board:
                jobs = [each.job for each in grid.runs]
                outcomes = execute(jobs, out, backend=self.backend, watch=board, **self._options())
        except Interrupted as interrupted:
            print(interrupted, file=sys.stderr)
            sys.exit(130)
        write_plan(out, grid, command, {each.job.name: each for each in outcomes})
        return outcomes


def _list(grid: Grid, out: Path, *, json: bool) -> None:
    from ctrlax.lab.board import words
    from ctrlax.lab.sweep import standings

    there = standings(grid, out)
    console = console_for(json)
    console.print(f"{len(grid.runs)} runs in {out}", markup=False)
    for each, where in zip(grid.runs, there, strict=True):
        console.print(f"  {words(where):14}  {each.label:40}  {each.job.name}", markup=False)
    if json:
        runs = [
            {"name": each.job.name, "state": where, **each.varied} for each, where in zip(grid.runs, there, strict=True)
        ]
        print(json_text.dumps({"out": str(out), "runs": runs}))


def _tell(grid: Grid, outcomes: list[Outcome], out: Path, *, json: bool) -> int:
    from ctrlax.lab.board import endings

    counts = endings(outcomes)
    console = console_for(json)
    for each, outcome in zip(grid.runs, outcomes, strict=True):
        if outcome.state != "done":
            console.print(f"[bold red]{outcome.state}[/]  ", end="")
            console.print(f"{each.label}: {outcome.error}", markup=False)
            if outcome.trace and os.environ.get("CTRLAX_DEBUG", "") not in ("", "0"):
                console.print(outcome.trace, markup=False)
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    console.print(f"{told}; kept in {out}", markup=False)
    console.print(f"  next           [bold]ctrlax report {shlex.quote(str(out))}[/]")
    if json:
        runs = [
            {"name": each.job.name, **each.varied, "state": outcome.state, "reused": outcome.reused,
             "folder": str(outcome.folder), "error": outcome.error}
            for each, outcome in zip(grid.runs, outcomes, strict=True)
        ]  # fmt: skip
        print(json_text.dumps({"out": str(out), **counts, "runs": runs}))
    return counts["failed"] + counts["stopped"]
