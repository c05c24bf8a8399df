"""Every backend found keeps the same promises: the same runs, the same records, nothing done twice."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctrlax.errors import UserError
from ctrlax.lab.jobs import BACKENDS, Job, backend_named, execute
from ctrlax.names import listed, summary_of

TINY: dict[str, Any] = {
    "model.family": "true", "model.structure": (), "agent.updates": 2, "agent.starts": 4, "agent.horizon": 0.2,
    "schedule.rounds": 2, "schedule.trials": 1, "schedule.trial_seconds": 0.5, "schedule.confirm": False,
}  # fmt: skip
LIBRARY = {"ray": "ray"}  # what a backend needs beyond ctrlax; one that is not there is refused in one line
CLOCKS = ("wall_seconds",)

# In a process of its own: a backend may hold threads, sockets and a session that no other test should meet.
PROGRAM = """
import json, sys
from pathlib import Path
from typing import Any
from ctrlax.lab.jobs import Job, execute
backend, root, jobs = json.loads(sys.argv[1])
jobs = [Job.from_dict(each) for each in jobs]
for _ in range(2):
    outcomes = execute(jobs, Path(root), backend=backend)
    print(json.dumps([[each.state, each.reused, each.error, str(each.folder)] for each in outcomes]))
"""


def rounds_of(folder):
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def jobs(root):
    """Two that can be done, and one whose folder is somebody else's."""
    good = [Job.of("pendulum", **TINY), Job.of("pendulum", **{**TINY, "sampling.noise": 0.1})]
    blocked = Job.of("pendulum", seeds=(1,), **TINY)
    blocked.folder(root).mkdir(parents=True)
    (blocked.folder(root) / "letters").write_text("not a run")
    return [*good, blocked]


@pytest.mark.parametrize("backend", listed(BACKENDS))
def test_says_what_it_is_and_refuses_what_it_does_not_know(backend):
    assert summary_of(BACKENDS, backend)
    parameters = inspect.signature(backend_named(backend).execute).parameters
    assert list(parameters)[:3] == ["jobs", "root", "watch"]
    with pytest.raises(UserError, match="--colour is nothing the backend"):
        backend_named(backend, {"colour": "blue", "workers": 1})
    with pytest.raises(UserError, match="--workers is 0"):
        execute([Job.of("pendulum", **TINY)], Path("nowhere"), backend=backend, workers=0)


@pytest.mark.extras
def test_a_cluster_that_does_not_answer_is_told_at_once():
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="no Ray cluster answers"):
        execute([Job.of("pendulum", **TINY)], Path("nowhere"), backend="ray", address="127.0.0.1:1")


@pytest.fixture(scope="module")
def locally(tmp_path_factory):
    root = tmp_path_factory.mktemp("local")
    return root, execute(jobs(root), root)


@pytest.mark.extras
@pytest.mark.parametrize("backend", [name for name in listed(BACKENDS) if name != "local"])
def test_gives_the_records_of_local_and_does_nothing_twice(backend, tmp_path, locally):
    pytest.importorskip(LIBRARY.get(backend, "ctrlax"))
    there, outcomes = locally
    told = json.dumps([backend, str(tmp_path), [dataclasses.asdict(job) for job in jobs(tmp_path)]])
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, check=False, env=environ, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, again = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("[["))
    assert [state for state, *_ in first] == [each.state for each in outcomes] == ["done", "done", "failed"]
    assert [reused for _, reused, *_ in again] == [True, True, False]
    for (state, _, error, folder), local in zip(first, outcomes, strict=True):
        assert error == (local.error and local.error.replace(str(there), str(tmp_path)))
        if state == "done":
            assert rounds_of(folder) == rounds_of(local.folder)
