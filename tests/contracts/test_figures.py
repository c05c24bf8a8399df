"""Every figure found keeps the same promises, and all of them together run at the scale of a test."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.cli import main
from ctrlax.errors import UserError
from ctrlax.lab.claims import CLAIMS, DEPENDS, DOES_NOT, HOLDS, interval, judge, unanswered
from ctrlax.lab.gallery import kept
from ctrlax.lab.reproduce import FIGURES, Figure, answered_by, figure, figures, records_in
from ctrlax.lab.scales import SCALES
from ctrlax.names import summary_of

VERDICTS = {HOLDS, DOES_NOT, DEPENDS}


@pytest.mark.slow
def test_all_figures_at_the_scale_of_a_test(tmp_path, capsys):
    """`ctrlax reproduce all --scale smoke`, once: every part below looks at what it left."""
    main(["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path)])
    for name in figures():
        has_its_record_its_picture_and_its_verdicts(tmp_path, name)
    answers_every_claim(tmp_path)
    uses_what_is_there_and_shows_it(tmp_path, capsys)
    keeps_policies_small_and_as_they_were(tmp_path, tmp_path / "kept")


def has_its_record_its_picture_and_its_verdicts(smoke, name):
    (record,) = (each for each in records_in(smoke) if each["figure"] == name)
    assert record["scale"] == "smoke"
    assert record["command"] == f"ctrlax reproduce {name} --scale smoke"
    assert {claim["verdict"] for claim in record["claims"]} <= VERDICTS
    assert {claim["number"] for claim in record["claims"]} <= set(CLAIMS)
    for claim in record["claims"]:
        if claim["interval"] is None:
            assert claim["verdict"] == DEPENDS  # one value decides nothing
            assert claim["note"]
        else:
            low, high = claim["interval"]
            assert low <= high
    assert (smoke / name / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (smoke / name / f"{name}.svg").read_text()
    (shown,) = kept(smoke / name)
    assert record["note"] in shown.caption
    rows, one = record["rows"], figure(name)
    again = [claim.as_dict() for claim in one.claims(rows)]
    assert json.loads(json.dumps(again, default=list)) == record["claims"]  # from the rows alone


@pytest.mark.parametrize("name", figures())
def test_a_figure_asks_for_runs_that_can_be_or_says_why_not(name):
    one = figure(name)
    assert isinstance(one, Figure)
    assert summary_of(FIGURES, name)
    for scale in SCALES.values():
        for each in one.wanted(scale):
            assert (each.job is None) == bool(each.why)
            if each.job is not None:
                assert each.job.configuration["schedule"]["rounds"] == scale.rounds


def answers_every_claim(smoke):
    answered = {number for number, names in answered_by().items() if names}
    assert answered == set(CLAIMS)
    for record in records_in(smoke):
        assert {claim["number"] for claim in record["claims"]} == set(figure(record["figure"]).ANSWERS)
    text = (smoke / "README.md").read_text()
    assert all(f"## {number}. {said}" in text for number, said in CLAIMS.items())


def uses_what_is_there_and_shows_it(smoke, capsys):
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in smoke.glob("runs/*/metrics.jsonl")}
    assert before
    main(["reproduce", "dyn", "--scale", "smoke", "--out", str(smoke), "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["figures"][0]["figure"] == "dyn"
    assert "was done before" in said.err
    assert {path: path.stat().st_mtime_ns for path in smoke.glob("runs/*/metrics.jsonl")} == before
    main(["report", str(smoke)])
    page = (smoke / "report.html").read_text()
    for name in figures():
        assert figure(name).TITLE in page.replace("&#x27;", "'")
    assert "What the text says" in page or "what the text says" in page


def test_a_model_that_is_not_here_is_left_out_and_said(monkeypatch):
    from ctrlax.lab import scales

    monkeypatch.setattr(scales, "families", lambda: ["enode", "true"])
    asked = figure("comparison5").wanted(SCALES["smoke"])
    assert [each.labels["model"] for each in asked if each.job is None] == ["pets"]
    assert "the model pets is not in this ctrlax" in asked[1].why


def test_unknown_figures_are_answered_with_the_known_ones(capsys):
    with pytest.raises(UserError, match="Did you mean 'ablations'"):
        figure("ablation")
    with pytest.raises(SystemExit):
        main(["reproduce", "figg1"])
    assert "Did you mean 'fig1'" in capsys.readouterr().err


def test_verdicts_come_from_the_interval():
    assert judge(1, "", [2.0, 2.1, 2.2, 1.9], above=1.0).verdict == HOLDS
    assert judge(1, "", [2.0, 2.1, 2.2, 1.9], below=1.0).verdict == DOES_NOT
    assert judge(1, "", [0.0, 2.0, 0.5, 1.6], above=1.0).verdict == DEPENDS
    assert judge(1, "", [5.0], above=1.0).verdict == DEPENDS
    assert judge(1, "", [math.inf, math.inf, 3.0], above=1.0, note="x").verdict == HOLDS
    assert unanswered(1, "why").verdict == DEPENDS
    low, high = interval([0.0, 1.0] * 50) or (math.nan, math.nan)
    # The mean of a hundred fair coins: 0.5 +- 1.96 * 0.05.
    assert (low, high) == pytest.approx((0.402, 0.598), abs=0.02)
    assert interval([1.0]) is None


def keeps_policies_small_and_as_they_were(smoke, folder):
    from ctrlax.lab import policies
    from ctrlax.lab.run import Run

    folder = next(path for path in (smoke / "runs").iterdir() if "enode" in path.name)
    run = Run(folder)
    assert [number for number, _ in run.snapshots()] == [1, 2]
    kept = policies.export(run, folder)
    found = policies.read("pendulum", folder)
    assert [(each.round, each.reward, each.held) for each in found] == [(e.round, e.reward, e.held) for e in kept]
    observation = jnp.array([0.3, -0.4, 1.0])
    for one, other in zip(kept, found, strict=True):
        np.testing.assert_array_equal(one.policy(observation), other.policy(observation))
    last = dict(run.snapshots())[2][run.seeds[0]][1]
    np.testing.assert_allclose(last(observation), found[-1].policy(observation), atol=1e-2)  # half precision
    assert (folder / "pendulum.npz").stat().st_size < 250_000 * len(kept)
    assert policies.solving(found)[0] in found  # none solves: the best, which says so
    with pytest.raises(policies.MissingError, match="ctrlax reproduce policies"):
        policies.read("nothing", folder)
