"""Observation times: fixed, uniform and exponential spacing with the same mean step, as in the text."""

from __future__ import annotations

import difflib

import numpy as np
from jaxtyping import PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.ode.randomness import host_generator

GRIDS = {
    "fixed": "every step is the mean step",
    "uniform": "steps uniform over (0, 2 x mean step]",
    "exponential": "steps exponential with the mean step as scale",
}
STEP_BITS = 30  # random steps are multiples of about a billionth of the mean step
_ALIASES = {"exp": "exponential"}


def grid_named(name: str) -> str:
    """The grid's full name; an unknown name is answered with the known ones."""
    full = _ALIASES.get(name, name)
    if full not in GRIDS:
        close = difflib.get_close_matches(name, GRIDS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UserError(f"no time grid is called {name!r}{hint}: choose one of {', '.join(GRIDS)}")
    return full


def draw_steps(grid: str, mean_step: float, count: int, *, key: PRNGKeyArray) -> np.ndarray:
    """``count`` positive steps in seconds, float64."""
    grid = grid_named(grid)
    if not (np.isfinite(mean_step) and mean_step > 0):
        raise UserError(f"the mean step must be a positive number of seconds, but {mean_step} came")
    generator = host_generator(key)
    if grid == "fixed":
        return np.full(count, float(mean_step))
    # 1 - U is in (0, 1]: no step of length zero, so times always increase.
    share = 1.0 - generator.random(count)
    steps = 2 * mean_step * share if grid == "uniform" else -mean_step * np.log(share)
    # Multiples of a power of two: such times stay exact when a clock is moved by hours, and with them the trajectory.
    resolution = np.exp2(np.round(np.log2(mean_step)) - STEP_BITS)
    return np.maximum(np.round(steps / resolution), 1.0) * resolution


def draw_times(grid: str, mean_step: float, points: int, *, key: PRNGKeyArray, trajectories: int = 1) -> np.ndarray:
    """``[trajectory, time]``: exactly ``points`` times each, the first 0; a fixed grid has no drift."""
    if points < 2:
        raise UserError(f"a trajectory needs at least 2 points, but {points} came")
    if grid_named(grid) == "fixed":
        draw_steps(grid, mean_step, 1, key=key)
        return np.tile(np.arange(points) * float(mean_step), (trajectories, 1))
    steps = draw_steps(grid, mean_step, trajectories * (points - 1), key=key).reshape(trajectories, points - 1)
    return np.concatenate([np.zeros((trajectories, 1)), np.cumsum(steps, axis=1)], axis=1)


def fixed_times(step: float, horizon: float) -> np.ndarray:
    """The fixed grid over a horizon: exactly horizon/step + 1 times, the last one the horizon itself."""
    count = round(horizon / step)
    if count < 1 or abs(count * step - horizon) > 1e-9 * horizon:
        raise UserError(f"a horizon of {horizon} s is not a whole number of steps of {step} s: choose one that is")
    return np.linspace(0.0, horizon, count + 1)
