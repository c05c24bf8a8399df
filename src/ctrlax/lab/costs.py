"""What a figure costs on an H200, computed from measured rounds and updates where there are records of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrlax.lab.jobs import Job
from ctrlax.lab.scales import Wanted

RECORDS = Path("results/benchmarks/device_updates.json")
# What was measured: ten members, 25 windows, 100 starts, two seconds ahead.
MEMBERS, WINDOWS, HORIZON = 10, 25, 2.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Hours of an H200, and what they rest on."""

    hours: float | None
    basis: str

    def told(self) -> str:
        """In words."""
        hours = "unknown" if self.hours is None else f"{self.hours:.3g} H200-hours"
        return f"{hours} ({self.basis})"


def measured(folder: Path | None = None) -> dict[str, Any]:
    """The record of milliseconds per update and seed; empty where there is none."""
    for place in (folder, Path("."), Path(__file__).parents[3]):
        if place is not None and (place / RECORDS).exists():
            return json.loads((place / RECORDS).read_text())
    return {}


def of_job(job: Job, record: dict[str, Any], solver: str | None = None) -> Cost:
    """Rounds times updates times seeds; compiling, gradient matching, trials and data are not counted.

    With ``solver`` as if windows and imagination were solved by that one.
    """
    wanted = job.configuration
    fit, agent, model, schedule = (wanted[name] for name in ("fit", "agent", "model", "schedule"))
    windows, ahead = solver or fit["solver"], solver or agent["solver"]
    dynamics = record.get(f"dynamics {windows}", {}).get("median_ms")
    improving = record.get(f"agent {agent['members_per_start']} members, {ahead}", {}).get("median_ms")
    basis = "measured updates"
    if improving is None and agent["members_per_start"] == "one":
        improving = record.get(f"agent all members, {ahead}", {}).get("median_ms")
        basis = "measured updates; an upper bound, since one member per start costs less than all"
    if dynamics is None or improving is None:
        return Cost(None, f"no record of {windows} and {ahead} updates")
    if model["family"] != "enode":
        basis += f"; {model['family']} counted as ENODE"
    learns = model["family"] != "true"
    members = model["members"] / MEMBERS
    rounds, seeds = schedule["rounds"], len(job.seeds)
    # Windows grow with the data; the record's count is that of round 1, and the cost grows less than they do.
    a_round = agent["updates"] * improving * agent["horizon"] / HORIZON * (members if learns else 1.0)
    if learns:
        a_round += (fit["updates"] + fit["warmup_updates"]) * dynamics * members * _windows(job)
    return Cost(rounds * a_round * seeds / 3.6e6, basis)


def of_figure(wanted: Sequence[Wanted], record: dict[str, Any], solver: str | None = None) -> Cost:
    """All runs of a figure, each once; models that are left out are not counted."""
    jobs = {each.job.name: each.job for each in wanted if each.job}
    costs = [of_job(job, record, solver) for job in jobs.values()]
    missing = [cost.basis for cost in costs if cost.hours is None]
    if missing:
        return Cost(None, missing[0])
    left_out = sum(each.job is None for each in wanted)
    basis = [part for cost in costs for part in cost.basis.split("; ")] or ["no training runs"]
    if left_out:
        basis.append(f"{left_out} runs of models that are not here are not counted")
    hours = sum((cost.hours for cost in costs if cost.hours is not None), 0.0)
    return Cost(hours, "; ".join(dict.fromkeys(basis)))


def _windows(job: Job) -> float:
    """Windows in an update of the middle round, in those that were measured."""
    fit, schedule = job.configuration["fit"], job.configuration["schedule"]
    if fit["windows_per_trajectory"] is None:
        return fit["windows"] / WINDOWS
    world = job.world
    a_round = 1 + world.exploring_trajectories
    trajectories = world.initial_trajectories + a_round * schedule["rounds"] / 2
    if fit["recent"] is not None:
        trajectories = min(trajectories, fit["recent"])
    return fit["windows_per_trajectory"] * trajectories / WINDOWS
