"""Fitted members rolled along data: how wrong they are, how likely the data is to them, and their bands."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ctrlax.lab.checkpoint import write_aside
from ctrlax.model import formats
from ctrlax.model.columns import FORMAT_VERSION
from ctrlax.model.dataset import Dataset
from ctrlax.model.dynamics import AbstractDynamics, Members
from ctrlax.model.fit import WINDOW_LIMIT, Learned
from ctrlax.model.training import roll_windows
from ctrlax.model.windows import Windows, pack
from ctrlax.ode.control import LENGTH_SCALE
from ctrlax.ode.solvers import SolverSetting, named

HORIZONS = (0.5, 1.0, 2.0)  # s, at which held-out errors are reported
INTERVAL = 0.9  # probability inside the bands
SECTION = 8  # observation intervals in one call of the solver: an adaptive one may take 256 steps in each
MOST_STARTS = 2000  # of a long recording, evenly spaced
NEAR = 0.1  # share of a horizon by which an irregular observation may miss it


class Stretches(eqx.Module):
    """Pieces of trajectories to predict, padded at their ends with steps in which no time passes."""

    starts: Float[np.ndarray, "start observation"]
    targets: Float[np.ndarray, "start interval observation"]
    steps: Float[np.ndarray, "start interval"]
    paths: Float[np.ndarray, "start interval coefficient action"]
    elapsed: Float[np.ndarray, "start interval"]  # s since the start, NaN in the padding


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of one fitted model on data it has not seen; `docs/fitting.md` says what each number means."""

    error: dict[str, float | None]  # horizon in seconds -> mean over coordinates, in standard deviations
    nll: float | None  # nats per observed number, in standard deviations
    coverage90: float | None
    starts: int
    diverged: int  # predictions of single members that left the world
    by_coordinate: dict[str, list[float | None]]


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """One trajectory as the model predicts it, and the band around it; the first row is where it started."""

    times: Float[np.ndarray, " time"]
    mean: Float[np.ndarray, "time observation"]
    low: Float[np.ndarray, "time observation"]
    high: Float[np.ndarray, "time observation"]
    spread: Float[np.ndarray, "time observation"]  # standard deviation of the members, without noise
    healthy: bool


def stretches(
    dataset: Dataset,
    seconds: float,
    *,
    least: float = 0.0,
    most: int | None = None,
    overlapping: bool = True,
    length_scale: float = LENGTH_SCALE,
) -> Stretches:
    """Up to ``seconds`` of data from every point that has ``least`` seconds after it; or end to end."""
    longest = max(len(log.times) for log in dataset.logs)
    recording = pack(dataset, trajectories=len(dataset.logs), points=longest, length_scale=length_scale)
    chosen = [
        (place, first, last)
        for place, log in enumerate(dataset.logs)
        for first, last in _spans(log.times, seconds * (1 + NEAR if overlapping else 1 + 1e-9), overlapping)
        if log.times[-1] - log.times[first] >= least * (1 - NEAR)
    ]
    if most is not None and len(chosen) > most:
        chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, most).round().astype(int)]
    if not chosen:
        return _nothing(dataset)
    intervals = max(last - first for _, first, last in chosen)
    intervals = -(-intervals // SECTION) * SECTION
    trajectory, first, last = np.array(chosen).T
    passed = np.arange(intervals)
    real = passed < (last - first)[:, None]
    place = np.minimum(first[:, None] + passed, longest - 2)
    times = np.stack([np.pad(log.times, (0, longest - len(log.times)), mode="edge") for log in dataset.logs])
    elapsed = times[trajectory[:, None], place + 1] - times[trajectory, first][:, None]
    observations = np.asarray(recording.observations)
    return Stretches(
        observations[trajectory, first],
        observations[trajectory[:, None], place + 1],
        np.where(real, np.asarray(recording.steps)[trajectory[:, None], place], 0.0).astype(np.float32),
        np.asarray(recording.paths)[trajectory[:, None], place],
        np.where(real, elapsed, np.nan),
    )


def _spans(times: Float[np.ndarray, " time"], seconds: float, overlapping: bool) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(times) - 1:
        last = int(np.searchsorted(times, times[first] + seconds, side="right")) - 1
        if overlapping:
            if last > first:
                yield first, last
            first += 1
        else:
            last = max(last, first + 1)
            yield first, last
            first = last


def _nothing(dataset: Dataset) -> Stretches:
    observed, acted = len(dataset.observation_names), len(dataset.action_names)
    return Stretches(
        np.zeros((0, observed), np.float32), np.zeros((0, SECTION, observed), np.float32),
        np.zeros((0, SECTION), np.float32), np.zeros((0, SECTION, 1, acted), np.float32), np.zeros((0, SECTION)),
    )  # fmt: skip


def roll(
    dynamics: AbstractDynamics, members: Members, pieces: Stretches, setting: SolverSetting
) -> tuple[Float[Array, "member start interval observation"], Bool[Array, "member start"]]:
    """Every member along every stretch, and whether it stayed in the world; beyond its limit a path stands still."""
    limit = WINDOW_LIMIT * dynamics.length_scales()
    count = pieces.steps.shape[1] // SECTION

    def sections(array: Array) -> Array:
        return jnp.moveaxis(array.reshape(array.shape[0], count, SECTION, *array.shape[2:]), 1, 0)

    def one(member: Members) -> tuple[Array, Array]:
        alone = jax.tree.map(lambda leaf: leaf[None], member)
        present = jnp.ones(pieces.starts.shape[0], bool)

        def section(start: Array, piece: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            steps, paths = piece
            targets = jnp.zeros((*steps.shape, start.shape[-1]), start.dtype)
            states, healthy, _ = roll_windows(dynamics, alone, Windows(start, targets, steps, paths, present), setting)
            states = jnp.clip(jnp.nan_to_num(states[0], nan=jnp.inf), -limit, limit)
            return states[:, -1], (states, healthy[0])

        pieced = (sections(jnp.asarray(pieces.steps)), sections(jnp.asarray(pieces.paths)))
        _, (states, healthy) = jax.lax.scan(section, jnp.asarray(pieces.starts), pieced)
        states = jnp.moveaxis(states, 0, 1)
        return states.reshape(states.shape[0], -1, states.shape[-1]), jnp.all(healthy, axis=0)

    return jax.lax.map(one, members)


def score(
    learned: Learned,
    pieces: Stretches,
    *,
    unit: Float[np.ndarray, " observation"],
    solver: str,
    key: PRNGKeyArray,
    horizons: Sequence[float] = HORIZONS,
) -> Scores:
    """How well one fitted model predicts stretches up to the longest of ``horizons``.

    The prediction is the members' mean. Its error at a horizon ``H`` is, over every start with an observation near
    ``t + H``, the root mean squared error of each coordinate in its ``unit``, averaged over coordinates. The predictive
    distribution of an observation is the mixture ``1/M sum_m N(S_m(y_0), Sigma)`` of the members' paths with the
    learned noise: ``nll`` is its mean negative log density and ``coverage90`` the share of numbers inside its central
    90 % interval, both over all observations up to the longest horizon.
    """
    if len(pieces.starts) == 0:
        names = [f"{horizon:g}" for horizon in horizons]
        return Scores(dict.fromkeys(names), None, None, 0, 0, {name: [] for name in names})
    unit32 = jnp.asarray(unit, jnp.float32)
    mean, log_density, level, healthy = (np.asarray(part) for part in _judged(solver, learned, pieces, unit32, key))
    inside = np.nan_to_num(pieces.elapsed, nan=np.inf) <= max(horizons) * (1 + 1e-6)
    tail = (1 - INTERVAL) / 2
    covered = (level >= tail) & (level <= 1 - tail)
    wrong = (mean - pieces.targets) / unit
    errors, coordinates = {}, {}
    for horizon in horizons:
        each = _error_at(horizon, wrong, pieces.elapsed)
        errors[f"{horizon:g}"] = None if each is None else float(each.mean())
        coordinates[f"{horizon:g}"] = [] if each is None else [float(value) for value in each]
    return Scores(
        errors,
        float(-log_density[inside].mean()) if inside.any() else None,
        float(covered[inside].mean()) if inside.any() else None,
        len(pieces.starts),
        int((~healthy).sum()),
        coordinates,
    )


def _error_at(
    horizon: float, wrong: Float[np.ndarray, "start interval observation"], elapsed: Float[np.ndarray, "start interval"]
) -> Float[np.ndarray, " observation"] | None:
    missed = np.nan_to_num(np.abs(elapsed - horizon), nan=np.inf)
    nearest = missed.argmin(axis=1)
    starts = np.arange(len(wrong))
    counted = missed[starts, nearest] <= NEAR * horizon
    if not counted.any():
        return None
    return np.sqrt((wrong[starts, nearest][counted] ** 2).mean(axis=0))


@partial(jax.jit, static_argnums=0)
def _judged(solver, learned, pieces, unit, key):
    with jax.default_matmul_precision("highest"):
        paths, healthy = roll(learned.dynamics, learned.dynamics.draw(key=key), pieces, named(solver))
    noise = raw_noise(learned)
    standard = (pieces.targets - paths) / noise
    log_normal = -0.5 * standard**2 - jnp.log(noise / unit) - 0.5 * jnp.log(2 * jnp.pi)
    together = jax.nn.logsumexp(jnp.sum(log_normal, axis=-1), axis=0) - jnp.log(paths.shape[0])
    level = jnp.mean(jax.scipy.special.ndtr(standard), axis=0)
    return jnp.mean(paths, axis=0), together / paths.shape[-1], level, healthy


def raw_noise(learned: Learned) -> Float[Array, " observation"]:
    """The learned noise's standard deviation in the data's own units."""
    return jnp.exp(learned.log_noise) * learned.dynamics.length_scales()


def forecast(
    learned: Learned,
    dataset: Dataset,
    *,
    solver: str,
    key: PRNGKeyArray,
    restart: float | None = None,
    length_scale: float = LENGTH_SCALE,
) -> list[Forecast]:
    """Every trajectory predicted from its first observation to its end, or anew every ``restart`` seconds."""
    seconds = restart or float("inf")
    pieces = stretches(dataset, seconds, overlapping=False, length_scale=length_scale)
    mean, low, high, spread, healthy = (np.asarray(part) for part in _banded(solver, learned, pieces, key))
    answer, place = [], 0
    for log in dataset.logs:
        count = sum(1 for _ in _spans(log.times, seconds * (1 + 1e-9), overlapping=False))
        rows = slice(place, place + count)
        real = np.isfinite(pieces.elapsed[rows])
        start = log.observations[:1]
        middle, below, above = (np.concatenate([start, part[rows][real]]) for part in (mean, low, high))
        spreads = np.concatenate([np.zeros_like(start), spread[rows][real]])
        answer.append(Forecast(log.times, middle, below, above, spreads, bool(healthy[:, rows].all())))
        place += count
    return answer


def write_forecasts(dataset: Dataset, forecasts: Sequence[Forecast], path: Path) -> None:
    """A row per point: ``episode``, ``time``, and ``mean.<name>``, ``low.<name>``, ``high.<name>`` of observations."""
    form = formats.named(path.suffix)
    columns = {
        "episode": np.repeat(np.arange(len(forecasts)), [len(each.times) for each in forecasts]),
        "time": np.concatenate([each.times for each in forecasts]),
    }
    for part in ("mean", "low", "high"):
        values = np.concatenate([getattr(each, part) for each in forecasts])
        columns |= {f"{part}.{name}": values[:, place] for place, name in enumerate(dataset.observation_names)}
    told = {"format_version": FORMAT_VERSION, "units": dict(dataset.units), "interval": INTERVAL}
    with tempfile.TemporaryFile() as content:
        form.encode(content, columns, formats.as_metadata(told))
        content.seek(0)
        write_aside(path, [content.read()])


@partial(jax.jit, static_argnums=0)
def _banded(solver, learned, pieces, key):
    with jax.default_matmul_precision("highest"):
        paths, healthy = roll(learned.dynamics, learned.dynamics.draw(key=key), pieces, named(solver))
    tail = (1 - INTERVAL) / 2
    low, high = (mixture_quantile(paths, raw_noise(learned), level) for level in (tail, 1 - tail))
    return jnp.mean(paths, axis=0), low, high, jnp.std(paths, axis=0), healthy


def mixture_quantile(
    middles: Float[Array, "member *place"], noise: Float[Array, " observation"], level: float
) -> Float[Array, "*place"]:
    """Where the mixture of Gaussians around ``middles`` has the probability ``level`` below it, by bisection."""
    reach = 8 * noise  # beyond it a Gaussian's tail is below float32's resolution of one
    between = jnp.min(middles, axis=0) - reach, jnp.max(middles, axis=0) + reach

    def halved(_: Array, between: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = between
        middle = (low + high) / 2
        below = jnp.mean(jax.scipy.special.ndtr((middle - middles) / noise), axis=0) < level
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 40, halved, between)
    return (low + high) / 2
