"""A dataset -> fitted members: chunks over the pure phases of `model.fit`, seeds (or any other lanes) as one program.

Between chunks the host looks: the guard, progress, and whether held-out windows still gain.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.lab.guard import Guard, select_lanes
from ctrlax.model import fit
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import AbstractField
from ctrlax.model.one_step import OneStepState
from ctrlax.model.training import AbstractTraining, training_of
from ctrlax.model.update import Health
from ctrlax.model.windows import Recording, Windows, cut, pack
from ctrlax.ode.control import LENGTH_SCALE
from ctrlax.ode.cores import all_cores, spread
from ctrlax.ode.solvers import named

CHUNK = 50  # updates between two looks of the host
HELD_WINDOWS = 64  # held-out windows that decide about stopping, evenly spaced
WHOLE = 4  # with fewer trajectories the end of each is held out, not whole ones
MATCHING_POINTS = 4000  # gradient matching looks at all points in every update: of more, at pieces evenly spaced
PIECE = 20  # points in such a piece

MATCH, FIT = "match", "fit"


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """What `fit_lanes` tells after every chunk; arrays have the lane axis first."""

    phase: str
    done: int  # updates of all phases
    total: int
    iteration: int  # updates of this phase
    metrics: dict[str, Float[np.ndarray, " lane"]]
    health: Health
    held_out: Float[np.ndarray, " lane"] | None  # NLL of held-out windows, nats per observed number in scaled units
    stopped: Bool[np.ndarray, " lane"]


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """What came of it; the lane axis first."""

    learned: fit.Learned
    updates: Int[np.ndarray, " lane"]  # of the dynamics, until the lane stopped
    kept: Int[np.ndarray, " lane"]  # the update whose parameters are kept
    seconds: float  # without compiling
    compile_seconds: float


@dataclasses.dataclass(frozen=True, eq=False)
class Material:
    """What a fit sees. With ``shared`` all lanes see the same; else every array has the lane axis first."""

    training: Recording
    matching: Recording
    held: Windows | None
    shared: bool


def material(
    datasets: Sequence[Dataset], settings: config.Fit, *, shared: bool, length_scale: float = LENGTH_SCALE
) -> Material:
    """One dataset for all lanes, or one for each."""
    parts = [_seen(dataset, settings, length_scale) for dataset in datasets]
    training, matching, held = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
    if shared:
        return Material(training[0], matching[0], held[0], True)
    return Material(_stacked(training), _stacked(matching), None if held[0] is None else _stacked(held), False)


def _seen(dataset: Dataset, settings: config.Fit, length_scale: float) -> tuple[Recording, Recording, Windows | None]:
    points = settings.window_points
    held = None
    if settings.held_out:
        dataset, waiting = without_some(dataset, settings.held_out)
        if any(len(log.times) >= points for log in waiting.logs):
            held = _held_windows(waiting, points, length_scale)
    if not any(len(log.times) >= points for log in dataset.logs):
        raise UserError(
            f"no trajectory to learn from has the {points} points of a window: "
            "record longer ones, or ask for shorter windows (fit__window_points)."
        )
    return _packed(dataset, length_scale), _packed(_thinned(dataset), length_scale), held


def without_some(dataset: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """What remains and a held-out ``share``: whole trajectories evenly spaced over the file, of few the end of each."""
    if not 0 < share < 1:
        raise UserError(f"a held-out share is a number between 0 and 1, but {share} came.")
    logs = dataset.logs
    if len(logs) >= WHOLE:
        count = max(1, round(share * len(logs)))
        chosen = {round((place + 0.5) * len(logs) / count - 0.5) for place in range(count)}
        kept = [log for place, log in enumerate(logs) if place not in chosen]
        held = [log for place, log in enumerate(logs) if place in chosen]
    else:
        halves = [round(len(log.times) * (1 - share)) for log in logs]
        kept = [_between(log, 0, half) for log, half in zip(logs, halves, strict=True)]
        held = [_between(log, half, None) for log, half in zip(logs, halves, strict=True)]
        kept, held = ([log for log in side if len(log.times) > 1] for side in (kept, held))
    if not kept or not held:
        raise UserError(
            f"holding out {share:g} of {len(logs)} trajectories with {dataset.points} points leaves one side empty: "
            "record more."
        )
    return dataclasses.replace(dataset, logs=tuple(kept)), dataclasses.replace(dataset, logs=tuple(held))


def _between(log: Log, first: int, last: int | None) -> Log:
    rewards = None if log.rewards is None else log.rewards[first:last]
    return Log(log.times[first:last], log.observations[first:last], log.actions[first:last], rewards)


def _thinned(dataset: Dataset) -> Dataset:
    if dataset.points <= MATCHING_POINTS:
        return dataset
    places = [
        (log, first) for log in dataset.logs for first in range(0, len(log.times) - 1, PIECE) if len(log.times) > first
    ]
    most = min(MATCHING_POINTS // PIECE, len(places))
    chosen = np.linspace(0, len(places) - 1, most).round().astype(int)
    pieces = [_between(places[i][0], places[i][1], places[i][1] + PIECE) for i in chosen]
    return dataclasses.replace(dataset, logs=tuple(piece for piece in pieces if len(piece.times) > 1))


def _packed(dataset: Dataset, length_scale: float) -> Recording:
    points = max(len(log.times) for log in dataset.logs)
    packed = pack(dataset, trajectories=len(dataset.logs), points=points, length_scale=length_scale)
    return jax.tree.map(jnp.asarray, packed)


def _held_windows(dataset: Dataset, points: int, length_scale: float) -> Windows:
    recording = _packed(dataset, length_scale)
    places = [
        (place, first)
        for place, log in enumerate(dataset.logs)
        for first in range(0, len(log.times) - points + 1, max(points - 1, 1))
    ]
    chosen = np.linspace(0, len(places) - 1, HELD_WINDOWS).round().astype(np.int32)  # few come several times
    trajectory, first = np.array(places, np.int32)[chosen].T
    return cut(recording, jnp.asarray(trajectory), jnp.asarray(first), points=points)


def _stacked(trees: list[Any]) -> Any:
    sizes = {tuple(leaf.shape for leaf in jax.tree.leaves(tree)) for tree in trees}
    if len(sizes) > 1:
        raise ValueError("lanes with data of their own need datasets of one size")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def fit_lanes(
    settings: config.Fit,
    learned: fit.Learned,
    seen: Material,
    *,
    key: Key[Array, " lane"],
    guard: Guard,
    seeds: Sequence[int],
    watch: Callable[[Progress], None] = lambda progress: None,
    one_step: config.OneStep | None = None,
) -> Fitted:
    """Gradient matching, then the ELBO; a lane stops when its held-out windows have not gained for some chunks.

    Transitions learn as ``one_step`` says instead, and hold out some of what they see themselves.

    ``key`` has the lane axis, as ``learned`` has. Of a lane with held-out windows the best parameters are kept, and
    what it computes after it stopped is not looked at: a seed's result does not depend on the seeds beside it.
    """
    training = training_of(type(learned.dynamics), settings, one_step or config.OneStep())
    lanes = len(seeds)
    clock = _Clock(learned.dynamics.member_count() if isinstance(learned.dynamics, AbstractField) else 1)
    split = jax.vmap(lambda one: jax.random.split(one, 3))(key)
    scale = np.ones(lanes, np.float32)
    total = training.matching_updates + training.updates
    best = _Best(learned, lanes, settings.patience)
    done, state = 0, None
    for phase, place in ((MATCH, 0), (FIT, 1)):
        count = training.matching_updates if phase == MATCH else training.updates
        recording = seen.matching if phase == MATCH else seen.training
        state = jax.vmap(lambda one, key: training.begin(one, key=key))(learned, split[:, place])
        length = chunk_length(count)
        for iteration in range(0, count, length) if count else ():

            def chunk(state, scale, phase=phase, recording=recording, length=length):
                return clock.run(
                    _updates, (training, phase == MATCH, length, seen.shared), state, recording, jnp.asarray(scale)
                )

            outcome = guard.run(chunk, state, scale, key=state.key, seeds=seeds, phase=phase, iteration=iteration)
            state, scale = outcome.state, outcome.step_scale
            done += length
            loss = None
            if phase == FIT and seen.held is not None:
                loss = np.asarray(
                    clock.run(_held_out_nll, (settings, seen.shared), state.learned, seen.held, split[:, 2])
                )
                best.look(state.learned, loss, iteration + length)
            rows = {name: np.asarray(value) for name, value in outcome.metrics.items()}
            if isinstance(state, OneStepState):
                _look_at_learners(best, training, state, iteration + length)
                loss = np.asarray(jnp.mean(state.lowest, axis=1)) if np.isfinite(state.lowest).all() else None
            watch(Progress(phase, done, total, iteration + length, rows, outcome.health, loss, best.stopped.copy()))
            if best.stopped.all():
                break
        learned = state.learned
    if isinstance(state, OneStepState):
        return Fitted(learned, best.updates, np.asarray(state.kept).max(axis=1), clock.running, clock.compiling)
    if seen.held is not None:
        return Fitted(best.learned, best.updates, best.kept, clock.running, clock.compiling)
    updates = np.full(lanes, training.updates)
    return Fitted(learned, updates, updates, clock.running, clock.compiling)


def _look_at_learners(best: _Best, training: AbstractTraining, state: OneStepState, updates: int) -> None:
    """A transition keeps its best weights itself; here it is only asked whether it has stopped."""
    best.updates = np.where(best.stopped, best.updates, updates)
    best.stopped = np.asarray(training.stopped(state))


def chunk_length(total: int) -> int:
    """The longest equal chunk of at most `CHUNK` updates: one shape, one compilation."""
    return max((length for length in range(1, min(CHUNK, total) + 1) if total % length == 0), default=1)


class _Best:
    """Every lane's parameters at the lowest held-out loss, and which lanes have waited long enough for a lower one."""

    def __init__(self, learned: fit.Learned, lanes: int, patience: int):
        self.learned = learned
        self.patience = patience
        self.loss = np.full(lanes, np.inf)
        self.kept = np.zeros(lanes, np.int64)
        self.updates = np.zeros(lanes, np.int64)
        self.waited = np.zeros(lanes, np.int64)
        self.stopped = np.zeros(lanes, bool)

    def look(self, learned: fit.Learned, loss: Float[np.ndarray, " lane"], updates: int) -> None:
        better = ~self.stopped & (loss < self.loss)
        self.learned = select_lanes(better, learned, self.learned)
        self.loss = np.where(better, loss, self.loss)
        self.kept = np.where(better, updates, self.kept)
        self.updates = np.where(self.stopped, self.updates, updates)
        self.waited = np.where(better, 0, self.waited + 1)
        if self.patience:
            self.stopped |= self.waited >= self.patience


_PROGRAMS: dict[Any, Any] = {}  # compiled in this process, by function, static arguments and shapes


class _Clock:
    """Compiles ahead of running, so that the two are told apart; so many members are shared out over the cores."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.running = 0.0
        self.compiling = 0.0

    def run(self, function: Any, static: tuple[Any, ...], *arguments: Any) -> Any:
        began = time.perf_counter()
        leaves, form = jax.tree.flatten(arguments)
        place = (function, static, form, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
        with all_cores(self.members) as everywhere:
            arguments = everywhere(arguments)
            if place not in _PROGRAMS:
                _PROGRAMS[place] = function.lower(*static, *arguments).compile()
                self.compiling += time.perf_counter() - began
                began = time.perf_counter()
            answer = jax.block_until_ready(everywhere(_PROGRAMS[place](*arguments)))
        self.running += time.perf_counter() - began
        return answer


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _updates(training, matching, length, shared, state, recordings, step_scale):
    update = training.match if matching else training.update

    def one(state, recording, scale):
        seen = training.prepared(state, recording)

        def step(carry, _):
            state, health = carry
            state, metrics = update(state, seen, scale)
            return (state, health.counted(metrics.applied, metrics.unhealthy)), (metrics.loss, metrics.error)

        (state, health), (loss, error) = jax.lax.scan(step, (state, Health.none()), None, length=length)
        return training.looked(state, seen), {"loss": jnp.mean(loss), "error": jnp.mean(error)}, health

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one, in_axes=(0, None if shared else 0, 0))(state, recordings, step_scale)


@partial(jax.jit, static_argnums=(0, 1))
def _held_out_nll(settings, shared, learned, windows, keys):
    """Mean over members; a member that leaves the world in one of these short windows has no use."""

    def one(learned: fit.Learned, windows: Windows, key: PRNGKeyArray) -> Array:
        members = spread(learned.dynamics.draw(key=key))
        likelihood = fit.LIKELIHOODS[settings.first_state]
        assert isinstance(learned.dynamics, AbstractField)
        judged = likelihood(learned.dynamics, members, windows, learned.log_noise, named(settings.solver))
        mean = -jnp.mean(judged.log_likelihood) / (judged.wrong.shape[-1] * judged.wrong.shape[-2])
        return jnp.where(jnp.all(judged.healthy), mean, jnp.inf)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one, in_axes=(0, None if shared else 0, 0))(learned, windows, keys)
