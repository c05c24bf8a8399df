"""The command line as its users meet it: what it writes, what it says, how it ends."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctrlax import __version__, cli
from ctrlax.commands.list import FOLDERS, NAMED
from ctrlax.commands.simulate import Simulate
from ctrlax.config import PRESETS

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if "field(" in path.read_text())


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process; returns exit code, stdout, stderr."""
    for name in ("EQX_ON_ERROR", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back afterwards, whatever the command sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CTRLAX_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def process(*arguments, **environment):
    """Run a command in a process of its own, started but not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", "ctrlax", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_list_names_everything(run):
    code, out, err = run("list", "--json")
    found = json.loads(out)
    assert code == 0, err
    assert {"pendulum", "cartpole", "acrobot"} <= set(found["environments"])
    assert "dopri8" in found["solvers"]
    assert found["grids"] == ["fixed", "uniform", "exponential"]
    assert set(found["presets"]) == set(PRESETS)
    assert {"second-order", "affine", "hamiltonian"} <= set(found["structures"])
    assert set(found) <= {*FOLDERS, *NAMED}


def test_version(run):
    assert run("--version") == (0, f"ctrlax {__version__}\n", "")


def test_list_one_kind_with_a_line_about_each(run):
    code, out, err = run("list", "environments")
    assert code == 0, err
    assert out.splitlines()[0] == "environments"
    assert all(len(line.split(maxsplit=1)) == 2 for line in out.splitlines()[1:])
    code, _, err = run("list", "enviroments")
    assert code == 2, err
    assert "Did you mean 'environments'?" in err


def test_simulate_says_what_it_did(run):
    code, out, err = run("simulate", "pendulum", "--points", 5, "--trajectories", 2)
    assert (code, err) == (0, "")
    assert "2 trajectories of 5 points" in out
    assert "2 of 2" in out
    assert "ctrlax simulate pendulum --gif" in out


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_simulate_writes_data(run, tmp_path, ending):
    path = tmp_path / "new folder" / f"data.{ending}"
    options = ("--grid", "exp", "--points", 5, "--trajectories", 3, "--noise", 0.1, "--out", path, "--json")
    code, out, err = run("simulate", "pendulum", *options)
    assert (code, err) == (0, "")
    summary = json.loads(out.splitlines()[-1])
    assert list(summary) == ["trajectories", "points", "healthy", "field_evaluations", "seconds", "out"]
    assert (summary["trajectories"], summary["points"], summary["healthy"]) == (3, 5, 3)
    assert summary["field_evaluations"] > 0
    assert summary["out"] == str(path)
    assert path.stat().st_size > 0


def test_written_columns_and_metadata(run, tmp_path):
    path = tmp_path / "data.csv"
    code, _, err = run(
        "simulate", "pendulum", "--points", 5, "--trajectories", 2, "--seed", 3, "--grid", "exp", "--out", path
    )
    assert (code, err) == (0, "")
    first, *rows = path.read_text().splitlines()
    metadata = json.loads(first.removeprefix("# ctrlax "))
    assert metadata["sampling"]["seed"] == 3
    assert metadata["sampling"]["grid"] == "exponential"
    assert metadata["angles"] == ["theta"]
    read = list(csv.DictReader(rows))
    assert list(read[0])[:2] == ["episode", "time"]
    assert {name.split(".")[0] for name in read[0]} == {"episode", "time", "obs", "act", "reward"}
    assert len(read) == 10


def test_the_same_seed_gives_the_same_data(run, tmp_path):
    texts = []
    for seed in (0, 0, 1):
        path = tmp_path / "data.csv"
        run("simulate", "pendulum", "--points", 4, "--grid", "uniform", "--noise", 0.1, "--seed", seed, "--out", path)
        texts.append([line for line in path.read_text().splitlines() if not line.startswith("#")])
    assert texts[0] == texts[1] != texts[2]


def test_simulate_writes_a_gif(run, tmp_path):
    from PIL import Image

    code, _, err = run("simulate", "cartpole", "--points", 6, "--gif", tmp_path / "cart.gif", "--policy", "zero")
    assert (code, err) == (0, "")
    with Image.open(tmp_path / "cart.gif") as picture:
        assert getattr(picture, "n_frames", 1) > 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_simulate(run, path, tmp_path):
    options = ("--points", 10, "--gif", tmp_path / "own.gif", "--out", tmp_path / "own.csv", "--json")
    code, out, err = run("simulate", path, *options)
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["healthy"] == 1


OWN = """
import jax.numpy as jnp
state_names, action_names, action_high, start_low, start_high = ("x",), ("u",), 1.0, 0.5, 1.0
def field(state, action):
    return state ** 3
def reward_rate(observation, action):
    return -observation[0] ** 2
"""


def test_a_system_that_blows_up_is_never_a_success(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    code, out, err = run("simulate", "own.py", "--out", "data.csv", "--trajectories", 2)
    assert (code, out) == (2, "")
    assert "No trajectory of own was solved" in err
    assert "Try --solver kvaerno5 if the system is stiff." in err, "not what was tried already"
    assert not (tmp_path / "data.csv").exists()


def test_a_misspelt_name_of_a_system_is_noted(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN.replace("state ** 3", "-state") + "angels = ('x',)\ngravity = 9.8\n")
    code, _, err = run("simulate", "own.py", "--points", 4)
    assert code == 0, err
    assert err == "note: own.py: `angels` means nothing to ctrlax. Did you mean `angles`?\n"


def test_notes_are_one_line(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN.replace("state ** 3", "-state") + "GAIN = jnp.ones(1)\n")
    code, _, err = run("simulate", "own.py", "--points", 4)
    assert code == 0, err
    assert err.startswith("note: own.py: GAIN")
    assert len(err.splitlines()) == 1


MISTAKES = {
    "nothing": ([], ["list, simulate"]),
    "command": (["simulat", "pendulum"], ["Did you mean 'simulate'?"]),
    "environment": (["simulate", "pendulm"], ["Did you mean 'pendulum'?", "cartpole"]),
    "file": (["simulate", "no_such.py"], ["No file 'no_such.py'"]),
    "policy": (["simulate", "pendulum", "--policy", "best"], ["zero", "random"]),
    "grid": (["simulate", "pendulum", "--grid", "even"], ["exponential"]),
    "number": (["simulate", "pendulum", "--dt", "quick"], ["--dt"]),
    "dt": (["simulate", "pendulum", "--dt", "0"], ["positive number of seconds"]),
    "points": (["simulate", "pendulum", "--points", "1"], ["--points is 1, expected 2"]),
    "trajectories": (["simulate", "pendulum", "--trajectories", "0"], ["expected 1 or more"]),
    "seed": (["simulate", "pendulum", "--seed", "-1"], ["expected 0 or more"]),
    "noise": (["simulate", "pendulum", "--noise", "nan"], ["--noise is nan"]),
    "tolerance": (["simulate", "pendulum", "--rtol", "0"], ["--rtol is 0"]),
    "no tolerance": (["simulate", "pendulum", "--solver", "rk4", "--rtol", "1e-3"], ["no tolerance"]),
    "solver": (["simulate", "pendulum", "--solver", "dopri"], ["dopri5", "dopri8"]),
    "variant": (["simulate", "pendulum", "--variant", "papre"], ["paper", "reference"]),
    "ending": (["simulate", "pendulum", "--out", "data.cvs"], [".csv", ".parquet"]),
    "no ending": (["simulate", "pendulum", "--out", "data"], ["got none"]),
    "gif": (["simulate", "pendulum", "--gif", "film.mp4"], [".gif"]),
    "folder": (["simulate", "pendulum", "--out", "taken.txt/data.csv"], ["folder cannot be made"]),
    "a folder's name": (["simulate", "pendulum", "--out", "folder.csv"], ["is a folder"]),
    "option": (["simulate", "pendulum", "--tolerance", "3"], ["--tolerance"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_2_and_one_message(run, mistake, tmp_path):
    (tmp_path / "taken.txt").write_text("")
    (tmp_path / "folder.csv").mkdir()
    arguments, expected = MISTAKES[mistake]
    code, out, err = run(*arguments)
    assert code == 2, err
    assert "Traceback" not in out + err
    for part in expected:
        assert part in out + err


def test_our_mistake_ends_with_1_and_shows_itself_on_request(run, monkeypatch):
    def broken(self):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(Simulate, "run", broken)
    code, out, err = run("simulate", "pendulum")
    assert (code, out) == (1, "")
    assert "RuntimeError: first line\n" in err
    assert "CTRLAX_DEBUG=1" in err
    monkeypatch.setenv("CTRLAX_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run("simulate", "pendulum")


def test_ctrl_c_ends_with_130(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    # Tests started in a script's background inherit Ctrl-C ignored, and would hand that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = process("simulate", slow)
    signal.signal(signal.SIGINT, before)
    assert running.stdout is not None
    assert running.stdout.readline() == "here\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert err == "interrupted\n"


def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    options = ("simulate", "pendulum", "--points", 5, "--json")
    environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    removed = {name: os.environ.pop(name) for name in ("JAX_COMPILATION_CACHE_DIR",) if name in os.environ}
    try:
        kept = []
        for _ in range(2):
            _, err = process(*options, **environment).communicate(timeout=120)
            assert err == ""
            kept.append({file.name for file in (tmp_path / "ctrlax" / "jax").iterdir() if "-cache" in file.name})
    finally:
        os.environ.update(removed)
    assert any("roll_out" in name for name in kept[0])
    assert kept[1] == kept[0], "the second process compiled something that the first had kept"


def test_help_and_mistakes_wait_for_no_heavy_import():
    text = """
import sys, ctrlax.cli
try:
    ctrlax.cli.main(["simulate", "pendulm"])
except SystemExit:
    print("jax" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert time.perf_counter() - began < 10
    assert done.stdout == "False\n"
