"""A sweep: a grid over settings, read from a TOML file and checked wholly before any work, as jobs in one folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrlax.config import PRESETS, Config
from ctrlax.errors import UserError
from ctrlax.lab.checkpoint import write_aside
from ctrlax.lab.configure import checked_value, flat, settings_of
from ctrlax.lab.jobs import ABSENT, Job, Outcome, standing
from ctrlax.names import SYSTEMS, listed, unknown_name

PLAN = "sweep.json"  # what a sweep's folder was asked for, and how its runs ended
MOST_RUNS = 10_000  # more is a slip of the pen
# Short names, as `ctrlax train` has them, and what they stand for.
SHORT = {
    "model": "model.family", "structure": "model.structure", "members": "model.members", "grid": "sampling.grid",
    "dt": "sampling.dt", "noise": "sampling.noise", "horizon": "agent.horizon", "rounds": "schedule.rounds",
    "rounds_after_solved": "schedule.rounds_after_solved", "budget": "schedule.budget", "variant": "variant",
}  # fmt: skip
PLAIN = ("environment", "preset", "seeds")


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run of a sweep: the job, and the values by which it differs from the others."""

    job: Job
    varied: dict[str, Any]

    @property
    def label(self) -> str:
        """The varied values in short."""
        return ", ".join(f"{name} {value}" for name, value in self.varied.items()) or self.job.environment


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A checked grid."""

    source: str  # the file's text
    axes: dict[str, list[Any]]  # what varies
    runs: list[Planned]


def read(path: str | Path) -> Sweep:
    """The grid of a TOML file: a list is an axis, every other value is the same for all runs.

    Raises `UserError` with the file, the key and what was expected.
    """
    path = Path(path)
    try:
        source = path.read_text()
        given = dict(flat(tomllib.loads(source)))
    except FileNotFoundError:
        raise UserError(f"No file {str(path)!r}. A sweep is a TOML file (docs/sweeps.md); name its path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"{path} is not TOML: {error}. Expected lines such as dt = [0.05, 0.1] (docs/sweeps.md)."
        ) from error
    try:
        axes = {name: _values(key, value) for key, value in given.items() for name in [_setting(key)]}
        if len(axes) < len(given):
            raise UserError("one setting is named twice, by its short and its full name. Name it once.")
        if "environment" not in axes:
            raise UserError(f"key 'environment' is missing. Expected one of {', '.join(listed(SYSTEMS))}, or a list.")
        return Sweep(source, {n: v for n, v in axes.items() if len(v) > 1 and n != "seeds"}, _planned(axes))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def write_plan(root: Path, sweep: Sweep, command: str, outcomes: Mapping[str, Outcome]) -> None:
    """Keep what was asked for beside the runs, so that a report of the folder can say it; earlier endings stay."""
    ended = {entry["name"]: entry.get("ended") for entry in plan(root).get("runs", [])}
    ended |= {name: {"state": each.state, "error": each.error} for name, each in outcomes.items()}
    entries = [
        {
            "name": each.job.name,
            "varied": each.varied,
            "job": dataclasses.asdict(each.job),
            "ended": ended.get(each.job.name),
        }
        for each in sweep.runs
    ]
    told = {"format": 1, "command": command, "source": sweep.source, "axes": sweep.axes, "runs": entries}
    root.mkdir(parents=True, exist_ok=True)
    write_aside(root / PLAN, [json.dumps(told, indent=1).encode(), b"\n"])


def plan(root: Path) -> dict[str, Any]:
    """What `write_plan` kept, or nothing."""
    try:
        return json.loads((root / PLAN).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(
            f"{root / PLAN} is not what ctrlax wrote ({error}). Put the original back, or remove it."
        ) from None


def standings(sweep: Sweep, root: Path) -> list[str]:
    """Of every run: `absent`, `begun` or `ended`."""
    return [standing(each.job.folder(root)) if root.is_dir() else ABSENT for each in sweep.runs]


def _planned(axes: Mapping[str, list[Any]]) -> list[Planned]:
    order = sorted(axes, key=lambda name: (name not in PLAIN, name in PLAIN and PLAIN.index(name)))
    grid = {name: axes[name] for name in order if name != "seeds"}
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise UserError(f"the grid has {count:,} runs, expected at most {MOST_RUNS:,}. Split the file.")
    seeds = axes.get("seeds", [0])
    runs: dict[str, Planned] = {}
    for number, values in enumerate(itertools.product(*grid.values()), start=1):
        chosen = dict(zip(grid, values, strict=True))
        varied = {_brief(name, grid): _shown(value) for name, value in chosen.items() if len(grid[name]) > 1}
        settings = {name: value for name, value in chosen.items() if name not in PLAIN}
        try:
            job = Job.of(chosen["environment"], preset=chosen.get("preset", "default"), seeds=seeds, **settings)
            runs.setdefault(
                job.name, Planned(job, varied)
            )  # its name needs its whole configuration: it is checked here
        except UserError as error:
            which = ", ".join(f"{name} = {value!r}" for name, value in chosen.items())
            raise UserError(f"run {number} of {count} ({which}): {error}") from error
    return list(runs.values())


def _setting(key: str) -> str:
    name = SHORT.get(key, key)
    known = [each for each, _ in settings_of(Config())]
    if name not in (*PLAIN, *known):
        raise unknown_name("key", key, {*PLAIN, *SHORT, *known})
    return name


def _values(key: str, given: Any) -> list[Any]:
    """The values of one key, each of the kind that is expected."""
    name = _setting(key)
    if name == "seeds":
        return _seeds(key, given)
    values = given if isinstance(given, list) else [given]
    if not values:
        raise UserError(f"key {key!r} is an empty list. Expected at least one value, or leave the key out.")
    if name == "environment":
        return [_environment(key, value) for value in values]
    if name == "preset":
        for value in values:
            if value not in PRESETS:
                raise UserError(f"key {key!r}: {unknown_name('preset', str(value), PRESETS)}")
        return values
    try:
        checked = [checked_value(name, value) for value in values]
    except UserError as error:
        raise UserError(f"key {key!r}: {error}") from error
    twice = [value for place, value in enumerate(checked) if value in checked[:place]]
    if twice:
        raise UserError(f"key {key!r} has {twice[0]!r} twice. Expected different values.")
    return checked


def _environment(key: str, value: Any) -> str:
    if isinstance(value, str) and (value in listed(SYSTEMS) or (value.endswith(".py") and Path(value).is_file())):
        return value
    if isinstance(value, str) and not value.endswith(".py"):
        raise UserError(f"key {key!r}: {unknown_name('environment', value, listed(SYSTEMS), ' A file ends in .py.')}")
    raise UserError(f"key {key!r}: expected a built-in name or the path of a file ending in .py; {value!r} came.")


def _seeds(key: str, given: Any) -> list[int]:
    if isinstance(given, str) and (range_ := re.fullmatch(r"(\d+):(\d+)", given)):
        given = list(range(int(range_[1]), int(range_[2])))
    given = [given] if isinstance(given, int) else given
    if not (
        isinstance(given, list)
        and given
        and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    ):
        raise UserError(f'key {key!r}: expected a range such as "0:5" (without 5), a number or a list; {given!r} came.')
    return given


def _brief(name: str, grid: Mapping[str, list[Any]]) -> str:
    """A setting's name without its group, where no other that varies is called so."""
    last = name.rpartition(".")[2]
    alike = [other for other in grid if len(grid[other]) > 1 and other.rpartition(".")[2] == last]
    return {"family": "model"}.get(last, last) if len(alike) == 1 else name


def _shown(value: Any) -> Any:
    return ",".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
