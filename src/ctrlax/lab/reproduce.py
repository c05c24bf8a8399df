"""The figures of the text: which there are, the runs they need, and each one's record, picture and verdicts.

A file in ``figures`` is a figure. It has ``TITLE``, ``CAPTION`` and ``ANSWERS``, the claims it is about;
``wanted(scale)``, the runs it needs; ``table(made)``, their reduction to plain rows; ``panels(rows)``, the drawing;
``claims(rows)``, the verdicts, from the rows alone.
"""

from __future__ import annotations

import importlib
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ctrlax.errors import UserError
from ctrlax.lab import findings, policies
from ctrlax.lab.board import words
from ctrlax.lab.checkpoint import write_aside
from ctrlax.lab.claims import CLAIMS, Claim
from ctrlax.lab.costs import measured, of_figure
from ctrlax.lab.gallery import Panel, Picture, keep
from ctrlax.lab.header import make_header
from ctrlax.lab.jobs import FAILED, RUNS, Outcome, Watch, execute, standing, unwatched
from ctrlax.lab.record import plain
from ctrlax.lab.run import Run
from ctrlax.lab.scales import SCALES, Made, Scale, Wanted
from ctrlax.names import listed, module_of, unknown_name

FIGURES = "lab/figures"
POLICIES = "policies"  # what `reproduce` makes beside the figures
ALL = "all"
RECORD = "record.json"
OUT = Path("runs/reproduce")


@runtime_checkable
class Figure(Protocol):
    """What a file in ``figures`` provides."""

    ANSWERS: tuple[int, ...]  # the claims on which it gives verdicts
    TITLE: str
    CAPTION: str  # what the text shows, and what is shown here

    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs it needs at a scale; none for a figure of the true world alone."""
        ...

    def table(self, made: Made) -> list[dict[str, Any]]:
        """Plain rows; whatever the picture and the claims say is in them."""
        ...

    def panels(self, rows: Sequence[dict[str, Any]]) -> tuple[Panel, ...]:
        """The drawing."""
        ...

    def claims(self, rows: Sequence[dict[str, Any]]) -> list[Claim]:
        """The verdicts."""
        ...


def figures() -> list[str]:
    """Names of all figures."""
    return listed(FIGURES)


def figure(name: str) -> Figure:
    """The figure of that name."""
    if name not in figures():
        raise unknown_name("figure", name, [*figures(), ALL, POLICIES])
    return importlib.import_module(module_of(FIGURES, name))  # pyright: ignore[reportReturnType]


def chosen(name: str) -> list[str]:
    """The figures that a name on the command line stands for."""
    return figures() if name == ALL else [] if name == POLICIES else [name] if figure(name) else []


def reproduce(
    names: Sequence[str],
    scale: Scale,
    root: Path,
    *,
    backend: str = "local",
    watch: Watch = unwatched,
    command: str = "",
    **options: Any,
) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """Make figures: all their runs first, each once whoever asks for it, then every figure from what ended well."""
    asked = {name: figure(name).wanted(scale) for name in names}
    jobs = list({each.job.name: each.job for wanted in asked.values() for each in wanted if each.job}.values())
    outcomes = execute(jobs, root, backend=backend, watch=watch, **options)
    ended = {outcome.job.name: outcome for outcome in outcomes}
    records = []
    for name, wanted in asked.items():
        records.append(_made(name, wanted, scale, root, ended, command or _command(name, scale)))
    findings.write(root, records_in(root), answered_by(), paper_costs())
    return records, outcomes


def make_policies(
    environments: Sequence[str],
    root: Path,
    folder: Path,
    *,
    backend: str = "local",
    watch: Watch = unwatched,
    **options: Any,
) -> tuple[dict[str, list[policies.Known]], list[Outcome]]:
    """The run in the true world of every environment, and its policies kept in ``folder``."""
    outcomes = execute([policies.job(name) for name in environments], root, backend=backend, watch=watch, **options)
    made = {}
    for name, outcome in zip(environments, outcomes, strict=True):
        if outcome.state != FAILED:
            made[name] = policies.export(Run(outcome.folder), folder)
    return made, outcomes


def answered_by() -> dict[int, list[str]]:
    """The figures that answer each claim."""
    answers = {name: figure(name).ANSWERS for name in figures()}
    return {number: [name for name in answers if number in answers[name]] for number in CLAIMS}


def paper_costs() -> dict[str, str]:
    """What every figure costs at the paper's scale, in words, and all of them, what they share done once."""
    record, paper = measured(), SCALES["paper"]
    asked = {name: figure(name).wanted(paper) for name in figures()}
    told = {name: of_figure(wanted, record).told() for name, wanted in asked.items()}
    every = [each for wanted in asked.values() for each in wanted]
    quicker = of_figure(every, record, solver="rk4")
    return {**told, ALL: of_figure(every, record).told(), f"{ALL}, solved by rk4 as the preset default": quicker.told()}


def planned(names: Sequence[str], scale: Scale, root: Path) -> dict[str, Any]:
    """Runs and what is there of each, and what the paper's scale costs; nothing is run."""
    record, paper = measured(), SCALES["paper"]
    told: dict[str, Any] = {}
    for name in names:
        asked = figure(name).wanted(scale)
        runs = {each.job.name: each for each in asked if each.job}
        told[name] = {
            "runs": [
                {"name": key, "what": each.named(), "state": words(standing(root / RUNS / key))}
                for key, each in runs.items()
            ],
            "left_out": [{"what": each.named(), "why": each.why} for each in asked if each.job is None],
            "cost": of_figure(figure(name).wanted(paper), record).told(),
        }  # fmt: skip
    every = [each for name in names for each in figure(name).wanted(paper)]
    return {"figures": told, "cost": of_figure(every, record).told()}


def verdict_lines(record: dict[str, Any]) -> list[str]:
    """A line for every part of a claim."""
    lines = []
    for claim in record["claims"]:
        value = "-" if claim["value"] is None else f"{claim['value']:.3g}"
        between = "" if claim["interval"] is None else " [{:.3g}, {:.3g}]".format(*claim["interval"])
        note = f" ({claim['note']})" if claim["note"] else ""
        lines.append(f"claim {claim['number']}: {claim['verdict']}: {claim['measure']}: {value}{between}{note}")
    return lines


def records_in(root: Path) -> list[dict[str, Any]]:
    """The figures' records below a folder, in the order of `figures`, each with the ``folder`` it lies in."""
    found = {}
    for path in sorted(root.glob(f"*/{RECORD}")):
        try:
            told = json.loads(path.read_text())
        except ValueError as error:
            raise UserError(f"{path} is not what ctrlax wrote ({error}). Put the original back.") from None
        if "figure" in told:
            found[told["figure"]] = {**told, "folder": str(path.parent)}
    return [found[name] for name in [*figures(), *sorted(set(found) - set(figures()))] if name in found]


def _made(
    name: str, wanted: Sequence[Wanted], scale: Scale, root: Path, ended: dict[str, Outcome], command: str
) -> dict[str, Any]:
    one, began = figure(name), time.perf_counter()
    good = [(each, ended[each.job.name].folder) for each in wanted if each.job and ended[each.job.name].state != FAILED]
    left_out = [{"what": each.named(), "why": each.why} for each in wanted if each.job is None]
    left_out += [
        {"what": each.named(), "why": ended[each.job.name].error or "failed"}
        for each in wanted if each.job and ended[each.job.name].state == FAILED
    ]  # fmt: skip
    rows = plain(one.table(Made(scale, good, (root / POLICIES,))))
    answers = [claim.as_dict() for claim in one.claims(rows)]
    folder = root / name
    note = _note(scale, good, left_out)
    picture = Picture(name, one.TITLE, f"{one.CAPTION} {note}", one.panels(rows), note=note)
    folder.mkdir(parents=True, exist_ok=True)
    keep([picture], folder)
    header = make_header("reproduce", {})
    runs = [
        {**each.labels, "name": path.name, "seeds": list(each.job.seeds) if each.job else []} for each, path in good
    ]
    told = {
        "figure": name, "title": one.TITLE, "caption": one.CAPTION, "scale": scale.name, "note": note,
        "command": command, "claims": answers, "left_out": left_out,
        "runs": runs,
        "seconds": round(time.perf_counter() - began, 1),
        **{part: header[part] for part in ("versions", "hardware", "commit", "commit_modified", "created")},
        "rows": rows,
    }  # fmt: skip
    write_aside(folder / RECORD, [_written(plain(told)).encode()])
    return {**told, "folder": str(folder)}


def _written(told: dict[str, Any]) -> str:
    """As JSON, each of the rows on a line of its own: a record is read and compared by people too."""
    head = json.dumps({name: value for name, value in told.items() if name != "rows"}, indent=1, allow_nan=False)
    rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in told["rows"])
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n ]\n}}\n'


def _note(scale: Scale, good: Sequence[tuple[Wanted, Path]], left_out: Sequence[dict[str, str]]) -> str:
    seeds = sorted({len(each.job.seeds) for each, _ in good if each.job})
    told = scale.told(max(seeds)) if seeds else f"scale {scale.name}, no training runs"
    if len(seeds) > 1:
        told += f" ({min(seeds)} where fewer are drawn)"
    if left_out:
        what = sorted({each["why"].split(" (", 1)[0] for each in left_out})
        told += f". Left out: {'; '.join(what)}"
    return told + "."


def _command(name: str, scale: Scale) -> str:
    return f"ctrlax reproduce {shlex.quote(name)} --scale {scale.name}"
