"""`ctrlax resume`: go on with a run that was stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ctrlax.commands.train import choose_device, conclude, console_for, parse_settings


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, as if it had not been. Only rounds and budget may change."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder."""
    environment: Annotated[str | None, tyro.conf.arg(name="env")] = None
    """What you think was trained on; refused if it is another."""
    preset: str | None = None
    """The preset you think it was; refused if it is another."""
    rounds: int | None = None
    """Rounds at most, those done included."""
    rounds_after_solved: int | None = None
    """Rounds a seed goes on after it has solved the task; a seed that has ended stays so."""
    budget: float | None = None
    """Hours of computing, those done included."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Settings you think it has, as agent.updates=1000; refused where they differ."""
    device: Literal["cpu", "gpu"] | None = None
    """Where learning runs; only the same gives the same numbers."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        named: dict[str, Any] = {
            "environment": self.environment,
            "preset": self.preset,
            "schedule.rounds": self.rounds,
            "schedule.rounds_after_solved": self.rounds_after_solved,
            "schedule.budget": self.budget,
        }
        wanted = {name: value for name, value in named.items() if value is not None} | parse_settings(self.set)
        choose_device(self.device)

        from ctrlax.lab.live import show_on
        from ctrlax.lab.run import resume

        console = console_for(self.json)
        conclude(lambda: resume(self.run_folder, show=show_on(console), **wanted), console, json=self.json)
