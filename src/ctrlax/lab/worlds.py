"""Pictures of one seed from the last checkpoint: what its model imagines, what its critic expects, how it acts."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ctrlax.agent.roll import imagination_of
from ctrlax.lab.evaluate import SAMPLE_STEP, Evaluation, evaluate
from ctrlax.lab.gallery import COLORS, Film, Panel, Picture
from ctrlax.lab.run import Run
from ctrlax.model.registry import makes_transitions
from ctrlax.world.render import write_gif

TRIALS = 10
FILM_SECONDS = 10.0
GRID = 121  # points of the state plane along each axis
WORDS = {"cos": "Cosine of", "sin": "Sine of"}


@dataclasses.dataclass(frozen=True, eq=False)
class Specimen:
    """One seed of a run, acting in the true world from ten starts that are the same whenever it is drawn."""

    run: Run
    seed: int

    def own(self, tree: Any) -> Any:
        """Its part of what has the seed axis first."""
        lane = list(self.run.seeds).index(self.seed)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[lane]), tree)

    @cached_property
    def policy(self) -> Any:
        """The one the run answers with: of the best evaluation so far."""
        return jax.tree.map(jnp.asarray, self.run.best_policy(self.seed))

    @cached_property
    def trials(self) -> Evaluation:
        seconds = self.run.config.schedule.trial_seconds
        return evaluate(self.run.environment, self.policy, trials=TRIALS, seconds=seconds, key=jax.random.key(0))

    @cached_property
    def hardest(self) -> int:
        """The trial with the least reward; one that could not be solved counts as that."""
        trajectory = self.trials.trajectory
        return int(np.argmin(np.where(trajectory.healthy, trajectory.rewards.mean(axis=1), -np.inf)))

    @cached_property
    def acted(self) -> str:
        """What the hardest trial came to, in words."""
        return "holds the goal" if self.trials.held[self.hardest] else "does not hold the goal"


def typical(run: Run) -> Specimen:
    """The seed whose last reward is the median: neither the best nor the worst is what a run can be judged by."""
    last = {row["seed"]: row["reward"] for row in run.rows("round")}
    known = sorted((seed for seed in last if last[seed] is not None), key=lambda seed: last[seed])
    chosen = known[(len(known) - 1) // 2] if known else run.seeds[0]
    return Specimen(run, int(chosen))


def imagined(one: Specimen) -> Picture:
    """Every member's imagination from the start of a true roll-out, beside that roll-out."""
    config, environment = one.run.config, one.run.environment
    seconds = max(2 * config.agent.horizon, environment.rise_time + 1)
    count = round(seconds / SAMPLE_STEP) + 1
    trajectory, trial = one.trials.trajectory, one.hardest
    times, truth = trajectory.times[trial, :count], trajectory.observations[trial, :count]
    states, returns, healthy = _imagine(one, truth[0], times)
    caption = (
        f"Seed {one.seed}, from the hardest of {TRIALS} starts: the policy in the true world (thick) and inside "
        + (f"each of the model's {len(states)} members (thin). " if len(states) > 1 else "the model (thin). ")
        + f"The agent learns from the first {config.agent.horizon:g} s, left of the dashed line; "
        "a member that runs away leaves the frame."
        + (f" {np.sum(~healthy)} members left the data's range by far and are not drawn." if not healthy.all() else "")
    )
    rates = np.exp(-times / config.agent.discount_time) * trajectory.rewards[trial, :count]
    gained = np.concatenate([[0.0], np.cumsum(np.diff(times) * (rates[1:] + rates[:-1]) / 2)])
    panels = [
        _coordinate(
            _worded(name),
            f"{name} [{_unit(one, name)}]".removesuffix(" []"),
            times,
            truth[:, place],
            states[healthy][:, :, place],
            config.agent.horizon,
        )
        for place, name in enumerate(environment.observation_names)
    ]
    panels.append(
        _coordinate(
            "Reward gained, discounted", "reward rate x s", times, gained, returns[healthy], config.agent.horizon
        )
    )
    return Picture("imagined", "Imagined and true trajectories", caption, tuple(panels))


def landscape(one: Specimen) -> Picture | None:
    """Critic and policy over the state plane with the roll-outs, where the state has two coordinates."""
    environment = one.run.environment
    if environment.state_size != 2:
        return None
    spans = [_span(one, place) for place in range(2)]
    across, up = (np.linspace(low, high, GRID) for low, high in spans)
    plane = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2).astype(np.float32)
    critic = one.own(one.run.state.agent.critic)
    observations = jax.vmap(environment.observe)(jnp.asarray(plane))
    value = np.asarray(jax.vmap(critic)(observations)).reshape(GRID, GRID)
    actions = np.asarray(jax.vmap(one.policy)(observations)).reshape(GRID, GRID, -1)
    paths = _paths(one)
    panels = [_plane(one, "What the critic expects", "value [reward rate x s]", spans, value, paths)]
    units = environment.action_units or ("",) * environment.action_size
    for place, name in enumerate(environment.action_names):
        bounds = (environment.action_low[place], environment.action_high[place])
        label = f"{name} [{units[place]}]" if units[place] else name
        panels.append(_plane(one, f"What the policy does: {name}", label, spans, actions[..., place], paths, bounds))
    caption = (
        f"Seed {one.seed}: newest critic and best policy over the state plane, and {TRIALS} true roll-outs from their "
        f"starts (dots); the bold one is the hardest start, which {one.acted}."
    )
    return Picture("landscape", "Value and action over the state plane", caption, tuple(panels))


def film(one: Specimen) -> Film:
    """The policy in the true world from the hardest of ten starts."""
    trajectory, trial = one.trials.trajectory, one.hardest
    count = min(round(FILM_SECONDS / SAMPLE_STEP) + 1, trajectory.times.shape[1])
    shown = (trajectory.times, trajectory.states, trajectory.actions)
    times, states, actions = (array[trial, :count] for array in shown)
    caption = (
        f"Seed {one.seed} in the true world from the hardest of {TRIALS} starts, which {one.acted}; the first "
        f"{times[-1]:g} of {trajectory.times[trial, -1]:g} s, at the speed of the world."
    )
    return Film(
        "policy", "The policy at work", caption,
        lambda path: write_gif(one.run.environment, times, states, actions, path),
    )  # fmt: skip


def _imagine(
    one: Specimen, start: np.ndarray, times: np.ndarray
) -> tuple[Float[np.ndarray, "member time observation"], Float[np.ndarray, "member time"], Bool[np.ndarray, " member"]]:
    agent = dataclasses.replace(one.run.laboratory.agent_settings, members_per_start="all")
    dynamics = one.own(one.run.state.fitting.learned.dynamics)

    @jax.jit
    def solved(begin: Array, moments: Array):
        imagination = imagination_of(agent, dynamics, begin[None], key=jax.random.key(0))
        return imagination.run(agent, one.policy, one.run.environment.reward_rate, moments)

    instants = times
    if makes_transitions(one.run.config.model.family):  # its moments are its steps; lines between them
        count = int(np.floor(times[-1] / one.run.config.sampling.dt * (1 + 1e-9)))
        instants = one.run.config.sampling.dt * np.arange(count + 1)

    with jax.default_matmul_precision("highest"):
        answer = solved(jnp.asarray(start, jnp.float32), jnp.asarray(instants, jnp.float32))
    states, returns = np.asarray(answer.states[:, 0]), np.asarray(answer.returns[:, 0])
    if len(instants) != len(times):
        places = np.interp(times, instants, np.arange(len(instants)))
        below = np.minimum(places.astype(int), len(instants) - 2)
        share = places - below
        states, returns = (
            (1 - w) * part[:, below] + w * part[:, below + 1]
            for part, w in ((states, share[:, None]), (returns, share))
        )
    return states, returns, np.asarray(answer.healthy[:, 0])


def _worded(name: str) -> str:
    kind, _, rest = name.partition("_")
    return f"{WORDS[kind]} {rest}" if kind in WORDS else name


def _coordinate(
    title: str, label: str, times: np.ndarray, truth: np.ndarray, members: np.ndarray, horizon: float
) -> Panel:
    def draw(axes: Any) -> None:
        for place, member in enumerate(members):
            axes.plot(
                times, member, color=COLORS["orange"], linewidth=0.8, alpha=0.75, label=None if place else "imagined"
            )
        axes.plot(times, truth, color=COLORS["blue"], linewidth=2.4, label="true", zorder=1.5)
        axes.axvline(horizon, color=COLORS["ink"], linewidth=1, linestyle=(0, (4, 3)))
        # A member that runs away must not flatten the truth.
        low, high = truth.min(), truth.max()
        room = max(high - low, 1e-3)
        lowest, highest = members.min(initial=low), members.max(initial=high)
        axes.set_ylim(max(lowest, low - room) - 0.05 * room, min(highest, high + room) + 0.05 * room)
        axes.set_xlim(times[0], times[-1])
        axes.set_title(title)
        axes.set_xlabel("time [s]")
        axes.set_ylabel(label)
        axes.legend(loc="best")

    return draw


def _unit(one: Specimen, name: str) -> str:
    environment = one.run.environment
    return dict(zip(environment.state_names, environment.state_units, strict=False)).get(name, "")


def _span(one: Specimen, place: int) -> tuple[float, float]:
    environment = one.run.environment
    if environment.state_names[place] in environment.angles:
        return -np.pi, np.pi
    seen = one.trials.trajectory.states[one.trials.trajectory.healthy][..., place]
    low = min(environment.start_low[place], float(seen.min(initial=environment.start_low[place])))
    high = max(environment.start_high[place], float(seen.max(initial=environment.start_high[place])))
    return low - 0.08 * (high - low), high + 0.08 * (high - low)


def _paths(one: Specimen) -> list[np.ndarray]:
    """Every healthy trial, the hardest last, its angles without jumps."""
    trajectory = one.trials.trajectory
    order = [trial for trial in range(len(trajectory.healthy)) if trial != one.hardest] + [one.hardest]
    return [
        path for trial in order if trajectory.healthy[trial] for path in [_unwrapped(one, trajectory.states[trial])]
    ]


def _unwrapped(one: Specimen, path: np.ndarray) -> np.ndarray:
    environment = one.run.environment
    columns = zip(environment.state_names, path.T, strict=True)
    return np.stack([np.unwrap(column) if name in environment.angles else column for name, column in columns], axis=1)


def _turns(one: Specimen, path: np.ndarray) -> list[np.ndarray]:
    """The path as often as its angles come round, so that what leaves the plane on one side enters on the other."""
    copies = [path]
    for place, name in enumerate(one.run.environment.state_names):
        if name in one.run.environment.angles:
            first, last = (
                int(np.floor((end + np.pi) / (2 * np.pi))) for end in (path[:, place].min(), path[:, place].max())
            )
            shifts = [2 * np.pi * turn * np.eye(path.shape[1])[place] for turn in range(first, last + 1)]
            copies = [copy - shift for copy in copies for shift in shifts]
    return copies


def _plane(
    one: Specimen,
    title: str,
    label: str,
    spans: list[tuple[float, float]],
    height: np.ndarray,
    paths: list[np.ndarray],
    bounds: tuple[float, float] | None = None,
) -> Panel:
    environment = one.run.environment
    low, high = bounds or (None, None)

    def draw(axes: Any) -> None:
        image = axes.imshow(
            height, origin="lower", extent=(*spans[0], *spans[1]), aspect="auto", interpolation="bilinear",
            cmap="PuOr" if bounds else "viridis", vmin=low, vmax=high,
        )  # fmt: skip
        axes.grid(False)
        for path in paths:
            bold = path is paths[-1]
            for turn in _turns(one, path):
                axes.plot(*turn.T, color="white", linewidth=3.4 if bold else 1.8, alpha=1 if bold else 0.5)
                axes.plot(*turn.T, color="black", linewidth=1.6 if bold else 0.6)
                axes.plot(*turn[0], "o", color="black", markeredgecolor="white", markersize=6 if bold else 4)
        axes.set_xlim(*spans[0])
        axes.set_ylim(*spans[1])
        axes.set_title(title)
        for place, put in enumerate((axes.set_xlabel, axes.set_ylabel)):
            name = environment.state_names[place]
            put(f"{name} [{_unit(one, name)}]" if _unit(one, name) else name)
        axes.figure.colorbar(image, ax=axes, label=label)

    return draw
