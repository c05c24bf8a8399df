"""A run -> one self-contained HTML page, `RUN/report.html`, from its records."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctrlax.config import PRESETS, preset
from ctrlax.errors import UserError
from ctrlax.lab import checkpoint, pictures
from ctrlax.lab.curves import by_seed, number
from ctrlax.lab.gallery import kept
from ctrlax.lab.page import Commands, Details, Figure, Part, Section, Table, Text, Tiles, page, shown
from ctrlax.lab.run import Run

REPORT = "report.html"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Achieved:
    """What one seed came to."""

    seed: int
    rounds: int
    solved_round: int | None
    interaction: float  # s, up to the solving round where there is one
    work: int  # field evaluations, likewise
    last: Row


def write(run: Run) -> Path:
    """Write ``RUN/report.html`` with the pictures in ``RUN/pictures``, drawn first where there are none."""
    folder = Path(run.folder)
    note = ""
    if not kept(folder / pictures.FOLDER):
        try:
            pictures.draw_all(run)
        except UserError as error:  # a report without pictures is still a report
            note = str(error)
    seeds = achieved(run.rows("round"))
    parts: list[Part] = [
        Tiles(_headline(run, seeds)),
        Section("Pictures", [*([Text(note)] if note else []), *map(Figure, kept(folder / pictures.FOLDER))]),
        Section("Seeds", _seeds(run, seeds)),
        Section("Do it again", [Commands(commands(run))]),
        Section("Configuration", _configuration(run)),
        Section("When numbers went bad", _guard(run)),
        Section("What it ran on", [Table(("", ""), machine(run.header))]),
    ]
    path = folder / REPORT
    checkpoint.write_aside(path, [page(_title(run, seeds), _lead(run), parts).encode()])
    return path


def achieved(rows: Sequence[Row]) -> list[Achieved]:
    """Every seed at the round that solved it, or at its last."""
    found = []
    for seed, own in by_seed(rows).items():
        last = own[-1]
        solving = [row for row in own if row["solved_round"] == row["round"]]
        at = solving[0] if solving else last
        interaction, work = number(at["interaction_seconds"]), int(at["field_evaluations"])
        found.append(Achieved(seed, last["round"], at["round"] if solving else None, interaction, work, last))
    return found


def differences(run: Run) -> list[tuple[str, Any, Any]]:
    """Settings that are not the preset's: name, the preset's value, the run's."""
    configuration = run.header["configuration"]
    if configuration["preset"] not in PRESETS:
        return []
    usual = dataclasses.asdict(preset(configuration["preset"], configuration["environment"]))
    usual["schedule"]["budget"] = usual["schedule"]["budget"] or run.environment.time_limit
    before, now = (_flat(json.loads(json.dumps(each))) for each in (usual, configuration))
    return [(name, before[name], value) for name, value in now.items() if name in before and before[name] != value]


def commands(run: Run) -> list[tuple[str, str]]:
    """What each command does, and the command: repeat, go on, try it, look again."""
    folder, rounds = shlex.quote(str(run.folder)), run.config.schedule.rounds
    more = f" --rounds {2 * rounds}" if _going(run) and _rounds_done(run) >= rounds else ""
    return [
        ("Repeat this run in a new folder:", _repeat(run)),
        ("Go on where it stopped (a seed that has ended stays so):", f"ctrlax resume {folder}{more}"),
        ("Try its policy on fresh trials in the true world:", f"ctrlax eval {folder} --trials 10 --seconds 30 --gif"),
        ("Draw these pictures and this page again:", f"ctrlax report {folder}"),
    ]


def _title(run: Run, seeds: Sequence[Achieved]) -> str:
    solved, count = sum(each.solved_round is not None for each in seeds), len(run.seeds)
    many = f"{solved} of {count} seeds" if count > 1 else ("its seed" if solved else "no seed")
    return f"{_name(run)}: solved by {many}"


def _name(run: Run) -> str:
    return str(run.header["configuration"]["environment"])


def _lead(run: Run) -> str:
    configuration = run.header["configuration"]
    model, sampling = configuration["model"], configuration["sampling"]
    structure = f" with structure {', '.join(model['structure'])}" if model["structure"] else ""
    noise = f", noise {sampling['noise']:g}" if sampling["noise"] else ", without noise"
    return (
        f"Preset {configuration['preset']}, variant {configuration['variant']}. Model: {model['family']}{structure}, "
        f"{model['members']} member{'s' if model['members'] != 1 else ''}. Observed every {sampling['dt']:g} s "
        f"({sampling['grid']} steps{noise}). {_standing(run)}"
    )


def _standing(run: Run) -> str:
    going, done, rounds = _going(run), _rounds_done(run), run.config.schedule.rounds
    if not going or done >= rounds:
        return "The run is complete."
    verb = "goes on" if going == 1 else "go on"
    return f"Rounds done: {done} of at most {rounds}; {going} of {len(run.seeds)} seeds {verb}."


def _rounds_done(run: Run) -> int:
    return max((row["round"] for row in run.rows("round")), default=0)


def _headline(run: Run, seeds: Sequence[Achieved]) -> list[tuple[str, str, str]]:
    solved = [each for each in seeds if each.solved_round is not None]
    judged, of = (solved, "to solve") if solved else (seeds, "so far, not solved")
    few = f", of the {len(solved)} that solved" if solved and len(solved) < len(run.seeds) else ""
    tiles = [("Solved", f"{len(solved)} of {len(run.seeds)}", "seeds")]
    if judged:
        rounds = [each.solved_round or each.rounds for each in judged]
        tiles += [
            _tile(f"Rounds {of}", rounds, "", few),
            _tile(f"Interaction {of}", [each.interaction for each in judged], " s", few),
            _tile(f"Field evaluations {of}", [each.work for each in judged], "", few),
            _tile("Last reward rate", [number(each.last["reward"]) for each in seeds], "", ""),
        ]
    return tiles


def _tile(label: str, values: Sequence[float | int], unit: str, few: str) -> tuple[str, str, str]:
    middle = float(np.median(values))
    if len(values) == 1:
        return label, _brief(middle) + unit, f"one seed{few}"
    low, high = _brief(min(values)), _brief(max(values))
    spread = f"{low} to {high}{unit}" if low != high else "all alike"
    return label, _brief(middle) + unit, f"median{few}; {spread}"


def _brief(value: float | int) -> str:
    return f"{value / 1e6:.3g} M" if abs(value) >= 1e6 else f"{value:.3g}"


def _seeds(run: Run, seeds: Sequence[Achieved]) -> list[Part]:
    if not seeds:
        return [Text("No round was finished yet.")]
    header = (
        "seed", "solved in round", "interaction [s]", "field evaluations", "rounds done", "last reward",
        "trials held", "imagined reward", "wall clock [s]",
    )  # fmt: skip
    rows = [
        (
            str(each.seed), each.solved_round, each.interaction, each.work, each.rounds, number(each.last["reward"]),
            f"{each.last['held']} of {each.last['trials']}", number(each.last["imagined_reward"]),
            number(each.last["wall_seconds"]),
        )
        for each in seeds
    ]  # fmt: skip
    note = (
        "Interaction and field evaluations count up to the round that solved, itself included, or else to the last. "
        "Reward is the mean reward rate over the trials of the last round."
    )
    return [Table(header, rows), Text(note)]


def _configuration(run: Run) -> list[Part]:
    configuration, changed = run.header["configuration"], differences(run)
    parts: list[Part] = [
        Text(
            f"Other than preset {configuration['preset']}:"
            if changed
            else f"As preset {configuration['preset']} has it."
        )
    ]
    if changed:
        parts.append(Table(("setting", "preset", "this run"), [(n, _setting(a), _setting(b)) for n, a, b in changed]))
    rows = [(name, _setting(value)) for name, value in _flat(configuration).items()]
    return [*parts, Details("Every setting", [Table(("setting", "value"), rows)])]


def _guard(run: Run) -> list[Part]:
    learning = by_seed([*run.rows("fit"), *run.rows("improve")])
    rounds = by_seed(run.rows("round"))
    counts = []
    for seed in run.seeds:
        own, last = learning.get(seed, []), rounds.get(seed, [{}])[-1]
        left_out = int(sum(number(row.get("unhealthy", 0)) for row in own))
        skipped = last.get("skipped", int(sum(number(row.get("skipped", 0)) for row in own)))
        counts.append((str(seed), left_out, int(skipped), int(last.get("rollbacks", 0))))
    dumps = sorted(path.name for path in (Path(run.folder) / "dumps").glob("*.ckpt"))
    if not dumps and not any(any(row[1:]) for row in counts):
        return [Text("They never did: no trajectory left out, no update skipped, nothing rolled back.")]
    parts: list[Part] = [
        Table(("seed", "imagined trajectories left out", "updates skipped", "chunks rolled back"), counts),
        Text("A trajectory whose solve failed is left out of its loss; an update that is not finite is not applied."),
    ]
    if dumps:
        parts.append(Text(f"Stopped for good; the state just before is in dumps/: {', '.join(dumps)}."))
    return parts


def machine(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run ran on, by a header: name and value."""
    modified = " with uncommitted changes" if header.get("commit_modified") else ""
    hardware = header["hardware"]
    return [
        ("begun", str(header["created"])),
        ("device", f"{hardware['devices']} x {hardware['device']} ({hardware['platform']}), {hardware['cores']} cores"),
        ("commit", f"{header['commit']}{modified}" if header.get("commit") else "not run from a checkout"),
        *((name, version or "not installed") for name, version in header["versions"].items()),
        ("format of the folder", str(header["format"])),
    ]


def _going(run: Run) -> int:
    """Seeds that have not ended."""
    return int(np.sum(np.asarray(run.state.ended) == 0))


def _repeat(run: Run) -> str:
    configuration = run.header["configuration"]
    changed = {name: value for name, _, value in differences(run)}
    if configuration.get("environment_settings"):  # only Python can give these
        return _in_python(run, changed)
    words = ["ctrlax", "train", configuration["environment"], "--preset", configuration["preset"]]
    words += ["--seeds", ",".join(map(str, run.seeds))]
    for name, option in (("variant", "--variant"), ("schedule.budget", "--budget")):
        if name in changed:
            words += [option, str(changed.pop(name))]
    if configuration.get("data"):
        words += ["--data", str(configuration["data"])]
    for name, value in changed.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        words += ["--set", f"{name}={text.lower() if value is None or isinstance(value, bool) else text}"]
    return shlex.join(words)


def _in_python(run: Run, changed: Mapping[str, Any]) -> str:
    configuration = run.header["configuration"]
    given = {"variant": configuration["variant"], **configuration["environment_settings"]}
    system = f"ctrlax.make({_literal(configuration['environment'])}, {_arguments(given)})"
    options = {"seeds": list(run.seeds), "preset": configuration["preset"], **changed}
    if configuration.get("data"):
        options["data"] = configuration["data"]
    return f"python -c {shlex.quote(f'import ctrlax; ctrlax.train({system}, {_arguments(options)})')}"


def _arguments(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('.', '__')}={_literal(value)}" for name, value in given.items())


def _literal(value: Any) -> str:
    """As Python writes it, strings between double quotes: the line stands between single ones."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _setting(value: Any) -> str:
    return shown(value) if not isinstance(value, int) or isinstance(value, bool) else str(value)


def _flat(value: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        path = f"{name}.{key}" if name else str(key)
        flat |= _flat(inner, path) if isinstance(inner, Mapping) else {path: inner}
    return flat
