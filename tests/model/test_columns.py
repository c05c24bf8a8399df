"""Which column plays which part, and columns in unusual forms."""

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrlax.errors import UserError
from ctrlax.model.dataset import Dataset, read

ROWS = "\n0,1,2,3\n0.1,2,3,4\n0.2,4,1,1\n"

WRONG = [
    ("t,x,theta,u", {"time": "t", "obs": ()}, "no observation columns"),
    ("t,x,theta,u", {"time": "t", "obs": ("x", "t")}, "column t: the column is given two parts. Name it once."),
    ("t,x,theta,u", {"time": "t", "obs": ("x",), "angles": ("phi",)}, "column phi: no observation of this angle"),
    (
        "t,x,theta,u",
        {"time": "t", "obs": ("x",), "angles": ("x:turns",)},
        "column x: the unit turns is not one of an angle",
    ),
    ("t,x,theta,u", {"time": "t", "obs": ("x",), "episode": "run"}, "column run: no such column among t, x, theta, u"),
    ("t,x,,u", {"time": "t", "obs": ("x",)}, "a column has no name"),
]


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def numbers(dataset: Dataset) -> list[list[float]]:
    (log,) = dataset.logs
    return np.column_stack([log.times, log.observations, log.actions]).tolist()


@pytest.mark.parametrize(("names", "settings", "expected"), WRONG, ids=[wrong[2] for wrong in WRONG])
def test_wrong_names_are_refused(names: str, settings: dict, expected: str, tmp_path: Path):
    with pytest.raises(UserError) as refused:
        read(written(tmp_path / "log.csv", names + ROWS), **settings)
    assert expected in str(refused.value)


def test_a_system_without_actions_is_noted(tmp_path: Path):
    dataset = read(written(tmp_path / "log.csv", "t,x,theta,u" + ROWS), time="t", obs=("x", "theta"))
    assert dataset.logs[0].actions.shape == (3, 0)
    assert dataset.report.of("note")[0].problem == "no action columns (act.<name>) among t, x, theta, u"


PLAIN = "time,obs.x,act.u\n0,1,2\n0.1,3,4\n"
SPELLINGS = {
    "windows": "\ufeff" + PLAIN.replace("\n", "\r\n"),
    "old-mac": PLAIN.replace("\n", "\r"),
    "tabs": PLAIN.replace(",", "\t"),
    "semicolons": PLAIN.replace(",", ";"),
    "decimal-points-and-spaces": PLAIN.replace(",", ", "),
    "quotes": 'time,"obs.x",act.u\n"0","1","2"\n0.1,3,4\n',
    "no-last-newline": PLAIN.rstrip("\n"),
    "blank-lines": PLAIN.replace("\n", "\n\n"),
    "other-columns": "note,time,obs.x,act.u\nfirst,0,1,2\n,0.1,3,4\n",
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_all_spellings_of_csv_give_the_same_numbers(text: str, tmp_path: Path):
    assert numbers(read(written(tmp_path / "log.csv", text))) == [[0, 1, 2], [0.1, 3, 4]]


def test_parquet_columns_may_be_of_any_numeric_type(tmp_path: Path):
    columns = {
        "time": pa.array([0, 1], pa.int32()),
        "obs.x": pa.array([1, 3], pa.float32()),
        "act.u": pa.array([True, False]),
        "episode": ["a", "a"],
        "when": [datetime.datetime(2026, 1, 1)] * 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    assert numbers(read(tmp_path / "log.parquet")) == [[0, 1, 1], [1, 3, 0]]
    with pytest.raises(UserError, match="column when: expected a number, got '2026-01-01 00:00:00'"):
        read(tmp_path / "log.parquet", time="when")


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path):
    twice = pa.Table.from_arrays([pa.array([0.0, 1.0])] * 3, names=["time", "obs.x", "obs.x"])
    pq.write_table(twice, tmp_path / "log.parquet")
    with pytest.raises(UserError, match=r"column obs\.x: 2 columns have this name"):
        read(tmp_path / "log.parquet")


def test_an_npz_from_elsewhere(tmp_path: Path):
    np.savez(
        tmp_path / "log.npz", t=np.arange(2), x=np.array(["1", "3"]), u=np.array([2.0, 4.0]), image=np.ones((2, 3, 3))
    )
    assert numbers(read(tmp_path / "log.npz", time="t", obs=("x",), act=("u",))) == [[0, 1, 2], [1, 3, 4]]
