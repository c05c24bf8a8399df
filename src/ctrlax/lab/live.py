"""What a person sees while a run goes on: one live panel on a terminal, a line per phase anywhere else."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctrlax.lab.keeper import Show
from ctrlax.lab.learn import STOPPED
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.state import COLLECT, EVALUATE, FIT, IMPROVE, MATCH, PHASES, RunState

DOING = {
    MATCH: "matching gradients",
    FIT: "fitting the dynamics",
    IMPROVE: "improving the policy",
    COLLECT: "collecting",
    EVALUATE: "trying it out",
}
BARS = "▁▂▃▄▅▆▇█"


def show_on(console: Console) -> Show:
    """The live panel if ``console`` is a terminal, else lines."""
    return Screen(console) if console.is_terminal else Lines(console)


class Progress:
    """What both views know: where the run is, the newest numbers, how long steps take."""

    def begin(self, laboratory: Laboratory, state: RunState, folder: Path) -> None:
        self.laboratory, self.folder, self.config = laboratory, folder, laboratory.config
        self.all = len(state.seeds)
        self.state, self.phase, self.seconds = state, state.phase, state.seconds
        self.latest: dict[str, list[dict[str, Any]]] = {}
        self.rewards: list[float] = []
        self.solved: set[int] = set(state.seeds[state.solved_round > 0].tolist())
        self.took: dict[str, list[float]] = defaultdict(list)  # seconds an update took, by phase, newest last
        self.compiling = True
        self._clock, self._iteration = time.perf_counter(), state.iteration

    def took_note(self, state: RunState, phase: str, rows: list[dict[str, Any]], seconds: float) -> None:
        """Remember one step."""
        now = time.perf_counter()
        done = state.iteration - self._iteration if state.iteration > self._iteration else state.iteration
        self.took[phase].append((now - self._clock) / max(done, 1))
        over = state.iteration >= self.laboratory.updates(state.phase)
        self._clock, self._iteration = now, 0 if over else state.iteration
        self.state, self.phase, self.seconds, self.compiling = state, phase, seconds, False
        if rows:
            self.latest[phase] = rows
        if phase == EVALUATE:
            self.rewards.append(_median(rows, "reward"))
            self.solved |= {row["seed"] for row in rows if row["solved"]}

    def left(self) -> float | None:
        """Seconds to the last round at most, or to the budget's end; None before every phase was seen once."""
        learned = [phase for phase in PHASES if phase != MATCH and (self.laboratory.learns or phase != FIT)]
        if not all(self.took[phase] for phase in learned):
            return None
        # The newest but one may hold a compilation; a median of the last few does not.
        cost = {phase: float(np.median(self.took[phase][-5:])) * self.laboratory.updates(phase) for phase in learned}
        state = self.state
        here = PHASES.index(state.phase)
        share = 1 - state.iteration / self.laboratory.updates(state.phase)
        rest = sum(cost[phase] for phase in learned if PHASES.index(phase) > here) + share * cost.get(state.phase, 0.0)
        rounds = max(self.config.schedule.rounds - state.round, 0)
        hours = self.config.schedule.budget
        most = np.inf if hours is None else max(hours * 3600 - self.seconds, 0.0)
        return float(min(rest + rounds * sum(cost.values()), most))

    def numbers(self, phase: str) -> str:
        """The newest numbers of a phase, medians over seeds."""
        rows = self.latest.get(phase, [])
        wanted = {
            MATCH: {"loss": "loss"},
            FIT: {"loss": "loss", "error": "error"},
            IMPROVE: {"reward": "imagined reward", "critic_loss": "critic loss"},
            EVALUATE: {"reward": "reward", "imagined_reward": "imagined"},
        }.get(phase, {})
        said = [f"{name} {_median(rows, key):.3g}" for key, name in wanted.items() if rows]
        skipped = sum(row.get("skipped") or 0 for row in rows) if phase in (FIT, IMPROVE, MATCH) else 0
        return "  ".join(said + ([f"{skipped} updates left out"] if skipped else []))

    def title(self) -> str:
        """What runs, in a line."""
        config = self.config
        seeds = "1 seed" if self.all == 1 else f"{self.all} seeds"
        return f"{self.laboratory.environment.name} · {config.preset} · {config.model.family} · {seeds}"


class Lines(Progress):
    """A line for every phase that ends."""

    def __init__(self, console: Console):
        self.console = console

    def begin(self, laboratory: Laboratory, state: RunState, folder: Path) -> None:
        super().begin(laboratory, state, folder)
        self._say(f"{self.title()}; kept in {folder}; compiling comes first")

    def see(self, state: RunState, phase: str, rows: list[dict[str, Any]], seconds: float) -> None:
        if phase == STOPPED:
            self._say(f"round {state.round}  seeds {[row['seed'] for row in rows]} stopped: their numbers stayed bad")
            return
        self.took_note(state, phase, rows, seconds)
        if phase == COLLECT or state.iteration < self.laboratory.updates(phase):
            return
        place = f"round {state.round} of {self.config.schedule.rounds}"
        line = f"{place}  {phase:8}  {self.numbers(phase)}"
        if phase == EVALUATE:
            left = self.left()
            line += f"  solved {len(self.solved)} of {self.all}  after {duration(seconds)}"
            line += "" if left is None else f", at most {duration(left)} left"
        self._say(line)

    def end(self) -> None:
        pass

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Screen(Progress):
    """A panel that renews itself."""

    def __init__(self, console: Console):
        self.console = console
        self._live: Live | None = None

    def begin(self, laboratory: Laboratory, state: RunState, folder: Path) -> None:
        super().begin(laboratory, state, folder)
        self._live = Live(console=self.console, get_renderable=self.panel, refresh_per_second=4)
        self._live.start()

    def see(self, state: RunState, phase: str, rows: list[dict[str, Any]], seconds: float) -> None:
        if phase != STOPPED:
            self.took_note(state, phase, rows, seconds)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def panel(self) -> RenderableType:
        """The view of this moment."""
        state, schedule = self.state, self.config.schedule
        total = self.laboratory.updates(state.phase)
        at = Table.grid(padding=(0, 2))
        doing = "compiling" if self.compiling else DOING[state.phase]
        at.add_row(f"[bold]round {state.round}[/] of {schedule.rounds}", doing, f"{state.iteration}/{total}")
        numbers = Table.grid(padding=(0, 2))
        for phase, name in ((FIT, "dynamics"), (IMPROVE, "policy"), (EVALUATE, "true world")):
            numbers.add_row(f"[dim]{name}[/]", self.numbers(phase) or "-")
        if self.rewards:
            numbers.add_row("[dim]reward by round[/]", Text(sparks(self.rewards[-60:]), style="cyan"))
        left = self.left()
        running = self.seconds + time.perf_counter() - self._clock
        numbers.add_row(
            "[dim]time[/]", duration(running) + ("" if left is None else f", at most {duration(left)} left")
        )
        numbers.add_row("[dim]solved[/]", f"[green]{len(self.solved)}[/] of {self.all}")
        bar = Table.grid()  # alone it would not end its line
        bar.add_row(ProgressBar(total=total, completed=state.iteration, width=74))
        return Panel(
            Group(at, bar, numbers),
            title=f"[bold]{self.title()}[/]",
            subtitle=f"{self.folder}  (Ctrl-C keeps it)",
            width=78,
        )


def sparks(values: list[float]) -> str:
    """Numbers from 0 to 1 as a row of bars."""
    return "".join(BARS[int(np.clip(value, 0, 0.999) * len(BARS))] if np.isfinite(value) else " " for value in values)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _median(rows: list[dict[str, Any]], name: str) -> float:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return float(np.median(values)) if values else float("nan")
