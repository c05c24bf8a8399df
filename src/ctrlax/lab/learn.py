"""Algorithm 1 on one screen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctrlax.lab.phases import COLLECT, EVALUATE, FIT, IMPROVE, MATCH, Laboratory, RunState

Watch = Callable[[RunState, str, object], None]


def finished(laboratory: Laboratory, state: RunState) -> bool:
    """All seeds solved and trained on as long as asked, or the rounds are over."""
    schedule = laboratory.config.schedule
    solved = state.solved_round > 0
    late = state.round > state.solved_round + schedule.rounds_after_solved
    return state.round > schedule.rounds or bool(np.all(solved & late))


def learn(laboratory: Laboratory, state: RunState, watch: Watch) -> RunState:
    """The text's Algorithm 1 from its line 3 on; ``state`` may stand anywhere inside it. ``watch`` sees every step."""
    while not finished(laboratory, state):  # 3 repeat
        if state.phase in (MATCH, FIT):
            recordings = laboratory.recordings(state.experience)
            while state.iteration < laboratory.updates(state.phase):  # 5 for i = 1 .. N_dyn
                state, metrics = laboratory.fit_chunk(state, recordings)  # 6, 7
                watch(state, state.phase, metrics)
        elif state.phase == IMPROVE:
            while state.iteration < laboratory.updates(IMPROVE):  # 10 for i = 1 .. N_ac
                state, metrics = laboratory.improve_chunk(state)  # 11, 12, 13
                watch(state, IMPROVE, metrics)
        elif state.phase == COLLECT:
            state = laboratory.collect(state)  # 15 collect, 16 explore
            watch(state, COLLECT, None)
        elif state.phase == EVALUATE:
            state, evaluations = laboratory.evaluate(state)  # 17 execute
            watch(state, EVALUATE, evaluations)
        state = laboratory.next_phase(state)
    return state  # 18 until the pole never falls
