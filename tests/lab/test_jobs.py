"""Jobs: what they are called, what they are, and what is done, gone on with or found."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest

from ctrlax.errors import UserError
from ctrlax.lab import jobs
from ctrlax.lab.jobs import ABSENT, BEGUN, ENDED, Job, execute, perform, standing
from ctrlax.lab.keeper import Interrupted, Silent
from ctrlax.lab.run import Run

TINY = {
    "model.family": "true", "model.structure": (), "agent.updates": 2, "agent.starts": 4, "agent.horizon": 0.2,
    "schedule.rounds": 1, "schedule.trials": 1, "schedule.trial_seconds": 0.5, "schedule.confirm": False,
}  # nothing is learned of the world, so that little is compiled  # fmt: skip


def tiny(**settings):
    return Job.of("pendulum", **(TINY | {name.replace("__", "."): value for name, value in settings.items()}))


class Noting:
    def __init__(self):
        self.seen = []

    def begun(self, job):
        self.seen.append(("begun", job.name))

    def lost(self, job, why):
        self.seen.append(("lost", job.name))

    def over(self, outcome):
        self.seen.append((outcome.state, outcome.folder.name))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A root with one finished job."""
    root = tmp_path_factory.mktemp("jobs")
    return root, tiny(), execute([tiny()], root)


def test_what_a_job_is_does_not_depend_on_how_it_is_written():
    job = Job.of("pendulum", seeds=[0, 2], agent__horizon=2.0, fit__updates=7)
    assert job == Job.of("pendulum", seeds=(0, 2), **{"fit.updates": 7, "agent.horizon": 2.0})
    assert job.digest() == Job.of("pendulum", seeds=(0, 2), fit__updates="7").digest()  # 2 s is the preset's
    different = [
        Job.of("pendulum", seeds=(0,), fit__updates=7),
        Job.of("pendulum", seeds=(0, 2), fit__updates=8),
        Job.of("pendulum", seeds=(0, 2), fit__updates=7, preset="paper"),
        Job.of("cartpole", seeds=(0, 2), fit__updates=7),
        Job.of("pendulum", seeds=(0, 2), fit__updates=7, variant="reference"),
    ]
    assert len({each.digest() for each in [job, *different]}) == 6
    assert Job.from_dict(json.loads(json.dumps(dataclasses.asdict(job)))) == job


def test_a_system_of_ones_own_is_its_content_and_not_its_place(tmp_path):
    text = (Path(__file__).parents[2] / "examples" / "ball_on_beam.py").read_text()
    places = [tmp_path / "a" / "ball.py", tmp_path / "b" / "ball.py", tmp_path / "c" / "ball.py"]
    for place, content in zip(places, [text, text, text + "\n# another\n"], strict=True):
        place.parent.mkdir()
        place.write_text(content)
    one, same, other = (Job.of(str(place)).digest() for place in places)
    assert one == same != other


def test_a_job_that_cannot_be_is_told_before_any_work(tmp_path):
    for job, said in [
        (Job.of("pendulm"), "Did you mean 'pendulum'"),
        (Job.of("pendulum", agent__horizn=1.0), "Did you mean 'agent.horizon'"),
        (Job.of("pendulum", seeds=(1, 1)), "seeds are different"),
        (Job.of("nowhere.py"), "No file 'nowhere.py'"),
    ]:
        with pytest.raises(UserError, match=said):
            execute([tiny(), job], tmp_path)
    with pytest.raises(UserError, match="Did you mean 'local'"):
        execute([tiny()], tmp_path, backend="locl")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_job_is_reused_and_one_asked_for_twice_is_done_once(done):
    root, job, (first,) = done
    assert (first.state, first.reused, first.error) == ("done", False, None)
    assert first.folder == job.folder(root)
    assert standing(first.folder) == ENDED
    assert [row["round"] for row in Run(first.folder).rows("round")] == [1]
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    watch = Noting()
    again = execute([job, dataclasses.replace(job)], root, watch=watch)
    assert [outcome.reused for outcome in again] == [True, True]
    assert watch.seen == [("begun", job.name), ("done", job.name)]
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before


def test_another_run_in_a_jobs_place_is_not_taken_for_it(done, tmp_path):
    _, job, (first,) = done
    place = job.folder(tmp_path)
    place.mkdir(parents=True)
    header = json.loads((first.folder / "header.json").read_text())
    header["configuration"]["agent"]["updates"] = 3
    (place / "header.json").write_text(json.dumps(header))
    (place / "checkpoints").mkdir()
    for path in (first.folder / "checkpoints").iterdir():
        (place / "checkpoints" / path.name).write_bytes(path.read_bytes())
    outcome = perform(job, tmp_path)
    assert outcome.state == "failed"
    assert "agent.updates: recorded 3, asked for 2" in (outcome.error or "")


def test_an_interrupted_job_goes_on_and_a_failed_one_stops_no_other(done, tmp_path, monkeypatch):
    _, job, _ = done
    three = [job, tiny(agent__starts=5), tiny(sampling__noise=0.1)]
    honest = jobs.train

    def interrupting(*arguments, **options):
        class Impatient(Silent):
            def see(self, state, phase, rows, seconds):
                signal.raise_signal(signal.SIGINT)  # Ctrl-C

        return honest(*arguments, **options | {"show": Impatient()})

    monkeypatch.setattr(jobs, "train", interrupting)
    with pytest.raises(Interrupted, match="The same command again goes on"):
        execute(three, tmp_path)
    assert [standing(each.folder(tmp_path)) for each in three] == [BEGUN, ABSENT, ABSENT]

    def faulty(environment, **options):
        if options["agent.starts"] == 5:
            raise ZeroDivisionError("by nothing")
        return honest(environment, **options)

    monkeypatch.setattr(jobs, "train", faulty)
    watch = Noting()
    outcomes = execute(three, tmp_path, watch=watch)
    assert [outcome.state for outcome in outcomes] == ["done", "failed", "done"]
    assert outcomes[1].error == "ZeroDivisionError: by nothing"
    assert "in faulty" in (outcomes[1].trace or "")
    assert [what for what, _ in watch.seen] == ["begun", "done", "begun", "failed", "begun", "done"]
    assert not outcomes[0].reused
    assert len(Run(outcomes[0].folder).rows("round")) == 1


def test_seeds_the_guard_gave_up_are_told_and_not_tried_again(done, tmp_path):
    _, job, (first,) = done
    shutil.copytree(first.folder, job.folder(tmp_path))
    with open(job.folder(tmp_path) / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "stopped", "seed": 0, "phase": "improve", "round": 1}) + "\n")
    (outcome,) = execute([job], tmp_path)
    assert (outcome.state, outcome.reused) == ("stopped", True)
    assert "the guard gave up seed 0 in round 1 (improve)" in (outcome.error or "")
