"""CartPole under one solving policy as public discretisations integrate it, against the true path (claim 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ctrlax.lab import policies
from ctrlax.lab.claims import Claim, judge, unanswered
from ctrlax.lab.gallery import COLORS, Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, column, look, unique
from ctrlax.ode.solve import explicit_step
from ctrlax.ode.solvers import EULER, RK4, Tableau
from ctrlax.world.collect import simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import fixed_times
from ctrlax.world.load import make

ANSWERS = (2,)  # claims
TITLE = "Public discretisations of CartPole against the true path"
CAPTION = (
    "The same policy, which solves the task, from the same starts: integrated by RK 7(8) with the action following the "
    "state, and as discrete-time code does, the action held over a step of the length in parentheses. A path has left "
    "the true one once the pole's angle is half a radian away (shown), or the whole state half a unit, speeds "
    "included, which a mere delay is enough for. Gym: Euler, 0.02 s (tau in its cartpole.py). "
    "DeepMind Control: RK4, 0.01 s (timestep and integrator in its cartpole.xml, action held over one step). What "
    "Deep PILCO's authors integrate with could not be established; both methods are shown at 0.1 s, the step of the "
    "text's own experiments. The bodies, masses and bounds are ours throughout: only the "
    "integration differs. The text shows one such set of paths."
)
LEFT = 0.5  # distance from the true path at which a path has left it
MEASURES = {"angle": "the pole's angle half a radian away", "state": "the whole state half a unit away"}
SECONDS = 10.0
SHOWN = 0.1  # s, between rows of the paths


class Discretisation(NamedTuple):
    """An integrator with a step, and where that is from."""

    name: str
    tableau: Tableau
    step: float
    source: str


PUBLIC = (
    Discretisation("Gym: Euler (0.02)", EULER, 0.02, "openai/gym, gym/envs/classic_control/cartpole.py: tau = 0.02"),
    Discretisation(
        "DM Control: RK4 (0.01)", RK4, 0.01,
        'google-deepmind/dm_control, suite/cartpole.xml: timestep="0.01" integrator="RK4"',
    ),
    Discretisation("Euler (0.1)", EULER, 0.1, "Deep PILCO's integrator could not be established; the text's step"),
    Discretisation("RK4 (0.1)", RK4, 0.1, "Deep PILCO's integrator could not be established; the text's step"),
)  # fmt: skip
CRUDE = ("Gym: Euler (0.02)", "Euler (0.1)", "RK4 (0.1)")
STARTS = {"smoke": 3, "small": 100, "paper": 400}


def wanted(scale: Scale) -> list[Wanted]:
    """No runs of its own."""
    return []


def table(made: Made) -> list[Row]:
    """Rows of kind `left` for every start and measure of distance, of kind `path` for times of the first start."""
    environment = make("cartpole")
    one = policies.solving(policies.read("cartpole", *made.policies))[-1]
    policy = policies.double(one.policy)
    starts = environment.draw_starts(STARTS[made.scale.name], key=jax.random.key(7))
    times = fixed_times(0.01, SECONDS)
    true = simulate(environment, policy, times, key=jax.random.key(0), starts=starts, rtol=1e-10, atol=1e-12)
    rows = [_path("true", float(time), state) for time, state in zip(times[::10], true.states[0, ::10], strict=True)]
    for way in PUBLIC:
        states = integrated(environment, policy, starts, way)
        stride = round(way.step / 0.01)
        there = true.states[:, ::stride]
        distances = {"angle": np.abs(states - there)[..., 2], "state": np.linalg.norm(states - there, axis=2)}
        for measure, distance in distances.items():
            distance = np.where(np.isfinite(distance), distance, np.inf)
            rows += [
                {"kind": "left", "way": way.name, "source": way.source, "measure": measure, "start": start,
                 "policy": one.round, "solving": one.solving, **_left(way.step, distance[start], there[start])}
                for start in range(len(starts))
            ]  # fmt: skip
        shown = max(round(SHOWN / way.step), 1)
        rows += [
            _path(way.name, float(place * way.step), states[0, place]) for place in range(0, len(states[0]), shown)
        ]
    return rows


def _path(way: str, time: float, state: Float[np.ndarray, " state"]) -> Row:
    return {"kind": "path", "way": way, "time": round(time, 6), "x": float(state[0]), "theta": float(state[2])}


def _left(
    step: float, distance: Float[np.ndarray, " time"], true: Float[np.ndarray, "time state"]
) -> dict[str, float | None]:
    """When and where a path leaves the true one, and the pole's angle from hanging where its error begins to grow."""
    gone = np.flatnonzero(distance > LEFT)
    if not len(gone):
        return {"left_at": None, "x": None, "from_hanging": None, "furthest": float(distance.max())}
    first = int(gone[0])
    hanging = abs(_wrapped(true[first, 2] - np.pi))
    return {
        "left_at": first * step, "x": float(true[first, 0]), "from_hanging": float(hanging),
        "furthest": float(np.minimum(distance.max(), 1e6)),
    }  # fmt: skip


def _wrapped(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def integrated(
    environment: Environment,
    policy: Callable[..., Any],
    starts: Float[np.ndarray, "start state"],
    way: Discretisation,
) -> Float[np.ndarray, "start time state"]:
    """The paths of one discretisation, the action held over each of its steps, in float64 on the host."""
    count = round(SECONDS / way.step)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        policy = jax.tree.map(jnp.asarray, policy)

        def step(state: Any, _: None) -> tuple[Any, Any]:
            action = environment.clip(policy(environment.observe(state)))
            state = explicit_step(way.tableau, lambda node, s: environment.field(s, action), way.step, state)
            return state, state

        def one(start: Any) -> Any:
            return jnp.concatenate([start[None], jax.lax.scan(step, start, None, length=count)[1]])

        return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(starts)))


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """The pole's angle and the cart's position of the first start, and when the paths of all starts leave."""
    paths = [row for row in rows if row["kind"] == "path"]
    left = [row for row in rows if row["kind"] == "left" and row["measure"] == "angle"]
    ways = unique(left, "way")

    def over_time(what: str, title: str, label: str) -> Panel:
        def draw(axes: Any) -> None:
            for way in ["true", *ways]:
                own = [row for row in paths if row["way"] == way]
                style = {"color": COLORS["ink"], "linewidth": 2.6} if way == "true" else look(way, ways)
                style = {name: value for name, value in style.items() if name != "marker"}
                axes.plot(column(own, "time"), column(own, what), label=way, **style)
            true = column([row for row in paths if row["way"] == "true"], what)
            room = 0.4 * float(np.ptp(true)) + 0.1
            axes.set_ylim(true.min() - room, true.max() + room)
            axes.set_title(title)
            axes.set_xlabel("time [s]")
            axes.set_ylabel(label)
            if what == "theta":  # lines cross all of the other panel
                axes.legend(fontsize=7, loc="center right")

        return draw

    def when(axes: Any) -> None:
        for place, way in enumerate(ways):
            own = [row for row in left if row["way"] == way]
            gone = [row for row in own if row["left_at"] is not None]
            color = look(way, ways)["color"]
            axes.plot(column(gone, "left_at"), np.full(len(gone), place), "|", color=color, markersize=14, alpha=0.6)
            axes.text(SECONDS, place + 0.2, f"{len(own) - len(gone)} of {len(own)} never", fontsize=7.5, ha="right")
        axes.set_yticks(range(len(ways)), ways)
        axes.set_xlim(0, SECONDS)
        axes.set_ylim(-0.6, len(ways) - 0.3)
        axes.set_xlabel("time [s]")
        axes.set_title("When paths leave the true one, all starts")

    def where(axes: Any) -> None:
        for way in ways:
            gone = [row for row in left if row["way"] == way and row["left_at"] is not None]
            angles = 180 / np.pi * column(gone, "from_hanging")
            style = look(way, ways)
            axes.plot(column(gone, "x"), angles, style["marker"], color=style["color"], markersize=3.5, label=way)
        axes.set_title("Where: the true state as paths leave")
        axes.set_xlabel("cart position [m]")
        axes.set_ylabel("pole's angle from hanging [deg]")
        axes.set_ylim(-5, 245)
        axes.legend(fontsize=7, ncols=2, loc="upper center")

    return (
        over_time("theta", "Angle of the pole, one start", "theta [rad], hanging is pi"),
        over_time("x", "Position of the cart, one start", "x [m]"),
        when,
        where,
    )


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 2 in two parts for each crude discretisation: whether paths leave, and whether the pole then hangs up."""
    answers = []
    for way, measured in ((way, measured) for way in CRUDE for measured in MEASURES):
        own = [r for r in rows if r["kind"] == "left" and r["way"] == way and r["measure"] == measured]
        gone = [row for row in own if row["left_at"] is not None]
        share = [float(row["left_at"] is not None) for row in own]
        note = ""
        if gone:
            when, x = np.median(column(gone, "left_at")), np.median(column(gone, "x"))
            angle = 180 / np.pi * np.median(column(gone, "from_hanging"))
            note = f"left after {when:.2f} s (median), at x {x:.2f} m, {angle:.0f} degrees from hanging"
        said = f"{way}, {MEASURES[measured]}"
        answers.append(judge(2, f"share of starts whose path leaves, {said}, above 0.5", share, above=0.5, note=note))
        if gone:
            # "Hangs up": the pole near the top, where gravity no longer decides to which side it goes.
            upright = 180 - 180 / np.pi * column(gone, "from_hanging")
            measure = f"degrees from upright as the path leaves, {said}, below 45"
            answers.append(judge(2, measure, upright, below=45.0, statistic=np.median))
        else:
            answers.append(unanswered(2, f"no path of {said} left the true one"))
    return answers
