"""A folder of runs, of a sweep or of figures -> one self-contained HTML page, from what lies in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctrlax.errors import UserError
from ctrlax.lab import checkpoint, report
from ctrlax.lab.claims import CLAIMS, DEPENDS, DOES_NOT, HOLDS, interval
from ctrlax.lab.curves import number
from ctrlax.lab.gallery import Panel, Picture, check_drawable, keep, kept
from ctrlax.lab.jobs import ABSENT, ENDED, RUNS, standing
from ctrlax.lab.page import Commands, Details, Figure, Part, Section, Table, Text, Tiles, page
from ctrlax.lab.pictures import FOLDER
from ctrlax.lab.record import HEADER
from ctrlax.lab.report import REPORT, Achieved, achieved
from ctrlax.lab.reproduce import records_in
from ctrlax.lab.run import Run
from ctrlax.lab.strokes import band, look, whole_numbers
from ctrlax.lab.sweep import PLAN, plan

MOST_LINES = 12  # runs in one panel: more are not told apart


class Told:
    """One run of the folder: what it is called, how it stands, what its seeds achieved."""

    def __init__(self, name: str, varied: Mapping[str, Any], folder: Path, ended: Mapping[str, Any] | None):
        self.name, self.varied, self.folder = name, dict(varied), folder
        where = standing(folder)
        self.run = Run(folder) if where != ABSENT else None
        self.rows = self.run.rows("round") if self.run else []
        self.seeds: list[Achieved] = achieved(self.rows)
        failed = ended is not None and ended["state"] != "done"
        self.error = ended["error"] if ended and failed else None
        self.state = ended["state"] if ended and failed else {ENDED: "done", ABSENT: "not begun"}.get(where, "begun")

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.varied.items()) or self.name


def is_folder_of_runs(folder: Path) -> bool:
    """A sweep's or a reproduction's folder, and no run."""
    return not (folder / HEADER).exists() and (
        (folder / PLAN).exists() or (folder / RUNS).is_dir() or bool(records_in(folder))
    )


def write(folder: Path) -> Path:
    """Write ``FOLDER/report.html``: pictures, tables, verdicts, every seed's numbers, the commands."""
    told, records = _told(folder), records_in(folder)
    if not told and not records:
        raise UserError(
            f"{folder} holds neither runs nor figures. Name the folder of a sweep or of `ctrlax reproduce`."
        )
    parts: list[Part] = [Tiles(_headline(told, records))]
    if records:
        parts.append(Section("Claims", verdicts(records)))
        parts += [Section(record["title"], _figure(record)) for record in records]
    if told:
        parts += [
            Section("Reward over rounds", _curves(told, folder)),
            Section("Runs", [_runs(told)]),
            Section("Seeds", [_seeds(told)]),
        ]
    parts.append(Section("Do it again", _commands(folder, told, records)))
    if told and (first := next((each.run for each in told if each.run), None)):
        parts.append(Section("What the first run ran on", [Table(("", ""), report.machine(first.header))]))
    path = folder / REPORT
    checkpoint.write_aside(path, [page(_title(folder, told, records), _lead(told, records), parts).encode()])
    return path


def verdicts(records: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The claims that these figures answer, part by part."""
    rows = [
        (claim["number"], claim["claim"], claim["verdict"], claim["measure"], claim["value"],
         _between(claim["interval"]), claim["count"], record["figure"], claim["note"])
        for record in records for claim in record["claims"]
    ]  # fmt: skip
    if not rows:
        return [Text("These figures answer no claim.")]
    rows.sort(key=lambda row: row[0])
    header = ("claim", "what the text says", "verdict", "measure", "value", "95 % interval", "values", "figure", "note")
    note = (
        "A part holds where the whole bootstrap interval lies on its side of the bound, does not where none of it "
        "does, and depends otherwise."
    )
    return [Table(header, rows), Text(note)]


def _told(folder: Path) -> list[Told]:
    asked = plan(folder).get("runs", [])
    known = {entry["name"] for entry in asked}
    there = sorted(path.name for path in (folder / RUNS).glob("*") if path.is_dir() and path.name not in known)
    found = [Told(entry["name"], entry["varied"], folder / RUNS / entry["name"], entry["ended"]) for entry in asked]
    return found + [Told(name, {}, folder / RUNS / name, None) for name in there]


def _headline(told: Sequence[Told], records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    tiles = []
    if told:
        seeds = [seed for each in told for seed in each.seeds]
        done = sum(each.state == "done" for each in told)
        failed = sum(each.state in ("failed", "stopped") for each in told)
        tiles = [
            ("Runs done", f"{done} of {len(told)}", f"{failed} failed or stopped" if failed else "none failed"),
            ("Seeds solved", f"{sum(seed.solved_round is not None for seed in seeds)} of {len(seeds)}", "in all runs"),
            ("Interaction", f"{sum(seed.interaction for seed in seeds):,.0f} s", "in the true world, all seeds"),
        ]
    if records:
        claims = [claim for record in records for claim in record["claims"]]
        count = {
            verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in (HOLDS, DOES_NOT, DEPENDS)
        }
        numbers = len({claim["number"] for claim in claims})
        tiles += [
            ("Figures", str(len(records)), f"on {numbers} of the {len(CLAIMS)} claims"),
            ("Parts of claims that hold", str(count[HOLDS]), f"{count[DOES_NOT]} do not, {count[DEPENDS]} depend"),
        ]
    return tiles


def _figure(record: Mapping[str, Any]) -> list[Part]:
    folder = Path(record["folder"])
    parts: list[Part] = [Figure(shown) for shown in kept(folder)]
    rows = record["rows"]
    parts += [Text(f"Left out: {each['what']}: {each['why']}.") for each in record["left_out"]]
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row if not isinstance(row[name], (list, dict))))
        cells = [[row.get(name) for name in names] for row in rows]
        parts.append(Details(f"The {len(rows):,} rows of its table", [Table(names, cells)]))
    return [*parts, Commands([("Make it again:", record["command"])])]


def _curves(told: Sequence[Told], folder: Path) -> list[Part]:
    with_rows = [each for each in told if each.rows]
    if not with_rows:
        return [Text("No run has finished a round.")]
    pieces = [with_rows[place : place + MOST_LINES] for place in range(0, len(with_rows), MOST_LINES)]
    caption = "Mean over seeds of the mean reward rate of the trials; the band is their 10 and 90 % quantiles."
    picture = Picture("rewards", "Reward over rounds", caption, tuple(_rewards(piece) for piece in pieces))
    try:
        check_drawable()
    except UserError as error:  # a report without pictures is still a report
        return [Text(str(error))]
    keep([picture], folder / FOLDER)
    return [Figure(shown) for shown in kept(folder / FOLDER)]


def _rewards(told: Sequence[Told]) -> Panel:
    names = [each.name for each in told]

    def draw(axes: Any) -> None:
        for each in told:
            band(axes, each.rows, "round", "reward", each.label, look(each.name, names))
        axes.set_xlabel("round")
        axes.set_ylabel("mean reward rate")
        axes.set_title("Reward over rounds")
        whole_numbers(axes, max(row["round"] for each in told for row in each.rows))
        axes.legend(fontsize=6.5, loc="best")

    return draw


def _runs(told: Sequence[Told]) -> Table:
    varied = list(dict.fromkeys(name for each in told for name in each.varied))
    header = (
        "run", *varied, "state", "seeds", "solved", "rounds to solve", "interaction to solve [s]", "last reward",
        "95 % interval", "field evaluations", "why",
    )  # fmt: skip
    rows = []
    for each in told:
        solved = [seed for seed in each.seeds if seed.solved_round is not None]
        rewards = [number(seed.last["reward"]) for seed in each.seeds]
        rows.append((
            each.name, *(each.varied.get(name) for name in varied), each.state, len(each.seeds), len(solved),
            _median([seed.solved_round or 0 for seed in solved]), _median([seed.interaction for seed in solved]),
            float(np.mean(rewards)) if rewards else None, _between(interval(rewards)),
            _median([seed.work for seed in each.seeds]), each.error or "",
        ))  # fmt: skip
    return Table(header, rows)


def _seeds(told: Sequence[Told]) -> Details:
    header = (
        "run", "seed", "solved in round", "interaction [s]", "field evaluations", "rounds done", "last reward",
        "trials held", "wall clock [s]",
    )  # fmt: skip
    rows = [
        (each.label, str(seed.seed), seed.solved_round, seed.interaction, seed.work, seed.rounds,
         number(seed.last["reward"]), f"{seed.last['held']} of {seed.last['trials']}",
         number(seed.last["wall_seconds"]))
        for each in told for seed in each.seeds
    ]  # fmt: skip
    return Details(f"The numbers of {len(rows)} seeds", [Table(header, rows)])


def _commands(folder: Path, told: Sequence[Told], records: Sequence[Mapping[str, Any]]) -> list[Part]:
    asked = plan(folder)
    parts: list[Part] = []
    if asked:
        parts += [Commands([("The sweep:", asked["command"]), ("Its file:", asked["source"].strip())])]
    parts.append(Commands([("This page again:", f"ctrlax report {folder}")]))
    single = [(f"{each.label}:", report.commands(each.run)[0][1]) for each in told if each.run]
    if single:
        parts.append(Details(f"Each of the {len(single)} runs alone", [Commands(single)]))
    return parts


def _title(folder: Path, told: Sequence[Told], records: Sequence[Mapping[str, Any]]) -> str:
    counts = ((len(records), "figures"), (len(told), "runs"))
    return f"{folder.absolute().name}: {', '.join(f'{count} {what}' for count, what in counts if count)}"


def _lead(told: Sequence[Told], records: Sequence[Mapping[str, Any]]) -> str:
    axes = list(dict.fromkeys(name for each in told for name in each.varied))
    said = [f"What varies: {', '.join(axes)}." if axes else ""]
    said += [f"Scales: {', '.join(sorted({record['scale'] for record in records}))}." if records else ""]
    return " ".join(filter(None, said))


def _median(values: Sequence[float | int]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _between(found: Sequence[float] | None) -> str:
    return "-" if found is None else f"{found[0]:.3g} to {found[1]:.3g}"
