"""Errors of solvers against integration time, for solving and sub-optimal policies on CartPole (claims 1 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ctrlax.lab import policies
from ctrlax.lab.claims import LARGE, Claim, judge
from ctrlax.lab.gallery import Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, column, look, unique
from ctrlax.ode.solvers import named
from ctrlax.world.collect import simulate
from ctrlax.world.grids import fixed_times
from ctrlax.world.load import make

ANSWERS = (1, 14)  # claims
TITLE = "Solver errors against integration time"
CAPTION = (
    "CartPole from its start distribution under policies that solve it and policies that do not, closed loop: the mean "
    "distance of the state from the true one (RK 7(8), rtol 1e-10) at the same time. Fixed-step solvers take their "
    "steps within observation intervals of 0.1 s; adaptive ones have rtol 1e-6 and atol 1e-8, and dopri5 also the 1e-3 "
    "and 1e-6 of learned models. The policies are those of one run's rounds, so "
    "intervals over them speak of these. The text shows one such picture for twenty policies."
)
STEP = 0.1
ADAPTIVE = {"dopri5": (1e-6, 1e-8), "bosh3": (1e-6, 1e-8), "heun": (1e-6, 1e-8), "dopri5, model": (1e-3, 1e-6)}
FIXED = ("rk4", "rk4-10", "euler-10", "euler-100", "euler-1000", "discrete")
FINE = ("dopri5", "bosh3", "heun", "rk4-10", "euler-1000")  # adaptive, or with many inner steps
WRONG, EXACT = 1.0, 1e-2  # of a state's distance: a task lost, and "practically zero"
KINDS = {True: "solving policies", False: "sub-optimal policies"}
SIZES = {"smoke": (1, 2, 2.0), "small": (20, 10, 5.0), "paper": (20, 50, 10.0)}  # policies, starts, seconds


def wanted(scale: Scale) -> list[Wanted]:
    """No runs of its own: the policies are there."""
    return []


def table(made: Made) -> list[Row]:
    """A row for every solver, policy and half second: mean and median error over starts."""
    count, starts, seconds = SIZES[made.scale.name]
    environment = make("cartpole")
    known = _some(policies.read("cartpole", *made.policies), count)
    solvers = [*ADAPTIVE, *FIXED] if not made.scale.smoke else ["dopri5", "rk4", "euler-10", "discrete"]
    times = fixed_times(STEP, seconds)
    rows = []
    for number, one in enumerate(known):
        begin = environment.draw_starts(starts, key=jax.random.key(number))
        policy = policies.double(one.policy)
        true = simulate(environment, policy, times, key=jax.random.key(0), starts=begin, rtol=1e-10, atol=1e-12)
        for solver in solvers:
            method, (rtol, atol) = solver.split(",")[0], ADAPTIVE.get(solver, (None, None))
            seen = simulate(
                environment, policy, times, key=jax.random.key(0), starts=begin, solver=method, rtol=rtol, atol=atol
            )
            distance = np.linalg.norm(seen.states - true.states, axis=2)  # [start, time]
            distance = np.where(seen.healthy[:, None], distance, LARGE)
            for place in range(5, len(times), 5):
                rows.append(
                    {"solver": solver, "policy": one.round, "solving": one.solving, "seconds": float(times[place]),
                     "error": float(distance[:, place].mean()), "median": float(np.median(distance[:, place])),
                     "work": float(seen.work.mean())}
                )  # fmt: skip
    return rows


def _some(known: Sequence[policies.Known], count: int) -> list[policies.Known]:
    """Solving and sub-optimal ones in turn, the same whatever the count."""
    good = sorted((each for each in known if each.solving), key=lambda each: -each.reward)
    poor = sorted((each for each in known if not each.solving), key=lambda each: -each.reward)
    half = (count + 1) // 2
    if count == 1:
        return [*good[:1], *poor[:1]]
    return [*good[:half], *poor[: count - min(half, len(good))]]


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """One panel per kind of policy, solvers as lines."""
    solvers = unique(rows, "solver")
    kinds = [solving for solving in KINDS if any(row["solving"] == solving for row in rows)]

    def of(solving: bool) -> Panel:
        def draw(axes: Any) -> None:
            mine = [row for row in rows if row["solving"] == solving]
            for solver in solvers:
                own = [row for row in mine if row["solver"] == solver]
                seconds = sorted(unique(own, "seconds"))
                errors = [_typical([row for row in own if row["seconds"] == second]) for second in seconds]
                axes.plot(seconds, np.maximum(errors, 1e-13), label=solver, markersize=3, **look(solver, solvers))
            axes.set_yscale("log")
            axes.set_xlabel("integration time [s]")
            axes.set_ylabel("distance from the true state")
            axes.set_title(f"{KINDS[solving].capitalize()} ({len(unique(mine, 'policy'))})")
            axes.set_ylim(top=1e5)  # room for the names above the lines
            axes.legend(fontsize=6.5, ncols=4, loc="upper left")

        return draw

    return tuple(of(solving) for solving in kinds)


def _typical(rows: Sequence[Row]) -> float:
    """The geometric mean over policies: errors lie decades apart."""
    return float(np.exp(np.mean(np.log(np.maximum(column(rows, "median"), 1e-14)))))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 1 at the last time; claim 14 by the slope of log error over time, policy by policy."""
    last = max(row["seconds"] for row in rows)
    ended = [row for row in rows if row["seconds"] == last]
    discrete = [row for row in ended if row["solver"] == "discrete"]
    answers = [
        judge(
            1, f"mean distance of discrete transitions after {last:g} s, by policy, above {WRONG:g}",
            column(discrete, "error"), above=WRONG,
        )
    ]  # fmt: skip
    for solver in [each for each in unique(rows, "solver") if each in FINE]:
        order = f", order {named(solver).order}"
        own = column([row for row in ended if row["solver"] == solver], "median")
        answers.append(
            judge(
                1, f"median distance of {solver}{order} after {last:g} s, by policy, below {EXACT:g}", own, below=EXACT
            )
        )
    for solving, kind in KINDS.items():
        for solver in unique(rows, "solver"):
            own = [row for row in rows if row["solver"] == solver and row["solving"] == solving]
            if own:
                answers.append(_growth(solver, kind, own))
    return answers


def _growth(solver: str, kind: str, rows: Sequence[Row]) -> Claim:
    slopes = []
    for policy in unique(rows, "policy"):
        own = [row for row in rows if row["policy"] == policy]
        errors = np.log10(np.maximum(column(own, "median"), 1e-15))
        slopes.append(np.polyfit(column(own, "seconds"), errors, 1)[0] if len(own) > 1 else np.nan)
    return judge(14, f"decades of error per second, {solver}, {kind}, by policy, above 0", slopes, above=0.0)
