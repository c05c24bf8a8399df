"""`ctrlax reproduce`: the figures of the text, each with its record and its verdicts."""

from __future__ import annotations

import dataclasses
import json as json_text
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ctrlax.commands.train import console_for

if TYPE_CHECKING:
    from ctrlax.lab.board import Board
    from ctrlax.lab.jobs import Outcome
    from ctrlax.lab.scales import Scale


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Make a figure of the text, or all: its runs, a table, a picture, and what it says of the text's claims."""

    figure: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")]
    """A figure's name (see `ctrlax list figures`), all, or policies: what figures of the true world start from."""
    scale: Literal["smoke", "small", "paper"] = "small"
    """smoke shows that it runs, small takes an evening, paper is the text's grid."""
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
    environments: str = "pendulum,cartpole,acrobot"
    """For policies: of which environments."""
    out: Path | None = None
    """The folder; runs/reproduce/SCALE if left out. What is there is used, what was begun goes on."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the runs, what is there of each, and what the paper's scale costs on an H200; run nothing."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        from ctrlax.lab.jobs import backend_named
        from ctrlax.lab.reproduce import OUT, POLICIES, chosen
        from ctrlax.lab.scales import scale_named

        backend_named(self.backend, self._options())
        names, scale = chosen(self.figure), scale_named(self.scale)
        root = self.out or OUT / self.scale
        if self.figure == POLICIES:
            self._policies(root)
        elif self.dry_run:
            _list(names, scale, root, json=self.json)
        else:
            self._figures(names, scale, root)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("address", "workers", "cpus", "gpus")}

    def _figures(self, names: list[str], scale: Scale, root: Path) -> None:
        from ctrlax.lab.keeper import Interrupted
        from ctrlax.lab.reproduce import figure, reproduce

        labels = {
            each.job.name: each.named() for name in names for each in figure(name).wanted(scale) if each.job is not None
        }
        try:
            with self._board(labels, root) as board:
                options = {"backend": self.backend, "watch": board, **self._options()}
                records, outcomes = reproduce(names, scale, root, **options)
        except Interrupted as interrupted:
            print(interrupted, file=sys.stderr)
            sys.exit(130)
        _tell(records, root, json=self.json)
        _end(outcomes)

    def _policies(self, root: Path) -> None:
        from ctrlax.commands.columns import listed
        from ctrlax.lab.keeper import Interrupted
        from ctrlax.lab.policies import check_environments, job
        from ctrlax.lab.reproduce import POLICIES, make_policies

        environments = check_environments(listed(self.environments) or ())
        if self.dry_run:
            for name in environments:
                print(f"{name}: {job(name).name}")
            return
        try:
            with self._board({job(name).name: name for name in environments}, root) as board:
                options = {"backend": self.backend, "watch": board, **self._options()}
                made, outcomes = make_policies(environments, root, root / POLICIES, **options)
        except Interrupted as interrupted:
            print(interrupted, file=sys.stderr)
            sys.exit(130)
        console = console_for(self.json)
        for name, known in made.items():
            solving = sum(each.solving for each in known)
            console.print(f"{name}: {len(known)} policies kept, {solving} of them solve the task")
        console.print(f"  kept in        {root / POLICIES}", markup=False)
        if self.json:
            told = {name: [[each.round, each.reward, each.held] for each in known] for name, known in made.items()}
            print(json_text.dumps(told))
        _end(outcomes)

    def _board(self, labels: dict[str, str], root: Path) -> Board:
        from ctrlax.lab.board import board_on

        return board_on(console_for(self.json), labels, root)


def _list(names: list[str], scale: Scale, root: Path, *, json: bool) -> None:
    from ctrlax.lab.reproduce import planned

    plan = planned(names, scale, root)
    console = console_for(json)
    for name, told in plan["figures"].items():
        console.print(f"[bold]{name}[/]: {len(told['runs'])} runs; at paper scale {told['cost']}")
        for each in told["runs"]:
            console.print(f"  {each['state']:14}  {each['what']}", markup=False)
        for each in told["left_out"]:
            console.print(f"  left out        {each['what']}: {each['why']}", markup=False)
    console.print(f"all of them, what they share done once, at paper scale: {plan['cost']}")
    if json:
        print(json_text.dumps(plan))


def _tell(records: list[dict[str, Any]], root: Path, *, json: bool) -> None:
    from ctrlax.lab.reproduce import verdict_lines

    console = console_for(json)
    for record in records:
        console.print(f"[bold]{record['figure']}[/] ({record['note']})")
        for line in verdict_lines(record):
            console.print(f"  {line}", markup=False)
        console.print(f"  kept in {record['folder']}", markup=False)
    console.print(f"  next           [bold]ctrlax report {shlex.quote(str(root))}[/]")
    if json:
        plain = [{name: value for name, value in record.items() if name != "rows"} for record in records]
        print(json_text.dumps({"out": str(root), "figures": plain}))


def _end(outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.state != "done"]
    for outcome in failed:
        print(f"error: {outcome.job.name} {outcome.state}: {outcome.error}", file=sys.stderr)
    if failed:
        sys.stdout.flush()
        sys.exit(1)
