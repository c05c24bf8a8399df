"""One job in a process of its own, for backends on this machine.

The parent writes the job as one line of JSON and leaves the pipe open; when the pipe is closed, as when the parent is
gone, the job takes a checkpoint and stops. It answers with one line, its outcome. `python -m ctrlax.lab.worker`
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrlax.lab.jobs import FAILED, Job, Outcome, perform

LOGS = "logs"  # the folder inside a sweep's that holds what the processes said
INTERRUPTED = 130


class Worker:
    """A job on its way in another process."""

    def __init__(self, job: Job, root: Path, environ: Mapping[str, str]):
        self.job, self.root = job, root
        self.log = root / LOGS / f"{job.name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH")]))
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ctrlax.lab.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C in the terminal is the parent's, which then asks
            )  # fmt: skip
        assert self._process.stdin is not None
        line = json.dumps({"job": dataclasses.asdict(job), "root": str(root.absolute())})
        with contextlib.suppress(BrokenPipeError):  # it ended already: `outcome` says how
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """After the chunk it is in; asked again, at once."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            self._process.send_signal(signal.SIGINT)
        self._process.stdin.close()

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs. One that was stopped raises KeyboardInterrupt."""
        code = self._process.poll()
        if code is None:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = self._process.stdout.read()
        self._process.stdout.close()
        self._process.stdin.close()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code == 0 and answer:
            told = json.loads(answer)
            return Outcome(self.job, told["state"], Path(told["folder"]), told["error"], told["trace"], told["reused"])
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
        memory = " The system does that when memory runs out: use fewer workers." if code == -signal.SIGKILL else ""
        return Outcome(
            self.job, FAILED, self.job.folder(self.root),
            f"its process {how}.{memory} What it said is in {self.log}; the same command again goes on with it.",
        )  # fmt: skip


def main() -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints, a user's system too, prints into the log
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        outcome = perform(Job.from_dict(told["job"]), Path(told["root"]))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    fields = {name: getattr(outcome, name) for name in ("state", "error", "trace", "reused")}
    answers.write(json.dumps(fields | {"folder": str(outcome.folder)}))
    answers.close()


def _stop_with_parent() -> None:
    os.read(0, 1)  # returns when the pipe is closed
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
