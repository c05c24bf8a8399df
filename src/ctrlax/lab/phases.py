"""The phases of a run: `RunState` -> (`RunState`, metrics), compiled where they learn; seeds are the leading axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.policy import Policy, init_policy
from ctrlax.config import Config
from ctrlax.errors import UserError
from ctrlax.lab.evaluate import Evaluation, evaluate
from ctrlax.lab.experience import Experience, experience_of, pieces_of
from ctrlax.lab.state import (
    COLLECT,
    EVALUATE,
    FIT,
    IMPROVE,
    MATCH,
    PHASES,
    RunState,
    begin_lanes,
    fitted_shape,
    judged,
)
from ctrlax.model import fit, registry
from ctrlax.model.dataset import Dataset
from ctrlax.model.full_loss import full_loss
from ctrlax.model.scaling import scaling_of
from ctrlax.model.training import AbstractTraining, mean_rate, training_of
from ctrlax.model.update import Health
from ctrlax.model.windows import Recording
from ctrlax.ode.control import Exploring, draw_path
from ctrlax.ode.cores import all_cores
from ctrlax.ode.randomness import host_generator
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import draw_times

CHUNK = 50  # updates between two looks of the host: a second or a few, so that progress moves and Ctrl-C is heard
Rows = dict[str, Any]  # by name, every array with the seed axis first
KEPT_STATES = 1000  # imagined states kept to start from again


def chunk_length(total: int) -> int:
    """The longest equal chunk of at most `CHUNK` updates: one shape, one compilation."""
    return max(length for length in range(1, min(CHUNK, total) + 1) if total % length == 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Laboratory:
    """What does not change during a run, and the phases that need it."""

    environment: Environment
    config: Config

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.environment.observation_names, self.environment.action_names

    @property
    def reward_rate(self) -> improve.RewardRate:
        shaped = self.environment.training_reward_rate
        return shaped if self.config.training_reward and shaped is not None else self.environment.reward_rate

    @property
    def agent_settings(self) -> config.Agent:
        """With horizons in steps of the observations' mean step where they have none of their own.

        A transition's own step is that mean step, and each of its starts is imagined by all of its particles.
        """
        agent, step = self.config.agent, self.config.sampling.dt
        if registry.makes_transitions(self.config.model.family):
            return dataclasses.replace(agent, horizon_step=step, members_per_start="all")
        return agent if agent.horizon_step else dataclasses.replace(agent, horizon_step=step)

    @property
    def shared_out(self) -> int:
        """Members that are shared out over the cores; the small updates of transitions are no quicker for it."""
        return 1 if registry.makes_transitions(self.config.model.family) else self.config.model.members

    def start(self, seeds: Sequence[int], dataset: Dataset | None = None) -> RunState:
        """Lines 1 and 2 of Algorithm 1: fresh dynamics, actor and critic; N0 random trajectories, or logged ones."""
        split = _first_keys(seeds)
        if dataset is None:
            experience = self._first_data(split[:, 1])
            self._check_first(experience, seeds)
        else:
            experience = pieces_of(dataset, self.config.sampling.count(), len(seeds))
        return self.begin(seeds, split, experience)

    def begin(self, seeds: Sequence[int], keys: Key[Array, "seed five"], experience: Experience) -> RunState:
        """A run that knows its first data; ``keys`` are five for every seed."""
        learned = self._fresh_model(experience, keys[:, 2])
        agents = self._fresh_agent(experience, keys[:, 3])
        fitting = jax.vmap(lambda one, key: self.training.begin(one, key=key))(learned, keys[:, 4])
        capacity = min(self._sizes(experience.times.shape[1], 1))
        phase = MATCH if self.learns else IMPROVE
        return begin_lanes(
            key=keys[:, 0],
            experience=experience,
            fitting=fitting,
            agent=agents,
            seeds=seeds,
            phase=phase,
            capacity=capacity,
        )

    def _sizes(self, count: int, round: int) -> list[int]:
        """Sizes the dynamics' arrays may have, in trajectories, when round ``round`` begins with ``count``."""
        a_round = 1 + self.environment.exploring_trajectories
        most = count + a_round * max(self.config.schedule.rounds - round, 0)
        return [size for size in (-(-most // 6), -(-most // 2), most) if size >= count]

    @property
    def learns(self) -> bool:
        return self.config.model.family != "true"

    @cached_property
    def training(self) -> AbstractTraining:
        """How this kind of model learns."""
        return training_of(registry.kind_of(self.config.model.family), self.config.fit, self.config.one_step)

    def _first_data(self, keys: Key[Array, " seed"]) -> Experience:
        sampling, environment = self.config.sampling, self.environment
        seen = []
        for key in keys:
            time_key, path_key, solve_key = jax.random.split(key, 3)
            count = environment.initial_trajectories
            times = draw_times(sampling.grid, sampling.dt, sampling.count(), key=time_key, trajectories=count)
            controls = random_controls(environment, times, key=path_key)
            seen.append(simulate(environment, controls, times, key=solve_key, noise=sampling.noise))
        return experience_of(seen, exploring=False, hold=sampling.hold)

    def _check_first(self, experience: Experience, seeds: Sequence[int]) -> None:
        for seed, counts in zip(seeds, experience.counts, strict=True):
            if not counts.any():
                raise UserError(
                    f"none of the {len(counts)} trajectories of random actions from {self.environment.name} stayed "
                    f"finite, states and rewards, for seed {seed}, and at least one is needed to learn from: let a "
                    "trial last less long (fewer points or a smaller dt), narrow the action bounds, or give a log "
                    "of the system with --data"
                )

    def _fresh_model(self, experience: Experience, keys: Key[Array, " seed"]) -> fit.Learned:
        environment = self.environment
        noise = jnp.full(environment.observation_size, self.config.fit.initial_log_noise, jnp.float32)
        made = []
        for seed, key in enumerate(keys):
            data = experience.dataset(seed, self.names)
            scaling = scaling_of(data, environment.action_middle, environment.action_reach)
            built = registry.build(self.config.model, environment, scaling, key=key, step=self.config.sampling.dt)
            made.append(fit.Learned(built, noise))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)

    def _fresh_agent(self, experience: Experience, keys: Key[Array, " seed"]) -> improve.AgentState:
        environment, gain = self.environment, self.config.agent.gain
        middle = jnp.asarray(environment.action_middle, jnp.float32)
        reach = jnp.asarray(environment.action_reach, jnp.float32)

        def one(key: PRNGKeyArray, starts: improve.Starts) -> improve.AgentState:
            policy_key, critic_key, key = jax.random.split(key, 3)
            policy = init_policy(environment.observation_size, middle, reach, gain=gain, key=policy_key)
            critic = init_critic(environment.observation_size, gain=gain, key=critic_key)
            return improve.begin(policy, critic, starts, keep=KEPT_STATES, key=key)

        return jax.vmap(one)(keys, self._starts(experience))

    def _starts(self, experience: Experience) -> improve.Starts:
        agent = self.config.agent
        return experience.starts(recent=agent.recent, exploring=agent.start_from_exploring)

    def recordings(self, state: RunState) -> Recording:
        """The datasets in arrays whose size changes at most twice in a run."""
        sampling = self.config.sampling
        return state.experience.recordings(
            self.names, capacity=state.capacity, length_scale=sampling.action_length_scale
        )

    def fit_chunk(self, state: RunState, recordings: Recording) -> tuple[RunState, Rows]:
        """Lines 5 to 8: some updates of the dynamics, or of their gradient-matching start."""
        matching = state.phase == MATCH
        length = chunk_length(self.updates(state.phase))
        scale = jnp.asarray(state.step_scale, jnp.float32)
        with all_cores(self.shared_out) as everywhere:
            inputs = everywhere((state.fitting, recordings, scale))
            fitting, metrics = everywhere(_fit_updates(self.training, matching, length, *inputs))
        return _counted(_replace(state, fitting=fitting), metrics, length)

    def improve_chunk(self, state: RunState) -> tuple[RunState, Rows]:
        """Lines 9 to 13: some updates of actor and critic."""
        settings = self.agent_settings
        length = chunk_length(settings.updates)
        ramp = min((state.round - 1) / settings.bootstrap_ramp, 1.0) if settings.bootstrap_ramp else 1.0
        inputs = (
            state.fitting.learned.dynamics, state.agent, self._starts(state.experience),
            jnp.asarray(ramp, jnp.float32), jnp.asarray(state.step_scale, jnp.float32),
        )  # fmt: skip
        fixed = settings, self.reward_rate, self.environment.begin_observations, length
        with all_cores(self.shared_out) as everywhere:
            agent, metrics = everywhere(_agent_updates(*fixed, *everywhere(inputs)))
        state, rows = _counted(_replace(state, agent=agent), metrics, length)
        return _replace(state, imagined_reward=rows["reward"].astype(np.float64)), rows

    def updates(self, phase: str) -> int:
        """How many updates a phase has; what is not learning is one."""
        return {
            MATCH: self.training.matching_updates,
            FIT: self.training.updates,
            IMPROVE: self.config.agent.updates,
            COLLECT: 1,
            EVALUATE: 1,
        }[phase]

    def with_room(self, state: RunState) -> RunState:
        """At the beginning of a round: arrays the data fit in, see `fitted_shape`; after the last round nothing is."""
        if state.round > self.config.schedule.rounds:
            return state
        return fitted_shape(state, self._sizes(state.experience.times.shape[1], state.round))

    def unfinished(self, state: RunState) -> bool:
        """Whether updates of the phase remain, for any seed."""
        going = state.ended == 0
        if state.phase == FIT:
            going = going & ~np.asarray(self.training.stopped(state.fitting))
        return state.iteration < self.updates(state.phase) and bool(np.any(going))

    def next_phase(self, state: RunState) -> RunState:
        """Into the phase after this one; a round's fresh optimiser states are made here."""
        place = PHASES.index(state.phase) + 1
        phase = PHASES[place] if place < len(PHASES) else (FIT if self.learns else IMPROVE)
        state = _replace(state, phase=phase, iteration=0, round=state.round + (place == len(PHASES)))
        if place == len(PHASES):
            state = self.with_room(state)
        split = jax.vmap(lambda key: jax.random.split(key, 2))(state.key)
        if phase == FIT:
            if place == PHASES.index(FIT) and self.config.fit.undo_matching and self.training.matching_updates:
                state = self._unless_worse(state, split[:, 1])
            fitting = jax.vmap(lambda one, key: self.training.begin(one, key=key))(state.fitting.learned, split[:, 1])
            state = _replace(state, fitting=fitting, key=split[:, 0])
        if phase == IMPROVE:
            agent = jax.vmap(partial(improve.begin, keep=KEPT_STATES))(
                state.agent.policy, state.agent.critic, self._starts(state.experience), key=split[:, 1]
            )
            state = _replace(state, agent=agent, key=split[:, 0])
        return state

    def _unless_worse(self, state: RunState, keys: Key[Array, " seed"]) -> RunState:
        """Gradient matching undone for the seeds whose loss on all data it made worse."""
        before = self._fresh_model(state.experience, _first_keys(state.seeds)[:, 2])
        after, recordings = state.fitting.learned, self.recordings(state)
        loss = jax.vmap(lambda learned, seen, key: full_loss(self.config.fit, learned, seen, key=key))
        worse = loss(after, recordings, keys) > loss(before, recordings, keys)
        kept = jax.tree.map(lambda a, b: jnp.where(worse.reshape(-1, *[1] * (a.ndim - 1)), b, a), after, before)
        return eqx.tree_at(lambda state: state.fitting.learned, state, kept)

    def collect(self, state: RunState) -> RunState:
        """Lines 14 and 15: act once from the start distribution, then explore around the policy."""
        split = jax.vmap(lambda key: jax.random.split(key, 3))(state.key)
        acted = _for_each_seed(lambda seed: self._act(state, seed, split[seed, 1]), len(split))
        experience = state.experience.joined(experience_of(acted, exploring=False, hold=self.config.sampling.hold))
        if self.environment.exploring_trajectories:
            explored = _for_each_seed(lambda seed: self._explore(state, seed, split[seed, 2]), len(split))
            experience = experience.joined(experience_of(explored, exploring=True, hold=self.config.sampling.hold))
        return _replace(state, key=split[:, 0], experience=experience, iteration=1)

    def _act(self, state: RunState, seed: int, key: PRNGKeyArray):
        sampling = self.config.sampling
        time_key, solve_key = jax.random.split(key)
        times = draw_times(sampling.grid, sampling.dt, sampling.count(), key=time_key)
        control = self.policy(state, seed)
        if self.effort(state, seed) < sampling.least_effort:  # a policy this timid shows the model nothing
            path_key, solve_key = jax.random.split(solve_key)
            times = np.reshape(times, (1, -1))
            control = random_controls(self.environment, times, key=path_key)
        return simulate(self.environment, control, times, key=solve_key, noise=sampling.noise)

    def effort(self, state: RunState, seed: int) -> float:
        """Mean ``|action|`` over the states imagined last, in the action's units; infinite where there are none."""
        imagined = jax.tree.map(lambda leaf: np.asarray(leaf[seed]), state.agent.imagined)
        size = np.abs(_actions(self.policy(state, seed), imagined.observations))[imagined.present]
        return float(size.mean()) if len(size) else np.inf

    def _explore(self, state: RunState, seed: int, key: PRNGKeyArray):
        sampling, environment = self.config.sampling, self.environment
        time_key, start_key, path_key, solve_key = jax.random.split(key, 4)
        count = environment.exploring_trajectories
        times = draw_times(sampling.grid, sampling.dt, sampling.count(), key=time_key, trajectories=count)
        policy = self.policy(state, seed)
        low, high = np.asarray(environment.action_low), np.asarray(environment.action_high)
        controls = [
            Exploring(
                policy, draw_path(row, environment.action_size, key=k, scale=sampling.exploration_scale), low, high
            )
            for row, k in zip(times, jax.random.split(path_key, count), strict=True)
        ]
        starts = None
        if sampling.explore_from == "data":
            starts = self._uncertain_states(state, seed, count, key=start_key)
        return simulate(environment, controls, times, key=solve_key, starts=starts, noise=sampling.noise)

    def _uncertain_states(self, state: RunState, seed: int, count: int, *, key: PRNGKeyArray) -> np.ndarray:
        """States of previous data, drawn with weight proportional to the model's variance there (A3)."""
        data = state.experience
        present = np.arange(data.times.shape[2]) < data.counts[seed][:, None]
        seen = data.observations[seed][present]
        draw_key, choice_key = jax.random.split(key)
        learned = jax.tree.map(lambda leaf: leaf[seed], state.fitting.learned)
        padded = np.zeros((state.capacity * data.times.shape[2], seen.shape[1]), np.float32)
        padded[: len(seen)] = seen
        policy = self.policy(state, seed)
        weights = np.asarray(_variance(learned.dynamics, policy, padded, draw_key), np.float64)
        if self.config.sampling.explore_by == "reward":  # a rate below zero is no place to begin from
            rates = np.asarray(_reward_rates(self.reward_rate, policy, padded), np.float64)
            weights = weights + np.maximum(rates, 0.0)
        weights = np.nan_to_num(weights[: len(seen)]) + np.finfo(np.float64).tiny
        chosen = host_generator(choice_key).choice(len(seen), size=count, p=weights / weights.sum())
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            return np.asarray(jax.vmap(self.environment.restore)(jnp.asarray(seen[chosen], jnp.float64)))

    def policy(self, state: RunState, seed: int) -> Policy:
        """One seed's policy, on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[seed]), state.agent.policy)

    def evaluate(self, state: RunState) -> tuple[RunState, list[Evaluation | None]]:
        """Lines 16 and 17: ten trials of every seed going on; in `default` ten fresh ones before a success counts."""
        schedule = self.config.schedule
        split = jax.vmap(lambda key: jax.random.split(key, 3))(state.key)
        going = np.flatnonzero(state.ended == 0).tolist()

        def run(place: int) -> tuple[Evaluation, bool]:
            seed = going[place]
            trial = partial(
                evaluate,
                self.environment,
                self.policy(state, seed),
                trials=schedule.trials,
                seconds=schedule.trial_seconds,
            )
            first = trial(key=split[seed, 1])
            return first, first.solved and (not schedule.confirm or trial(key=split[seed, 2]).solved)

        answers: list[Evaluation | None] = [None] * len(split)
        rewards, passed = np.full(len(split), -np.inf), np.zeros(len(split), bool)
        for seed, (evaluation, solved) in zip(going, _for_each_seed(run, len(going)), strict=True):
            answers[seed], rewards[seed], passed[seed] = evaluation, evaluation.reward, solved
        state = judged(_replace(state, key=split[:, 0], iteration=1), state.ended == 0, rewards, passed)
        newly = passed & (state.solved_round == 0)
        solved_round = np.where(newly, state.round, state.solved_round)
        over = (state.ended == 0) & (solved_round > 0) & (state.round >= solved_round + schedule.rounds_after_solved)
        return _replace(
            state,
            solved_round=solved_round,
            solved_seconds=np.where(newly, state.experience.interaction_seconds(), state.solved_seconds),
            ended=np.where(over, state.round, state.ended),
        ), answers


def _first_keys(seeds: Sequence[int] | np.ndarray) -> Key[Array, "seed five"]:
    """A seed's keys for its run, its first data, its model, its agent and its fitting."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.split(key, 5))(keys)


def _for_each_seed(work: Callable[[int], Any], count: int) -> list[Any]:
    """On the host's cores; the first seed alone, so that what it compiles is there for the others."""
    first = work(0)
    with ThreadPoolExecutor() as pool:
        return [first, *pool.map(work, range(1, count))]


def _replace(state: RunState, **changes: Any) -> RunState:
    return dataclasses.replace(state, **changes)


def _counted(state: RunState, metrics: dict[str, Any], length: int) -> tuple[RunState, Rows]:
    """The state after a chunk, with its work; `Health` of every seed stays among the rows for the guard."""
    health = metrics.pop("health")
    rows = {name: np.asarray(value) for name, value in metrics.items()}
    work = state.work + np.asarray(rows.pop("work"), np.int64)
    rows["health"] = health
    return _replace(state, work=work, iteration=state.iteration + length), rows


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fit_updates(training, matching, length, state, recordings, step_scale):
    update = training.match if matching else training.update

    def one(state, recording, scale):
        seen = training.prepared(state, recording)

        def step(state, _):
            return update(state, seen, scale)

        state, metrics = jax.lax.scan(step, state, None, length=length)
        return training.looked(state, seen), _summary(metrics)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(state, recordings, step_scale)


@eqx.filter_jit
def _agent_updates(settings, reward_rate, fresh, length, dynamics, state, starts, bootstrap, step_scale):
    def one(dynamics, state, starts, scale):
        def step(state, _):
            return improve.agent_update(settings, reward_rate, dynamics, state, starts, bootstrap, scale, fresh)

        state, metrics = jax.lax.scan(step, state, None, length=length)
        return state, _summary(metrics)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(dynamics, state, starts, step_scale)


def _summary(metrics: Any) -> dict[str, Any]:
    """Means over a chunk, but totals of what is counted, and the health the guard asks for."""
    answer: dict[str, Any] = {}
    for name, value in metrics._asdict().items():
        if name in ("work", "unhealthy"):
            answer[name] = jnp.sum(value)
        elif name != "applied":
            answer[name] = jnp.mean(value)
    count = lambda health, update: (health.counted(*update), None)  # noqa: E731
    answer["health"], _ = jax.lax.scan(count, Health.none(), (metrics.applied, metrics.unhealthy))
    return answer


@eqx.filter_jit
def _variance(dynamics, policy, observations, key):
    """The mean over coordinates of the members' variance of ``f(s, pi(s))``."""
    members = dynamics.draw(key=key)

    def rates(member):
        return jax.vmap(lambda o: mean_rate(dynamics, member, o, policy(o)))(observations)

    return jnp.mean(jnp.var(jax.vmap(rates)(members), axis=0), axis=-1)


@eqx.filter_jit
def _actions(policy, observations):
    return jax.vmap(policy)(observations)


@eqx.filter_jit
def _reward_rates(reward_rate, policy, observations):
    return jax.vmap(lambda observation: reward_rate(observation, policy(observation)))(observations)
