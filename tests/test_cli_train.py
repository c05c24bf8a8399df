"""`ctrlax train`, `resume` and `eval` as people and machines use them."""

import json

import pytest

from ctrlax.cli import main
from ctrlax.commands import train as command
from ctrlax.commands.train import parse_seeds
from ctrlax.errors import UserError

TINY = [
    "--set", "fit.updates=20", "--set", "fit.matching_updates=5", "--set", "fit.warmup_updates=0",
    "--set", "agent.updates=20", "--set", "agent.starts=8", "--set", "schedule.trials=2",
    "--set", "schedule.trial_seconds=4", "--members", "2", "--rounds", "1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch, request):
    """Pictures have tests of their own."""
    if "pictures" not in request.node.name:
        monkeypatch.setattr(command, "draw", lambda run, console: [])


def ended(arguments, capsys):
    """Exit code, standard output, standard error."""
    try:
        main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two seeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "draw", lambda run, console: [])
        place = tmp_path_factory.mktemp("runs") / "tiny"
        main(["train", "pendulum", "--seeds", "0:2", "--out", str(place), "--json", *TINY])
    return place


def test_seeds_are_ranges_or_lists():
    assert parse_seeds("0:3") == [0, 1, 2]
    assert parse_seeds("0,3,5") == [0, 3, 5]
    assert parse_seeds("7") == [7]
    for wrong in ("", "3:1", "a", "1.5", "0;1"):
        with pytest.raises(UserError, match="expected a range such as"):
            parse_seeds(wrong)


def test_train_ends_with_one_json_line_and_speaks_beside_it(tmp_path, capsys):
    code, out, err = ended(["train", "pendulum", "--out", str(tmp_path / "run"), "--json", *TINY], capsys)
    assert code == 0
    summary = json.loads(out)  # nothing else on standard output
    assert list(summary) == ["run", "seeds", "rounds_to_solve", "interaction_seconds", "wall_seconds", "reward"]
    assert summary["seeds"] == [0]
    assert summary["rounds_to_solve"] == [None]
    lines = err.splitlines()
    assert sum(line.startswith("round 1 of 1") for line in lines) == 4  # a line per phase, no more
    assert f"ctrlax resume {tmp_path / 'run'}" in err


def test_eval_in_words_and_for_machines(folder, capsys):
    code, out, _ = ended(["eval", str(folder), "--trials", "2", "--seconds", "1", "--json"], capsys)
    assert code == 0
    assert list(json.loads(out)) == ["reward", "solved", "trials"]
    code, out, _ = ended(["eval", str(folder), "--trials", "2", "--seconds", "1", "--gif"], capsys)
    assert code == 0
    assert "held in 0 of 2 trials" in out
    assert (folder / "eval.gif").read_bytes().startswith(b"GIF89a")


def test_resume_goes_on_and_says_so(folder, capsys):
    code, out, _ = ended(["resume", str(folder), "--rounds", "2", "--json"], capsys)
    assert code == 0
    assert json.loads(out)["interaction_seconds"] == pytest.approx([5 * 4.9] * 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "pendulm"], "Did you mean 'pendulum'"),
        (["train", "pendulum", "--preset", "papr"], "Did you mean 'paper'"),
        (["train", "pendulum", "--model", "enod"], "Did you mean 'enode'"),
        (["train", "pendulum", "--structure", "afine"], "Did you mean 'affine'"),
        (["train", "pendulum", "--set", "agent.horizn=3"], "Did you mean 'agent.horizon'"),
        (["train", "pendulum", "--set", "horizon"], "expected group.setting=value"),
        (["train", "pendulum", "--seeds", "1:0"], "expected a range"),
        (["train", "pendulum", "--dt", "-1"], "sampling.dt is -1.0, expected more than zero"),
        (["train", "pendulum", "--data", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["train", "pendulum", "--rounds", "0"], "schedule.rounds is 0"),
        (["train", "pendulum", "--budget", "0"], "schedule.budget is 0"),
        (["resume", "nowhere"], "nowhere is no run"),
        (["eval", "nowhere"], "nowhere is no run"),
        (["eval", "nowhere", "--trials", "0"], "--trials is 0"),
        (["eval", "nowhere", "--gif", "a.png"], "nowhere is no run"),
    ],
)
def test_mistakes_end_with_code_2_and_one_message(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = ended(arguments, capsys)
    assert code == 2
    assert said in err
    assert err.startswith("error: ")
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_dry_run_says_what_it_measured_and_keeps_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = ended(["train", "pendulum", "--dry-run", "--json", *TINY], capsys)
    assert code == 0
    plan = json.loads(out)
    assert plan["rounds"] == 1
    assert plan["seconds_at_most"] > 0
    assert plan["memory"] > 0
    assert "one chunk of each learning phase" in err
    assert list(tmp_path.iterdir()) == []


def test_without_a_part_pictures_cost_a_line_and_not_the_run(folder, capsys, monkeypatch):
    import builtins

    honest = builtins.__import__

    def lacking(name, *rest, **more):
        if name == "ctrlax.lab.pictures":
            raise ImportError("No module named 'matplotlib'", name="matplotlib")
        return honest(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    code, out, _ = ended(["resume", str(folder)], capsys)
    assert code == 0
    assert out.count("no pictures: matplotlib is not installed") == 1


def test_the_live_panel_shows_where_the_run_is_and_its_newest_numbers(folder):
    import dataclasses
    import io

    from rich.console import Console

    from ctrlax.lab.live import Lines, Screen, show_on
    from ctrlax.lab.run import Run

    run = Run(folder)
    console = Console(force_terminal=True, width=90, file=io.StringIO())
    screen = show_on(console)
    assert isinstance(screen, Screen)
    assert isinstance(show_on(Console(file=io.StringIO())), Lines)
    screen.begin(run.laboratory, run.state, folder)
    for phase, kind in (("fit", "fit"), ("improve", "improve"), ("collect", ""), ("evaluate", "round")):
        rows = [row for row in run.rows(kind) if row["round"] == 1 and row.get("phase") != "match"]
        state = dataclasses.replace(run.state, phase=phase, iteration=run.laboratory.updates(phase), round=1)
        screen.see(state, phase, rows, 12.0)
    screen.end()
    plain = Console(width=90, file=io.StringIO())
    plain.print(screen.panel())
    said = plain.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for part in ("pendulum · default · enode · 2 seeds", "round 1 of", "loss", "imagined reward", "0 of 2", "left"):
        assert part in said
