"""PETS, modified PETS and Deep PILCO trained, and CEM planning on a trained model (issue 6, must show 3 and 4).

Trains a model on an environment, noise-free, steps fixed at 0.1 s, with the text's own settings (preset `paper`, which
solves at the first round whose policy passes ten trials), and writes one line per seed: the round it was solved in, the
data and time until then, and the reward of every round. With --plan the newest model then decides by CEM at 10 Hz in
ten trials of 30 s, seed by seed; models that are planned with are trained with the same rounds, solved or not.

    PYTHONPATH=src python benchmarks/baselines.py pendulum --model pets --seeds 0:10 --rounds 50 --out FILE
    PYTHONPATH=src python benchmarks/baselines.py cartpole --model enode --seeds 0:5 --rounds 10 --plan --out FILE
    PYTHONPATH=src python benchmarks/baselines.py pendulum --model pets --rounds 2 --folder RUN  # kept, gone on with

Hours on two cores, minutes a round on a GPU: `docs/baselines.md` says what one round of one seed costs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from measure import write_record

from ctrlax.agent.plan import Cem
from ctrlax.commands.train import parse_seeds, parse_settings
from ctrlax.errors import UserError
from ctrlax.lab.planned import evaluate_planner, planner_of
from ctrlax.lab.run import Run, resume, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=["pendulum", "cartpole", "acrobot"])
    parser.add_argument("--model", default="pets")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--budget", type=float, default=None, help="hours; the environment's own if left out")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--plan-trials", type=int, default=10)
    parser.add_argument("--plan-seconds", type=float, default=30.0)
    parser.add_argument("--population", type=int, default=Cem.population)
    parser.add_argument("--iterations", type=int, default=Cem.iterations)
    parser.add_argument("--elites", type=int, default=Cem.elites)
    parser.add_argument("--folder", type=Path, default=None, help="the run's folder, gone on with if it is there")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    load, began = os.getloadavg(), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        run = trained(options, options.folder or Path(place) / "run")
        result = {"settings": asked(options), "seconds": time.perf_counter() - began, "rows": rows_of(run)}
        result["trained_at"] = run.header["commit"]  # of a run gone on with it may be another
        if options.plan:
            result["planned"] = planned(run, options)
    report(result)
    if options.out is not None:
        write_record(options.out, result, load)


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as JSON."""
    return {name: value for name, value in vars(options).items() if name not in ("out", "folder")}


def trained(options: argparse.Namespace, folder: Path) -> Run:
    """A run to its end, or gone on with."""
    if (folder / "header.json").exists():
        return resume(folder, schedule__rounds=options.rounds)
    settings: dict[str, Any] = {"model__family": options.model, "schedule__rounds": options.rounds}
    if options.plan:
        settings["schedule__rounds_after_solved"] = options.rounds  # a model of the last round for every seed
    return train(
        options.environment, seeds=parse_seeds(options.seeds), preset=options.preset, out=folder,
        budget=options.budget, **{**settings, **dict[str, Any](parse_settings(tuple(options.set)))},
    )  # fmt: skip


def rows_of(run: Run) -> list[dict[str, Any]]:
    """One line per seed."""
    told = run.summary()
    answer = []
    for place, seed in enumerate(run.seeds):
        rounds = [row for row in run.rows("round") if row["seed"] == seed]
        answer.append(
            {
                "seed": seed,
                "solved_in_round": told["rounds_to_solve"][place],
                "rounds": len(rounds),
                "interaction_seconds": told["interaction_seconds"][place],
                "wall_seconds": [row["wall_seconds"] for row in rounds],
                "reward": [row["reward"] for row in rounds],
            }
        )
    return answer


def planned(run: Run, options: argparse.Namespace) -> list[dict[str, Any]]:
    """CEM in the true world on every seed's newest model."""
    settings = Cem(
        population=options.population, iterations=options.iterations, elites=options.elites,
        discount_time=run.config.agent.discount_time,
    )  # fmt: skip
    answer = []
    for seed in run.seeds:
        began = time.perf_counter()
        try:
            done = evaluate_planner(
                run.environment, planner_of(run, settings, seed=seed), trials=options.plan_trials,
                seconds=options.plan_seconds, key=jax.random.key(seed),
            )  # fmt: skip
        except UserError as error:
            answer.append({"seed": seed, "error": str(error)})
            continue
        answer.append(
            {
                "seed": seed,
                "solved": done.evaluation.solved,
                "held": int(done.evaluation.held.sum()),
                "reward": done.evaluation.reward,
                "decisions_per_second": done.per_second,
                "seconds": time.perf_counter() - began,
            }
        )
        print(answer[-1], flush=True)
    return answer


def report(result: dict[str, Any]) -> None:
    """For people."""
    rows = result["rows"]
    solved = [row["solved_in_round"] for row in rows if row["solved_in_round"]]
    print(f"solved {len(solved)} of {len(rows)}, in rounds {sorted(solved)}; {result['seconds']:.0f} s")
    for row in rows:
        rewards = " ".join(f"{reward:.2f}" for reward in row["reward"])
        print(f"seed {row['seed']}: solved in {row['solved_in_round']}, rewards {rewards}")
    for row in result.get("planned", []):
        print(row)


if __name__ == "__main__":
    main()
