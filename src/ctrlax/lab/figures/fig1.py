"""States and actions of CartPole: the true solution, a continuous-time solver's, discrete transitions (claim 15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ctrlax.lab import policies
from ctrlax.lab.claims import Claim, judge
from ctrlax.lab.gallery import COLORS, Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, column
from ctrlax.world.collect import Trajectory, simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import fixed_times
from ctrlax.world.load import make

ANSWERS = (15,)  # claims
TITLE = "One policy in continuous time and in discrete transitions"
CAPTION = (
    "CartPole from hanging down under one policy that solves the task. True: RK 7(8). Continuous: dopri5 with rtol "
    "1e-6 and atol 1e-8, the action following the state (with the 1e-3 of learned models it departs for a second where "
    "the pole comes up). Discrete: s + h f(s, a) with h = 0.1 s, the action "
    "held over a step. The last panel: how far the reward of two seconds, summed over the states 0.1 s apart of the "
    "true path, is from its integral, in units of the mean reward of two seconds. The text shows states and actions."
)
STEP, SECONDS, FINE, HORIZON = 0.1, 6.0, 0.01, 2.0
WRONG = 0.01  # of the reward of two seconds
STARTS = {"smoke": 3, "small": 50, "paper": 200}
WAYS = {"true": "ink", "continuous": "blue", "discrete": "orange"}


def wanted(scale: Scale) -> list[Wanted]:
    """No runs of its own."""
    return []


def table(made: Made) -> list[Row]:
    """Rows of kind `path` for the first start, of kind `reward` for two seconds from every start and later."""
    environment = make("cartpole")
    one = policies.solving(policies.read("cartpole", *made.policies))[-1]
    policy = policies.double(one.policy)
    starts = environment.draw_starts(STARTS[made.scale.name], key=jax.random.key(1))
    fine, coarse = fixed_times(FINE, SECONDS), fixed_times(STEP, SECONDS)
    true = _rolled(environment, policy, fine, starts, "dopri8")
    rows = _path("true", true) + _path("continuous", _rolled(environment, policy, fine, starts, "dopri5", 1e-6, 1e-8))
    return rows + _path("discrete", _rolled(environment, policy, coarse, starts, "discrete")) + _rewards(true)


def _rolled(
    environment: Environment, policy: Any, times: np.ndarray, starts: np.ndarray, solver: str, *tolerances: float
) -> Trajectory:
    rtol, atol = tolerances or (None, None)
    key = jax.random.key(0)
    return simulate(environment, policy, times, key=key, starts=starts, solver=solver, rtol=rtol, atol=atol)


def _path(way: str, seen: Trajectory) -> list[Row]:
    every = max(round(0.05 / (seen.times[0, 1] - seen.times[0, 0])), 1)
    return [
        {"kind": "path", "way": way, "time": round(float(time), 6), "x": float(state[0]), "theta": float(state[2]),
         "action": float(action[0])}
        for time, state, action in list(zip(seen.times[0], seen.states[0], seen.actions[0], strict=True))[::every]
    ]  # fmt: skip


def _rewards(true: Trajectory) -> list[Row]:
    """Two seconds of reward rate as an integral on the fine grid and as a sum over states a step apart."""
    stride, long = round(STEP / FINE), round(HORIZON / FINE)
    places = range(0, true.times.shape[1] - long, round(0.5 / FINE))
    return [
        {"kind": "reward", "start": start, "from": round(place * FINE, 6), "states": long // stride + 1,
         "integral": float(np.trapezoid(rate[place : place + long + 1], dx=FINE)),
         "summed": float(rate[place : place + long : stride].sum() * STEP)}
        for start, rate in enumerate(true.rewards) for place in places
    ]  # fmt: skip


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Angle, position and action over time, and the errors of summed rewards."""
    paths, sums = ([row for row in rows if row["kind"] == kind] for kind in ("path", "reward"))

    def of(what: str, title: str, label: str) -> Panel:
        def draw(axes: Any) -> None:
            for way, color in WAYS.items():
                own = [row for row in paths if row["way"] == way]
                steps = {"drawstyle": "steps-post"} if way == "discrete" and what == "action" else {}
                mark = "o" if way == "discrete" and what != "action" else None
                dash = "--" if way == "continuous" else "-"
                axes.plot(
                    column(own, "time"), column(own, what), color=COLORS[color], label=way, marker=mark, markersize=2.5,
                    linestyle=dash, linewidth=2.4 if way == "true" else 1.5, **steps,
                )  # fmt: skip
            true = column([row for row in paths if row["way"] == "true"], what)
            room = 0.5 * float(np.ptp(true)) + 0.1
            axes.set_ylim(true.min() - room, true.max() + room)
            axes.set_title(title)
            axes.set_xlabel("time [s]")
            axes.set_ylabel(label)
            axes.legend(fontsize=7)

        return draw

    def errors(axes: Any) -> None:
        axes.hist(100 * _relative(sums), bins=40, color=COLORS["orange"])
        axes.set_title("Reward of 2 s from 21 states")
        axes.set_xlabel("error [% of the mean reward of 2 s]")
        axes.set_ylabel("starts and times")

    return (
        of("theta", "Angle of the pole", "theta [rad]"),
        of("x", "Position of the cart", "x [m]"),
        of("action", "Action", "action [3 N]"),
        errors,
    )


def _relative(rows: Sequence[Row]) -> np.ndarray:
    integral = column(rows, "integral")
    return (column(rows, "summed") - integral) / np.abs(integral).mean()


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 15's first half: what finitely many states cost, start by start."""
    sums = [row for row in rows if row["kind"] == "reward"]
    starts = sorted({row["start"] for row in sums})
    scale = np.abs(column(sums, "integral")).mean()
    each = [np.abs(_of(sums, start, "summed") - _of(sums, start, "integral")).mean() / scale for start in starts]
    count = sums[0]["states"]
    measure = f"mean error of two seconds' reward from {count} states of the true path, by start, above {WRONG:g}"
    return [judge(15, measure, each, above=WRONG)]


def _of(rows: Sequence[Row], start: int, what: str) -> np.ndarray:
    return column([row for row in rows if row["start"] == start], what)
