"""A planner in the true world -> Evaluation: decisions at equal intervals, each held until the next."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ctrlax.agent.plan import Cem, Planner
from ctrlax.agent.roll import held_model
from ctrlax.errors import UserError
from ctrlax.lab.evaluate import SAMPLE_STEP, Evaluation, held_trials
from ctrlax.lab.run import Run
from ctrlax.model.registry import makes_transitions
from ctrlax.ode.randomness import host_generator
from ctrlax.world.collect import Trajectory
from ctrlax.world.environment import Environment
from ctrlax.world.grids import fixed_times
from ctrlax.world.held import HeldWorlds, Stepping


@dataclasses.dataclass(frozen=True)
class Planned:
    """How a planner did, and how quickly."""

    evaluation: Evaluation
    decisions: int
    seconds: float  # of deciding, without compiling and without the true world

    @property
    def per_second(self) -> float:
        return self.decisions / self.seconds


def planner_of(run: Run, settings: Cem, *, seed: int | None = None) -> Planner:
    """The cross-entropy method on a seed's newest model, with the environment's own reward rate and bounds."""
    environment, agent, step = run.environment, run.config.agent, run.config.sampling.dt
    if makes_transitions(run.config.model.family) and abs(settings.interval - step) > 1e-9:
        raise UserError(
            f"the model {run.config.model.family} learned steps of {step} s and plans in these: a decision of "
            f"{settings.interval} s is another step. Ask for {step} s."
        )
    lane = run.lane(seed)
    dynamics = jax.tree.map(lambda leaf: jnp.asarray(leaf[lane]), run.state.fitting.learned.dynamics)
    model = held_model(agent, dynamics, key=jax.random.key(0))
    low, high = (jnp.asarray(each, jnp.float32) for each in (environment.action_low, environment.action_high))
    return Planner(settings, model, environment.reward_rate, low, high)


def evaluate_planner(
    environment: Environment, planner: Planner, *, trials: int, seconds: float, key: PRNGKeyArray
) -> Planned:
    """Lines 16 and 17 of Algorithm 1 with decisions in place of a policy; all trials decide side by side."""
    samples = round(planner.settings.interval / SAMPLE_STEP)
    if samples < 1 or abs(samples * SAMPLE_STEP - planner.settings.interval) > 1e-9:
        raise UserError(
            f"a decision is held for {planner.settings.interval} s, expected a multiple of {SAMPLE_STEP} s, the step "
            "at which the goal is looked at."
        )
    start_key, decide_key, world_key = jax.random.split(key, 3)
    times = fixed_times(SAMPLE_STEP, seconds)
    worlds = HeldWorlds(environment, Stepping(dt=SAMPLE_STEP, max_time=seconds, normalize_actions=False), trials)
    generator = host_generator(world_key)
    for world, start in enumerate(environment.draw_starts(trials, key=start_key)):
        worlds.restart(world, generator, start)
    plans = jax.vmap(lambda _: planner.begin())(jnp.arange(trials))
    observations, _ = worlds.advance(worlds.actions, np.zeros(trials, bool))
    states, seen, acted = [worlds.states.copy()], [observations], []
    _decide(planner, jnp.asarray(observations, jnp.float32), plans, decide_key)  # compiled before the clock runs
    decisions, spent = 0, 0.0
    actions = worlds.actions
    for place in range(len(times) - 1):
        if place % samples == 0:
            began = time.perf_counter()
            own_key = jax.random.fold_in(decide_key, place)
            chosen, plans = _decide(planner, jnp.asarray(observations, jnp.float32), plans, own_key)
            actions = np.clip(np.asarray(chosen, np.float64), environment.action_low, environment.action_high)
            spent += time.perf_counter() - began
            decisions += trials
        acted.append(actions)
        observations, _ = worlds.advance(actions, np.ones(trials, bool))
        states.append(worlds.states.copy())
        seen.append(observations)
    along, observed, taken = (np.stack(part, axis=1) for part in (states, seen, [*acted, actions]))
    rewards = _reward_rates(environment, observed, taken)
    healthy, work = np.ones(trials, bool), np.zeros(trials, np.int64)
    trajectory = Trajectory(np.tile(times, (trials, 1)), along, observed, taken, rewards, healthy, work)
    reward = float(np.trapezoid(rewards, trajectory.times, axis=1).mean() / seconds)
    return Planned(Evaluation(reward, held_trials(environment, trajectory), trajectory), decisions, spent)


@eqx.filter_jit
def _decide(planner, observations, plans, key):
    keys = jax.random.split(key, len(observations))
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda o, plan, k: planner.decide(o, plan, key=k))(observations, plans, keys)


def _reward_rates(
    environment: Environment,
    observations: Float[np.ndarray, "trial time observation"],
    actions: Float[np.ndarray, "trial time action"],
) -> Float[np.ndarray, "trial time"]:
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        rates = jax.jit(jax.vmap(partial(jax.vmap(environment.reward_rate))))(observations, actions)
        return np.asarray(rates, np.float64)
