"""What a run is between two chunks of a phase, and its lanes: one per seed, along the leading axis of every array."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ctrlax.agent import improve
from ctrlax.agent.policy import Policy
from ctrlax.lab.experience import Experience
from ctrlax.model.training import TrainingState

MATCH, FIT, IMPROVE, COLLECT, EVALUATE = "match", "fit", "improve", "collect", "evaluate"
PHASES = (MATCH, FIT, IMPROVE, COLLECT, EVALUATE)
SHAPES = 3  # sizes of its arrays a run may go through: every one is a compilation of each phase


class RunState(eqx.Module):
    """Everything a run is, between two chunks of a phase."""

    key: Key[Array, " seed"]
    experience: Experience
    fitting: TrainingState
    agent: improve.AgentState
    seeds: Int[np.ndarray, " seed"]
    step_scale: Float[np.ndarray, " seed"]
    work: Int[np.ndarray, " seed"]  # field evaluations so far
    skipped: Int[np.ndarray, " seed"]  # updates left out so far
    rollbacks: Int[np.ndarray, " seed"]  # chunks repeated with a smaller step so far
    imagined_reward: Float[np.ndarray, " seed"]  # of the last chunk that improved the agent
    solved_round: Int[np.ndarray, " seed"]  # 0 until solved
    solved_seconds: Float[np.ndarray, " seed"]  # interaction up to the solving round, NaN until solved
    ended: Int[np.ndarray, " seed"]  # the round in which a seed stopped, solved or by the guard; 0 while it goes on
    best_policy: Policy  # of the best evaluation so far: a passed one before any other, then by reward
    best_reward: Float[np.ndarray, " seed"]
    best_passed: Bool[np.ndarray, " seed"]
    capacity: int  # trajectories the arrays of the dynamics' phases have room for
    shapes: int  # how many sizes these arrays had
    seconds: float  # of wall clock, sessions before a resume included
    round: int
    phase: str
    iteration: int


def begin_lanes(
    *,
    key: Key[Array, " seed"],
    experience: Experience,
    fitting: TrainingState,
    agent: improve.AgentState,
    seeds: Sequence[int],
    phase: str,
    capacity: int,
) -> RunState:
    """A run before its first chunk."""
    count = len(seeds)

    def zeros() -> Int[np.ndarray, " seed"]:
        return np.zeros(count, np.int64)

    return RunState(
        key=key, experience=experience, fitting=fitting, agent=agent, seeds=np.asarray(seeds, np.int64),
        step_scale=np.ones(count), work=zeros(), skipped=zeros(), rollbacks=zeros(),
        imagined_reward=np.full(count, np.nan), solved_round=zeros(), solved_seconds=np.full(count, np.nan),
        ended=zeros(), best_policy=agent.policy, best_reward=np.full(count, -np.inf),
        best_passed=np.zeros(count, bool), capacity=capacity, shapes=1, seconds=0.0, round=1, phase=phase, iteration=0,
    )  # fmt: skip


def take(state: RunState, lanes: Bool[np.ndarray, " seed"]) -> RunState:
    """The seeds in ``lanes`` alone."""
    rows = np.flatnonzero(lanes)
    return jax.tree.map(lambda leaf: leaf[rows] if isinstance(leaf, jax.Array | np.ndarray) else leaf, state)


def joined(states: Sequence[RunState]) -> RunState:
    """Lanes of several states as one state, for those who read; counters that are not by seed are the last one's."""
    longest = max(state.experience.times.shape[1] for state in states)
    most = max(state.experience.times.shape[2] for state in states)
    states = [dataclasses.replace(state, experience=state.experience.padded(longest, most)) for state in states]

    def together(*leaves: object) -> object:
        if isinstance(leaves[-1], np.ndarray):
            return np.concatenate(leaves)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return jnp.concatenate(leaves) if isinstance(leaves[-1], jax.Array) else leaves[-1]  # pyright: ignore

    # Optimisers may hold counters of their own, all of them arrays; what is no array is alike or the last one's.
    plain = [jax.tree.unflatten(jax.tree.structure(states[-1]), jax.tree.leaves(state)) for state in states]
    return jax.tree.map(together, *plain)


def place_of(state: RunState, updates: int) -> int:
    """How far a run is, as one number that counts up; ``updates`` is the most a phase has."""
    return ((state.round - 1) * len(PHASES) + PHASES.index(state.phase)) * (updates + 2) + state.iteration


def judged(
    state: RunState, lanes: Bool[np.ndarray, " seed"], rewards: Float[np.ndarray, " seed"], passed: Array | np.ndarray
) -> RunState:
    """With the policies of ``lanes`` evaluated: the best one of every seed is kept."""
    passed = np.asarray(passed)
    better = lanes & ((passed & ~state.best_passed) | ((passed == state.best_passed) & (rewards > state.best_reward)))
    best = jax.tree.map(
        lambda new, old: jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        state.agent.policy,
        state.best_policy,
    )
    return dataclasses.replace(
        state,
        best_policy=best,
        best_reward=np.where(better, rewards, state.best_reward),
        best_passed=np.where(better, passed, state.best_passed),
    )


def fitted_shape(state: RunState, sizes: Sequence[int]) -> RunState:
    """Room for the data, and lanes that ended dropped, so that a run goes through at most `SHAPES` sizes of arrays.

    The size changes when the data outgrow it, or when at most half of the lanes go on; then both are made to fit, since
    everything is compiled anew. The last size has room for the whole run. A function of the state alone: a resumed
    run does the same.
    """
    count = state.experience.times.shape[1]
    going = state.ended == 0
    outgrown = count > state.capacity
    worth_it = 2 * going.sum() <= len(going) and state.shapes < SHAPES
    if not going.any() or not (outgrown or worth_it):
        return state
    shapes = state.shapes + 1
    allowed = [size for size in sizes if size >= count] or [count]
    capacity = max(allowed) if shapes >= SHAPES else min(allowed)
    return dataclasses.replace(take(state, going), capacity=capacity, shapes=shapes)
