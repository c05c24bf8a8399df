"""`ctrlax train`: learn a controller for an environment."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ctrlax.errors import UserError
from ctrlax.names import SYSTEMS, listed, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from ctrlax.lab.run import Run


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a controller for an environment, a built-in one or your own. Options left out are the preset's."""

    environment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """A built-in name (see `ctrlax list`) or the path of your own system, ending in .py."""
    preset: str = "default"
    """default (ours), paper (the text to the letter) or reference (the authors' code)."""
    model: str | None = None
    """Which dynamics are learned (see `ctrlax list models`); `true` uses the system itself."""
    structure: str | None = None
    """What is known of the dynamics, as in second-order,affine."""
    seeds: str = "0"
    """Independent runs side by side: 0:20 (without 20), or 0,3,5."""
    rounds: int | None = None
    """Rounds of fitting, improving and collecting at most."""
    rounds_after_solved: int | None = None
    """Rounds a seed goes on after it has solved the task."""
    budget: float | None = None
    """Hours of computing, after which the run ends with its round; the environment's time limit if left out."""
    variant: str | None = None
    """Constants and reward of a built-in: paper or reference."""
    grid: Literal["fixed", "uniform", "exponential", "exp"] | None = None
    """How observation times are spaced."""
    dt: float | None = None
    """Mean seconds between observations."""
    noise: float | None = None
    """Standard deviation of the noise on observations."""
    horizon: float | None = None
    """Seconds that are imagined ahead."""
    members: int | None = None
    """Members of the model's ensemble."""
    data: Path | None = None
    """A log to start from instead of random actions: .csv, .parquet or .npz with the environment's columns."""
    device: Literal["cpu", "gpu"] | None = None
    """Where learning runs; a GPU if there is one."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Measure a little, and say how many rounds, how much memory and how long; train nothing."""
    out: Path | None = None
    """The run's folder; runs/ENV-PRESET-MODEL if left out, with a counter where that is taken."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Any other setting, as --set agent.updates=1000 --set fit.solver=dopri5."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        own = self.environment.endswith(".py")
        if not own and self.environment not in listed(SYSTEMS):
            also = " Your own system is a path that ends in .py."
            raise unknown_name("environment", self.environment, listed(SYSTEMS), also)
        asked = {"seeds": parse_seeds(self.seeds), "preset": self.preset, **self._settings()}
        choose_device(self.device)

        from ctrlax.lab.live import show_on
        from ctrlax.lab.run import prepare, train

        console = console_for(self.json)
        if self.dry_run:
            from ctrlax.lab.rehearsal import rehearse

            laboratory, _, dataset = prepare(self.environment, data=self.data, budget=self.budget, **asked)
            plan = rehearse(laboratory, asked["seeds"], dataset)
            console.print(plan.told(), markup=False)
            if self.json:
                print(json_text.dumps(dataclasses.asdict(plan)))
            return
        conclude(
            lambda: train(
                self.environment, out=self.out, data=self.data, budget=self.budget, show=show_on(console), **asked
            ),
            console,
            json=self.json,
        )

    def _settings(self) -> dict[str, Any]:
        named = {
            "variant": self.variant,
            "model.family": self.model,
            "model.structure": self.structure,
            "model.members": self.members,
            "sampling.grid": {"exp": "exponential"}.get(self.grid or "", self.grid),
            "sampling.dt": self.dt,
            "sampling.noise": self.noise,
            "agent.horizon": self.horizon,
            "schedule.rounds": self.rounds,
            "schedule.rounds_after_solved": self.rounds_after_solved,
        }
        given = {name: value for name, value in named.items() if value is not None}
        return given | parse_settings(self.set)


def parse_seeds(text: str) -> list[int]:
    """``0:20`` (without 20), ``3``, or ``0,3,5``."""
    try:
        if re.fullmatch(r"\d+:\d+", text):
            first, end = map(int, text.split(":"))
            seeds = list(range(first, end))
        else:
            seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds:
        raise UserError(f"--seeds is {text!r}, expected a range such as 0:20 (without 20), or numbers such as 0,3,5.")
    return seeds


def parse_settings(given: tuple[str, ...]) -> dict[str, str]:
    """``group.setting=value`` of each."""
    for each in given:
        if not re.fullmatch(r"[a-z_.]+=.*", each):
            raise UserError(f"--set {each}: expected group.setting=value, as in agent.updates=1000.")
    return dict(each.split("=", 1) for each in given)  # pyright: ignore[reportReturnType, reportArgumentType]


def choose_device(device: str | None) -> None:
    """Before JAX is imported."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif device == "gpu":
        import jax

        if not any(found.platform == "gpu" for found in jax.devices()):
            raise UserError("--device gpu: JAX sees no GPU here. Install jax[cuda13], or leave --device out.")


def console_for(json: bool) -> Console:
    """Where people are told: beside the JSON object if one was asked for."""
    from rich.console import Console

    return Console(stderr=json, highlight=False, soft_wrap=True)


def conclude(work: Callable[[], Run], console: Console, *, json: bool) -> None:
    """Run, and say how it ended: what was achieved, where it is, and what to do next."""
    from ctrlax.lab.checkpoint import NotWrittenError
    from ctrlax.lab.guard import TrainingStoppedError
    from ctrlax.lab.keeper import Interrupted

    try:
        run = work()
    except Interrupted as interrupted:
        print(interrupted, file=sys.stderr)
        sys.exit(130)
    except (TrainingStoppedError, NotWrittenError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    shown = draw(run, console)
    summary = run.summary()
    _tell(run, summary, shown, console)
    if json:
        print(json_text.dumps(summary))


def draw(run: Run, console: Console) -> list[Path]:
    """Pictures and the report of a run that is over; a missing part costs a line, not the run."""
    try:
        from ctrlax.lab.pictures import draw_all
        from ctrlax.lab.report import write

        return [*draw_all(run), write(run)]
    except ImportError as missing:
        console.print(f"no pictures: {missing.name} is not installed (pip install matplotlib Pillow)", markup=False)
    except Exception as error:
        if os.environ.get("CTRLAX_DEBUG", "") not in ("", "0"):
            raise
        console.print(f"no pictures: {type(error).__name__}: {error}", markup=False)
    return []


def _tell(run: Run, summary: dict[str, Any], shown: list[Path], console: Console) -> None:
    from ctrlax.lab.live import duration

    solved = [rounds for rounds in summary["rounds_to_solve"] if rounds is not None]
    rewards = [reward for reward in summary["reward"] if reward is not None]
    many = len(summary["seeds"])
    if solved:
        console.print(f"[bold green]solved[/] by {len(solved)} of {many} seeds, in rounds {sorted(solved)}")
    else:
        console.print(
            f"[bold yellow]not solved[/] by any of {many} seeds" if many > 1 else "[bold yellow]not solved[/]"
        )
    if rewards:
        seconds = max(each or 0.0 for each in summary["wall_seconds"])
        interaction = max(each or 0.0 for each in summary["interaction_seconds"])
        best = max(rewards)
        console.print(f"  reward rate    {best:.3g} at best, after {interaction:.0f} s in the true world")
        console.print(f"  computed for   {duration(seconds)}")
    console.print(f"  kept in        {run.folder}", markup=False)
    for path in shown[-1:]:
        console.print(f"  report         {path}", markup=False)
    following = f"ctrlax eval {run.folder} --gif" if solved else f"ctrlax resume {run.folder} --rounds {_more(run)}"
    console.print(f"  next           [bold]{following}[/]")


def _more(run: Run) -> int:
    return 2 * run.config.schedule.rounds
