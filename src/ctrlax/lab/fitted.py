"""`fit`: a dataset -> `FitRun`, kept in a folder if one is named; and a kept one opened again."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.lab import checkpoint
from ctrlax.lab.configure import as_dict, changed, from_dict
from ctrlax.lab.fitting import Fitted, Progress, fit_lanes, material, without_some
from ctrlax.lab.forecast import HORIZONS, MOST_STARTS, Forecast, Scores, forecast, raw_noise, score, stretches
from ctrlax.lab.guard import Guard
from ctrlax.lab.header import make_header
from ctrlax.lab.record import Record
from ctrlax.model import registry
from ctrlax.model.coordinates import Coordinates, Scaling, coordinates_of
from ctrlax.model.dataset import Dataset, read
from ctrlax.model.fit import Learned
from ctrlax.model.scaling import FLOOR, scaling_of
from ctrlax.model.structure import KNOWN
from ctrlax.names import unknown_name

HELD_OUT = 0.2  # share of the trajectories that only the table sees
SCORED = "scored"  # the kind of a metrics row with a seed's final numbers


@dataclasses.dataclass(frozen=True, eq=False)
class FitRun:
    """Fitted models, the seed axis first, and what they were fitted to."""

    config: config.Config
    system: Mapping[str, Any]  # names, angles, hold and units of the data: what other data must agree with
    seeds: tuple[int, ...]
    learned: Learned
    rows: tuple[Mapping[str, Any], ...]  # one of final numbers for every seed
    folder: Path | None = None
    held_out: Dataset | None = None  # of a fit made in this process

    def forecast(self, dataset: Dataset, *, seed: int | None = None, restart: float | None = None) -> list[Forecast]:
        """Every trajectory of ``dataset`` as one seed's members (the first seed's if not said) predict it."""
        self.check(dataset)
        lane = self._lane(seed)
        return forecast(
            self.of(lane),
            dataset,
            solver=self.config.fit.solver,
            key=_score_key(self.seeds[lane]),
            restart=restart,
            length_scale=self.config.sampling.action_length_scale,
        )

    def score(
        self, dataset: Dataset, *, seed: int | None = None, horizons: Sequence[float] = HORIZONS, solver: str = ""
    ) -> Scores:
        """`lab.forecast.score` on ``dataset``; ``solver`` is the fit's own unless another is named."""
        self.check(dataset)
        lane = self._lane(seed)
        scale = self.config.sampling.action_length_scale
        pieces = stretches(dataset, max(horizons), least=min(horizons), most=MOST_STARTS, length_scale=scale)
        unit, key = np.asarray(self.system["unit"]), _score_key(self.seeds[lane])
        return score(
            self.of(lane), pieces, unit=unit, solver=solver or self.config.fit.solver, key=key, horizons=horizons
        )

    def of(self, lane: int) -> Learned:
        """One seed's model and noise."""
        return jax.tree.map(lambda leaf: leaf[lane], self.learned)

    def noise(self, seed: int | None = None) -> dict[str, float]:
        """The learned noise's standard deviation of every observation, in its own unit."""
        values = np.asarray(raw_noise(self.of(self._lane(seed))), np.float64)
        return dict(zip(self.system["observations"], values.tolist(), strict=True))

    def summary(self) -> dict[str, Any]:
        """What `ctrlax fit --json` prints: means over seeds; `rows` has every seed's own numbers."""
        averaged = _mean([{name: row[name] for name in ("error", "nll", "coverage90", "noise")} for row in self.rows])
        first = self.rows[0]
        more = {name: first[name] for name in ("updates", "seconds", "compile_seconds")}
        more["updates"] = sum(row["updates"] for row in self.rows) / len(self.rows)
        place = str(self.folder) if self.folder is not None else None
        return {**averaged, **more, "run": place}

    def check(self, dataset: Dataset) -> None:
        """`UserError` unless ``dataset`` has the observations and actions this was fitted to, in their order."""
        for part, names in (("observations", dataset.observation_names), ("actions", dataset.action_names)):
            wanted = list(self.system[part])
            if list(names) != wanted:
                raise UserError(
                    f"the model was fitted to the {part} {', '.join(wanted) or 'none'}, but the data has "
                    f"{', '.join(names) or 'none'}: name the same columns in the same order."
                )

    def _lane(self, seed: int | None) -> int:
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise UserError(f"this run has no seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        return self.seeds.index(seed)


def _score_key(seed: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), 1)


def fit(
    dataset: Dataset | str | Path,
    *,
    preset: str = "default",
    model: str | None = None,
    structure: Sequence[str] | None = None,
    rates: Mapping[str, str] | None = None,
    known: Callable[..., Any] | None = None,
    seeds: Sequence[int] = (0,),
    held_out: float = HELD_OUT,
    horizons: Sequence[float] = HORIZONS,
    out: str | Path | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    **settings: Any,
) -> FitRun:
    """Learn the dynamics of the system that was recorded (D1 to D4, D6, F1 to F3), all seeds as one program.

    ``settings`` are single settings of `config.Config` beside the preset's, as ``fit__updates=500``. A share
    ``held_out`` of the data is not learned from: the numbers in `FitRun.rows` are of it. With ``known``, a function of
    observation and action that gives a rate, only what it leaves over is learned. The folder ``out`` keeps the run.
    """
    chosen = settled(preset, model, structure, settings)
    dataset = dataset if isinstance(dataset, Dataset) else read(dataset)
    if rates:
        dataset = dataclasses.replace(dataset, rates={**dataset.rates, **rates})
    chosen = chosen.replaced(model__structure=_known(chosen.model.structure, dataset))
    training, held = without_some(dataset, held_out)
    if registry.makes_transitions(chosen.model.family):  # they hold out themselves, and a step is the data's own
        chosen = chosen.replaced(fit__held_out=0.0, sampling__dt=typical_step(training), model__structure=())
    seen = material([training], chosen.fit, shared=True, length_scale=chosen.sampling.action_length_scale)
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.fold_in(jax.random.key(seed), 0)))(_as_seeds(seeds))
    fresh = fresh_lanes(chosen, dataset_coordinates(dataset), [data_scaling(training)] * len(seeds), keys[:, 0], known)
    system = described(dataset)
    record = None
    if out is not None:
        record = Record.create(out, make_header("fit", _configuration(chosen, system, seeds, dataset, held)))
    folder = Path(out) if out is not None else Path(tempfile.gettempdir())
    done = fit_lanes(
        chosen.fit,
        fresh,
        seen,
        key=keys[:, 1],
        guard=Guard(folder),
        seeds=seeds,
        watch=_recording(record, seeds, watch),
        one_step=chosen.one_step,
    )
    run = FitRun(chosen, system, tuple(seeds), done.learned, (), Path(out) if out is not None else None, held)
    rows = tuple(_scored(run, done, place, horizons) for place in range(len(seeds)))
    if record is not None:
        for row in rows:
            record.append(row)
        record.save(done.learned, step=int(done.updates.max()))
        record.write_tables()
        record.close()
    return dataclasses.replace(run, rows=rows)


def settled(
    preset: str, model: str | None, structure: Sequence[str] | None, settings: Mapping[str, Any]
) -> config.Config:
    """The preset with what is asked for beside it, checked."""
    own = {"model__family": model, "model__structure": None if structure is None else tuple(structure)}
    if preset not in config.PRESETS:
        raise unknown_name("preset", preset, config.PRESETS)
    given = {name: value for name, value in own.items() if value is not None}
    return changed(config.fit_preset(preset), {**given, **settings})


def _known(structure: tuple[str, ...], dataset: Dataset) -> tuple[str, ...]:
    """``known`` means what the data says of itself: second-order where every observation is a rate or its position."""
    coordinates = dataset_coordinates(dataset)
    told = {*coordinates.velocities(), *coordinates.positions()} == set(range(coordinates.observation_size))
    named = [("second-order" if told else "") if name == KNOWN else name for name in structure]
    return tuple(dict.fromkeys(name for name in named if name))


def described(dataset: Dataset) -> dict[str, Any]:
    """What a fitted model must know of its data, as JSON."""
    seen = np.concatenate([log.observations for log in dataset.logs])
    unit = np.maximum(seen.std(axis=0), FLOOR)
    return {
        "observations": list(dataset.observation_names),
        "actions": list(dataset.action_names),
        "angles": list(dataset.angles),
        "rates": dict(dataset.rates),
        "hold": dataset.hold,
        "units": dict(dataset.units),
        "unit": unit.tolist(),  # the standard deviation of every observation over all data
    }


def _configuration(
    chosen: config.Config, system: dict[str, Any], seeds: Sequence[int], dataset: Dataset, held: Dataset
) -> dict[str, Any]:
    data = {"trajectories": len(dataset.logs), "points": dataset.points, "held_out_points": held.points}
    return {**as_dict(chosen), "system": system, "data": data, "seeds": list(seeds)}


def dataset_coordinates(dataset: Dataset) -> Coordinates:
    """What a dataset says of its observations."""
    return coordinates_of(dataset.observation_names, len(dataset.action_names), dict(dataset.rates))


def data_scaling(dataset: Dataset) -> Scaling:
    """Units from data alone: actions are in units of the range they were seen in."""
    acted = np.concatenate([log.actions for log in dataset.logs])
    low, high = (acted.min(axis=0), acted.max(axis=0)) if acted.shape[1] else (np.zeros(0), np.zeros(0))
    middle, reach = (low + high) / 2, (high - low) / 2
    middle = np.where(np.abs(middle) < 0.5 * reach, 0.0, middle)  # nearly symmetric: no action stays no action
    reach = np.maximum(np.maximum(reach, np.abs(high - middle)), FLOOR * np.maximum(np.abs(middle), 1.0))
    return scaling_of(dataset, middle, reach)


def typical_step(dataset: Dataset) -> float:
    """The mean number of seconds between two observations."""
    return float(np.mean(np.concatenate([np.diff(log.times) for log in dataset.logs])))


def fresh_lanes(
    chosen: config.Config,
    coordinates: Coordinates,
    scalings: Sequence[Scaling],
    keys: Key[Array, " lane"],
    known: Callable[..., Any] | None = None,
) -> Learned:
    """A fresh model for every lane."""
    noise = jnp.full(coordinates.observation_size, chosen.fit.initial_log_noise, jnp.float32)

    def one(scaling: Scaling, key: PRNGKeyArray) -> Learned:
        step = chosen.sampling.dt
        return Learned(registry.build(chosen.model, coordinates, scaling, key=key, known=known, step=step), noise)

    return jax.vmap(one)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *scalings), keys)


def _as_seeds(seeds: Sequence[int]) -> Any:
    if not len(seeds) or any(seed < 0 for seed in seeds):
        raise UserError(f"seeds are whole numbers from 0 on, at least one; got {list(seeds)}.")
    return jnp.asarray(seeds, jnp.uint32)


def _recording(record: Record | None, seeds: Sequence[int], watch: Callable[[Progress], None]):
    def seen(progress: Progress) -> None:
        if record is not None:
            for lane, seed in enumerate(seeds):
                row = {"kind": "fit", "phase": progress.phase, "seed": seed, "iteration": progress.iteration}
                row |= {name: values[lane] for name, values in progress.metrics.items()}
                row |= {
                    "unhealthy": progress.health.unhealthy_trajectories[lane], "skipped": progress.health.skipped[lane]
                }  # fmt: skip
                if progress.held_out is not None:
                    row |= {"held_out": progress.held_out[lane], "stopped": progress.stopped[lane]}
                record.append(row)
            record.flush()
        watch(progress)

    return seen


def _scored(run: FitRun, done: Fitted, lane: int, horizons: Sequence[float]) -> dict[str, Any]:
    assert run.held_out is not None
    seed = run.seeds[lane]
    scores = run.score(run.held_out, seed=seed, horizons=horizons)
    return {
        "kind": SCORED,
        "seed": seed,
        **dataclasses.asdict(scores),
        "noise": run.noise(seed),
        "updates": int(done.updates[lane]),
        "kept": int(done.kept[lane]),
        "seconds": round(done.seconds, 3),
        "compile_seconds": round(done.compile_seconds, 3),
    }


def open_fit(folder: str | Path) -> FitRun:
    """A kept fit."""
    record = Record.open(folder)
    told = record.header["configuration"]
    chosen = from_dict(told)
    system, seeds = told["system"], tuple(told["seeds"])
    coordinates = coordinates_of(tuple(system["observations"]), len(system["actions"]), system["rates"])
    if "known-plus-residual" in chosen.model.structure:
        raise UserError(f"{folder} was fitted with a known part, which is a Python function and not kept: fit again.")
    observed, acted = np.ones(len(system["observations"]), np.float32), np.ones(len(system["actions"]), np.float32)
    scaling = Scaling(*(jnp.asarray(part) for part in (observed, observed, acted, acted, observed)))
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    like = jax.eval_shape(lambda keys: fresh_lanes(chosen, coordinates, [scaling] * len(seeds), keys), keys)
    learned, _ = record.restore(checkpoint.any_shape(like))
    rows = tuple(record.rows(SCORED))
    return FitRun(chosen, system, seeds, jax.tree.map(jnp.asarray, learned), rows, Path(folder))


def _mean(parts: Sequence[Any]) -> Any:
    """Of numbers, number by number; None where nobody has one."""
    if isinstance(parts[0], Mapping):
        return {name: _mean([part[name] for part in parts]) for name in parts[0]}
    numbers = [part for part in parts if part is not None]
    return float(np.mean(numbers)) if numbers else None
