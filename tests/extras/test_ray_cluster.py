"""A real Ray cluster of two nodes, one of which is killed in the middle of a sweep."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.slow]

# Long enough to be killed in the middle: rounds are quick, and every one ends with a checkpoint.
TINY: dict[str, Any] = {
    "model.family": "true", "model.structure": (), "agent.updates": 2, "agent.starts": 4, "agent.horizon": 0.2,
    "schedule.rounds": 40, "schedule.trials": 1, "schedule.trial_seconds": 2.0, "schedule.confirm": False,
}  # fmt: skip
CLOCKS = ("wall_seconds",)

PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path
from typing import Any
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.cluster_utils import Cluster
from ctrlax.lab.jobs import BEGUN, ENDED, Job, Unwatched, execute, standing

root, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
jobs = [Job.of("pendulum", **{**settings, "sampling.noise": noise}) for noise in (0.0, 0.1, 0.2)]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
lost, killed = [], []

class Noting(Unwatched):
    def lost(self, job, why):
        lost.append([job.name, why])

def kill():
    # The node goes down when the two runs on the cluster are both in their middle.
    while not killed:
        time.sleep(0.05)
        there = [standing(job.folder(root)) for job in jobs[:2]]
        if ENDED in there:
            raise SystemExit("a run ended before the node was killed")
        if there == [BEGUN, BEGUN] and all(len(rows(job)) > 3 for job in jobs[:2]):
            cluster.remove_node(second, allow_graceful=False)
            killed.append([standing(job.folder(root)) for job in jobs[:2]])

def rows(job):
    path = job.folder(root) / "metrics.jsonl"
    return [line for line in path.read_text().splitlines() if '"round"' in line] if path.exists() else []

threading.Thread(target=kill, daemon=True).start()
outcomes = execute(jobs, root, backend="ray", watch=Noting())
print(json.dumps({"lost": lost, "killed": killed, "states": [each.state for each in outcomes],
                  "errors": [each.error for each in outcomes], "folders": [str(each.folder) for each in outcomes]}))
ray.shutdown()
cluster.shutdown()
"""


def rows_of(folder):
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def test_a_node_lost_costs_only_the_runs_on_it_and_no_number(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: make test-all")
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "ray"), json.dumps(TINY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    # Ray has lines of its own, also after the last of ours.
    (line,) = (each for each in done.stdout.splitlines() if each.startswith('{"lost"'))
    told = json.loads(line)
    assert told["killed"] == [["begun", "begun"]]
    assert len(told["lost"]) == 1  # one run was on that node; the one on the other went on
    assert told["states"] == ["done"] * 3, told["errors"]

    from ctrlax.lab.jobs import Job, execute

    jobs = [Job.of("pendulum", **{**TINY, "sampling.noise": noise}) for noise in (0.0, 0.1, 0.2)]
    for outcome, folder in zip(execute(jobs, tmp_path / "local"), told["folders"], strict=True):
        assert outcome.state == "done"
        found = rows_of(folder)
        assert len([row for row in found if row["kind"] == "round"]) == TINY["schedule.rounds"]
        assert found == rows_of(outcome.folder)
        table = "metrics-round.csv"
        assert (Path(folder) / table).exists()
        header, local = (json.loads((Path(each) / "header.json").read_text()) for each in (folder, outcome.folder))
        assert header["configuration"] == local["configuration"]
