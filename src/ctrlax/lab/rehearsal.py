"""What a run would take, measured on a little of it: `train --dry-run`."""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Sequence

import jax

from ctrlax.lab.phases import Laboratory, chunk_length
from ctrlax.lab.state import EVALUATE, FIT, IMPROVE, MATCH
from ctrlax.model.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run before it is run; times in seconds, memory in GB."""

    rounds: int
    seeds: int
    seconds_a_round: float
    seconds_compiling: float
    seconds_at_most: float
    memory: float
    parameters: int  # of one seed: dynamics, policy and critic

    def told(self) -> str:
        """For people."""
        from ctrlax.lab.live import duration

        return (
            f"rounds         {self.rounds} at most, {self.seeds} seed{'s' * (self.seeds > 1)}, "
            f"{self.parameters:,} parameters each\n"
            f"memory         {self.memory:.2g} GB, the peak of what was measured\n"
            f"time           {duration(self.seconds_a_round)} a round and {duration(self.seconds_compiling)} to compile"
            f": at most {duration(self.seconds_at_most)}\n"
            "measured       one chunk of each learning phase here and now, twice; fields get stiffer as they are "
            "learned,\n               so adaptive solvers may take a few times longer"
        )


def rehearse(laboratory: Laboratory, seeds: Sequence[int], dataset: Dataset | None = None) -> Plan:
    """Run the first chunk of every learning phase twice, and the trials once, and keep nothing."""
    began = time.perf_counter()
    state = laboratory.start(seeds, dataset)
    compiling, a_round, before = time.perf_counter() - began, 0.0, 0.0
    recordings = laboratory.recordings(state) if laboratory.learns else None
    for phase in (MATCH, FIT, IMPROVE) if laboratory.learns else (IMPROVE,):
        total = laboratory.updates(phase)
        if not total:
            continue
        state = dataclasses.replace(state, phase=phase)
        times = []
        for _ in range(2):
            began = time.perf_counter()
            if phase == IMPROVE:
                made, _ = laboratory.improve_chunk(state)
            else:
                assert recordings is not None
                made, _ = laboratory.fit_chunk(state, recordings)
            jax.block_until_ready((made.fitting, made.agent))
            times.append(time.perf_counter() - began)
        compiling += times[0] - times[1]
        whole = times[1] * total / chunk_length(total)
        if phase == MATCH:
            before = whole
        else:
            a_round += whole
    state = dataclasses.replace(state, phase=EVALUATE)
    laboratory.evaluate(state)
    began = time.perf_counter()
    laboratory.evaluate(state)
    a_round += time.perf_counter() - began
    rounds = laboratory.config.schedule.rounds
    trained = jax.tree.leaves((state.fitting.learned, state.agent.policy, state.agent.critic))
    return Plan(
        rounds=rounds,
        seeds=len(seeds),
        seconds_a_round=a_round,
        seconds_compiling=compiling,
        seconds_at_most=compiling + before + rounds * a_round,
        memory=_peak_memory(),
        parameters=sum(leaf[0].size for leaf in trained),
    )


def _peak_memory() -> float:
    found = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in found:
        return found["peak_bytes_in_use"] / 1e9
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
