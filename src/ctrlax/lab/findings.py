"""What the figures of a folder say of the sixteen claims, as its README.md: written from the records alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrlax.lab.checkpoint import write_aside
from ctrlax.lab.claims import CLAIMS, DEPENDS

README = "README.md"


def write(
    root: Path,
    records: Sequence[Mapping[str, Any]],
    answered_by: Mapping[int, Sequence[str]],
    costs: Mapping[str, str],
) -> Path:
    """Write ``ROOT/README.md``; ``costs`` say for every figure what the paper's scale costs."""
    lines = [
        "# The text's sixteen claims",
        "",
        "Written by `ctrlax reproduce` from the records beside it; not to be edited. A part of a claim holds where the",
        "whole 95 % bootstrap interval lies on its side of the bound, does not where none of it does, and depends",
        "otherwise; a claim whose parts differ depends. Every record (`FIGURE/record.json`) has the rows behind its",
        "picture, the versions, the machine and the commit.",
        "",
        "| claim | what the text says | verdict | figures |",
        "|---|---|---|---|",
    ]
    for number, text in CLAIMS.items():
        parts = _parts(records, number)
        absent = set(answered_by[number]) - {record["figure"] for record, _ in parts}
        said = _overall(parts, absent) if parts else "not run yet"
        figures = ", ".join(answered_by[number])
        lines.append(f"| {number} | {text} | {said} | {figures} |")
    for number, text in CLAIMS.items():
        lines += ["", f"## {number}. {text}", "", *_section(records, answered_by[number], costs, number)]
    lines += ["", "## What the paper's scale costs", "", "| figure | on one H200 |", "|---|---|"]
    lines += [f"| {figure} | {cost} |" for figure, cost in costs.items()]
    lines += [
        "",
        "What two figures share is done once in `all`. Compiling, gradient matching, trials and data are not counted.",
    ]
    path = root / README
    write_aside(path, ["\n".join(lines).encode(), b"\n"])
    return path


def _parts(records: Sequence[Mapping[str, Any]], number: int) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(record, claim) for record in records for claim in record["claims"] if claim["number"] == number]


def _overall(parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], absent: Collection[str]) -> str:
    measured = {claim["verdict"] for _, claim in parts if claim["value"] is not None}
    unmeasured = bool(absent) or any(claim["value"] is None for _, claim in parts)
    scales = "/".join(sorted({record["scale"] for record, _ in parts}))
    if not measured:
        return f"not answered at scale {scales}"
    verdict = measured.pop() if len(measured) == 1 else DEPENDS
    return f"{verdict} ({scales}{', in part' if unmeasured else ''})"


def _section(
    records: Sequence[Mapping[str, Any]], figures: Sequence[str], costs: Mapping[str, str], number: int
) -> list[str]:
    parts = _parts(records, number)
    lines = []
    if parts:
        lines += ["| verdict | measure | value | 95 % interval | values | figure |", "|---|---|---|---|---|---|"]
    for record, claim in parts:
        value = "-" if claim["value"] is None else f"{claim['value']:.3g}"
        between = "-" if claim["interval"] is None else "{:.3g} to {:.3g}".format(*claim["interval"])
        measure = (claim["measure"] + (f" ({claim['note']})" if claim["note"] else "")).replace("|", "\\|")
        lines.append(
            f"| {claim['verdict']} | {measure} | {value} | {between} | {claim['count']} | {record['figure']} |"
        )
    there = {record["figure"]: record for record in records}
    for figure in figures:
        if figure in there:
            lines += ["", f"`{there[figure]['command']}`, {there[figure]['note']}"]
        else:
            cost = costs.get(figure, "unknown")
            lines += ["", f"{figure}: not run yet: measured cost at paper scale {cost}: `ctrlax reproduce {figure}`"]
    return [line for place, line in enumerate(lines) if line or place]
