"""`ctrlax simulate`: roll out the true world and write what was seen."""

from __future__ import annotations

import dataclasses
import json as json_text
import math
import os
import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import ctrlax
from ctrlax.commands.paths import check_writable
from ctrlax.errors import UserError
from ctrlax.names import SYSTEMS, listed, unknown_name

DATA_FORMATS = (".parquet", ".csv", ".npz")
FRAME_STEP = 0.05  # seconds between the states computed for a GIF


@dataclasses.dataclass(frozen=True)
class Simulate:
    """Simulate an environment, a built-in one or your own, and write what was observed."""

    environment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """A built-in name (see `ctrlax list`) or the path of your own system, ending in .py."""
    policy: Literal["zero", "random"] = "random"
    """No action (or the nearest within the bounds), or a smooth random one in every trajectory."""
    grid: Literal["fixed", "uniform", "exponential", "exp"] = "fixed"
    """How observation times are spaced."""
    dt: float = 0.1
    """Mean seconds between observations."""
    points: int = 50
    """Observations per trajectory, the first at time zero."""
    trajectories: int = 1
    """How many, each from a start of its own."""
    noise: float = 0.0
    """Standard deviation of the noise on observations."""
    solver: str = "dopri8"
    """A solver setting (see `ctrlax list solvers`)."""
    rtol: float | None = None
    """Relative tolerance; the solver's own if left out."""
    atol: float | None = None
    """Absolute tolerance; the solver's own if left out."""
    variant: str = "paper"
    """Constants and reward of a built-in: paper or reference."""
    seed: int = 0
    """Everything drawn follows from it."""
    out: Path | None = None
    """Write the data here: .parquet, .csv or .npz."""
    gif: Path | None = None
    """Write the first trajectory as a moving picture here: .gif."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        self._check()
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the true world is solved on the host: no need to wake a GPU

        environment = ctrlax.make(self.environment, variant=self.variant)
        began = time.perf_counter()
        trajectory, picture = self._roll_out(environment)
        seconds = time.perf_counter() - began
        if not trajectory.healthy.any():
            raise UserError(_nothing_healthy(self, environment))
        if self.out is not None:
            self._write(environment, trajectory, self.out)
        if self.gif is not None:
            from ctrlax.world.render import write_gif

            shown = picture if picture is not None and picture.healthy[0] else trajectory
            write_gif(environment, shown.times[0], shown.states[0], shown.actions[0], self.gif)
        if self.json:
            print(json_text.dumps(self._summary(trajectory, seconds)))
        else:
            self._show(environment, trajectory, seconds)

    def _check(self) -> None:
        if not self.environment.endswith(".py") and self.environment not in listed(SYSTEMS):
            raise unknown_name(
                "environment", self.environment, listed(SYSTEMS), " Your own system is a path that ends in .py."
            )
        for option, value, least in (
            ("points", self.points, 2),
            ("trajectories", self.trajectories, 1),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise UserError(f"--{option} is {value}, expected {least} or more.")
        if not (math.isfinite(self.dt) and self.dt > 0):
            raise UserError(f"--dt is {self.dt}, expected a positive number of seconds.")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise UserError(f"--noise is {self.noise}, expected a standard deviation: zero or more.")
        for option, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if tolerance is not None and not (math.isfinite(tolerance) and tolerance > 0):
                raise UserError(f"--{option} is {tolerance}, expected a positive number such as 1e-8.")
        if self.out is not None:
            check_writable("--out", self.out, DATA_FORMATS)
        if self.gif is not None:
            check_writable("--gif", self.gif, (".gif",))

    def _roll_out(self, environment: ctrlax.Environment) -> tuple[ctrlax.Trajectory, ctrlax.Trajectory | None]:
        import jax
        import numpy as np

        from ctrlax.ode.control import Constant
        from ctrlax.world.collect import random_controls, simulate
        from ctrlax.world.grids import draw_times

        times_key, action_key, key = jax.random.split(jax.random.key(self.seed), 3)
        times = draw_times(self.grid, self.dt, self.points, key=times_key, trajectories=self.trajectories)
        if self.policy == "random":
            controls = random_controls(environment, times, key=action_key)
        else:
            still = np.clip(0.0, environment.action_low, environment.action_high)
            controls = [Constant(still)] * self.trajectories
        solving: dict[str, Any] = {"solver": self.solver, "rtol": self.rtol, "atol": self.atol}
        trajectory = simulate(environment, controls, times, key=key, noise=self.noise, **solving)
        if self.gif is None or times[0, -1] <= FRAME_STEP:
            return trajectory, None
        frames = np.arange(0.0, times[0, -1], FRAME_STEP)
        return trajectory, simulate(
            environment, controls[:1], frames, key=key, starts=trajectory.states[:1, 0], **solving
        )

    def _write(self, environment: ctrlax.Environment, trajectory: ctrlax.Trajectory, path: Path) -> None:
        from ctrlax.model.dataset import Dataset, write
        from ctrlax.world.grids import grid_named

        chosen = ("policy", "grid", "dt", "noise", "solver", "rtol", "atol", "seed")
        sampling = {name: getattr(self, name) for name in chosen if getattr(self, name) is not None}
        sampling["grid"] = grid_named(self.grid)
        hold = "gp" if self.policy == "random" else "hold"
        write(Dataset.from_trajectory(trajectory, environment, hold=hold, sampling=sampling), path)

    def _summary(self, trajectory: ctrlax.Trajectory, seconds: float) -> dict[str, Any]:
        return {
            "trajectories": self.trajectories,
            "points": self.points,
            "healthy": int(trajectory.healthy.sum()),
            "field_evaluations": int(trajectory.work.sum()),
            "seconds": round(seconds, 3),
            "out": str(self.out) if self.out is not None else None,
        }

    def _show(self, environment: ctrlax.Environment, trajectory: ctrlax.Trajectory, seconds: float) -> None:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        good = trajectory.healthy
        spacing = (
            f"every {self.dt:g} s" if self.grid == "fixed" else f"every {self.dt:g} s on average ({self.grid} steps)"
        )
        many = f"{self.trajectories} trajector{'y' if self.trajectories == 1 else 'ies'}"
        console.print(
            f"[bold]{environment.name}[/] ({environment.variant}): {many} of {self.points} points, {spacing}, ", end=""
        )
        console.print("no action" if self.policy == "zero" else "smooth random actions")
        color = "green" if good.all() else "red"
        console.print(f"  healthy        [{color}]{good.sum()} of {len(good)}[/]", end="")
        console.print(
            "" if good.all() else "; the others blew up or did not finish, and their numbers are not to be trusted"
        )
        console.print(f"  reward rate    {trajectory.rewards[good].mean():.4g} on average")
        console.print(
            f"  simulated in   {seconds:.2f} s with compiling, {trajectory.work.sum():,} evaluations of the field"
        )
        for path in (self.out, self.gif):
            if path is not None:
                console.print(f"  written        {path} ({path.stat().st_size / 1024:,.0f} kB)", markup=False)
        console.print(f"  next           [bold]{self._next(environment)}[/]")

    def _next(self, environment: ctrlax.Environment) -> str:
        command = f"ctrlax simulate {shlex.quote(self.environment)}"
        if self.gif is None:
            return f"{command} --gif {environment.name}.gif"
        if self.out is None:
            return f"{command} --trajectories 10 --out {environment.name}.csv"
        return f"{command} --seed {self.seed + 1}"


def _nothing_healthy(command: Simulate, environment: ctrlax.Environment) -> str:
    from ctrlax.ode.solvers import Fixed, named

    own = " Look for terms in your field that grow without bound." if command.environment.endswith(".py") else ""
    cures = {"dopri8": "dopri8", "kvaerno5": "kvaerno5 if the system is stiff"}
    others = " or ".join(cure for name, cure in cures.items() if name != command.solver)
    finer = f"a smaller --dt than {command.dt:g}, or " if isinstance(named(command.solver), Fixed) else ""
    return (
        f"No trajectory of {environment.name} was solved with {command.solver}: each blew up or did not finish. "
        f"Try {finer}--solver {others}.{own} Nothing was written."
    )
