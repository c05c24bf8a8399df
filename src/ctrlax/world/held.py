"""Worlds stepped one held action at a time: what a Gymnasium environment is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import SolverSetting, named
from ctrlax.world.environment import Environment
from ctrlax.world.grids import draw_steps, grid_named

SAME_INSTANT = 1e-9  # of a mean step: times closer than this are one time, so that 300 steps of 0.1 s are 30 s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stepping:
    """How a world without a time step is stepped."""

    grid: str = "fixed"  # fixed, uniform or exponential
    dt: float = 0.1  # the mean step, seconds
    noise: float = 0.0  # standard deviation added to what is observed, never to the state
    max_time: float = 30.0  # seconds; an episode ends there exactly
    normalize_actions: bool = True  # [-1, 1] stands for the action bounds
    solver: str = "dopri8"
    rtol: float | None = None  # None: the solver setting's own
    atol: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", grid_named(self.grid))
        for name in ("dt", "max_time"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise UserError(f"{name} must be a positive number of seconds, but {value} came")
        if not (np.isfinite(self.noise) and self.noise >= 0):
            raise UserError(f"noise must be a standard deviation of at least 0, but {self.noise} came")

    @property
    def setting(self) -> SolverSetting:
        return named(self.solver).at(self.rtol, self.atol)


class HeldWorlds:
    """``count`` worlds of one system, each on its own clock, advanced together by one compiled step.

    Every world draws from its own generator and in the same order, so one among many sees what it would see alone.
    """

    def __init__(self, env: Environment, stepping: Stepping, count: int) -> None:
        self.env = env
        self.stepping = stepping
        self.count = count
        self.states = np.zeros((count, env.state_size))
        self.actions = np.zeros((count, env.action_size))  # in the system's own units, the last ones held
        self._step = _compiled(env, stepping.setting, count > 1)
        self._clocks = [_Clock(np.zeros(1), np.zeros(0)) for _ in range(count)]

    @property
    def time(self) -> Float64[np.ndarray, " world"]:
        return np.array([clock.time for clock in self._clocks])

    @property
    def last_dt(self) -> Float64[np.ndarray, " world"]:
        """The length of the step just taken; 0 at a start."""
        return np.array([clock.last_step for clock in self._clocks])

    @property
    def dt(self) -> Float64[np.ndarray, " world"]:
        """The length of the coming step, over which the next action is held; 0 at an episode's end."""
        return np.array([clock.coming_step for clock in self._clocks])

    @property
    def ended(self) -> Bool[np.ndarray, " world"]:
        return np.array([clock.coming_step == 0 for clock in self._clocks])

    def restart(self, world: int, generator: np.random.Generator, start: np.ndarray | None = None) -> None:
        """Put one world at a new start, drawn unless given, with a new clock."""
        start_key, clock_key = (jax.random.key(int(word)) for word in generator.integers(2**31, size=2))
        self.states[world] = self.env.draw_starts(1, key=start_key)[0] if start is None else start
        self.actions[world] = 0.0
        self._clocks[world] = _Clock.drawn(self.stepping, key=clock_key)

    def physical(self, actions: np.ndarray) -> Float64[np.ndarray, "world action"]:
        """The actions asked for, in the system's own units and within its bounds."""
        actions = np.asarray(actions, np.float64)
        if actions.shape != self.actions.shape:
            size = self.env.action_size
            raise UserError(
                f"an action of {self.env.name} has {size} coordinate{'s' if size > 1 else ''} "
                f"({', '.join(self.env.action_names)}), but the shape {actions.shape[1:]} came"
            )
        if not np.isfinite(actions).all():
            raise UserError(
                f"an action of {self.env.name} must be finite, but {actions.tolist()} came: check the policy"
            )
        if self.stepping.normalize_actions:
            return self.env.action_middle + self.env.action_reach * np.clip(actions, -1.0, 1.0)
        return np.clip(actions, self.env.action_low, self.env.action_high)

    def advance(
        self, actions: np.ndarray, moving: np.ndarray
    ) -> tuple[Float64[np.ndarray, "world observation"], Float64[np.ndarray, " world"]]:
        """Hold each action over its world's coming step; a world not moving is only looked at.

        Returns the observations without noise and the integrals of the reward rate over the steps.
        """
        steps = np.where(moving, self.dt, 0.0)
        if not steps[moving].all():
            raise UserError("the episode has ended at max_time: call reset() before the next step()")
        packed = np.concatenate([self.states, actions, steps[:, None]], axis=1)
        # Float64 on the host whatever the global flag and device, both of which stay as they are.
        with jax.enable_x64(True), jax.default_device(_host()):
            unpacked = np.array(self._step(packed))
        size = self.env.state_size
        healthy = unpacked[:, -1] > 0
        if not healthy.all():
            self._report(int(np.argmin(healthy)), packed)
        self.states = unpacked[:, :size]
        self.actions = np.where(moving[:, None], actions, self.actions)
        for world in np.flatnonzero(moving):
            self._clocks[world].place += 1
        return unpacked[:, size + 1 : -1], unpacked[:, size]

    def noisy(
        self, observations: np.ndarray, generators: list[np.random.Generator]
    ) -> Float32[np.ndarray, "world observation"]:
        """What is seen: observations with noise, as Gymnasium's learners want them."""
        if self.stepping.noise > 0:
            draws = [generator.standard_normal(self.env.observation_size) for generator in generators]
            observations = observations + self.stepping.noise * np.stack(draws)
        return observations.astype(np.float32)

    def _report(self, world: int, packed: np.ndarray) -> None:
        size = self.env.state_size
        state, action, step = packed[world, :size], packed[world, size:-1], packed[world, -1]
        raise UserError(
            f"{self.env.name}: the solution became non-finite, too large or too slow to follow within a step of "
            f"{step:.3g} s from state {state.tolist()} under action {action.tolist()}: "
            "check the field and the reward rate there, "
            "or end episodes sooner (max_time)"
        )


@dataclasses.dataclass
class _Clock:
    """The instants of one episode, from 0 to exactly ``max_time``."""

    times: Float64[np.ndarray, " time"]
    steps: Float64[np.ndarray, " step"]
    place: int = 0

    @property
    def time(self) -> float:
        return self.times[self.place]

    @property
    def last_step(self) -> float:
        return self.steps[self.place - 1] if self.place else 0.0

    @property
    def coming_step(self) -> float:
        return self.steps[self.place] if self.place < len(self.steps) else 0.0

    @staticmethod
    def drawn(stepping: Stepping, *, key: PRNGKeyArray) -> _Clock:
        count = int(np.ceil(stepping.max_time / stepping.dt)) + 1
        while True:
            steps = draw_steps(stepping.grid, stepping.dt, count, key=key)
            fixed = stepping.grid == "fixed"
            times = np.arange(1, count + 1) * stepping.dt if fixed else np.cumsum(steps)
            if times[-1] >= stepping.max_time:
                break
            count *= 2
        last = int(np.argmax(times >= stepping.max_time - SAME_INSTANT * stepping.dt))
        if abs(times[last] - stepping.max_time) > SAME_INSTANT * stepping.dt:
            steps[last] -= times[last] - stepping.max_time
        times[last] = stepping.max_time
        return _Clock(np.concatenate([[0.0], times[: last + 1]]), steps[: last + 1])


@functools.cache
def _host() -> Any:
    return jax.devices("cpu")[0]


# Enough for every system of a session; a system that drops out compiles again.
@functools.lru_cache(maxsize=64)
def _compiled(env: Environment, setting: SolverSetting, many: bool) -> Callable[[np.ndarray], Array]:
    """``[world, (state, action, step)]`` to ``[world, (state, reward integral, observation, healthy)]``."""

    def one(packed: Float[Array, " packed"]) -> Float[Array, " unpacked"]:
        state, action, step = packed[: env.state_size], packed[env.state_size : -1], packed[-1]

        # The step is warped to [0, 1], so that a step of length zero is a solve like any other.
        def field(_: Array, extended: Array) -> Array:
            state = extended[:-1]
            return step * jnp.append(env.field(state, action), env.reward_rate(env.observe(state), action))

        solution = solve(field, jnp.append(state, 0.0), jnp.array([0.0, 1.0]), setting)
        extended = solution.states[-1]
        observation = env.observe(extended[:-1])
        healthy = solution.healthy & jnp.all(jnp.isfinite(observation))
        return jnp.concatenate([extended, observation, healthy[None].astype(extended.dtype)])

    # One world alone is not mapped: a mapped loop costs twice as much per step.
    return jax.jit(jax.vmap(one) if many else lambda packed: one(packed[0])[None])
