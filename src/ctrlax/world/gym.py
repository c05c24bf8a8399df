"""The same worlds for Gymnasium, and any Gymnasium world for us."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ctrlax.errors import UserError
from ctrlax.world import load
from ctrlax.world.environment import Environment
from ctrlax.world.gym_ids import register
from ctrlax.world.gym_record import record
from ctrlax.world.held import HeldWorlds, Stepping
from ctrlax.world.render import frame

__all__ = ["SystemEnv", "SystemVectorEnv", "record", "register"]

NOISE_BOUND = 10.0  # standard deviations: a Gaussian is further out once in 1e23 draws
LARGEST = float(np.finfo(np.float32).max)

System = str | os.PathLike[str] | Environment


class SystemEnv(gymnasium.Env):
    """One world under Gymnasium's API: an action is held over the (possibly random) step.

    ``system`` is a built-in's name, the path of a user's file or an `Environment`. ``settings`` are the fields of
    `Stepping` (``grid``, ``dt``, ``noise``, ``max_time``, ``normalize_actions``, ``solver``, ``rtol``, ``atol``),
    ``variant``, and the system's own.

    The reward is the integral of the reward rate over the step. ``info["time"]`` is the time of the observation,
    ``info["dt"]`` the length of the coming step (0 once the episode has ended), and ``info["last_dt"]`` that of the
    step just taken (0 after `reset`). Episodes end by truncation, at ``max_time`` exactly.
    ``reset(options={"start": state})`` starts there.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(self, system: System | None = None, *, render_mode: str | None = None, **settings: Any) -> None:
        self.worlds = _held_worlds(system, settings, count=1)
        self.render_mode = _checked_mode(render_mode)
        self.metadata = {**SystemEnv.metadata, "render_fps": _frames_per_second(self.worlds)}
        self.observation_space, self.action_space = _boxes(self.worlds)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.worlds.restart(0, self.np_random, _given_starts(self.worlds.env, options, 1)[0])
        observations, _ = self.worlds.advance(self.worlds.actions, np.array([False]))
        return self._seen(observations), self._told()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        physical = self.worlds.physical(np.asarray(action)[None])
        observations, rewards = self.worlds.advance(physical, np.array([True]))
        return self._seen(observations), float(rewards[0]), False, bool(self.worlds.ended[0]), self._told()

    def render(self) -> Any:
        return _frame(self.worlds, 0) if self.render_mode == "rgb_array" else None

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        return self.worlds.noisy(observations, [self.np_random])[0]

    def _told(self) -> dict[str, Any]:
        worlds = self.worlds
        return {"time": float(worlds.time[0]), "dt": float(worlds.dt[0]), "last_dt": float(worlds.last_dt[0])}


class SystemVectorEnv(VectorEnv):
    """Many worlds advanced by one compiled step, each seeded, timed and reset on its own; keywords as for `SystemEnv`.

    A world whose episode ended is reset by the following `step`, which ignores the action for it and gives it the
    reward 0 (Gymnasium's next-step autoreset). World ``i`` after ``reset(seed=s)`` sees what a `SystemEnv` sees after
    ``reset(seed=s + i)``.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  (as Gymnasium declares it)
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self, system: System | None = None, *, num_envs: int = 1, render_mode: str | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.worlds = _held_worlds(system, settings, count=num_envs)
        self.num_envs = num_envs
        self.render_mode = _checked_mode(render_mode)
        self.metadata = {**SystemVectorEnv.metadata, "render_fps": _frames_per_second(self.worlds)}
        self.single_observation_space, self.single_action_space = _boxes(self.worlds)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators, self._seeds = map(list, zip(*(seeding.np_random() for _ in range(num_envs)), strict=True))

    @property
    def np_random(self) -> Any:
        """One generator per world."""
        return tuple(self._generators)

    @property
    def np_random_seed(self) -> Any:
        """The seed of each world's generator."""
        return tuple(self._seeds)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        for world, own in enumerate(self._one_each(seed)):
            if own is not None:
                self._generators[world], self._seeds[world] = seeding.np_random(own)
        starts = _given_starts(self.worlds.env, options, self.num_envs)
        for world, generator in enumerate(self._generators):
            self.worlds.restart(world, generator, starts[world])
        observations, _ = self.worlds.advance(self.worlds.actions, np.zeros(self.num_envs, bool))
        return self.worlds.noisy(observations, self._generators), self._told()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        over = self.worlds.ended
        actions = np.asarray(actions, np.float64)
        if actions.shape == self.action_space.shape:
            actions = np.where(over[:, None], 0.0, actions)  # ignored, so not checked either
        physical = self.worlds.physical(actions)
        for world in np.flatnonzero(over):
            self.worlds.restart(int(world), self._generators[world])
        observations, rewards = self.worlds.advance(physical, ~over)
        seen = self.worlds.noisy(observations, self._generators)
        return seen, rewards, np.zeros(self.num_envs, bool), self.worlds.ended, self._told()

    def render(self) -> Any:
        """One frame per world."""
        if self.render_mode != "rgb_array":
            return None
        return tuple(_frame(self.worlds, world) for world in range(self.num_envs))

    def _one_each(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        seeds = (
            [int(seed) + world for world in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
        )
        if len(seeds) != self.num_envs:
            raise UserError(f"seed must be one number or {self.num_envs} of them, but {len(seeds)} came")
        return seeds

    def _told(self) -> dict[str, Any]:
        worlds = self.worlds
        told = {"time": worlds.time, "dt": worlds.dt, "last_dt": worlds.last_dt}
        return {**told, **{f"_{name}": np.ones(self.num_envs, bool) for name in told}}


def _held_worlds(system: System | None, settings: dict[str, Any], *, count: int) -> HeldWorlds:
    names = {field.name for field in dataclasses.fields(Stepping)}
    stepping = Stepping(**{name: value for name, value in settings.items() if name in names})
    own = {name: value for name, value in settings.items() if name not in names}
    return HeldWorlds(_environment(system, own), stepping, count)


def _environment(system: System | None, settings: dict[str, Any]) -> Environment:
    if system is None:
        raise UserError(
            "ctrlax/System-v0 needs to be told its system: "
            "gymnasium.make('ctrlax/System-v0', system='path.py'), or a built-in's name, or an Environment"
        )
    if isinstance(system, Environment):
        if settings:
            raise UserError(
                f"an Environment has its settings already, but {sorted(settings)} came: give them to ctrlax.make"
            )
        return system
    source = os.fspath(system)
    # A file may be edited and used again in one session; what was compiled from its old text must not answer.
    edited = os.stat(source).st_mtime_ns if os.path.exists(source) else 0
    return _loaded(source, edited, tuple(sorted(settings.items())))


# One environment per description, so that instances share what was compiled for the first.
@functools.lru_cache(maxsize=64)
def _loaded(source: str, edited: int, settings: tuple[tuple[str, Any], ...]) -> Environment:
    del edited
    return load.make(source, **dict(settings))


def _boxes(worlds: HeldWorlds) -> tuple[Box, Box]:
    env, stepping = worlds.env, worlds.stepping
    circle = {f"{part}_{name}" for part in ("cos", "sin") for name in env.angles} if env.observed is None else set()
    bound = 1.0 + NOISE_BOUND * stepping.noise
    widths = np.array([bound if name in circle else LARGEST for name in env.observation_names], np.float32)
    low, high = np.asarray(env.action_low, np.float32), np.asarray(env.action_high, np.float32)
    if stepping.normalize_actions:
        low, high = -np.ones_like(low), np.ones_like(high)
    return Box(-widths, widths, dtype=np.float32), Box(low, high, dtype=np.float32)


def _given_starts(env: Environment, options: dict[str, Any] | None, count: int) -> Sequence[np.ndarray | None]:
    if not options:
        return [None] * count
    if set(options) != {"start"}:
        raise UserError(f"reset takes the option 'start' and no other, but {sorted(options)} came")
    starts = np.asarray(options["start"], np.float64)
    if starts.shape not in ((env.state_size,), (count, env.state_size)) or not np.isfinite(starts).all():
        raise UserError(
            f"the option 'start' must be a finite state ({', '.join(env.state_names)}), but {options['start']} came"
        )
    return list(np.broadcast_to(starts, (count, env.state_size)))


def _checked_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"render_mode must be None or 'rgb_array', but {render_mode!r} came")
    return render_mode


def _frames_per_second(worlds: HeldWorlds) -> int:
    return max(1, round(1 / worlds.stepping.dt))


def _frame(worlds: HeldWorlds, world: int) -> np.ndarray:
    return frame(worlds.env, worlds.states[world], worlds.actions[world], float(worlds.time[world]))


register()  # the ids are known once this module is: `import ctrlax` brings it in as soon as Gymnasium is there
