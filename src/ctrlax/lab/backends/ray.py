"""On Ray: every run a task, on this machine's cores by default, on a cluster by `--address`; GPUs by request.

The folder must lie on a disk that every node of the cluster sees. A node that is lost costs the runs on it, which begin
again on another from their checkpoints.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrlax.errors import UserError
from ctrlax.lab.jobs import FAILED, Job, Outcome, Watch, interrupted, perform, unwatched
from ctrlax.lab.keeper import SAVE_EVERY
from ctrlax.lab.record import wait_until_free

MOST_LOSSES = 5  # of one run without an end: then it is the run that brings its nodes down
PATIENCE = 10.0  # s, for a cluster to answer
LOOK = 0.5  # s, between two looks at the tasks
PASSED_ON = ("JAX_", "XLA_", "EQX_", "CTRLAX_", "TF_")  # beginnings of variables that a task sees as this process does


def execute(
    jobs: Sequence[Job],
    root: Path,
    *,
    watch: Watch = unwatched,
    workers: int | None = None,
    address: str | None = None,
    cpus: float = 1,
    gpus: float | None = None,
) -> list[Outcome]:
    """At most ``workers`` tasks at a time, as many as the cluster has room for if None."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}, expected one or more.")
    if cpus <= 0 or (gpus is not None and gpus < 0):
        raise UserError(f"--cpus is {cpus} and --gpus {gpus}, expected more than zero, and zero or more.")
    ray, ours = _connected(address)
    try:
        return _Tasks(ray, root.absolute(), watch, _resources(ray, cpus, gpus)).all(jobs, workers or len(jobs))
    finally:
        if ours:
            ray.shutdown()


class _Tasks:
    """Tasks on their way, and what becomes of them."""

    def __init__(self, ray: Any, root: Path, watch: Watch, resources: dict[str, float]):
        self.ray, self.root, self.watch = ray, root, watch
        environ = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        gpus = resources["num_gpus"]
        if 0 < gpus < 1:  # each would take most of its GPU for itself otherwise
            environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")
        if not gpus:
            environ["JAX_PLATFORMS"] = "cpu"
        package = str(Path(__file__).parents[3])
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        # A task is never retried by Ray itself: we would not know, nor could we say so.
        self._task = ray.remote(**resources, max_retries=0, runtime_env={"env_vars": environ})(_performed)
        self._losses: dict[str, int] = {}

    def all(self, jobs: Sequence[Job], workers: int) -> list[Outcome]:
        waiting, running, outcomes = list(jobs), {}, {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    self.watch.begun(job)
                    running[self._submit(job)] = job
                ready, _ = self.ray.wait(list(running), timeout=LOOK)
                for reference in ready:
                    job = running.pop(reference)
                    outcome = self._outcome(job, reference)
                    if outcome is None:
                        waiting.insert(0, job)
                    else:
                        outcomes[job] = outcome
                        self.watch.over(outcome)
        except KeyboardInterrupt:
            self._stop(list(running))
            raise interrupted(self.root) from None
        return [outcomes[job] for job in jobs]

    def _submit(self, job: Job) -> Any:
        again = job.name in self._losses
        return self._task.options(name=job.name).remote(dataclasses.asdict(job), str(self.root), os.getcwd(), again)

    def _outcome(self, job: Job, reference: Any) -> Outcome | None:
        """How a task ended; None if what ran it is gone, and it is to be done again."""
        errors = self.ray.exceptions
        try:
            told = self.ray.get(reference)
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        ) as gone:
            count = self._losses[job.name] = self._losses.get(job.name, 0) + 1
            why = type(gone).__name__
            if count <= MOST_LOSSES:
                self.watch.lost(job, why)
                return None
            said = f"its task was lost {count} times ({why}); the same command again goes on with it."
            return Outcome(job, FAILED, job.folder(self.root), said)
        except errors.RayError as error:
            return Outcome(job, FAILED, job.folder(self.root), f"{type(error).__name__}: {error}")
        return Outcome(job, told["state"], Path(told["folder"]), told["error"], told["trace"], told["reused"])

    def _stop(self, running: list[Any]) -> None:
        """Each takes its checkpoint; who does not come to an end is left to be killed."""
        for reference in running:
            self.ray.cancel(reference)
        self.ray.wait(running, num_returns=len(running), timeout=SAVE_EVERY) if running else None


def _performed(job: dict[str, Any], root: str, here: str, again: bool) -> dict[str, Any]:
    """A task's side."""
    if Path(here).is_dir():
        os.chdir(here)  # a system's own file may be named from there
    wanted = Job.from_dict(job)
    if again:  # whoever held its folder may not know yet that he is gone
        wait_until_free(wanted.folder(Path(root)))
    outcome = perform(wanted, Path(root))
    fields = {name: getattr(outcome, name) for name in ("state", "error", "trace", "reused")}
    return fields | {"folder": str(outcome.folder)}


def _connected(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether it was started here and is to be shut down again; a session that is open is used."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("The backend ray needs Ray: pip install 'ctrlax[ray]', or choose --backend local.") from None
    if ray.is_initialized():
        return ray, False
    if address is None:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    else:
        try:
            _reach(address)  # Ray itself would try for two minutes
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            said = str(error).split("\n", 1)[0]
            raise UserError(
                f"--address {address}: no Ray cluster answers ({said}). Start one with `ray start --head`, and give "
                "its address as HOST:6379; auto finds one on this machine."
            ) from error
    return ray, True


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def _resources(ray: Any, cpus: float, gpus: float | None) -> dict[str, float]:
    there = ray.cluster_resources()
    asked = {"num_cpus": cpus, "num_gpus": float(there.get("GPU", 0) > 0) if gpus is None else gpus}
    most = {
        name: max((node["Resources"].get(kind, 0) for node in ray.nodes() if node["Alive"]), default=0)
        for name, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU"))
    }
    for name, option in (("num_cpus", "--cpus"), ("num_gpus", "--gpus")):
        if asked[name] > most[name]:
            raise UserError(f"{option} is {asked[name]:g}, but no node of the cluster has more than {most[name]:g}.")
    return asked
