"""Ten ENODE samples of an Acrobot path, and continuous and discrete models along one path (claim 15)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.forecast import roll, stretches
from ctrlax.lab.gallery import COLORS, Panel
from ctrlax.lab.rounds import run_folder
from ctrlax.lab.run import Run
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.scales import wanted as run_of
from ctrlax.lab.strokes import Row, column, look, nothing, unique
from ctrlax.model.dataset import Dataset
from ctrlax.model.training import mean_rate
from ctrlax.ode.solvers import named
from ctrlax.world.collect import simulate
from ctrlax.world.grids import fixed_times

ANSWERS = (15,)  # claims
TITLE = "ENODE samples and a discrete-time model's states"
CAPTION = (
    "The models at the end of a run, along a path of the run's best policy in the true world. Left: every member of "
    "ENODE from the path's first state under the path's actions. Middle: the true path, the members' mean, and the "
    "states of one member of PETS, which knows the path only every 0.1 s. Right: how far members disagree about the "
    "rate of change on the run's data and on states drawn up to three times as far out. The text shows Acrobot."
)
MODELS = ("enode", "pets")
SECONDS, FINE, COARSE = 3.0, 0.02, 0.1
FAR = 3.0  # times the data's reach
AGREE = np.log10(1 / 3)  # members disagree less than a third as much on data as away from it


def wanted(scale: Scale) -> list[Wanted]:
    """One run of each model; smoke takes what the other figures have anyway."""
    environment = scale.environments[0] if scale.smoke else "acrobot"
    return [
        run_of(scale, environment, model, labels={"environment": environment, "model": model})
        for model in (MODELS[:1] if scale.smoke else MODELS)
    ]  # fmt: skip


def table(made: Made) -> list[Row]:
    """Rows of kind `path` by model, member and time, and of kind `spread` by seed."""
    rows: list[Row] = []
    ours = run_folder(made, model="enode")
    if ours is None:
        return rows
    run = Run(ours)
    rows += _true(run) + _members(run, run, "enode", FINE) + _spreads(run)
    theirs = run_folder(made, model="pets")
    return rows + (_members(Run(theirs), run, "pets", COARSE) if theirs else [])


def _dataset(run: Run, step: float) -> Dataset:
    """One path of the best policy, observed so often."""
    environment = run.environment
    starts = environment.draw_starts(1, key=jax.random.key(3))
    policy = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), run.best_policy())
    seen = simulate(environment, policy, fixed_times(step, SECONDS), key=jax.random.key(0), starts=starts)
    return Dataset.from_trajectory(seen, environment, hold="gp")


def _true(run: Run) -> list[Row]:
    log = _dataset(run, FINE).logs[0]
    return [_row("true", 0, time, seen) for time, seen in zip(log.times, log.observations, strict=True)]


def _row(model: str, member: int, time: float, seen: Float[np.ndarray, " observation"]) -> Row:
    return {"kind": "path", "model": model, "member": member, "time": round(float(time), 6), "seen": seen.tolist()}


def _members(run: Run, of: Run, model: str, step: float) -> list[Row]:
    """Every member along the path of another run's policy, open loop, under the path's actions."""
    dataset = _dataset(of, step)
    learned = jax.tree.map(lambda leaf: leaf[run.seeds.index(run.best_seed)], run.state.fitting.learned)
    pieces = stretches(dataset, SECONDS, overlapping=False)
    paths = np.asarray(_rolled(run.config.fit.solver, learned, pieces, jax.random.key(4)))[:, 0]
    log, rows = dataset.logs[0], []
    for member, path in enumerate(paths):
        rows.append(_row(model, member, 0.0, log.observations[0]))
        rows += [_row(model, member, time, seen) for time, seen in zip(log.times[1:], path, strict=False)]
    return rows


@partial(jax.jit, static_argnums=0)
def _rolled(solver, learned, pieces, key):
    with jax.default_matmul_precision("highest"):
        return roll(learned.dynamics, learned.dynamics.draw(key=key), pieces, named(solver))[0]


def _spreads(run: Run) -> list[Row]:
    """By seed: standard deviation over members of the rate, on data and away from it, in units of the data's."""
    experience, random = run.state.experience, np.random.default_rng(8)
    rows = []
    for lane, seed in enumerate(run.seeds):
        present = np.arange(experience.times.shape[2]) < experience.counts[lane][:, None]
        seen, acted = experience.observations[lane][present], experience.actions[lane][present]
        middle, reach = seen.mean(axis=0), np.abs(seen - seen.mean(axis=0)).max(axis=0)
        away = middle + FAR * reach * random.uniform(-1, 1, seen.shape)
        learned = jax.tree.map(lambda leaf, lane=lane: leaf[lane], run.state.fitting.learned)
        on, off = (np.asarray(_spread(learned, jnp.asarray(each, jnp.float32), jnp.asarray(acted, jnp.float32)))
                   for each in (seen, away))  # fmt: skip
        rows.append({"kind": "spread", "seed": seed, "on_data": float(on.mean()), "away": float(off.mean())})
    return rows


@jax.jit
def _spread(learned, observations, actions):
    dynamics = learned.dynamics
    members = dynamics.draw(key=jax.random.key(9))

    def rates(member):
        return jax.vmap(lambda o, a: mean_rate(dynamics, member, o, a) / dynamics.length_scales())(
            observations, actions
        )

    return jnp.sqrt(jnp.mean(jnp.var(jax.vmap(rates)(members), axis=0), axis=-1))


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Samples, one path, and the members' disagreement."""
    paths, spreads = ([row for row in rows if row["kind"] == kind] for kind in ("path", "spread"))
    true = [row for row in paths if row["model"] == "true"]

    def first(own: Sequence[Row]) -> np.ndarray:
        return np.array([np.nan if row["seen"][0] is None else row["seen"][0] for row in own])

    def framed(axes: Any, title: str) -> None:
        axes.set_title(title)
        axes.set_xlabel("time [s]")
        axes.set_ylabel("first coordinate observed")
        middle, room = first(true), 0.6
        axes.set_ylim(middle.min() - room, middle.max() + room)
        axes.legend(fontsize=7)

    def samples(axes: Any) -> None:
        ours = [row for row in paths if row["model"] == "enode"]
        for member in unique(ours, "member"):
            own = [row for row in ours if row["member"] == member]
            label = "members of ENODE" if member == 0 else None
            axes.plot(column(own, "time"), first(own), color=COLORS["blue"], linewidth=0.9, alpha=0.6, label=label)
        axes.plot(column(true, "time"), first(true), color=COLORS["ink"], linewidth=2.2, label="true")
        framed(axes, "Every member from the first state")

    def one(axes: Any) -> None:
        axes.plot(column(true, "time"), first(true), color=COLORS["ink"], linewidth=2.2, label="true")
        ours = [row for row in paths if row["model"] == "enode"]
        times = sorted(unique(ours, "time"))
        mean = [np.nanmean(first([row for row in ours if row["time"] == time])) for time in times]
        axes.plot(times, mean, color=COLORS["blue"], label="ENODE, mean", linestyle="--")
        theirs = [row for row in paths if row["model"] == "pets" and row["member"] == 0]
        style = {**look("pets", MODELS), "linestyle": "none"}
        if theirs:
            axes.plot(column(theirs, "time"), first(theirs), label="PETS, one member", markersize=3.5, **style)
        framed(axes, "One path: continuous and every 0.1 s")

    def disagreement(axes: Any) -> None:
        for place, what in enumerate(("on_data", "away")):
            own = column(spreads, what)
            axes.plot(np.full(len(own), place), own, "o", color=COLORS["blue"])
        axes.set_yscale("log")
        axes.set_xlim(-0.5, 1.5)
        axes.set_xticks([0, 1], ["on data", f"up to {FAR:g} times out"])
        axes.set_ylabel("spread of members' rates [std / s]")
        axes.set_title("Where ENODE's members agree")

    if not rows:
        return (lambda axes: nothing(axes, "no run of ENODE"),)
    return samples, one, disagreement


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 15's second half."""
    spreads = [row for row in rows if row["kind"] == "spread"]
    if not spreads:
        return [unanswered(15, "no run of enode")]
    ratios = np.log10(column(spreads, "on_data") / column(spreads, "away"))
    measure = f"log10 ratio of the members' spread on data and away from it, by seed, below {AGREE:.2f} (a third)"
    return [judge(15, measure, ratios, below=float(AGREE))]
