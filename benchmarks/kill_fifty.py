"""Fifty times kill -9, five and more of them inside a checkpoint write: the run ends as one left alone.

``python benchmarks/kill_fifty.py [--kills 50] [--rounds 6]`` kills real (tiny) runs on the CPU until that many sessions
died, and compares every run that came to its end with an undisturbed one: parameters, moments, keys, data and counters
bit for bit, and all metrics but the wall clock. Writes ``results/benchmarks/kill_fifty.json``.
"""

import argparse
import importlib.util
import itertools
import json
import os
import random
import tempfile
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
RECORD = HOUSE / "results/benchmarks/kill_fifty.json"


def kill_test():
    """The sessions are those of the test."""
    spec = importlib.util.spec_from_file_location("test_kill", HOUSE / "tests/lab/test_kill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description="Kill a real run fifty times.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    sessions, began = kill_test(), time.perf_counter()
    chance = random.Random(0)
    died = dict.fromkeys(sessions.MOMENTS, 0)
    runs = []
    with tempfile.TemporaryDirectory() as place:
        sessions.campaign(Path(place) / "alone", [], 0, chosen.rounds)
        expected = sessions.outcome(Path(place) / "alone")
        for number in itertools.count(1):
            missing = chosen.kills - sum(died.values())
            if missing <= 0:
                break
            kills = chance.choices(sessions.MOMENTS[1:], weights=(7, 2, 1), k=missing)
            here = sessions.campaign(Path(place) / f"killed-{number}", kills, number, chosen.rounds)
            died = {how: died[how] + here[how] for how in died}
            same = sessions.outcome(Path(place) / f"killed-{number}") == expected
            runs.append({"killed": sum(here.values()), "in_a_write": here["in a write"], "identical": same})
            print(
                f"run {number}: killed {sum(here.values())} times, {'identical' if same else 'DIFFERENT'}", flush=True
            )

    from ctrlax.lab.header import make_header

    configuration = {**sessions.SETTINGS, "environment": "pendulum", "rounds": chosen.rounds}
    record = {
        "question": "does a run killed at any moment end as one left alone, bit for bit?",
        "kills": sum(died.values()),
        "kills_by_moment": {how: count for how, count in died.items() if count},
        "runs": runs,
        "all_identical": all(run["identical"] for run in runs),
        "rows_compared": len(expected[0]),
        "leaves_compared": len(expected[1]),
        "seconds": round(time.perf_counter() - began, 1),
        **make_header("train", configuration),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{record['kills']} kills, all identical: {record['all_identical']}")


if __name__ == "__main__":
    main()
