"""Jobs: runs that are asked for, each in a folder named by what it is, done once and found again.

A sweep or a figure is a list of jobs, handed to a backend (`lab/backends`). Whichever backend does one, `perform` is
what it calls, and what is left is a run's folder as `ctrlax train` leaves it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import os
import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from ctrlax.errors import UserError
from ctrlax.lab.checkpoint import NotWrittenError
from ctrlax.lab.configure import configure
from ctrlax.lab.guard import TrainingStoppedError
from ctrlax.lab.header import check_resumable
from ctrlax.lab.keeper import Interrupted, Show, silent
from ctrlax.lab.learn import STOPPED
from ctrlax.lab.record import HEADER, Record
from ctrlax.lab.run import FREE, prepare, resume, source_hash, train
from ctrlax.lab.state import EVALUATE
from ctrlax.names import listed, module_of, unknown_name
from ctrlax.world.environment import Environment
from ctrlax.world.load import make

BACKENDS = "lab/backends"
RUNS = "runs"  # the folder inside a sweep's that holds its runs
DIGITS = 10  # of a digest: hexadecimal, 40 bits, enough for a million runs to differ
ABSENT, BEGUN, ENDED = "absent", "begun", "ended"
DONE, GIVEN_UP, FAILED = "done", "stopped", "failed"


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of `train`: environment, preset, settings, seeds. What it is called does not change what it is."""

    environment: str  # a built-in name, or the path of a system's file
    preset: str = "default"
    settings: tuple[tuple[str, Any], ...] = ()  # ("group.setting", value), sorted
    seeds: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, environment: str, *, preset: str = "default", seeds: Sequence[int] = (0,), **settings: Any) -> Job:
        """A job with settings named as `train` takes them, ``agent__horizon=3.0`` or ``**{"agent.horizon": 3.0}``."""
        named = {name.replace("__", "."): value for name, value in settings.items()}
        plain = sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in named.items())
        return cls(environment, preset, tuple(plain), tuple(int(seed) for seed in seeds))

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Job:
        """The job whose ``dataclasses.asdict`` went through JSON."""
        settings: dict[str, Any] = dict(written["settings"])
        return cls.of(written["environment"], preset=written["preset"], seeds=written["seeds"], **settings)

    @cached_property
    def world(self) -> Environment:
        """Its environment: one object for all jobs of a process, so that what was compiled for it serves the next."""
        variant = configure(self.preset, "", dict(self.settings)).variant
        exists = self.environment.endswith(".py") and Path(self.environment).is_file()
        return _world(self.environment, variant, source_hash(self.environment) if exists else None)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """All it is, checked and resolved, as the header of its run has it. Raises `UserError` for what cannot be."""
        _, resolved, _ = prepare(self.world, seeds=self.seeds, preset=self.preset, **dict(self.settings))
        return json.loads(json.dumps(resolved))

    def digest(self) -> str:
        """Of the resolved configuration; of a system's own file the content counts, not its place."""
        what = self.configuration | {"environment": Path(self.environment).stem}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:DIGITS]

    @property
    def name(self) -> str:
        """Of its folder."""
        family = self.configuration["model"]["family"]
        return f"{Path(self.environment).stem}-{self.preset}-{family}-{self.digest()}"

    def folder(self, root: Path) -> Path:
        """Where its run is kept below ``root``."""
        return Path(root) / RUNS / self.name

    def __getstate__(self) -> dict[str, Any]:
        """Without what was looked up here: another process has its own."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    state: Literal["done", "stopped", "failed"]  # "stopped": it is over, but the guard gave seeds up
    folder: Path
    error: str | None = None  # in words, of what is not "done"
    trace: str | None = None  # where it happened, if it was not the user's mistake
    reused: bool = False  # it was over before


@runtime_checkable
class Watch(Protocol):
    """Who watches jobs go by."""

    def begun(self, job: Job) -> None:
        """It runs now; after `lost`, again."""

    def lost(self, job: Job, why: str) -> None:
        """What ran it is gone; it waits to go on from its checkpoint."""

    def over(self, outcome: Outcome) -> None:
        """It ended."""


class Unwatched:
    """Watches without a word."""

    def begun(self, job: Job) -> None: ...

    def lost(self, job: Job, why: str) -> None: ...

    def over(self, outcome: Outcome) -> None: ...


unwatched = Unwatched()


def execute(
    jobs: Sequence[Job], root: str | Path, *, backend: str = "local", watch: Watch = unwatched, **options: Any
) -> list[Outcome]:
    """Do ``jobs`` on a backend, every one checked first; what is over is reused, what was begun goes on.

    One outcome per job, in their order; a job that is asked for twice is done once. A failed one stops no other. Ctrl-C
    raises `Interrupted` when everything is kept.
    """
    module = backend_named(backend, options)
    root = Path(root)
    names = [job.name for job in jobs]
    different = dict(zip(names, jobs, strict=True))
    given = {name: value for name, value in options.items() if value is not None}
    outcomes = module.execute(list(different.values()), root, watch=watch, **given)
    found = dict(zip(different, outcomes, strict=True))
    return [dataclasses.replace(found[name], job=job) for name, job in zip(names, jobs, strict=True)]


def backend_named(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """The module of a backend; one that does not know all of ``options`` that are given (not None) is refused."""
    if name not in listed(BACKENDS):
        raise unknown_name("backend", name, listed(BACKENDS))
    module = importlib.import_module(module_of(BACKENDS, name))
    known = set(inspect.signature(module.execute).parameters) - {"jobs", "root", "watch"}
    for option, value in (options or {}).items():
        if value is not None and option not in known:
            raise UserError(
                f"--{option.replace('_', '-')} is nothing the backend {name} knows; it takes "
                f"{', '.join('--' + each.replace('_', '-') for each in sorted(known))}. Leave it out, or choose "
                f"another of {', '.join(listed(BACKENDS))} with --backend."
            )
    return module


def perform(job: Job, root: Path, *, show: Show = silent) -> Outcome:
    """Do one job here and now: begin it, go on with it, or find it over."""
    try:
        folder = job.folder(root)
        where = standing(folder)
        if where != ABSENT:
            check_resumable(Record.open(folder).header, job.configuration, (*FREE, "environment"))
        if where == ABSENT:
            train(job.world, seeds=job.seeds, preset=job.preset, out=folder, show=show, **dict(job.settings))
        elif where == BEGUN:
            resume(folder, environment=_same(job, folder), show=show)
        return _ended(job, folder, reused=where == ENDED)
    except TrainingStoppedError:
        return _ended(job, folder)
    except (UserError, NotWrittenError) as error:
        return Outcome(job, FAILED, _place(job, root), str(error))
    except Exception as error:
        said = f"{type(error).__name__}: {str(error) or 'without a word'}"
        return Outcome(job, FAILED, _place(job, root), said, traceback.format_exc())


def standing(folder: Path) -> str:
    """Whether a run is there that has ended by itself (`ENDED`), one that has not (`BEGUN`), or none (`ABSENT`)."""
    if not (folder / HEADER).exists():
        return ABSENT
    record = Record.open(folder)
    if not record.steps():
        return ABSENT  # killed before its first checkpoint: it starts over
    leaves, schedule = record.newest().leaves, record.header["configuration"]["schedule"]
    spent = schedule["budget"] is not None and leaves[".seconds"] > 3600 * schedule["budget"]
    after_a_round = leaves[".phase"] == EVALUATE and leaves[".iteration"] > 0
    over = leaves[".round"] > schedule["rounds"] or bool((leaves[".ended"] > 0).all()) or (spent and after_a_round)
    return ENDED if over else BEGUN


def given_up(folder: Path) -> str | None:
    """Which seeds of a run the guard gave up, in words."""
    rows = Record.open(folder).rows(STOPPED)
    if not rows:
        return None
    who = ", ".join(f"seed {row['seed']} in round {row['round']} ({row['phase']})" for row in rows)
    return f"the guard gave up {who}: updates stayed not finite. The state just before is in {folder / 'dumps'}."


def interrupted(root: Path) -> Interrupted:
    """What a backend raises after Ctrl-C, when everything is kept."""
    return Interrupted(f"Stopped; everything is kept in {root}. The same command again goes on.")


def _ended(job: Job, folder: Path, *, reused: bool = False) -> Outcome:
    why = given_up(folder)
    return Outcome(job, GIVEN_UP if why else DONE, folder, why, reused=reused)


def _same(job: Job, folder: Path) -> Environment | None:
    """The environment to go on with; a system's file may lie elsewhere by now."""
    recorded = Record.open(folder).header["configuration"]["environment"]
    return job.world if recorded == job.environment else None


def _place(job: Job, root: Path) -> Path:
    try:
        return job.folder(root)
    except Exception:
        return root / RUNS / f"{Path(job.environment).stem}-{job.preset}"


@functools.lru_cache
def _world(source: str, variant: str, content: str | None) -> Environment:
    return make(os.fspath(source), variant=variant)
