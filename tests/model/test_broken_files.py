"""Twenty-five data files that cannot be learned from: what is said about each, and that nothing is written."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrlax.errors import UserError
from ctrlax.model.dataset import read

HEADER = "time,obs.x,act.u\n"
SOUND = "time,obs.x,act.u\n0.0,1.0,0.1\n0.1,1.1,0.2\n0.2,1.3,0.1\n"


class Broken(NamedTuple):
    file: str
    content: str | bytes | Callable[[], bytes]
    message: str
    settings: Mapping[str, Any] = MappingProxyType({})


def npz(**arrays: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.savez(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


def parquet(**columns: object) -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.table(columns), held)
    return held.getvalue()


def rows(*lines: str, header: str = HEADER) -> str:
    return header + "".join(f"{line}\n" for line in lines)


BROKEN = [
    Broken(
        "empty.csv", "", "empty.csv: the file is empty. Expected a header line with column names and rows of numbers."
    ),
    Broken(
        "header_only.csv",
        HEADER,
        "header_only.csv: no rows of numbers. Record or export the rows below the names as well.",
    ),
    Broken(
        "no_header.csv",
        "0.0,1.0,0.1\n0.1,1.1,0.2\n",
        "no_header.csv, row 1: expected column names in the first line, got numbers. "
        "Add a header line, e.g. time,obs.x,act.u.",
    ),
    Broken(
        "one_column_twice.csv",
        rows("0,1,2,3", "1,2,3,4", header="time,obs.x,obs.x,act.u\n"),
        "one_column_twice.csv, column obs.x: 2 columns have this name. Rename one of them.",
    ),
    Broken(
        "ragged.csv",
        rows("0.0,1.0,0.1", "0.1,1.1", "0.2,1.3,0.1"),
        "ragged.csv, row 3: expected 3 fields as in the header, got 2. Complete the row or remove it.",
    ),
    Broken(
        "text.csv",
        rows("0.0,1.0,0.1", "0.1,fast,0.2", "0.2,slow,0.1"),
        "text.csv, row 3, column obs.x: expected a number, got 'fast' (and 1 more row). "
        "Write a number, or leave the field empty if it is missing.",
    ),
    Broken(
        "not_utf8.csv",
        (HEADER + "0.0,1.0,0.1\n0.1,1.1 ").encode() + b"\xb5,0.2\n",
        "not_utf8.csv, row 3: expected UTF-8 text, got the byte 0xb5. Save the file as UTF-8.",
    ),
    Broken(
        "open_quote.csv",
        rows("0.0,1.0,0.1", '0.1,"1.1,0.2') + "0.2,1.3,0.1\n" * 20000,
        "open_quote.csv: not readable as CSV (field larger than field limit (131072)). "
        "Look for a quote that is never closed.",
    ),
    Broken(
        "nan.csv",
        rows("0.0,1.0,0.1", "0.1,,0.2", "0.2,nan,0.1", "0.3,1.4,0.1"),
        "nan.csv, row 3, column obs.x: expected a finite number, got nan or an empty field (and 1 more row). "
        "Mend it, or leave such rows out (--on-nan drop) or cut the episode there (--on-nan split).",
    ),
    Broken(
        "infinite.csv",
        rows("0.0,1.0,0.1", "0.1,1.1,-inf", "0.2,1.3,0.1"),
        "infinite.csv, row 3, column act.u: expected a finite number, got -inf. "
        "Mend it, or leave such rows out (--on-nan drop) or cut the episode there (--on-nan split).",
    ),
    Broken(
        "time_back.csv",
        rows("0.0,1.0,0.1", "0.1,1.1,0.2", "0.05,1.2,0.3"),
        "time_back.csv, row 4, column time: time goes back within an episode, from 0.1 to 0.05. "
        "Sort each episode by time, or name the column that tells the episodes apart (--episode).",
    ),
    Broken(
        "time_twice.csv",
        rows("0.0,1.0,0.1", "0.1,1.1,0.2", "0.1,1.2,0.3"),
        "time_twice.csv, row 4, column time: the time 0.1 comes twice in an episode. "
        "Remove one row, or keep the first (--on-duplicate first) or the mean (--on-duplicate mean).",
    ),
    Broken(
        "single_points.csv",
        rows("0,0.0,1.0,0.1", "1,0.1,1.1,0.2", header="episode," + HEADER),
        "single_points.csv: no episode has two points or more. "
        "Check the episode column (--episode): it must be the same for all rows of one trajectory.",
    ),
    Broken(
        "no_episode.csv",
        rows("a,0.0,1.0,0.1", ",0.1,1.1,0.2", "a,0.2,1,1", header="episode," + HEADER),
        "no_episode.csv, row 3, column episode: the row has no episode. Give every row the label of its trajectory.",
    ),
    Broken(
        "foreign.csv",
        rows("0.0,1.0,0.1", "0.1,1.1,0.2", header="t,x,u\n"),
        "foreign.csv: no observation columns (obs.<name>) among t, x, u. "
        "Name them, e.g. --obs x,theta --act u.\n"
        "foreign.csv, column time: no such column among t, x, u. "
        "Name the column of the times in seconds (--time t).",
    ),
    Broken(
        "mixed_units.csv",
        rows("a,0.0,1,2", "a,0.1,2,3", "a,0.2,3,4", "b,0,1,1", "b,100,2,2", "b,200,3,4", header="episode," + HEADER),
        "mixed_units.csv, row 5, column time: this episode has a median step of 100 s, the file one of 0.1 s. "
        "Bring all episodes to seconds.",
    ),
    Broken(
        "milliseconds.csv",
        '# ctrlax {"format_version": 1, "units": {"time": "ms"}}\n' + SOUND,
        "milliseconds.csv, column time: time must be in seconds, the file's units say ms. "
        "Convert the column to seconds.",
    ),
    Broken(
        "turns.csv",
        rows("0.0,1.0,0.1", "0.1,400.0,0.2", "0.2,720.0,0.1"),
        "turns.csv, column obs.x: the angle runs from 1 to 720, which may be radians or degrees. "
        "Say which (--angles x:rad or --angles x:deg).",
        {"angles": ("x",)},
    ),
    Broken(
        "version.csv",
        '# ctrlax {"format_version": 7}\n' + SOUND,
        "version.csv: expected format version 1, got 7. Update ctrlax, or write the file with this version.",
    ),
    Broken(
        "metadata.csv",
        '# ctrlax {"format_version": 1, "hold"\n' + SOUND,
        "metadata.csv: the ctrlax metadata is damaged. "
        "Write the file again with ctrlax, or remove the metadata and name the columns.",
    ),
    Broken(
        "cut_off.parquet",
        lambda: parquet(time=[0.0, 0.1])[:-20],
        "cut_off.parquet: expected a complete Parquet file, got one that is cut off or of another kind. "
        "Write or copy it again.",
    ),
    Broken(
        "nulls.parquet",
        lambda: parquet(**{"time": [0.0, None, 0.2], "obs.x": [1.0, 2.0, 3.0]}),
        "nulls.parquet, row 2, column time: expected a finite number, got nan or an empty field. "
        "Mend it, or leave such rows out (--on-nan drop) or cut the episode there (--on-nan split).",
    ),
    Broken(
        "pickled.npz",
        lambda: npz(**{"time": np.arange(2.0), "obs.x": np.array([1.0, {}], object)}),
        "pickled.npz, column obs.x: the array holds pickled Python objects, which are never loaded. "
        "Save it as numbers: array.astype(float).",
    ),
    Broken(
        "shapes.npz",
        lambda: npz(**{"time": np.arange(3.0), "obs.x": np.ones((3, 2))}),
        "shapes.npz, column obs.x: expected one number per row, shape (3,), got shape (3, 2). "
        "Save every column as an array of its own, all of one length.",
    ),
    Broken(
        "cut_off.npz",
        lambda: npz(time=np.arange(3.0))[:-30],
        "cut_off.npz: expected a complete .npz archive of NumPy arrays, got one that is cut off or of another kind. "
        "Write or copy it again.",
    ),
]


def folder(path: Path) -> dict[str, tuple[bytes, int]]:
    return {entry.name: (entry.read_bytes(), entry.stat().st_mtime_ns) for entry in path.iterdir()}


def test_there_are_twenty_five():
    assert len({broken.file for broken in BROKEN}) == 25


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.file)
def test_a_broken_file_is_refused_in_words_and_nothing_is_written(broken: Broken, tmp_path: Path):
    content = broken.content() if callable(broken.content) else broken.content
    path = tmp_path / broken.file
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = folder(tmp_path)
    with pytest.raises(UserError) as refused:
        read(path, **broken.settings)
    assert str(refused.value) == broken.message
    assert folder(tmp_path) == before


def test_the_file_all_these_are_made_from_is_sound(tmp_path: Path):
    path = tmp_path / "sound.csv"
    path.write_text(SOUND)
    assert read(path).report.findings == ()
