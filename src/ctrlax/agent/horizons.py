"""The horizons h of `eq:critic-loss`: times of one solve and how likely each is."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax import config
from ctrlax.errors import UserError

RIM = 1e-3  # of a piece: no stratified horizon is closer to its piece's ends


class Horizons(NamedTuple):
    """``q(h)`` of `eq:critic-loss` on the times of one solve, which run from 0 to ``H`` and end there."""

    times: Float[Array, " time"]
    weights: Float[Array, " time"]  # how much of q is on each time; they sum to one


def draw_horizons(settings: config.Agent, *, key: PRNGKeyArray) -> Horizons:
    """Times and ``q(h)`` by ``horizon_law``, whose special cases the text names (`eq:critic-loss`).

    ``uniform``: ``h ~ U[0, H]``, stratified: one in each of ``horizons`` equal pieces, all at the same place of their
    piece. Each is then as uniform as if drawn alone, and no step of a fixed-step solver, which goes from horizon to
    horizon, is longer than ``H / horizons``: with independent places it could be twice that, where RK4 is unstable for
    a pole at 8 rad/s. ``point``: all of q on ``H``, and the critic learns by TD-H. ``steps``: the same on every
    multiple of ``horizon_step`` up to ``H``, and it learns from the mean of the h-step returns.
    """
    if settings.horizon_law == "steps":
        return step_horizons(settings)
    count = settings.horizons
    pieces = jnp.arange(count)
    # A draw on the rim of the pieces would leave a step of length zero: keep a little inside.
    inside = jnp.clip(jax.random.uniform(key), RIM, 1 - RIM)
    times = settings.horizon * jnp.concatenate([jnp.zeros(1), (pieces + inside) / count, jnp.ones(1)])
    drawn = 1 / count if settings.horizon_law == "uniform" else 0.0
    return Horizons(times, jnp.full(count + 2, drawn).at[0].set(0.0).at[-1].set(1.0 - count * drawn))


def step_horizons(settings: config.Agent) -> Horizons:
    """The multiples of ``horizon_step`` up to ``H``, the last one ``H`` itself; q on ``H`` alone for the law ``point``.

    Where time goes in steps, ``uniform`` and ``steps`` are the same law.
    """
    times = multiples(settings.horizon, settings.horizon_step)
    count = len(times) - 1
    if settings.horizon_law == "point":
        return Horizons(jnp.asarray(times), jnp.zeros(count + 1).at[-1].set(1.0))
    return Horizons(jnp.asarray(times), jnp.full(count + 1, 1 / count).at[0].set(0.0))


def multiples(horizon: float, step: float | None) -> list[float]:
    """``0, step, 2 step, ..``; a horizon that is no multiple is kept as the last."""
    if step is None or not 0 < step <= horizon:
        raise UserError(
            f"horizons in steps need a horizon_step between 0 and the horizon of {horizon} s, but {step} came: "
            "give it in seconds, or choose the horizon law uniform"
        )
    whole = int(horizon / step * (1 + 1e-9))
    times = [step * i for i in range(whole + 1)]
    return [*times[:-1], horizon] if horizon - times[-1] < 1e-6 * horizon else [*times, horizon]
