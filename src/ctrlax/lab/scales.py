"""How large a figure is made: smoke (a test), small (an evening), paper (the text's grid), and the runs at each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrlax.config import Config
from ctrlax.errors import UserError
from ctrlax.lab.configure import settings_of
from ctrlax.lab.jobs import Job
from ctrlax.model.registry import families
from ctrlax.names import unknown_name


@dataclasses.dataclass(frozen=True)
class Scale:
    """What all figures of a scale share."""

    name: str
    preset: str
    seeds: int
    rounds: int
    settings: Mapping[str, Any]
    environments: tuple[str, ...]

    @property
    def smoke(self) -> bool:
        return self.name == "smoke"

    @property
    def paper(self) -> bool:
        return self.name == "paper"

    def told(self, seeds: int | None = None) -> str:
        """What stands on a figure."""
        count = self.seeds if seeds is None else seeds
        return f"scale {self.name}: {count} seed{'s' * (count != 1)}, preset {self.preset}"


# So little is learned that nothing but the machinery is shown.
_SMOKE = {
    "model.members": 2, "fit.matching_updates": 2, "fit.warmup_updates": 0, "fit.updates": 4, "fit.windows": 10,
    "one_step.updates": 50, "agent.updates": 4, "agent.starts": 8, "schedule.trials": 2,
    "schedule.trial_seconds": 4.0, "schedule.confirm": False,
}  # fmt: skip
SCALES = {
    "smoke": Scale("smoke", "default", 2, 2, _SMOKE, ("pendulum",)),
    "small": Scale("small", "default", 5, 10, {}, ("pendulum", "cartpole", "acrobot")),
    "paper": Scale("paper", "paper", 20, 20, {}, ("pendulum", "cartpole", "acrobot")),
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A run that a figure asks for, with what it is called there; without a job it is left out, and why is said."""

    labels: Mapping[str, Any]
    job: Job | None
    why: str = ""

    def named(self) -> str:
        """The labels in a line."""
        return ", ".join(f"{name} {value}" for name, value in self.labels.items())


@dataclasses.dataclass(frozen=True)
class Made:
    """What a figure's table is made of: its runs where they lie, and where policies are."""

    scale: Scale
    runs: Sequence[tuple[Wanted, Path]]  # those that ended well
    policies: tuple[Path, ...] = ()


def scale_named(name: str) -> Scale:
    """The scale, or a `UserError` that lists them."""
    if name not in SCALES:
        raise unknown_name("scale", name, SCALES)
    return SCALES[name]


def wanted(
    scale: Scale, environment: str, model: str, *, labels: Mapping[str, Any], seeds: int | None = None, **settings: Any
) -> Wanted:
    """A run over the scale's rounds with every round's model kept; every seed runs for all of them.

    A model that this ctrlax does not have is left out and named, so that figures fill as models come.
    """
    if model not in families():
        return Wanted(labels, None, f"the model {model} is not in this ctrlax (known: {', '.join(families())})")
    fixed = {
        "model.family": model, "schedule.rounds": scale.rounds, "schedule.rounds_after_solved": scale.rounds,
        "schedule.snapshots": True,
    }  # fmt: skip
    known = {name for name, _ in settings_of(Config())}  # a model's own settings come with it
    shared = {name: value for name, value in scale.settings.items() if name in known}
    asked = {**shared, **fixed, **{name.replace("__", "."): value for name, value in settings.items()}}
    job = Job.of(environment, preset=scale.preset, seeds=range(scale.seeds if seeds is None else seeds), **asked)
    try:
        job.digest()
    except UserError as error:
        return Wanted(labels, None, str(error))
    return Wanted(labels, job)
