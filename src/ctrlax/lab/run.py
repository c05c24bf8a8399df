"""A run from its first line to its last, kept on disk all the way: `train`, `resume`, `load`."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from ctrlax.agent.policy import Policy
from ctrlax.config import Config
from ctrlax.errors import UserError
from ctrlax.lab import checkpoint
from ctrlax.lab.configure import as_dict, changed, configure, flat, from_dict
from ctrlax.lab.evaluate import Evaluation, evaluate
from ctrlax.lab.experience import Experience
from ctrlax.lab.fitted import FitRun, open_fit
from ctrlax.lab.header import check_resumable, make_header
from ctrlax.lab.keeper import FINISHED, SNAPSHOTS, Keeper, Show, silent
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.record import Record
from ctrlax.lab.state import FIT, IMPROVE, RunState, joined, take
from ctrlax.model.dataset import Dataset, read
from ctrlax.model.fit import Learned
from ctrlax.world.environment import Environment
from ctrlax.world.load import make, names

RUNS = Path("runs")  # where runs go that are given no folder
FREE = ("schedule.rounds", "schedule.rounds_after_solved", "schedule.budget")  # may change when a run is resumed

Source = str | os.PathLike[str] | Environment


class Run:
    """A run as its folder tells it; reading it changes nothing."""

    def __init__(self, folder: str | Path, environment: Environment | None = None):
        self._record = Record.open(folder)
        self.folder = self._record.folder
        self.header = self._record.header
        self.config: Config = from_dict(self.header["configuration"])
        self.environment = environment or _recorded_environment(self.folder, self.header)
        self.seeds: list[int] = list(self.header["configuration"]["seeds"])
        self.laboratory = Laboratory(self.environment, self.config)
        self._blank = blank(self.laboratory)
        self._newest, _ = self._record.restore(self._blank)

    @cached_property
    def state(self) -> RunState:
        """All seeds in the order of `seeds`, each where it stopped or, if it goes on, where it is."""
        by_seed = {int(seed): (self._newest, lane) for lane, seed in enumerate(self._newest.seeds)}
        for path in sorted((self.folder / FINISHED).glob("seed-*.ckpt")):
            alone = checkpoint.restore(self._blank, _whole(path))
            by_seed[int(alone.seeds[0])] = (alone, 0)
        if all(where[0] is self._newest for where in by_seed.values()):
            return self._newest
        return joined([_lane(*by_seed[seed]) for seed in self.seeds])

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The metrics of one kind ("fit", "improve", "round", "stopped"), or all, in order."""
        return self._record.rows(kind)

    def snapshots(self) -> Iterator[tuple[int, dict[int, tuple[Learned, Policy]]]]:
        """Round by round every seed's model and policy, of a run with ``schedule.snapshots``."""
        like = self._blank.seeds, self._blank.fitting.learned, self._blank.agent.policy
        for path in sorted((self.folder / SNAPSHOTS).glob("round-*.ckpt")):
            contents = _whole(path)
            seeds, learned, policy = checkpoint.restore(like, contents)
            lanes = {
                int(seed): jax.tree.map(lambda leaf, lane=lane: leaf[lane], (learned, policy))
                for lane, seed in enumerate(seeds)
            }
            yield contents.metadata["round"], lanes

    @property
    def best_seed(self) -> int:
        """Solved before unsolved, then by the reward of its best evaluation."""
        state = self.state
        order = zip(state.solved_round > 0, state.best_reward, range(len(self.seeds)), strict=True)
        return self.seeds[max(order, key=lambda each: (each[0], each[1], -each[2]))[2]]

    def best_policy(self, seed: int | None = None) -> Callable[[Any], Any]:
        """The policy of a seed's best evaluation, as JAX knows it; of the best seed if none is named."""
        lane = self.lane(seed)
        return jax.tree.map(lambda leaf: np.asarray(leaf[lane]), self.state.best_policy)

    def lane(self, seed: int | None) -> int:
        """A seed's place among the run's; the best seed's if none is named."""
        seed = self.best_seed if seed is None else seed
        if seed not in self.seeds:
            raise UserError(f"this run has no seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        return self.seeds.index(seed)

    def policy(self, observation: Any, seed: int | None = None) -> np.ndarray:
        """The action at an observation, or at many, ``[.., observation]`` -> ``[.., action]`` in float64."""
        seen = np.asarray(observation, np.float64)
        size = self.environment.observation_size
        if seen.shape[-1:] != (size,) or not np.isfinite(seen).all():
            raise UserError(
                f"an observation is {size} finite numbers ({', '.join(self.environment.observation_names)}); "
                f"an array of shape {seen.shape} came."
            )
        chosen = self._policies.setdefault(seed, jax.tree.map(_to_float64, self.best_policy(seed)))
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            return np.asarray(_act(chosen, seen.reshape(-1, size))).reshape(*seen.shape[:-1], -1)

    @cached_property
    def _policies(self) -> dict[int | None, Any]:
        return {}

    def evaluate(
        self, trials: int = 10, seconds: float = 30.0, *, key: PRNGKeyArray, seed: int | None = None
    ) -> Evaluation:
        """Trials of a seed's policy in the true world, from the start distribution."""
        policy = jax.tree.map(_to_float64, self.best_policy(seed))
        return evaluate(self.environment, policy, trials=trials, seconds=seconds, key=key)

    def summary(self) -> dict[str, Any]:
        """What was achieved, one entry per seed."""
        last = {row["seed"]: row for row in self.rows("round")}
        solved = self.state.solved_round

        def each(name: str) -> list[Any]:
            return [last.get(seed, {}).get(name) for seed in self.seeds]

        return {
            "run": str(self.folder),
            "seeds": self.seeds,
            "rounds_to_solve": [int(round) or None for round in solved],
            "interaction_seconds": each("interaction_seconds"),
            "wall_seconds": each("wall_seconds"),
            "reward": each("reward"),
        }


def train(
    environment: Source,
    *,
    seeds: Sequence[int] = (0,),
    preset: str = "default",
    out: str | Path | None = None,
    budget: float | None = None,
    data: str | Path | Dataset | None = None,
    show: Show = silent,
    **settings: Any,
) -> Run:
    """Train a controller for an environment: a built-in name, a path of your own system, or an `Environment`.

    ``settings`` change the preset's, named as in `ctrlax.config`: ``agent__horizon=3.0`` or ``agent={"horizon": 3}``.
    ``data`` is a log to start from instead of random actions. The run is kept in ``out``. ``budget`` is in hours.
    """
    laboratory, configuration, dataset = prepare(
        environment, seeds=seeds, preset=preset, budget=budget, data=data, **settings
    )
    record = Record.create(folder_for(laboratory.config, out), make_header("train", configuration))
    state = laboratory.start(list(seeds), dataset)
    with Keeper(record, laboratory, show) as keeper:
        keeper.run(state)
    return Run(record.folder, laboratory.environment)


def prepare(
    environment: Source,
    *,
    seeds: Sequence[int],
    preset: str,
    budget: float | None = None,
    data: str | Path | Dataset | None = None,
    **settings: Any,
) -> tuple[Laboratory, dict[str, Any], Dataset | None]:
    """What a run needs before it begins, all of it checked: laboratory, configuration for the header, first data."""
    settings = {**settings, **({} if budget is None else {"schedule__budget": budget})}
    config = configure(preset, "", settings)
    if not isinstance(environment, Environment):
        environment = make(environment, variant=config.variant)
    named = configure(preset, environment.source or environment.name, settings)
    config = dataclasses.replace(named, variant=environment.variant)
    if config.schedule.budget is None:
        config = config.replaced(schedule__budget=float(environment.time_limit))
    _check_seeds(seeds)
    dataset = read(data) if isinstance(data, str | Path) else data
    if dataset is not None:
        _check_columns(dataset, environment, data)
    configuration = {
        **as_dict(config),
        "seeds": [int(seed) for seed in seeds],
        "environment_settings": dict(environment.settings),
        "environment_source": source_hash(environment.source),
        "data": None if data is None else str(data) if isinstance(data, str | Path) else "given as a Dataset",
    }
    return Laboratory(environment, config), configuration, dataset


def resume(folder: str | Path, *, environment: Source | None = None, show: Show = silent, **wanted: Any) -> Run:
    """Go on with a run that was stopped, as if it had not been.

    ``wanted`` is what the run is to be; it must agree with what is recorded, but for the rounds and the budget.
    """
    record = Record.open(folder)
    recorded = record.header["configuration"]
    check_resumable(record.header, recorded)
    if isinstance(environment, Environment):
        wanted["environment"] = environment.source or environment.name
    elif environment is not None:
        wanted["environment"], environment = os.fspath(environment), None
    asked = _asked(recorded, wanted)
    check_resumable(record.header, asked, FREE)
    environment = environment or _recorded_environment(Path(folder), record.header)
    config = from_dict(asked)
    laboratory = Laboratory(environment, config)
    state, _ = record.restore(blank(laboratory))
    if state.phase in (FIT, IMPROVE) and not state.iteration and state.experience.times.shape[1] > state.capacity:
        state = laboratory.with_room(state)  # it was at its end, and now has more rounds
    if asked != recorded:
        record.header["configuration"] = asked
        record.rewrite_header()
    with Keeper(record, laboratory, show) as keeper:
        keeper.run(state)
    return Run(record.folder, environment)


def load(folder: str | Path, environment: Environment | None = None) -> Run | FitRun:
    """A run of `train` or `fit` from its folder; ``environment`` is needed if it was trained on one made in Python."""
    if Record.open(folder).header.get("command") == "fit":
        return open_fit(folder)
    return Run(folder, environment)


def blank(laboratory: Laboratory) -> RunState:
    """A state of the laboratory's kind with nothing in it, any number of seeds, for `Record.restore`."""
    environment = laboratory.environment
    points = 2
    experience = Experience(
        np.broadcast_to(np.arange(points, dtype=np.float64), (1, 1, points)).copy(),
        np.zeros((1, 1, points, environment.observation_size)),
        np.zeros((1, 1, points, environment.action_size)),
        np.full((1, 1), points), np.zeros((1, 1), bool), np.zeros((1, 1), np.int64),
    )  # fmt: skip

    made = []  # traced, never computed: only shapes are wanted
    keys = jax.random.split(jax.random.key(0), (1, 5))
    jax.eval_shape(lambda: made.append(laboratory.begin([0], keys, experience)))
    return checkpoint.any_shape(made[0])


def source_hash(source: str) -> str | None:
    """SHA-256 of a user's own system file; a run goes on only with the system it was begun with."""
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source.endswith(".py") else None


def folder_for(config: Config, out: str | Path | None) -> Path:
    """Where a run goes: ``out``, or ``runs/ENV-PRESET-MODEL`` with a counter where that is taken."""
    if out is not None:
        return Path(out)
    name = f"{Path(config.environment).stem}-{config.preset}-{config.model.family}"
    taken = {path.name for path in RUNS.iterdir()} if RUNS.is_dir() else set()
    return RUNS / next(
        free for count in itertools.count(1) if (free := name if count == 1 else f"{name}-{count}") not in taken
    )


def _recorded_environment(folder: Path, header: dict[str, Any]) -> Environment:
    recorded = header["configuration"]
    name = recorded["environment"]
    if not name.endswith(".py") and name not in names():
        raise UserError(
            f"{folder} was trained on the environment {name!r}, made in Python: give it, as in "
            "`ctrlax.load(folder, environment=...)`."
        )
    return make(name, variant=recorded["variant"], **recorded["environment_settings"])


def _asked(recorded: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    asked = {**recorded, "environment_source": source_hash(recorded["environment"])}
    for name, value in flat(wanted):
        if name in ("environment", "preset", "seeds", "data"):
            asked[name] = list(value) if name == "seeds" else value
        else:
            config = changed(from_dict(asked), {name: value})
            asked = {**asked, **json.loads(json.dumps(as_dict(config)))}
    return asked


def _check_seeds(seeds: Sequence[int]) -> None:
    numbers = [int(seed) for seed in seeds]
    if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= seed < 2**32 for seed in numbers):
        raise UserError(f"seeds are different whole numbers from 0 to 2^32 - 1, at least one; {numbers} came.")


def _check_columns(dataset: Dataset, environment: Environment, source: Any) -> None:
    what = source if isinstance(source, str | Path) else "the dataset"
    for kind, found, wanted in (
        ("observations", dataset.observation_names, environment.observation_names),
        ("actions", dataset.action_names, environment.action_names),
    ):
        if tuple(found) != tuple(wanted):
            raise UserError(
                f"{what} has the {kind} {', '.join(found) or 'none'}, but {environment.name} has {', '.join(wanted)}. "
                "Expected the same names in the same order; rename or reorder the columns (docs/data.md)."
            )
    if not dataset.logs:
        raise UserError(f"{what} has no trajectory of two points or more to start from.")


def _whole(path: Path) -> checkpoint.Contents:
    try:
        return checkpoint.read(path)
    except checkpoint.DamagedError as error:
        raise UserError(f"{path} is refused: {error}. Put a copy of it back.") from None


def _lane(state: RunState, lane: int) -> RunState:
    return take(state, np.arange(len(state.seeds)) == lane)


def _to_float64(leaf: np.ndarray) -> np.ndarray:
    return np.asarray(leaf, np.float64)


@jax.jit
def _act(policy: Any, observations: Any) -> Any:
    return jax.vmap(policy)(observations)
