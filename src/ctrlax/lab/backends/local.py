"""On this machine: configurations one after another, or in `--workers N` processes side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ctrlax.errors import UserError
from ctrlax.lab.jobs import Job, Outcome, Watch, interrupted, perform, unwatched
from ctrlax.lab.worker import Worker

LOOK = 0.2  # s, between two looks at the processes
GPU_SHARE = 0.9  # of a GPU's memory, for all processes together


def execute(jobs: Sequence[Job], root: Path, *, watch: Watch = unwatched, workers: int = 1) -> list[Outcome]:
    """With one worker everything happens in this process, which compiles what jobs share once."""
    if workers < 1:
        raise UserError(f"--workers is {workers}, expected one or more.")
    if workers > 1:
        return _side_by_side(jobs, root, watch, min(workers, len(jobs)))
    outcomes = []
    for job in jobs:
        watch.begun(job)
        try:
            outcomes.append(perform(job, root))
        except KeyboardInterrupt:
            raise interrupted(root) from None
        watch.over(outcomes[-1])
    return outcomes


def _side_by_side(jobs: Sequence[Job], root: Path, watch: Watch, workers: int) -> list[Outcome]:
    waiting, running, outcomes = list(jobs), [], {}
    environ = _environ(workers)
    with _Asked() as asked:
        while (waiting and not asked.times) or running:
            while waiting and len(running) < workers and not asked.times:
                job = waiting.pop(0)
                watch.begun(job)
                running.append(Worker(job, root, environ))
            asked.pass_on(running)
            time.sleep(LOOK)
            still = []
            for worker in running:
                try:
                    outcome = worker.outcome()
                except KeyboardInterrupt:
                    asked.times = asked.times or 1
                    continue
                if outcome is None:
                    still.append(worker)
                elif not asked.times or outcome.state == "done":
                    outcomes[worker.job] = outcome
                    watch.over(outcome)
            running = still
    if asked.times:
        raise interrupted(root)
    return [outcomes[job] for job in jobs]


def _environ(workers: int) -> dict[str, str]:
    """Every process would take most of a GPU's memory for itself otherwise."""
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{GPU_SHARE / workers:.3f}", **os.environ}


class _Asked:
    """Counts Ctrl-C, and passes each on to the processes: the first lets them finish their chunk."""

    def __init__(self) -> None:
        self.times = self._passed = 0
        self._before = None

    def __enter__(self) -> _Asked:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def pass_on(self, workers: Sequence[Worker]) -> None:
        while self._passed < self.times:
            self._passed += 1
            for worker in workers:
                worker.ask_to_stop()

    def _heard(self, number: int, frame: object) -> None:
        self.times += 1
