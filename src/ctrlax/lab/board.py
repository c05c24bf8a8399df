"""What a person sees while many runs go by: one table on a terminal, a line for every change anywhere else."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from ctrlax.lab.curves import number
from ctrlax.lab.jobs import BEGUN, DONE, ENDED, FAILED, Job, Outcome, Watch, standing
from ctrlax.lab.live import duration
from ctrlax.lab.record import METRICS

WAITING, RUNNING, LOST = "waiting", "running", "waits again"
COLORS = {RUNNING: "cyan", DONE: "green", FAILED: "red", LOST: "yellow", "stopped": "yellow"}
TAIL = 1 << 16  # bytes of a metrics file that are looked at for its newest round
MOST_LINES = 30  # of the table; what waits or is over is left out first


def board_on(console: Console, labels: Mapping[str, str], root: Path) -> Board:
    """The live table if ``console`` is a terminal, else lines; ``labels`` say by a job's name what it is."""
    return Screen(console, labels, root) if console.is_terminal else Board(console, labels, root)


class Board(Watch):
    """Says in a line when a run begins, is lost and ends."""

    def __init__(self, console: Console, labels: Mapping[str, str], root: Path):
        self.console, self.labels, self.root = console, dict(labels), root
        self.states = dict.fromkeys(labels, WAITING)
        self.why: dict[str, str] = {}
        self.began: dict[str, float] = {}
        self.took: dict[str, float] = {}

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begun(self, job: Job) -> None:
        """See `Watch`."""
        goes_on = standing(job.folder(self.root)) == BEGUN
        self._turn(job, RUNNING)
        self.began[job.name] = time.monotonic()
        self.say(job, "goes on" if goes_on else "begins")

    def lost(self, job: Job, why: str) -> None:
        """See `Watch`."""
        self.why[job.name] = why
        self._turn(job, LOST)
        self.say(job, f"was lost ({why}) and waits to go on from its checkpoint")

    def over(self, outcome: Outcome) -> None:
        """See `Watch`."""
        name = outcome.job.name
        self.took[name] = time.monotonic() - self.began.get(name, time.monotonic())
        if outcome.error:
            self.why[name] = outcome.error
        self._turn(outcome.job, outcome.state)
        how = "was done before" if outcome.reused and outcome.state == DONE else outcome.state
        newest = newest_round(outcome.folder)
        told = f": {outcome.error}" if outcome.error else f" after {duration(self.took[name])}{_said(newest)}"
        self.say(outcome.job, how + told)

    def say(self, job: Job, what: str) -> None:
        """A line about one run."""
        over = sum(state in (DONE, FAILED, "stopped") for state in self.states.values())
        line = f"[{over}/{len(self.states)}] {self.labels.get(job.name, job.name)}  {what}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _turn(self, job: Job, state: str) -> None:
        self.states[job.name] = state


class Screen(Board):
    """The table of all runs, renewed every second."""

    def __enter__(self) -> Screen:
        self._live = Live(console=self.console, get_renderable=self.table, refresh_per_second=1)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, job: Job, what: str) -> None:
        """The table says it."""

    def table(self) -> RenderableType:
        """The view of this moment."""
        counted = {state: list(self.states.values()).count(state) for state in dict.fromkeys(self.states.values())}
        table = Table(title="  ".join(f"{count} {state}" for state, count in counted.items()), box=None, pad_edge=False)
        for column in ("run", "state", "round", "reward", "solved", "time", ""):
            table.add_column(column, overflow="fold" if not column else "ellipsis")
        for name in self._shown():
            state = self.states[name]
            newest = newest_round(self.root / "runs" / name) if state != WAITING else None
            since = self.took.get(name) or (time.monotonic() - self.began[name] if name in self.began else None)
            table.add_row(
                self.labels[name], f"[{COLORS.get(state, 'dim')}]{state}[/]", *_cells(newest),
                "" if since is None else duration(since), self.why.get(name, "").split("\n", 1)[0],
            )  # fmt: skip
        left_out = len(self.states) - table.row_count
        table.caption = f"{left_out} more wait or are over" if left_out else "Ctrl-C keeps everything"
        return table

    def _shown(self) -> Sequence[str]:
        order = {RUNNING: 0, LOST: 1, FAILED: 2, "stopped": 2, WAITING: 3, DONE: 4}
        first = sorted(self.states, key=lambda name: order.get(self.states[name], 3))[:MOST_LINES]
        return [name for name in self.states if name in set(first)]


def newest_round(folder: Path) -> dict[str, Any] | None:
    """The newest round of a run and its seeds' mean reward there, from the end of its metrics; cheap, for onlookers."""
    try:
        with open(folder / METRICS, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - TAIL, 0))
            lines = file.read().split(b"\n")[1 if file.tell() > TAIL else 0 : -1]
    except OSError:
        return None
    rows = [row for line in lines if b'"round"' in line and (row := _row(line))]
    last = max((row["round"] for row in rows), default=None)
    newest = {row["seed"]: row for row in rows if row["round"] == last}
    if not newest:
        return None
    rewards = [number(row["reward"]) for row in newest.values()]
    solved = {row["seed"] for row in rows if row["solved"]}
    return {"round": last, "reward": sum(rewards) / len(rewards), "solved": len(solved), "seeds": len(newest)}


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if row.get("kind") == "round" else None


def _said(newest: Mapping[str, Any] | None) -> str:
    if newest is None:
        return ""
    return f", round {newest['round']}, reward {newest['reward']:.3g}, solved {newest['solved']}"


def _cells(newest: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if newest is None:
        return "", "", ""
    return str(newest["round"]), f"{newest['reward']:.3g}", str(newest["solved"])


def endings(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many runs ended how."""
    return {state: sum(each.state == state for each in outcomes) for state in (DONE, "stopped", FAILED)}


def words(where: str) -> str:
    """What is already there, as `--dry-run` says it."""
    return {ENDED: "done", BEGUN: "begun, goes on"}.get(where, "to do")
