"""Any Gymnasium world with box actions, as trajectories for learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.ode.randomness import host_generator
from ctrlax.world.collect import Trajectory


def record(
    gym_env: Any,
    policy: Callable[[np.ndarray], Any] | None = None,
    episodes: int = 1,
    *,
    key: PRNGKeyArray,
    dt: float | None = None,
    max_steps: int = 1000,
) -> list[Trajectory]:
    """Episodes of a Gymnasium environment (or id), one `Trajectory` each, because each has its own length.

    ``policy`` maps an observation to an action in the environment's own units; None draws from its action space.
    Times are ``info["time"]``, or multiples of ``dt`` where the environment does not tell the time. An action is held
    from its time to the next, and ``rewards`` are the step's reward over the step's length: its mean rate. The last
    instant repeats the last action and rate, for no step follows it. ``states`` are the observations: Gymnasium shows
    no more. An episode that does not end is left after ``max_steps``.
    """
    environment = _opened(gym_env)
    random = host_generator(key)
    seeds = random.integers(2**31, size=episodes)
    environment.action_space.seed(int(random.integers(2**31)))
    choose = policy if policy is not None else lambda _: environment.action_space.sample()
    return [_episode(environment, choose, int(seed), dt, max_steps) for seed in seeds]


def _opened(gym_env: Any) -> Any:
    import gymnasium
    from gymnasium.spaces import Box

    environment = gymnasium.make(gym_env) if isinstance(gym_env, str) else gym_env
    if not isinstance(environment, gymnasium.Env):
        raise UserError(f"record takes a Gymnasium environment or its id, but a {type(gym_env).__name__} came")
    for name, space in (("action", environment.action_space), ("observation", environment.observation_space)):
        if not (isinstance(space, Box) and len(space.shape) == 1):
            raise UserError(
                f"a controlled ODE needs an {name} space that is a Box of one axis, but {space} came: "
                "wrap the environment so that it has one (gymnasium.wrappers.FlattenObservation flattens observations)"
            )
    return environment


def _episode(
    environment: Any, choose: Callable[[np.ndarray], Any], seed: int, dt: float | None, max_steps: int
) -> Trajectory:
    observation, told = environment.reset(seed=seed)
    times, observations = [_time(told, 0, dt)], [observation]
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    over = False
    while not over and len(actions) < max_steps:
        action = np.asarray(choose(observation), environment.action_space.dtype)
        observation, reward, terminated, truncated, told = environment.step(action)
        over = terminated or truncated
        times.append(_time(told, len(times), dt))
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
    steps = np.diff(times)
    if not (steps > 0).all():
        place = int(np.argmin(steps > 0))
        raise UserError(
            f"time must grow with every step, but step {place} went from {times[place]} to {times[place + 1]} s: "
            "mend info['time'] in the environment, or give dt"
        )
    seen = np.asarray(observations, np.float64)
    held = np.asarray([*actions, actions[-1]], np.float64)
    rates = np.asarray(rewards) / steps
    rates = np.append(rates, rates[-1])
    finite = all(np.isfinite(part).all() for part in (seen, held, rates))
    return Trajectory(
        times=(np.asarray(times) - times[0])[None],
        states=seen[None],
        observations=seen[None].copy(),
        actions=held[None],
        rewards=rates[None],
        healthy=np.array([finite]),
        work=np.zeros(1, np.int64),
    )


def _time(told: dict[str, Any], steps: int, dt: float | None) -> float:
    """The time of an observation; a step length the user gives is believed before the environment's clock."""
    if dt is not None:
        return steps * dt
    if "time" not in told:
        raise UserError(
            "this Gymnasium environment does not tell the time (info['time']): give the length of a step, "
            "record(..., dt=0.05), which its documentation states"
        )
    return float(told["time"])
