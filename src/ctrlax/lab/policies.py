"""Policies of known quality for every built-in environment: trained in the true world, kept small, read by the figures.

One run of `--model true` per environment; the policy after each of its rounds is rounded to half precision, tried anew
as it is then, and kept with what it achieved. Solving and sub-optimal policies and the test set are made of these.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlax.agent.policy import Policy
from ctrlax.errors import UserError
from ctrlax.lab.checkpoint import write_aside
from ctrlax.lab.evaluate import evaluate
from ctrlax.lab.header import make_header
from ctrlax.lab.jobs import Job
from ctrlax.lab.run import Run
from ctrlax.model.dataset import Dataset
from ctrlax.names import unknown_name
from ctrlax.world.collect import simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import fixed_times

KEPT = Path("results/policies")
TRIALS, SECONDS = 10, 30.0
# Policies kept of each run: the figures on solvers want twenty of CartPole, all others only good ones.
ROUNDS = {"cartpole": 20, "pendulum": 12, "acrobot": 20}
UPDATES = {"cartpole": 150, "pendulum": 100, "acrobot": 150}
KEEP = {"cartpole": 20, "pendulum": 4, "acrobot": 4}
TEST_ROLL_OUTS, TEST_SECONDS, TEST_STEP = 10, 5.0, 0.1


class MissingError(UserError):
    """An environment has no kept policies."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A policy and what it is worth in the true world."""

    policy: Policy
    round: int
    reward: float  # mean reward rate of its trials
    held: int  # trials of `TRIALS` in which the goal was held

    @property
    def solving(self) -> bool:
        return self.held == TRIALS


def job(environment: str) -> Job:
    """The run in the true world that the policies of an environment come from."""
    return Job.of(
        environment,
        **{
            "model.family": "true", "model.structure": (), "agent.updates": UPDATES[environment],
            "schedule.rounds": ROUNDS[environment], "schedule.rounds_after_solved": ROUNDS[environment],
            "schedule.confirm": False, "schedule.snapshots": True,
        },
    )  # fmt: skip


def check_environments(names: Sequence[str]) -> list[str]:
    """Those that policies are made for, or a `UserError`."""
    for name in names:
        if name not in ROUNDS:
            raise unknown_name("environment", name, ROUNDS)
    return list(names)


def export(run: Run, folder: Path) -> list[Known]:
    """Round the policies of a run, try them, and keep them as ``ENVIRONMENT.npz`` and ``.json`` in ``folder``."""
    name = run.header["configuration"]["environment"]
    found = [(number, lanes[run.seeds[0]][1]) for number, lanes in run.snapshots()]
    if not found:
        raise UserError(f"{run.folder} kept no policies of its rounds: it needs schedule.snapshots=true.")
    key, known = jax.random.key(len(found)), []
    for number, policy in found:
        key, trial_key = jax.random.split(key)
        rounded = jax.tree.map(lambda leaf: _single(np.asarray(leaf, np.float16)), policy)
        tried = evaluate(run.environment, double(rounded), trials=TRIALS, seconds=SECONDS, key=trial_key)
        known.append(Known(rounded, number, tried.reward, int(tried.held.sum())))
    best = sorted(known, key=lambda each: (-each.held, -each.reward))[: KEEP[name]]
    kept = [each for each in known if each in best]
    _write(kept, name, folder, run.header)
    return kept


def read(environment: str, *folders: Path) -> list[Known]:
    """The kept policies of an environment from the first of ``folders`` that has them, then from the usual places."""
    usual = [KEPT, Path(__file__).parents[3] / KEPT]
    for folder in (*folders, *usual):
        path = folder / f"{environment}.npz"
        if path.exists():
            return _read(path)
    raise MissingError(
        f"No policies of {environment} in {' or '.join(str(folder) for folder in (*folders, *usual))}. "
        "Make them with `ctrlax reproduce policies`."
    )


def solving(known: Sequence[Known]) -> list[Known]:
    """Those that solve the task; where none does the best one, which is then said to be no solution."""
    found = [each for each in known if each.solving]
    return found or [max(known, key=lambda each: (each.held, each.reward))]


def test_set(environment: Environment, known: Sequence[Known]) -> Dataset:
    """Roll-outs of solving policies from the start distribution, without noise: the same for all methods."""
    good = solving(known)
    keys = jax.random.split(jax.random.key(2021), len(good))
    times = fixed_times(TEST_STEP, TEST_SECONDS)
    logs, each = [], -(-TEST_ROLL_OUTS // len(good))
    for one, key in zip(good, keys, strict=True):
        start_key, solve_key = jax.random.split(key)
        starts = environment.draw_starts(each, key=start_key)
        seen = simulate(environment, double(one.policy), times, key=solve_key, starts=starts)
        logs += Dataset.from_trajectory(seen, environment).logs
    whole = Dataset.from_trajectory(seen, environment)
    return dataclasses.replace(whole, logs=tuple(logs[:TEST_ROLL_OUTS]))


def double(policy: Policy) -> Policy:
    """In float64, as the true world is solved."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), policy)


def _write(known: Sequence[Known], name: str, folder: Path, header: dict[str, Any]) -> None:
    arrays: dict[str, np.ndarray] = {}
    for place, each in enumerate(known):
        for layer, (weight, bias) in enumerate(each.policy.layers):
            arrays[f"{place}.weight{layer}"] = np.asarray(weight, np.float16)
            arrays[f"{place}.bias{layer}"] = np.asarray(bias, np.float16)
        arrays[f"{place}.middle"] = np.asarray(each.policy.middle, np.float32)
        arrays[f"{place}.reach"] = np.asarray(each.policy.reach, np.float32)
        arrays[f"{place}.tried"] = np.array([each.round, each.held, each.reward], np.float64)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    folder.mkdir(parents=True, exist_ok=True)
    write_aside(folder / f"{name}.npz", [content.getvalue()])
    told = {
        **{part: header[part] for part in ("configuration", "versions", "hardware", "commit", "created")},
        "command": "ctrlax reproduce policies",
        "trials": TRIALS,
        "seconds": SECONDS,
        "solved": sum(each.solving for each in known),
        "policies": [{"round": each.round, "reward": each.reward, "held": each.held} for each in known],
        "exported_with": make_header("reproduce", {})["versions"],
    }
    write_aside(folder / f"{name}.json", [json.dumps(told, indent=1).encode(), b"\n"])


def _read(path: Path) -> list[Known]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    count = 1 + max(int(name.split(".")[0]) for name in arrays)
    known = []
    for place in range(count):
        number, held, reward = arrays[f"{place}.tried"]
        layers = tuple(
            (_single(arrays[f"{place}.weight{layer}"]), _single(arrays[f"{place}.bias{layer}"]))
            for layer in range(sum(name.startswith(f"{place}.weight") for name in arrays))
        )
        policy = Policy(layers, _single(arrays[f"{place}.middle"]), _single(arrays[f"{place}.reach"]))
        known.append(Known(policy, int(number), float(reward), int(held)))
    return known


def _single(array: np.ndarray) -> jax.Array:
    return jnp.asarray(array, jnp.float32)
