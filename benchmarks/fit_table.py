"""Errors, coverage and learned noise of every model, on all kinds of data (issue 3, must show 3).

CartPole, ten random trajectories of 50 points at a mean step of 0.1 s. Every model on {fixed, uniform, exponential}
times and noise {0, 0.025}, five seeds (data and weights), against twenty held-out trajectories recorded in the same
way; structures against none; early stopping against none; and the learned noise against what the same estimator gives
on the true field, and, with first states inferred, against 0.025. All conditions and seeds of a model are lanes of one
program.

    PYTHONPATH=src python benchmarks/fit_table.py            # minutes on a GPU; writes results/fit/fit_table.json
    PYTHONPATH=src python benchmarks/fit_table.py --quick    # two minutes on two cores; writes nothing unless --out
    PYTHONPATH=src python benchmarks/fit_table.py --only "to the end" --grids fixed --out results/fit/learned_noise.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ctrlax
from ctrlax import config
from ctrlax.lab.fitted import data_scaling, dataset_coordinates, described, fresh_lanes
from ctrlax.lab.fitting import Material, fit_lanes, material, without_some
from ctrlax.lab.forecast import Stretches, raw_noise, score, stretches
from ctrlax.lab.guard import Guard
from ctrlax.lab.header import make_header
from ctrlax.model.dataset import Dataset
from ctrlax.model.families.true import TrueDynamics
from ctrlax.model.fit import simulate_windows
from ctrlax.model.windows import cut, pack
from ctrlax.ode.solvers import named
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.grids import draw_times

OUT = Path("results/fit/fit_table.json")
STEP, POINTS, NOISE = 0.1, 50, 0.025
TRAINING, TEST = 10, 20  # trajectories
MOST_STARTS, INTERVALS = 600, 48  # one shape for the forecasts of every grid
TRUE_SOLVER = "rk4-10"


class Condition(NamedTuple):
    """How one lane's data came about."""

    grid: str
    noise: float
    seed: int


class Variant(NamedTuple):
    """What is fitted to all conditions at once."""

    name: str
    changes: dict[str, Any]
    only_noisy: bool = False


def variants(updates: int) -> list[Variant]:
    """Models, structures, and what else is asked of the plain ENODE."""
    models = [Variant(family, {"model__family": family}) for family in ("enode", "benode", "ibnode", "wnode")]
    structured = [
        Variant("enode, second-order", {"model__structure": ("second-order",)}),
        Variant("enode, second-order and affine", {"model__structure": ("second-order", "affine")}),
        Variant("enode, hamiltonian", {"model__structure": ("hamiltonian",)}),
    ]
    never = {"fit__held_out": 0.0, "fit__patience": 0}
    other = [
        Variant("enode, never stopped early", {**never, "fit__updates": updates}),
        Variant("enode, 500 updates", {**never, "fit__updates": min(500, updates)}),
        Variant("enode, noise at the weights' rate", {"fit__noise_speed": 1.0}),
        Variant("enode, first states inferred", {"fit__first_state": "inferred"}, only_noisy=True),
    ]
    # To the end of a falling rate on all of the data: what the learned noise then is.
    known, falling = {"model__structure": ("second-order", "affine")}, {**never, "fit__decay": 1.0}
    inferred = {**falling, **known, "fit__first_state": "inferred"}
    to_the_end = [
        Variant("to the end, enode", falling, only_noisy=True),
        Variant("to the end, enode, second-order and affine", {**falling, **known}, only_noisy=True),
        Variant("to the end, first states inferred", inferred, only_noisy=True),
    ]
    return models + structured + other + to_the_end


def recorded(environment: ctrlax.Environment, grid: str, noise: float, trajectories: int, *, key: Any) -> Dataset:
    """Random actions from the start distribution; the same key gives the same motion whatever the noise."""
    time_key, path_key, solve_key = jax.random.split(key, 3)
    times = draw_times(grid, STEP, POINTS, key=time_key, trajectories=trajectories)
    seen = simulate(environment, random_controls(environment, times, key=path_key), times, key=solve_key, noise=noise)
    return Dataset.from_trajectory(seen, environment)


def padded(pieces: Stretches) -> Stretches:
    """With `INTERVALS` intervals, so that all conditions share one compiled forecast."""
    more = INTERVALS - pieces.steps.shape[1]
    if more < 0:
        raise ValueError(f"a test window has {pieces.steps.shape[1]} intervals, more than {INTERVALS}")

    def longer(array: np.ndarray, fill: float = 0.0) -> np.ndarray:
        return np.pad(array, [(0, 0), (0, more)] + [(0, 0)] * (array.ndim - 2), constant_values=fill)

    return Stretches(
        pieces.starts, longer(pieces.targets), longer(pieces.steps), longer(pieces.paths),
        longer(pieces.elapsed, np.nan),
    )  # fmt: skip


def true_field_noise(environment: ctrlax.Environment, training: Dataset, points: int) -> np.ndarray:
    """Maximum-likelihood sigma, by coordinate, when every window is simulated with the true field."""
    longest = max(len(log.times) for log in training.logs)
    recording = jax.tree.map(jnp.asarray, pack(training, trajectories=len(training.logs), points=longest))
    places = [(i, first) for i, log in enumerate(training.logs) for first in range(len(log.times) - points + 1)]
    trajectory, first = (jnp.asarray(part, jnp.int32) for part in np.array(places).T)
    dynamics = TrueDynamics(
        environment.field, environment.observe, environment.restore, jnp.ones(environment.observation_size)
    )
    return np.asarray(_residuals(dynamics, recording, trajectory, first, points), np.float64)


@partial(jax.jit, static_argnums=4)
def _residuals(dynamics: Any, recording: Any, trajectory: Any, first: Any, points: int) -> Any:
    with jax.default_matmul_precision("highest"):
        windows = cut(recording, trajectory, first, points=points)
        states, healthy, _ = simulate_windows(dynamics, jnp.zeros(1), windows, named(TRUE_SOLVER))
    wrong = jnp.where(healthy[..., None, None], states - windows.targets, jnp.nan)
    return jnp.sqrt(jnp.nanmean(wrong**2, axis=(0, 1, 2)))


class World(NamedTuple):
    """The data of all lanes."""

    conditions: list[Condition]
    training: list[Dataset]
    pieces: dict[tuple[str, float], Stretches]  # of the test trajectories
    unit: dict[tuple[str, float], np.ndarray]
    true_field: dict[tuple[int, float], np.ndarray]  # by condition and held-out share, filled as asked for


def world_of(environment: ctrlax.Environment, grids: Sequence[str], seeds: int) -> World:
    """Everything that is recorded, once for all variants."""
    conditions = [Condition(grid, noise, seed) for grid in grids for noise in (0.0, NOISE) for seed in range(seeds)]
    training = [
        recorded(environment, c.grid, c.noise, TRAINING, key=jax.random.fold_in(jax.random.key(1), c.seed))
        for c in conditions
    ]
    test = {
        (grid, noise): recorded(environment, grid, noise, TEST, key=jax.random.key(2))
        for grid in grids
        for noise in (0.0, NOISE)
    }
    pieces = {place: padded(stretches(data, 2.0, least=0.5, most=MOST_STARTS)) for place, data in test.items()}
    unit = {place: np.asarray(described(data)["unit"]) for place, data in test.items()}
    return World(conditions, training, pieces, unit, {})


def run_variant(variant: Variant, world: World, settings: config.Config, environment: Any) -> tuple[list, dict]:
    """All lanes of one variant: a row for each, and what it cost."""
    chosen = settings.replaced(**variant.changes)
    lanes = [i for i, c in enumerate(world.conditions) if c.noise > 0 or not variant.only_noisy]
    conditions, training = [world.conditions[i] for i in lanes], [world.training[i] for i in lanes]
    seen: Material = material(training, chosen.fit, shared=False)
    keys = jax.vmap(lambda s: jax.random.split(jax.random.key(s)))(jnp.array([c.seed for c in conditions], jnp.uint32))
    scalings = [data_scaling(dataset) for dataset in training]
    fresh = fresh_lanes(chosen, dataset_coordinates(training[0]), scalings, keys[:, 0])
    guard = Guard(Path(tempfile.gettempdir()))
    done = fit_lanes(chosen.fit, fresh, seen, key=keys[:, 1], guard=guard, seeds=range(len(lanes)))
    rows = []
    for lane, condition in enumerate(conditions):
        place = condition.grid, condition.noise
        learned = jax.tree.map(lambda leaf, lane=lane: leaf[lane], done.learned)
        pieces, unit = world.pieces[place], world.unit[place]
        scores = score(learned, pieces, unit=unit, solver=chosen.fit.solver, key=jax.random.key(condition.seed))
        share = chosen.fit.held_out
        if (lanes[lane], share) not in world.true_field:
            kept = without_some(training[lane], share)[0] if share else training[lane]
            found = true_field_noise(environment, kept, chosen.fit.window_points)
            world.true_field[lanes[lane], share] = found
        rows.append(
            {
                "variant": variant.name,
                **condition._asdict(),
                **dataclasses.asdict(scores),
                "noise_learned": np.asarray(raw_noise(learned), np.float64).tolist(),
                "noise_true_field": world.true_field[lanes[lane], share].tolist(),
                "updates": int(done.updates[lane]),
                "kept": int(done.kept[lane]),
            }
        )
    return rows, {"lanes": len(lanes), "seconds": done.seconds, "compile_seconds": done.compile_seconds}


def summarised(rows: list[dict[str, Any]], costs: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Means over seeds, a line per variant and condition."""
    lines = []
    for name, grid, noise in dict.fromkeys((row["variant"], row["grid"], row["noise"]) for row in rows):
        of = [row for row in rows if (row["variant"], row["grid"], row["noise"]) == (name, grid, noise)]
        errors = np.array([[row["error"][horizon] for horizon in ("0.5", "1", "2")] for row in of])
        learned = np.array([row["noise_learned"] for row in of])
        true_field = np.array([row["noise_true_field"] for row in of])
        lines.append(
            {
                "variant": name,
                "grid": grid,
                "noise": noise,
                "error": dict(zip(("0.5", "1", "2"), errors.mean(axis=0).tolist(), strict=True)),
                "error_at_2s_by_seed": errors[:, 2].tolist(),
                "coverage90": float(np.mean([row["coverage90"] for row in of])),
                "nll": float(np.mean([row["nll"] for row in of])),
                "noise_to_true_field": (learned / true_field).mean(axis=0).tolist() if noise else None,
                "noise_to_recorded": (learned / noise).mean(axis=0).tolist() if noise else None,
                "updates": float(np.mean([row["updates"] for row in of])),
                "seconds_per_lane": costs[name]["seconds"] / costs[name]["lanes"],
            }
        )
    return lines


def shown(line: dict[str, Any]) -> str:
    """A line of the printed table."""
    ratios = line["noise_to_recorded" if "inferred" in line["variant"] else "noise_to_true_field"]
    noise = "" if ratios is None else " ".join(f"{ratio:.2f}" for ratio in ratios)
    errors = "  ".join(f"{line['error'][horizon]:7.3f}" for horizon in ("0.5", "1", "2"))
    return (
        f"{line['variant']:34} {line['grid']:12} {line['noise']:<6g} {errors}  {100 * line['coverage90']:4.0f} %  "
        f"{line['nll']:8.2f} {line['updates']:6.0f} {line['seconds_per_lane']:6.2f}  {noise}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two lanes, few members and updates")
    parser.add_argument("--only", nargs="+", help="variants whose name begins like one of these")
    parser.add_argument("--grids", default="fixed,uniform,exponential")
    parser.add_argument("--seeds", type=int, default=5, help="of data and weights")
    parser.add_argument("--updates", type=int, help="at most; the preset's if left out")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    out = chosen.out or (None if chosen.quick else OUT)
    environment = ctrlax.make("cartpole")
    settings = config.fit_preset("default").replaced(model__structure=())
    if chosen.quick:
        settings = settings.replaced(
            model__members=2, fit__updates=100, fit__warmup_updates=0, fit__matching_updates=50
        )
    if chosen.updates:
        settings = settings.replaced(fit__updates=chosen.updates)
    grids, seeds = (["fixed"], 1) if chosen.quick else (chosen.grids.split(","), chosen.seeds)
    began = time.perf_counter()
    world = world_of(environment, grids, seeds)
    print(f"{len(world.conditions)} datasets recorded in {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{'':54} error at 0.5, 1, 2 s          covered    NLL updates seconds/lane  noise ratio by coordinate")
    rows: list[dict[str, Any]] = []
    costs: dict[str, dict[str, float]] = {}
    for variant in variants(settings.fit.updates):
        if chosen.only and not any(variant.name.startswith(each) for each in chosen.only):
            continue
        began = time.perf_counter()
        made, costs[variant.name] = run_variant(variant, world, settings, environment)
        costs[variant.name]["wall_seconds"] = time.perf_counter() - began
        rows += made
        print("\n".join(shown(line) for line in summarised(made, costs)), flush=True)
        if out is not None:
            asked = " ".join(["benchmarks/fit_table.py", *(Path(word).name for word in sys.argv[1:])])
            changes = {each.name: each.changes for each in variants(settings.fit.updates) if each.name in costs}
            header = make_header(asked, {"settings": dataclasses.asdict(settings), "changes": changes})
            names = environment.observation_names
            record = {**header, "observations": names, "costs": costs, "table": summarised(rows, costs), "rows": rows}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
