"""How soon do variants of a preset solve? Several experiments one after another in one call on a GPU.

    PYTHONPATH=src:.portable python3 benchmarks/variants.py --seconds 500 --out $OUT/variants.jsonl \
        "cartpole default 0:20 schedule.rounds=8" "cartpole default 0:20 schedule.rounds=8 model.structure="

An experiment is an environment, a preset, seeds and settings. One JSON line per round with every seed's reward, trials
held, round in which it was solved and field evaluations; and the time of every chunk, so that compiling is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("EQX_ON_ERROR", "nan")

import jax
import numpy as np

import ctrlax
from ctrlax.commands.train import parse_seeds
from ctrlax.lab.configure import as_dict, configure
from ctrlax.lab.guard import Guard
from ctrlax.lab.learn import learn
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.state import EVALUATE, RunState


class TimeUpError(Exception):
    """The call's time is spent."""


class Diary:
    """Watches one experiment and writes a line at the end of every round."""

    def __init__(self, experiment: str, config: dict[str, Any], path: Path, ends: float):
        self.experiment, self.config, self.path, self.ends = experiment, config, path, ends
        self.began = self.before = time.perf_counter()
        self.phases: dict[str, list[float]] = {}

    def __call__(self, state: RunState, phase: str, metrics: Any) -> None:
        now = time.perf_counter()
        self.phases.setdefault(phase, []).append(round(now - self.before, 3))
        self.before = now
        if phase == EVALUATE:
            self._write(state, metrics, now - self.began)
        if now > self.ends:
            raise TimeUpError

    def _write(self, state: RunState, evaluations: Any, seconds: float) -> None:
        rewards = [round(float(each.reward), 4) for each in evaluations if each is not None]
        line = {
            "experiment": self.experiment,
            "config": self.config,
            "round": state.round,
            "seeds": state.seeds.tolist(),
            "reward": rewards,
            "held": [int(each.held.sum()) for each in evaluations if each is not None],
            "solved_round": state.solved_round.tolist(),
            "best_passed": state.best_passed.tolist(),
            "interaction_seconds": state.experience.interaction_seconds().tolist(),
            "field_evaluations": state.work.tolist(),
            "wall_seconds": seconds,
            "phases": self.phases,
            "device": jax.devices()[0].device_kind,
        }
        with self.path.open("a") as out:
            out.write(json.dumps(line) + "\n")
        solved = int((state.solved_round > 0).sum())
        print(
            f"{seconds:6.0f} s  round {state.round}: {solved} of {len(state.seeds)} solved, median reward "
            f"{np.median(rewards):.3f}, {state.experience.interaction_seconds()[0]:.1f} s of interaction",
            flush=True,
        )
        self.phases = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ends = time.perf_counter() + options.seconds
    for experiment in options.experiments:
        name, preset, seeds, *settings = experiment.split()
        config = configure(preset, name, dict(word.split("=", 1) for word in settings))
        laboratory = Laboratory(ctrlax.make(name, variant=config.variant), config)
        print(experiment, flush=True)
        diary = Diary(experiment, as_dict(config), options.out, ends)
        try:
            learn(laboratory, laboratory.start(parse_seeds(seeds)), diary, Guard(options.out.parent))
        except TimeUpError:
            print("time is up", flush=True)
            return


if __name__ == "__main__":
    main()
