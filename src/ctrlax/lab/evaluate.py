"""A policy in the true world -> Evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ctrlax.world.collect import Trajectory, simulate
from ctrlax.world.environment import HELD_REWARD_RATE, Environment
from ctrlax.world.grids import fixed_times

SAMPLE_STEP = 0.05  # s, between the instants at which the goal must be held (SPEC 4)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Trials from the start distribution."""

    reward: float  # mean reward rate over the trials
    held: Bool[np.ndarray, " trial"]  # the goal held at every instant from the rise time on
    trajectory: Trajectory

    @property
    def solved(self) -> bool:
        """Every trial held the goal."""
        return bool(self.held.all())


def evaluate(
    environment: Environment,
    policy: Callable[[Float[Array, " observation"]], Float[Array, " action"]],
    *,
    trials: int,
    seconds: float,
    key: PRNGKeyArray,
) -> Evaluation:
    """Lines 16 and 17 of Algorithm 1: execute the policy and ask whether the pole ever falls."""
    start_key, solve_key = jax.random.split(key)
    starts = environment.draw_starts(trials, key=start_key)
    trajectory = simulate(environment, policy, fixed_times(SAMPLE_STEP, seconds), key=solve_key, starts=starts)
    held = held_trials(environment, trajectory)
    rewards = np.where(trajectory.healthy[:, None], trajectory.rewards, 0.0)
    return Evaluation(float(np.trapezoid(rewards, trajectory.times, axis=1).mean() / seconds), held, trajectory)


def held_trials(environment: Environment, trajectory: Trajectory) -> Bool[np.ndarray, " trial"]:
    """Whether the reward rate without its action term is at least `HELD_REWARD_RATE` from the rise time on."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        clean = jax.vmap(jax.vmap(environment.observe))(jnp.asarray(trajectory.states))
        rest = jnp.zeros(environment.action_size)
        rates = np.asarray(jax.vmap(jax.vmap(lambda o: environment.reward_rate(o, rest)))(clean))
    late = trajectory.times >= environment.rise_time - SAMPLE_STEP / 2
    # A trial that ends before the rise time has held nothing.
    return trajectory.healthy & late.any(axis=1) & np.all((rates >= HELD_REWARD_RATE) | ~late, axis=1)
