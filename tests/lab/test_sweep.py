"""Sweeps: what a file may say, what is told of one that cannot be, and what a folder of runs says afterwards."""

import io
import json

import pytest
from rich.console import Console

from ctrlax.cli import main
from ctrlax.errors import UserError
from ctrlax.lab import jobs
from ctrlax.lab.board import Board, Screen, newest_round
from ctrlax.lab.jobs import Outcome
from ctrlax.lab.sweep import SHORT, read

TINY = """
environment = "pendulum"
model = "true"
structure = ""
seeds = "0:2"
noise = [0.0, 0.1]
[agent]
updates = 2
starts = 4
horizon = 0.2
[schedule]
rounds = 1
trials = 1
trial_seconds = 0.5
confirm = false
"""


def written(path, text):
    path.write_text(text)
    return path


def ended(arguments, capsys):
    try:
        main([str(each) for each in arguments])
        code = 0
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_list_is_an_axis_and_the_grid_is_their_product(tmp_path):
    text = 'environment = ["pendulum", "cartpole"]\ndt = [0.05, 0.1]\nseeds = [3, 4]\nfit.updates = 7\n'
    text += "horizon = [1, 2, 3]\n"
    sweep = read(written(tmp_path / "a.toml", text))
    assert len(sweep.runs) == 12
    assert sweep.runs[0].varied == {"environment": "pendulum", "dt": 0.05, "horizon": 1.0}
    assert {each.job.seeds for each in sweep.runs} == {(3, 4)}
    assert {each.job.configuration["fit"]["updates"] for each in sweep.runs} == {7}
    assert len({each.job.name for each in sweep.runs}) == 12
    same = read(written(tmp_path / "b.toml", text.replace("horizon", '"agent.horizon"')))
    assert [each.job.name for each in same.runs] == [each.job.name for each in sweep.runs]


def test_short_names_are_settings():
    from ctrlax.config import Config
    from ctrlax.lab.configure import settings_of

    assert set(SHORT.values()) <= {name for name, _ in settings_of(Config())}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dt = 0.1", "key 'environment' is missing"),
        ('environment = "pendulm"', "key 'environment': Unknown environment 'pendulm'. Did you mean 'pendulum'"),
        ('environment = "no/where.py"', "key 'environment': expected a built-in name or the path of a file"),
        ('environment = "pendulum"\nhorizn = 1', "Unknown key 'horizn'. Did you mean 'horizon'"),
        ('environment = "pendulum"\ndt = ["a"]', "key 'dt': sampling.dt must be a number; 'a' came"),
        ('environment = "pendulum"\ndt = []', "key 'dt' is an empty list"),
        ('environment = "pendulum"\ndt = [0.1, 0.1]', "key 'dt' has 0.1 twice"),
        ('environment = "pendulum"\ndt = 0.1\nsampling.dt = 0.2', "one setting is named twice"),
        ('environment = "pendulum"\npreset = "papr"', "key 'preset': Unknown preset 'papr'. Did you mean 'paper'"),
        ('environment = "pendulum"\nseeds = "5"', "key 'seeds': expected a range"),
        ('environment = "pendulum"\ndt = [0.1, -1.0]', "run 2 of 2 (environment = 'pendulum', sampling.dt = -1.0)"),
        ('environment = "pendulum"\nmodel = "nothing"', "Unknown model 'nothing'"),
        ('environment = "pendulum"\nfit.recent = ' + str(list(range(1, 10002))), "the grid has 10,001 runs"),
        ("environment = ", "is not TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_before_any_work(tmp_path, text, said):
    path = written(tmp_path / "wrong.toml", text)
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)
    with pytest.raises(UserError, match="No file"):
        read(tmp_path / "none.toml")


def test_a_sweep_is_listed_done_found_again_and_shown_and_a_failed_run_stops_no_other(tmp_path, capsys, monkeypatch):
    """In one test, since what is compiled for its runs is most of its time."""
    spec, out = written(tmp_path / "tiny.toml", TINY), tmp_path / "out"
    honest = jobs.train

    def faulty(environment, **options):
        if options["sampling.noise"] == 0.0:
            raise ZeroDivisionError("by nothing")
        return honest(environment, **options)

    monkeypatch.setattr(jobs, "train", faulty)
    code, said, told = ended(["sweep", spec, "--out", out, "--json"], capsys)
    assert code == 1
    assert [each["state"] for each in json.loads(said)["runs"]] == ["failed", "done"]
    assert "noise 0.0  failed: ZeroDivisionError: by nothing" in told
    kept = json.loads((out / "sweep.json").read_text())
    assert kept["runs"][0]["ended"] == {"state": "failed", "error": "ZeroDivisionError: by nothing"}
    assert "ZeroDivisionError" in page_of(out, capsys)

    monkeypatch.setattr(jobs, "train", honest)
    code, said, _ = ended(["sweep", spec, "--out", out, "--dry-run", "--json"], capsys)
    assert code == 0
    assert [each["state"] for each in json.loads(said)["runs"]] == ["absent", "ended"]
    code, said, told = ended(["sweep", spec, "--out", out, "--json"], capsys)
    assert code == 0
    summary = json.loads(said)
    assert (summary["done"], summary["failed"]) == (2, 0)
    assert [each["reused"] for each in summary["runs"]] == [False, True]
    assert "[2/2] noise 0.1  was done before" in told

    page = page_of(out, capsys)
    assert f"ctrlax sweep {spec}" in page
    assert page.count("ctrlax train pendulum") == 2
    assert "<svg" in page
    assert "ZeroDivisionError" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "").replace("http://purl.org", "")
    newest = newest_round(read(spec).runs[0].job.folder(out))
    assert newest is not None
    assert (newest["round"], newest["seeds"]) == (1, 2)


def page_of(folder, capsys):
    code, said, _ = ended(["report", folder, "--json"], capsys)
    assert code == 0
    assert json.loads(said)["report"] == str(folder / "report.html")
    return (folder / "report.html").read_text()


def test_options_of_another_backend_are_refused(tmp_path, capsys):
    spec = written(tmp_path / "tiny.toml", TINY)
    code, _, told = ended(["sweep", spec, "--address", "auto"], capsys)
    assert code == 2
    assert "--address is nothing the backend local knows" in told
    code, _, told = ended(["sweep", spec, "--backend", "rey"], capsys)
    assert code == 2
    assert "Did you mean 'ray'" in told


def test_the_table_tells_what_runs_what_is_done_and_what_failed_and_why(tmp_path):
    runs = read(written(tmp_path / "tiny.toml", TINY)).runs
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Screen(console, {each.job.name: each.label for each in runs}, tmp_path) as board:
        board.begun(runs[0].job)
        board.begun(runs[1].job)
        board.over(Outcome(runs[1].job, "failed", runs[1].job.folder(tmp_path), "the disk is full"))
        console.print(board.table())
    shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for part in ("1 running", "1 failed", "noise 0.0", "the disk is full"):
        assert part in shown
    lines = Console(file=io.StringIO(), force_terminal=False)
    plain = Board(lines, {runs[0].job.name: "this"}, tmp_path)
    plain.begun(runs[0].job)
    plain.lost(runs[0].job, "NodeDiedError")
    assert "this  was lost (NodeDiedError)" in lines.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
