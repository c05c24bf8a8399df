"""The file formats a recording may have, each as named columns and one line of metadata; works on opened files only.

A format offers ``head`` (names and metadata, little read), ``sheet`` (the wanted columns) and ``encode``.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import BinaryIO

import numpy as np
from jaxtyping import Float, Int

from ctrlax.errors import UserError
from ctrlax.model import comma
from ctrlax.model.sheet import Head, Sheet, numbers_from
from ctrlax.model.validation import Finding

_KEY = "ctrlax"  # the name of the metadata in Parquet's schema and among the arrays of an .npz
_NUMERIC = "fiub"


@dataclasses.dataclass(frozen=True)
class Format:
    """How one kind of file is read and written."""

    head: Callable[[BinaryIO, str], Head]
    sheet: Callable[[BinaryIO, Head, Sequence[str], str | None], Sheet]
    encode: Callable[[BinaryIO, Mapping[str, np.ndarray], str], None]


def named(suffix: str) -> Format:
    """The format of a file name's suffix."""
    if suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise UserError(f"a data file ends in one of {known}; got {suffix or 'none'}. Rename or convert the file.")
    return FORMATS[suffix.lower()]


def _parquet():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise UserError("Parquet files need PyArrow: pip install 'ctrlax[parquet]', or use .csv or .npz.") from missing
    return pyarrow, pyarrow.parquet


def _parquet_head(file: BinaryIO, name: str) -> Head:
    arrow, parquet = _parquet()
    try:
        schema = parquet.ParquetFile(file).schema_arrow
    except (arrow.ArrowException, OSError) as broken:
        raise _unreadable(name, "a complete Parquet file") from broken
    stored = (schema.metadata or {}).get(_KEY.encode())
    return Head(name, tuple(schema.names), stored.decode() if stored is not None else None)


def _parquet_sheet(file: BinaryIO, head: Head, wanted: Sequence[str], label: str | None) -> Sheet:
    arrow, parquet = _parquet()
    try:
        table = parquet.ParquetFile(file).read([*wanted, label] if label else list(wanted))
    except (arrow.ArrowException, OSError) as broken:
        raise _unreadable(head.file, "a complete Parquet file") from broken
    columns = []
    for column in wanted:
        kind, values = table.schema.field(column).type, table.column(column)
        numeric = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_decimal(kind)
        numeric = numeric or arrow.types.is_boolean(kind)
        if numeric:
            columns.append((column, values.cast(arrow.float64(), safe=False).to_numpy()))
        else:
            columns.append((column, _texts(values.to_pylist())))
    labels = _hashable(table.column(label).to_pylist()) if label else None
    return _assemble(head, columns, labels, table.num_rows)


def _parquet_encode(file: BinaryIO, columns: Mapping[str, np.ndarray], metadata: str) -> None:
    arrow, parquet = _parquet()
    table = arrow.table({name: arrow.array(values) for name, values in columns.items()})
    parquet.write_table(table.replace_schema_metadata({_KEY: metadata}), file)


def _archive(file: BinaryIO, name: str) -> np.lib.npyio.NpzFile:
    try:
        return np.lib.npyio.NpzFile(file, allow_pickle=False)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as broken:
        raise _unreadable(name, "a complete .npz archive of NumPy arrays") from broken


def _member(archive: np.lib.npyio.NpzFile, column: str, name: str) -> np.ndarray:
    try:
        return np.asarray(archive[column])
    except ValueError as pickled:
        problem = "the array holds pickled Python objects, which are never loaded"
        raise _single(name, problem, "Save it as numbers: array.astype(float).", column) from pickled
    except (zipfile.BadZipFile, OSError, EOFError) as broken:
        raise _unreadable(name, "a complete .npz archive of NumPy arrays") from broken


def _npz_head(file: BinaryIO, name: str) -> Head:
    archive = _archive(file, name)
    names = tuple(column for column in archive.files if column != _KEY)
    return Head(name, names, str(_member(archive, _KEY, name)) if _KEY in archive.files else None)


def _npz_sheet(file: BinaryIO, head: Head, wanted: Sequence[str], label: str | None) -> Sheet:
    archive = _archive(file, head.file)
    arrays = {column: _member(archive, column, head.file) for column in [*wanted, *([label] if label else [])]}
    rows = len(np.atleast_1d(arrays[wanted[0]]))
    for column, array in arrays.items():
        if array.shape != (rows,):
            problem = f"expected one number per row, shape ({rows},), got shape {array.shape}"
            raise _single(head.file, problem, "Save every column as an array of its own, all of one length.", column)
    columns = []
    for column in wanted:
        array = arrays[column]
        columns.append((column, array.astype(float) if array.dtype.kind in _NUMERIC else _texts(array.tolist())))
    return _assemble(head, columns, arrays[label].tolist() if label else None, rows)


def _npz_encode(file: BinaryIO, columns: Mapping[str, np.ndarray], metadata: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in {_KEY: np.array(metadata), **columns}.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getbuffer())


def _texts(values: Iterable[object]) -> list[str]:
    return ["" if value is None else str(value) for value in values]


def _hashable(labels: list) -> list[Hashable]:
    return [label if isinstance(label, (int, float, str)) or label is None else str(label) for label in labels]


def _assemble(
    head: Head,
    columns: Sequence[tuple[str, Float[np.ndarray, " row"] | list[str]]],
    labels: Sequence[Hashable] | None,
    rows: int,
) -> Sheet:
    lines: Int[np.ndarray, " row"] = np.arange(1, rows + 1)
    values, findings, sound = np.empty((rows, len(columns))), [], np.ones(rows, bool)
    for place, (column, numbers) in enumerate(columns):
        values[:, place] = (
            numbers_from(numbers, lines, head.file, column, findings, sound) if isinstance(numbers, list) else numbers
        )
    kept = None if labels is None else list(compress(labels, sound))
    return Sheet(values[sound], kept, lines[sound], tuple(findings))


def _single(name: str, problem: str, remedy: str, column: str | None = None) -> UserError:
    return UserError(str(Finding("error", name, problem, remedy, column=column)))


def _unreadable(name: str, expected: str) -> UserError:
    return _single(name, f"expected {expected}, got one that is cut off or of another kind", "Write or copy it again.")


def as_metadata(fields: Mapping[str, object]) -> str:
    """One line of JSON; NumPy's numbers become plain ones."""

    def plain(value: object) -> object:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        raise UserError(f"a dataset's sampling holds numbers, texts, lists and dicts; got {type(value).__name__}.")

    return json.dumps(fields, default=plain)


FORMATS = {
    ".csv": Format(comma.head, comma.sheet, comma.encode),
    ".parquet": Format(_parquet_head, _parquet_sheet, _parquet_encode),
    ".npz": Format(_npz_head, _npz_sheet, _npz_encode),
}
