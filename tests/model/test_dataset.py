"""Datasets in memory and on disk: nothing is lost, and what is odd about a file is told."""

import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import ctrlax.model.dataset as module
from ctrlax.errors import UserError
from ctrlax.model.dataset import Dataset, Log, read, write
from ctrlax.world.collect import Trajectory
from ctrlax.world.load import make

SUFFIXES = (".csv", ".parquet", ".npz")
FIELDS = ("observation_names", "action_names", "hold", "angles", "units", "sampling")
AWKWARD = (0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, 123456789.123456789, 2.0**60)


def some_logs(count: int = 3, *, rewards: bool = True) -> tuple[Log, ...]:
    draws = np.random.default_rng(0)
    logs = []
    for points in range(4, 4 + count):
        observations = draws.standard_normal((points, 3))
        observations[:, 2] = np.resize(AWKWARD, points)
        times = np.cumsum(draws.exponential(0.1, points))
        acted = draws.standard_normal((points, 2))
        logs.append(Log(times, observations, acted, draws.standard_normal(points) if rewards else None))
    return tuple(logs)


def some_dataset(**changes: object) -> Dataset:
    settings = {
        "hold": "linear",
        "angles": ("theta",),
        "units": {"time": "s", "x": "m"},
        "sampling": {"grid": "exp", "dt": 0.1, "seed": 3},
    }
    names = ("cos_theta", "sin_theta", "x")
    return Dataset(some_logs(), names, ("left, right", "u"), **(settings | changes))  # type: ignore[arg-type]


def bits(array: np.ndarray | None) -> bytes | None:
    return None if array is None else array.tobytes()


def same(one: Dataset, other: Dataset) -> bool:
    pairs = zip(one.logs, other.logs, strict=True)
    fields = ("times", "observations", "actions", "rewards")
    logs = all(bits(getattr(a, field)) == bits(getattr(b, field)) for a, b in pairs for field in fields)
    return logs and all(getattr(one, word) == getattr(other, word) for word in FIELDS)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def table(names: str, *columns: np.ndarray) -> str:
    lines = [",".join(repr(value) for value in row) for row in np.stack(columns, axis=1).tolist()]
    return "\n".join([names, *lines, ""])


def found(dataset: Dataset, severity: str) -> list[str]:
    return [str(finding) for finding in dataset.report.of(severity)]  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rewards", [True, False])
def test_a_round_trip_keeps_every_bit(suffix: str, rewards: bool, tmp_path: Path):
    dataset = Dataset(some_logs(rewards=rewards), *(getattr(some_dataset(), name) for name in FIELDS))
    write(dataset, tmp_path / f"data{suffix}")
    assert same(read(tmp_path / f"data{suffix}"), dataset)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"data{suffix}"]


def test_the_comparison_sees_one_bit():
    dataset = some_dataset()
    moved = [Log(log.times, log.observations, np.nextafter(log.actions, 9.0), log.rewards) for log in dataset.logs]
    assert not same(dataset, Dataset(tuple(moved), *(getattr(dataset, name) for name in FIELDS)))


def test_counts_and_seconds():
    dataset = some_dataset()
    assert dataset.points == 4 + 5 + 6
    assert dataset.interaction_seconds == pytest.approx(sum(log.times[-1] - log.times[0] for log in dataset.logs))
    assert dataset.with_logs(some_logs(1)).points == 19


@pytest.mark.parametrize(("held_out", "expected"), [(1, 1), (2, 2), (0.34, 1), (0.01, 1), (0.6, 2)])
def test_a_split_is_by_whole_logs(held_out: float, expected: int):
    dataset = some_dataset()
    kept, other = dataset.split(held_out, key=jax.random.key(0))
    assert len(other.logs) == expected
    assert {id(log) for log in kept.logs + other.logs} == {id(log) for log in dataset.logs}
    again, _ = dataset.split(held_out, key=jax.random.key(0))
    assert [id(log) for log in again.logs] == [id(log) for log in kept.logs]


@pytest.mark.parametrize("held_out", [0, 3, 1.0, -1, 0.9])
def test_a_split_leaves_no_side_empty(held_out: float):
    with pytest.raises(UserError, match="leaves one side empty"):
        some_dataset().split(held_out, key=jax.random.key(0))


def test_a_log_is_checked():
    times, three = np.arange(3.0), np.ones((3, 1))
    with pytest.raises(UserError, match="times must increase"):
        Log(times[::-1], three, three)
    with pytest.raises((UserError, TypeError), match="actions"):  # the type checks of the test run may come first
        Log(times, three, np.ones((2, 1)))
    with pytest.raises(UserError, match="observations must be finite"):
        Log(times, three * np.nan, three)
    with pytest.raises(UserError, match="the angle theta must be recorded as cos_theta and sin_theta"):
        Dataset((Log(times, three, three),), ("x",), ("u",), angles=("theta",))
    with pytest.raises(UserError, match="hold must be one of gp, linear, hold; got zoh"):
        Dataset((Log(times, three, three),), ("x",), ("u",), hold="zoh")


def test_a_simulation_becomes_a_dataset_without_its_unhealthy_part(tmp_path: Path):
    world = make("cartpole")
    shape = (3, 4)
    draws = np.random.default_rng(1)
    observations = draws.standard_normal((*shape, world.observation_size))
    observations[1, 2:] = np.nan
    trajectory = Trajectory(
        times=np.tile(np.arange(4) * 0.1, (3, 1)),
        states=draws.standard_normal((*shape, world.state_size)),
        observations=observations,
        actions=draws.standard_normal((*shape, world.action_size)),
        rewards=draws.standard_normal(shape),
        healthy=np.array([True, False, True]),
        work=np.ones(3, int),
    )
    dataset = Dataset.from_trajectory(trajectory, world, sampling={"dt": 0.1})
    assert len(dataset.logs) == 2
    assert dataset.observation_names == world.observation_names
    assert dataset.angles == world.angles
    write(dataset, tmp_path / "data.parquet")
    assert same(read(tmp_path / "data.parquet"), dataset)


FOREIGN = "run;t;label;x;theta;u\nb;0.0;start;1.0;0.5;1\na;0.0;start;2.0;0.1;2\nb;0.1;;1.5;0.6;3\na;0.2;;2.5;0.2;4\n"


def test_a_foreign_file_is_read_by_naming_columns(tmp_path: Path):
    path = written(tmp_path / "log.csv", FOREIGN)
    dataset = read(path, time="t", episode="run", obs=("x", "theta"), act=("u",), angles=("theta",), hold="hold")
    first, second = dataset.logs
    assert dataset.observation_names == ("x", "cos_theta", "sin_theta")
    assert dataset.angles == ("theta",)
    assert dataset.hold == "hold"
    np.testing.assert_array_equal(first.times, [0.0, 0.1])
    np.testing.assert_array_equal(
        first.observations, [[1.0, np.cos(0.5), np.sin(0.5)], [1.5, np.cos(0.6), np.sin(0.6)]]
    )
    np.testing.assert_array_equal(second.actions, [[2.0], [4.0]])
    assert second.rewards is None


@pytest.mark.parametrize(("name", "factor"), [("theta", 1.0), ("theta:rad", 1.0), ("theta:deg", 180 / np.pi)])
def test_an_angle_may_be_in_degrees(name: str, factor: float, tmp_path: Path):
    times, theta = np.arange(20) * 0.1, np.linspace(-3, 3, 20)
    path = written(tmp_path / "log.csv", table("time,theta,u", times, theta * factor, np.sin(times)))
    dataset = read(path, obs=("theta",), act=("u",), angles=(name,))
    np.testing.assert_allclose(dataset.logs[0].observations, np.stack([np.cos(theta), np.sin(theta)], 1), atol=1e-14)


def test_degrees_are_told_by_their_range_and_said_so(tmp_path: Path):
    times, theta = np.arange(20) * 0.1, np.linspace(-3, 3, 20)
    path = written(tmp_path / "log.csv", table("time,theta,u", times, np.rad2deg(theta), np.sin(times)))
    dataset = read(path, obs=("theta",), act=("u",), angles=("theta",))
    np.testing.assert_allclose(dataset.logs[0].observations[:, 0], np.cos(theta), atol=1e-14)
    assert "is read as degrees" in found(dataset, "warning")[0]


NAN = "time,obs.x,act.u\n0,1,1\n1,2,2\n2,,3\n3,4,4\n4,5,3\n5,nan,2\n6,1,1\n"


def test_missing_numbers_are_dropped_or_split_at(tmp_path: Path):
    path = written(tmp_path / "log.csv", NAN)
    dropped, split = read(path, on_nan="drop"), read(path, on_nan="split")
    assert [log.times.tolist() for log in dropped.logs] == [[0, 1, 3, 4, 6]]
    assert [log.times.tolist() for log in split.logs] == [[0, 1], [3, 4]]
    assert "row 4, column obs.x" in found(dropped, "warning")[0]
    assert any("a single point" in line for line in found(split, "warning"))


def test_repeated_times_keep_the_first_or_the_mean(tmp_path: Path):
    path = written(tmp_path / "log.csv", "time,obs.x,act.u\n0,1,1\n1,2,2\n1,4,6\n2,3,3\n")
    assert read(path, on_duplicate="first").logs[0].observations[:, 0].tolist() == [1, 2, 3]
    assert read(path, on_duplicate="mean").logs[0].observations[:, 0].tolist() == [1, 3, 3]
    assert read(path, on_duplicate="mean").logs[0].actions[:, 0].tolist() == [1, 4, 3]


CLOCK = np.arange(200) * 0.1
WRAPPED = (CLOCK * 2 + np.pi) % (2 * np.pi) - np.pi
SMOOTH = np.sin(CLOCK)

ODD = [
    ("constant", table("time,obs.x,act.u", CLOCK, SMOOTH, 0 * CLOCK), "column act.u: the column is 0 in every row"),
    ("wraps", table("time,obs.x,act.u", CLOCK, WRAPPED, SMOOTH), "column obs.x: jumps by a full turn"),
    ("wraps-degrees", table("time,obs.x,act.u", CLOCK, np.rad2deg(WRAPPED), SMOOTH), "say so (--angles x)"),
    ("gap", table("time,obs.x,act.u", CLOCK + 3 * (CLOCK > 5), SMOOTH, SMOOTH), "a gap of 3.1 s before this row"),
    (
        "milliseconds",
        table("time,obs.x,act.u", CLOCK * 1000, SMOOTH, SMOOTH),
        "if these are milliseconds, divide by 1000",
    ),
]


@pytest.mark.parametrize(("text", "expected"), [odd[1:] for odd in ODD], ids=[odd[0] for odd in ODD])
def test_what_is_odd_is_a_warning(text: str, expected: str, tmp_path: Path):
    (warning,) = found(read(written(tmp_path / "log.csv", text)), "warning")
    assert expected in warning


def test_a_sound_file_has_no_findings(tmp_path: Path):
    draws = np.random.default_rng(2)
    times = np.cumsum(draws.exponential(0.1, 5000))
    scattered = draws.uniform(-np.pi, np.pi, 5000)
    path = written(tmp_path / "log.csv", table("time,obs.x,act.u", times, np.sin(times), scattered))
    assert read(path).report.findings == ()


def test_unequal_lengths_are_a_note(tmp_path: Path):
    write(some_dataset(), tmp_path / "data.npz")
    assert "4 to 6 points" in found(read(tmp_path / "data.npz"), "note")[0]


def test_all_errors_come_at_once(tmp_path: Path):
    path = written(tmp_path / "log.csv", "time,obs.x,act.u\n0,1,1\n1,nan,2\n1.5,x,2\n2,3,3,4\n3,1,1\n2,4,6\n")
    with pytest.raises(UserError) as refused:
        read(path)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        "log.csv, row 3, column obs.x",
        "log.csv, row 4, column obs.x",
        "log.csv, row 5",
        "log.csv, row 7, column time",
    ]


@pytest.mark.parametrize("settings", [{"on_nan": "ignore"}, {"on_duplicate": "last"}])
def test_unknown_settings_list_the_known_ones(settings: dict[str, str], tmp_path: Path):
    with pytest.raises(UserError, match="must be one of error,"):
        read(tmp_path / "log.csv", **settings)  # type: ignore[arg-type]


def test_unknown_suffixes_and_absent_files_are_the_users_mistakes(tmp_path: Path):
    with pytest.raises(UserError, match=r"ends in one of \.csv, \.parquet, \.npz; got \.xlsx\."):
        read(tmp_path / "data.xlsx")
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\)"):
        read(tmp_path / "data.csv")
    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)"):
        write(some_dataset(), tmp_path / "nowhere" / "data.csv")


def test_decimal_commas_are_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"got '0,5'.*Write decimals with a point"):
        read(written(tmp_path / "log.csv", "time;obs.x;act.u\n0;0,5;1\n1;0,6;2\n"))


def test_line_numbers_are_those_of_an_editor(tmp_path: Path):
    text = '# from the rig\ntime,obs.x,note\n0,1,"two\nlines"\n\n1,fast,plain\n2,3,plain\n'
    with pytest.raises(UserError, match=r"row 6, column obs\.x: expected a number, got 'fast'"):
        read(written(tmp_path / "log.csv", text), act=())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_that_fails_leaves_the_old_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / f"data{suffix}"
    write(some_dataset(), path)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", refuse)
    with pytest.raises(UserError, match="No space left on device"):
        write(some_dataset(hold="gp"), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"ctrlax\[parquet\]"):
        write(some_dataset(), tmp_path / "data.parquet")
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_a_long_file_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ctrlax.model.comma._PIECE", 50)
    monkeypatch.setattr("ctrlax.model.comma._ROWS", 2)
    write(some_dataset(), tmp_path / "data.csv")
    assert same(read(tmp_path / "data.csv"), some_dataset())
    text = (tmp_path / "data.csv").read_text().splitlines()
    text[6] = text[6].replace(text[6].split(",")[1], '""')
    path = written(tmp_path / "hole.csv", "\n".join(text))
    assert [len(log.times) for log in read(path, on_nan="drop").logs] == [4, 4, 6]
    with pytest.raises(UserError, match="row 7, column time: expected a finite number, got nan or an empty field"):
        read(path)


def test_which_velocity_is_the_rate_of_what_travels_with_the_data(tmp_path):
    dataset = Dataset(
        (Log(np.arange(2.0), np.ones((2, 3)), np.zeros((2, 1))),),
        ("cos_theta", "sin_theta", "omega"), ("u",), angles=("theta",), rates={"omega": "theta"},
    )  # fmt: skip
    write(dataset, tmp_path / "swing.csv")
    assert read(tmp_path / "swing.csv").rates == {"omega": "theta"}
    assert read(tmp_path / "swing.csv", obs=("omega",), angles=()).rates == {}
    with pytest.raises(UserError, match="omega is the rate of psi, but psi is not observed"):
        read(tmp_path / "swing.csv", rates={"omega": "psi"})
