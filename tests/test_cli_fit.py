"""`ctrlax fit` and `ctrlax predict` as their users meet them."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from ctrlax import cli

ROOT = Path(__file__).parents[1]
RIG = ROOT / "examples" / "rig.csv"
COLUMNS = (
    *("--time", "t", "--episode", "run", "--obs", "angle,speed", "--act", "volts"),
    *("--angles", "angle:deg", "--hold", "hold"),
)
TINY = tuple(
    part
    for setting in (
        "fit.updates=4", "fit.warmup_updates=0", "fit.matching_updates=2", "model.members=2", "fit.windows=4"
    )
    for part in ("--set", setting)
)  # fmt: skip


def module(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


BROKEN = module("broken_files", ROOT / "tests" / "model" / "test_broken_files.py").BROKEN


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process; returns exit code, stdout, stderr."""
    for name in ("EQX_ON_ERROR", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
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


def here(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")} - {"cache", "ctrlax", "jax"}


def test_twenty_five_broken_files_are_refused_and_nothing_is_written(run, tmp_path):
    assert len(BROKEN) == 25
    for broken in BROKEN:
        content = broken.content() if callable(broken.content) else broken.content
        path = tmp_path / broken.file
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        before = here(tmp_path)
        angles = broken.settings.get("angles")
        code, out, err = run("fit", path, *(("--angles", ",".join(angles)) if angles else ()), "--out", "run")
        assert (code, out, err) == (2, "", f"error: {broken.message}\n"), broken.file
        assert here(tmp_path) == before, broken.file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seeds", "5:2"), "--seeds is '5:2'"),
        (("--rates", "speed"), "--rates is a list of VELOCITY:POSITION such as omega:theta,v:x; 'speed' came."),
        (("--rates", "speed:phi"), "rates says that speed is the rate of phi, but phi is not observed"),
        (("--horizons", "0,1"), "--horizons is a list of positive numbers"),
        (("--model", "enodd"), "Unknown model 'enodd'. Did you mean 'enode'?"),
        (("--structure", "second-order"), "which position every velocity is the rate of"),
        (("--preset", "papr"), "Unknown preset 'papr'. Did you mean 'paper'?"),
        (("--held-out", "1.5"), "a held-out share is a number between 0 and 1"),
        (("--set", "fit.update=3"), "Unknown setting 'fit.update'"),
    ],
)
def test_mistakes_are_answered_before_anything_is_written(run, tmp_path, arguments, said):
    code, _, err = run("fit", RIG, *COLUMNS, *arguments, "--out", "kept")
    assert code == 2, err
    assert said in err
    assert not (tmp_path / "kept").exists()
    assert not (tmp_path / "runs").exists()


def test_a_foreign_log_is_fitted_and_predicted(run, tmp_path):
    arguments = (*COLUMNS, "--rates", "speed:angle", *TINY)
    code, out, err = run("fit", RIG, *arguments, "--seeds", "0:2", "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert list(told) == ["error", "nll", "coverage90", "noise", "updates", "seconds", "compile_seconds", "run"]
    assert set(told["error"]) == {"0.5", "1", "2"}
    assert set(told["noise"]) == {"cos_angle", "sin_angle", "speed"}
    assert told["run"] == "runs/fit-rig"
    scored = (tmp_path / told["run"] / "metrics-scored.csv").read_text().splitlines()
    assert [row.split(",")[scored[0].split(",").index("seed")] for row in scored[1:]] == ["0", "1"]
    for form in ("svg", "png"):
        assert (tmp_path / "runs/fit-rig/pictures" / f"held-out.{form}").stat().st_size > 1000
    assert "90 % band" in (tmp_path / "runs/fit-rig/pictures/held-out.svg").read_text()

    code, out, err = run("predict", told["run"], RIG, *COLUMNS, "--out", "told.csv", "--restart", "1")
    assert code == 0, err
    assert "error at" in out
    header = (tmp_path / "told.csv").read_text().splitlines()[1]
    assert header.startswith("episode,time,mean.cos_angle,mean.sin_angle,mean.speed,low.cos_angle")

    code, _, err = run("predict", told["run"], RIG, "--time", "t", "--obs", "speed", "--act", "volts")
    assert code == 2
    assert "fitted to the observations cos_angle, sin_angle, speed" in err or "time" in err

    # The same again goes into a folder of its own, and says what it found as a table.
    code, out, err = run("fit", RIG, *arguments, "--seeds", "0:2")
    assert code == 0, err
    assert "error at 2 s" in out
    assert "mean" in out
    assert (tmp_path / "runs/fit-rig-2").is_dir()


def test_a_folder_that_is_no_fit_is_refused(run, tmp_path):
    code, _, err = run("predict", tmp_path, RIG)
    assert code == 2
    assert "is no run" in err


def test_the_rig_log_is_what_its_script_makes(tmp_path):
    module("rig_log", ROOT / "examples" / "rig_log.py").main(str(tmp_path / "rig.csv"))
    assert (tmp_path / "rig.csv").read_bytes() == RIG.read_bytes()
