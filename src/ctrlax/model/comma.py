"""Comma-separated values, read in pieces so that a million rows take seconds and little memory."""

from __future__ import annotations

import csv
import dataclasses
import io
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from typing import BinaryIO

import numpy as np

from ctrlax.errors import UserError
from ctrlax.model.sheet import Head, Sheet, numbers_from
from ctrlax.model.validation import Finding

_MARK = "# ctrlax "
_PIECE = 1 << 22  # characters
_ROWS = 1 << 15

Numbered = tuple[int, list[str]]


def head(file: BinaryIO, name: str) -> Head:
    """The header line, below any comment lines; the delimiter is the one it uses."""
    metadata, before = None, 0
    with _Guarded(file, name) as text:
        for line in text:
            before += 1
            if line.startswith(_MARK):
                metadata = line[len(_MARK) :].strip()
            elif line.strip() and not line.startswith("#"):
                break
        else:
            raise _error(name, "the file is empty", "Expected a header line with column names and rows of numbers.")
    delimiter = max(",;\t", key=line.count)
    names = tuple(field.strip() for field in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True)))
    if all(_is_number(field) for field in names):
        problem = "expected column names in the first line, got numbers"
        raise _error(name, problem, "Add a header line, e.g. time,obs.x,act.u.", before)
    return Head(name, names, metadata, before, delimiter)


def sheet(file: BinaryIO, head: Head, wanted: Sequence[str], label: str | None) -> Sheet:
    """The wanted columns; row numbers are line numbers."""
    places = [head.names.index(column) for column in wanted]
    labels: list[Hashable] = []
    values, lines, findings = [np.empty((0, len(wanted)))], [np.empty(0, np.int64)], []
    with _Guarded(file, head.file) as text:
        for first, piece in _pieces(text, head):
            if isinstance(piece, np.ndarray):
                values.append(piece[:, places])
                lines.append(np.arange(first, first + len(piece)))
                labels += piece[:, head.names.index(label)].tolist() if label else []
                continue
            rows = _even(piece, head, findings)
            if not rows:
                continue
            fields = [list(column) for column in zip(*(row for _, row in rows), strict=True)]
            at, sound = np.array([line for line, _ in rows]), np.ones(len(rows), bool)
            pairs = zip(places, wanted, strict=True)
            numbers = [numbers_from(fields[place], at, head.file, name, findings, sound) for place, name in pairs]
            values.append(np.stack(numbers, axis=1)[sound])
            lines.append(at[sound])
            labels += map(_label, compress(fields[head.names.index(label)], sound)) if label else []
    return Sheet(np.concatenate(values), labels if label else None, np.concatenate(lines), _merged(findings))


def encode(file: BinaryIO, columns: Mapping[str, np.ndarray], metadata: str) -> None:
    """Numbers are written with as many digits as bring the same float64 back."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    text.write(f"{_MARK}{metadata}\n")
    csv.writer(text, lineterminator="\n").writerow(columns)
    rows = len(next(iter(columns.values())))
    for start in range(0, rows, _ROWS):
        fields = [map(repr, values[start : start + _ROWS].tolist()) for values in columns.values()]
        text.writelines(",".join(row) + "\n" for row in zip(*fields, strict=True))
    text.detach()


class _Guarded:
    """The file as text; what is not text is an error that names its row."""

    def __init__(self, file: BinaryIO, name: str):
        file.seek(0)
        self.file, self.name = file, name
        self.text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")

    def __enter__(self) -> io.TextIOWrapper:
        return self.text

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        self.text.detach()
        if isinstance(fault, UnicodeDecodeError):
            self.file.seek(0)
            for row, line in enumerate(self.file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as where:
                    problem = f"expected UTF-8 text, got the byte 0x{line[where.start]:02x}"
                    raise _error(self.name, problem, "Save the file as UTF-8.", row) from fault
        if isinstance(fault, csv.Error):
            raise _error(
                self.name, f"not readable as CSV ({fault})", "Look for a quote that is never closed."
            ) from fault


def _pieces(text: io.TextIOWrapper, head: Head) -> Iterator[tuple[int, np.ndarray | list[Numbered]]]:
    """The number of a piece's first line, and all its numbers; or its rows as texts, where not all are numbers."""
    above = head.before
    for _ in range(above):
        text.readline()
    while lines := text.readlines(_PIECE):
        if any('"' in line for line in lines):
            # A quoted field may run over lines, so from here on only the csv module can tell where a row ends.
            rows = _rows(chain(lines, text), head, above)
            while piece := list(islice(rows, _ROWS)):
                yield 0, piece
            return
        numbers = _all_numbers(lines, head)
        yield above + 1, list(_rows(lines, head, above)) if numbers is None else numbers
        above += len(lines)


def _all_numbers(lines: list[str], head: Head) -> np.ndarray | None:
    width = len(head.names)
    if {line.count(head.delimiter) for line in lines} != {width - 1}:
        return None
    block = ",".join(lines)
    if head.delimiter != ",":
        if block.count(",") >= len(lines):  # decimal commas
            return None
        block = block.replace(head.delimiter, ",")
    try:
        with warnings.catch_warnings(action="error", category=DeprecationWarning):
            numbers = np.fromstring(block, sep=", ")  # exact, and several times as quick as float() on every field
    except (ValueError, DeprecationWarning):
        return None
    return numbers.reshape(-1, width) if len(numbers) == len(lines) * width else None


def _rows(lines: Iterable[str], head: Head, above: int) -> Iterator[Numbered]:
    reader = csv.reader(lines, delimiter=head.delimiter, skipinitialspace=True)
    for row in reader:
        if row:
            yield above + reader.line_num, row


def _label(field: str) -> Hashable:
    return float(field) if _is_number(field) else field.strip()


def _even(piece: list[Numbered], head: Head, findings: list[Finding]) -> list[Numbered]:
    width = len(head.names)
    uneven = [(line, len(row)) for line, row in piece if len(row) != width]
    if not uneven:
        return piece
    line, count = uneven[0]
    problem = f"expected {width} fields as in the header, got {count}"
    remedy = "Complete the row or remove it."
    findings.append(Finding("error", head.file, problem, remedy, line, None, str(count), len(uneven) - 1))
    return [(line, row) for line, row in piece if len(row) == width]


def _merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding per column, also where the file was read in several pieces."""
    first: dict[str | None, Finding] = {}
    for finding in findings:
        if finding.column in first:
            known = first[finding.column]
            finding = dataclasses.replace(known, more=known.more + finding.more + 1)
        first[finding.column] = finding
    return tuple(first.values())


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _error(name: str, problem: str, remedy: str, row: int | None = None) -> UserError:
    return UserError(str(Finding("error", name, problem, remedy, row)))
