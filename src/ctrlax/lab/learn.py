"""Algorithm 1 on one screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlax.lab.guard import Guard, TrainingStoppedError, select_lanes
from ctrlax.lab.phases import Laboratory, Rows
from ctrlax.lab.state import COLLECT, EVALUATE, FIT, IMPROVE, MATCH, RunState
from ctrlax.model.update import Health

STOPPED = "stopped"  # what `watch` is told when the guard gave a seed up
Watch = Callable[[RunState, str, Any], None]


def finished(laboratory: Laboratory, state: RunState) -> bool:
    """Every seed solved and trained on as long as asked, or the rounds are over."""
    return state.round > laboratory.config.schedule.rounds or bool(np.all(state.ended > 0))


def learn(laboratory: Laboratory, state: RunState, watch: Watch, guard: Guard) -> RunState:
    """The text's Algorithm 1 from its line 3 on; ``state`` may stand anywhere inside it. ``watch`` sees every step."""
    while not finished(laboratory, state):  # 3 repeat
        if state.phase in (MATCH, FIT):
            recordings = laboratory.recordings(state)
            while laboratory.unfinished(state):  # 5 for i = 1 .. N_dyn
                state = guarded(guard, partial(laboratory.fit_chunk, recordings=recordings), state, watch)  # 6, 7
        elif state.phase == IMPROVE:
            while laboratory.unfinished(state):  # 10 for i = 1 .. N_ac
                state = guarded(guard, laboratory.improve_chunk, state, watch)  # 11, 12, 13
        elif state.phase == COLLECT and not state.iteration:
            state = laboratory.collect(state)  # 15 collect, 16 explore
            watch(state, COLLECT, None)
        elif state.phase == EVALUATE and not state.iteration:
            state, evaluations = laboratory.evaluate(state)  # 17 execute
            watch(state, EVALUATE, evaluations)
        state = laboratory.next_phase(state)
    return state  # 18 until the pole never falls


def guarded(
    guard: Guard, chunk: Callable[[RunState], tuple[RunState, Rows]], state: RunState, watch: Watch
) -> RunState:
    """One chunk of learning under the guard; a seed that cannot go on ends here, the others go on."""
    ended = state.ended > 0

    def attempt(before: RunState, step_scale: np.ndarray) -> tuple[RunState, Rows, Health]:
        after, rows = chunk(dataclasses.replace(before, step_scale=step_scale))
        health = rows.pop("health")
        return (
            after,
            rows,
            select_lanes(ended, jax.tree.map(jnp.zeros_like, health), health),
        )  # what has ended can go wrong no more

    phase, key = state.phase, state.agent.key if state.phase == IMPROVE else state.fitting.key
    error = None
    try:
        outcome = guard.run(
            attempt, state, state.step_scale, key=key, seeds=state.seeds.tolist(), phase=phase,
            iteration=state.iteration,
        )  # fmt: skip
    except TrainingStoppedError as stopped:
        outcome, error = stopped.outcome, stopped
    health, state = outcome.health, outcome.state
    skipped, rollbacks = np.asarray(health.skipped), np.asarray(health.rollbacks)
    state = dataclasses.replace(
        state,
        step_scale=outcome.step_scale,
        skipped=state.skipped + skipped,
        rollbacks=state.rollbacks + rollbacks,
        ended=state.ended if error is None else np.where(error.lanes, state.round, state.ended),
    )
    watch(state, phase, outcome.metrics | {"skipped": skipped})
    if error is not None:
        watch(state, STOPPED, error)
    return state
