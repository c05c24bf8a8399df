"""What happens around Algorithm 1 while it runs: rows of metrics, checkpoints, Ctrl-C, the budget, and the show."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ctrlax.lab import checkpoint
from ctrlax.lab.guard import Guard, TrainingStoppedError
from ctrlax.lab.learn import STOPPED, learn
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.record import Record
from ctrlax.lab.state import COLLECT, EVALUATE, FIT, IMPROVE, MATCH, PHASES, RunState, place_of, take

SAVE_EVERY = 30.0  # s, between checkpoints inside a phase
FINISHED = "finished"  # the folder of seeds that ended before the run did
DUMPS = "dumps"
SNAPSHOTS = "snapshots"  # the folder of every round's models and policies, where they are asked for


@runtime_checkable
class Show(Protocol):
    """Who watches a run go by."""

    def begin(self, laboratory: Laboratory, state: RunState, folder: Path) -> None:
        """Before the first step."""

    def see(self, state: RunState, phase: str, rows: list[dict[str, Any]], seconds: float) -> None:
        """After every step, with the rows of metrics it made."""

    def end(self) -> None:
        """After the last, however it came."""


class Silent:
    """Watches without a word."""

    def begin(self, laboratory: Laboratory, state: RunState, folder: Path) -> None: ...

    def see(self, state: RunState, phase: str, rows: list[dict[str, Any]], seconds: float) -> None: ...

    def end(self) -> None: ...


silent = Silent()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was heard, and everything is kept; the message says how to go on."""


class _BudgetSpent(Exception):  # noqa: N818
    pass


class Keeper:
    """Runs `learn` and keeps what it does in a `Record`."""

    def __init__(self, record: Record, laboratory: Laboratory, show: Show):
        self.record, self.laboratory, self.show = record, laboratory, show
        self.stopped: list[TrainingStoppedError] = []
        self._most = max(laboratory.updates(phase) for phase in PHASES)
        self._asked_to_stop = False
        self._before = None

    def __enter__(self) -> Keeper:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        self.show.end()
        self.record.close()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def run(self, state: RunState) -> None:
        """From ``state`` to the end of the run, to its budget's, or to Ctrl-C (`Interrupted`)."""
        self._began = time.perf_counter() - state.seconds
        self._saved = time.perf_counter()
        if not self.record.steps():
            self._save(state)
        self.show.begin(self.laboratory, state, self.record.folder)
        try:
            state = learn(self.laboratory, state, self.watch, Guard(self.record.folder / DUMPS))
            self._save(state)
        except _BudgetSpent:
            pass
        self.record.write_tables()
        if self.stopped:
            raise self.stopped[0]

    def watch(self, state: RunState, phase: str, seen: Any) -> None:
        """One step of Algorithm 1: its rows, and a checkpoint where one is due."""
        seconds = time.perf_counter() - self._began
        rows = self._rows(state, phase, seen, seconds)
        if phase == EVALUATE and self.laboratory.config.schedule.snapshots:
            self._keep_snapshot(state)
        for row in rows:
            self.record.append(row)
        self._keep_finished(state)
        phase_over = state.iteration >= self.laboratory.updates(state.phase)
        if phase_over or self._asked_to_stop or time.perf_counter() - self._saved > SAVE_EVERY:
            self._save(state)
        self.show.see(state, phase, rows, seconds)
        if self._asked_to_stop:
            raise Interrupted(
                f"Stopped in round {state.round}, phase {state.phase}; everything is kept. "
                f"Go on with: ctrlax resume {self.record.folder}"
            )
        hours = self.laboratory.config.schedule.budget
        if phase == EVALUATE and hours is not None and seconds > hours * 3600:
            raise _BudgetSpent

    def _rows(self, state: RunState, phase: str, seen: Any, seconds: float) -> list[dict[str, Any]]:
        if phase == COLLECT:
            return []
        if phase == STOPPED:
            self.stopped.append(seen)
            common = {"phase": state.phase, "round": state.round, "iteration": state.iteration}
            return [{"kind": STOPPED, "seed": seed, **common, "dump": seen.dump.name} for seed in seen.seeds]
        if phase == EVALUATE:
            lanes = [lane for lane, evaluation in enumerate(seen) if evaluation is not None]
            return [_round_row(state, lane, seen[lane], seconds) for lane in lanes]
        learning = {"kind": "fit", "phase": phase} if phase in (MATCH, FIT) else {"kind": IMPROVE}
        return [
            {**learning, "seed": seed, "round": state.round, "iteration": state.iteration}
            | {name: value[lane] for name, value in seen.items()}
            for lane, seed in enumerate(state.seeds.tolist())
            if state.ended[lane] == 0
        ]

    def _save(self, state: RunState) -> None:
        kept = dataclasses.replace(state, seconds=time.perf_counter() - self._began)
        self.record.save(kept, step=place_of(state, self._most))
        self._saved = time.perf_counter()

    def _keep_finished(self, state: RunState) -> None:
        """A seed that has ended is kept on its own: its lane may be dropped, or go on for nothing."""
        for lane in np.flatnonzero(state.ended):
            path = self.record.folder / FINISHED / f"seed-{state.seeds[lane]:09d}.ckpt"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                checkpoint.write(path, take(state, np.arange(len(state.ended)) == lane))

    def _keep_snapshot(self, state: RunState) -> None:
        """Seeds, models and policies of this round; written before its checkpoint, so none is missing after a kill."""
        path = self.record.folder / SNAPSHOTS / f"round-{state.round:04d}.ckpt"
        path.parent.mkdir(exist_ok=True)
        checkpoint.write(path, (state.seeds, state.fitting.learned, state.agent.policy), {"round": state.round})

    def _heard(self, number: int, frame: Any) -> None:
        if self._asked_to_stop:  # asked twice: at once, from the last checkpoint
            raise Interrupted(f"Stopped at once. Go on with: ctrlax resume {self.record.folder}")
        self._asked_to_stop = True


def _round_row(state: RunState, lane: int, evaluation: Any, seconds: float) -> dict[str, Any]:
    return {
        "kind": "round",
        "seed": int(state.seeds[lane]),
        "round": state.round,
        "reward": evaluation.reward,
        "held": int(evaluation.held.sum()),
        "trials": len(evaluation.held),
        "solved": bool(state.solved_round[lane] > 0),
        "solved_round": int(state.solved_round[lane]),
        "interaction_seconds": float(state.experience.interaction_seconds()[lane]),
        "field_evaluations": int(state.work[lane]),
        "imagined_reward": float(state.imagined_reward[lane]),
        "rollbacks": int(state.rollbacks[lane]),
        "skipped": int(state.skipped[lane]),
        "wall_seconds": round(seconds, 3),
    }
