"""The discrete-time models and the planner on the command line."""

import json

import numpy as np
import pytest

from ctrlax.cli import main
from ctrlax.commands import train as command
from ctrlax.lab.run import Run

TINY = [
    "--set", "one_step.updates=20", "--set", "agent.updates=10", "--set", "agent.starts=4",
    "--set", "schedule.trials=2", "--set", "schedule.trial_seconds=4", "--set", "agent.horizon=0.5",
    "--members", "2", "--rounds", "1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(command, "draw", lambda run, console: [])


def ended(arguments, capsys):
    """Exit code, standard output, standard error."""
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_modified_pets_is_trained_resumed_and_planned_with(tmp_path, capsys):
    folder = tmp_path / "run"
    code, out, _ = ended(["train", "pendulum", "--model", "mpets", "--out", folder, "--json", *TINY], capsys)
    assert code == 0
    assert json.loads(out)["interaction_seconds"] == pytest.approx([4 * 4.9])
    run = Run(folder)
    assert {row["phase"] for row in run.rows("fit")} == {"fit"}  # no gradient matching
    code, out, _ = ended(["resume", folder, "--rounds", "2", "--json"], capsys)
    assert code == 0
    assert json.loads(out)["interaction_seconds"] == pytest.approx([5 * 4.9])
    fits = [row["loss"] for row in Run(folder).rows("fit")]
    assert np.isfinite(fits).all()
    planned = ["eval", folder, "--planner", "cem", "--trials", "2", "--seconds", "0.5", "--plan-horizon", "0.4"]
    planned += ["--plan-population", "8", "--plan-elites", "2", "--plan-iterations", "2"]
    code, out, err = ended([*planned, "--json"], capsys)
    assert code == 0
    assert list(json.loads(out)) == ["reward", "solved", "trials"]
    assert "decisions per second" in err
    code, _, err = ended([*planned, "--plan-interval", "0.2"], capsys)
    assert code == 2
    assert "learned steps of 0.1 s" in err


def test_transitions_are_fitted_to_a_log_and_predict_along_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log, grid = tmp_path / "log.csv", ("--grid", "uniform", "--trajectories", "6", "--points", "20")
    assert ended(["simulate", "pendulum", "--out", log, *grid, "--json"], capsys)[0] == 0
    few = ["--set", "one_step.updates=100", "--set", "model.members=2"]
    code, out, _ = ended(["fit", log, "--model", "mpets", "--out", "run", "--json", *few], capsys)
    assert code == 0
    told = json.loads(out)
    assert told["updates"] == 100
    assert told["nll"] is not None
    assert all(value > 0 for value in told["noise"].values())
    code, out, _ = ended(["predict", "run", log, "--out", "bands.npz", "--json"], capsys)
    assert code == 0
    assert json.loads(out)["healthy"] == 6
    with np.load("bands.npz") as table:
        low, high = table["low.omega"].reshape(6, 20), table["high.omega"].reshape(6, 20)
    assert (low[:, 1:] < high[:, 1:]).all()
    assert (low[:, 0] == high[:, 0]).all()  # where a trajectory starts is seen, not predicted


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--structure", "affine"], "learns steps, not a field"),
        (["--set", "agent.particles=15"], "Choose a multiple"),
        (["--set", "model.dropout=1.5", "--model", "deep-pilco"], "a share between 0 and 1"),
        (["--set", "one_step.held_out=1"], "a share below 1"),
    ],
)
def test_what_transitions_cannot_be_asked_for(tmp_path, capsys, arguments, said):
    code, _, err = ended(["train", "pendulum", "--model", "pets", "--out", tmp_path / "run", *arguments], capsys)
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()
