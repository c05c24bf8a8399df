"""Curves and pictures: quantiles over seeds that stop at different rounds, the same bytes twice, nothing left over."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from ctrlax.errors import UserError
from ctrlax.lab import curves, gallery

ROUNDS = {0: 3, 1: 2, 2: 3}  # rounds by seed; seed 1 solves and stops


def round_rows():
    return [
        {
            "kind": "round", "seed": seed, "round": place, "reward": 0.2 * place + 0.1 * seed, "held": 3 * place,
            "trials": 10, "solved": seed == 1 and place == 2, "solved_round": 2 if seed == 1 and place == 2 else 0,
            "interaction_seconds": 10.0 + 5 * place + seed, "field_evaluations": 1000 * place,
            "imagined_reward": None if place == 1 else 0.15 * place, "rollbacks": 0, "skipped": 0, "wall_seconds": 1.0,
        }
        for seed, last in ROUNDS.items()
        for place in range(1, last + 1)
    ]  # fmt: skip


def learning_rows(kind):
    return [
        {"kind": kind, "phase": "fit", "seed": seed, "round": 1, "iteration": place, "error": 0.1 / place,
         "loss": -place, "value": place, "critic_loss": None if place == 1 else 0.3, "unhealthy": 1, "skipped": 0}
        for seed in ROUNDS
        for place in (1, 2)
    ]  # fmt: skip


def test_the_band_is_of_the_seeds_that_reach_it():
    x, (low, middle, high) = curves.over_seeds(
        [(np.array([1.0, 3.0]), np.array([0.0, 2.0])), (np.array([1.0, 2.0]), np.array([1.0, 3.0]))]
    )
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert middle.tolist() == [0.5, 2.0, 2.0]  # interpolated at 2, and alone at 3: no value is carried forward
    assert low[0] == pytest.approx(0.1)
    assert high[0] == pytest.approx(0.9)


def test_what_was_not_finite_is_left_out():
    x, (_, middle, _) = curves.over_seeds([(np.array([1.0, 2.0]), np.array([np.nan, 2.0]))])
    assert (x.tolist(), middle.tolist()) == ([2.0], [2.0])


def test_the_caption_counts_who_solved():
    picture = curves.learning(round_rows())
    assert picture is not None
    assert "3 seeds" in picture.caption
    assert "1 solved" in picture.caption


def test_a_run_without_a_round_has_no_curves():
    assert curves.learning([]) is None
    assert curves.losses([], []) is None


def test_pictures_are_drawn_listed_and_the_same_twice(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures = [curves.learning(round_rows()), curves.losses(learning_rows("fit"), learning_rows("improve"))]
    paths = gallery.keep([each for each in pictures if each], tmp_path)
    assert [path.name for path in paths] == [
        *(f"learning-{place}.svg" for place in range(1, 5)), "learning.png",
        *(f"losses-{place}.svg" for place in range(1, 5)), "losses.png",
    ]  # fmt: skip
    first = [path.read_bytes() for path in paths]
    gallery.keep([each for each in pictures if each], tmp_path)
    assert first == [path.read_bytes() for path in paths]
    assert dict(matplotlib.rcParams) == before
    assert [shown.title for shown in gallery.kept(tmp_path)] == ["Learning", "Losses within rounds"]
    said = "".join(ElementTree.parse(paths[0]).getroot().itertext())
    for word in ("Reward over rounds", "mean reward rate", "round", "solved", "imagined"):
        assert word in said


def test_what_is_drawn_no_more_is_removed(tmp_path):
    picture = curves.learning(round_rows())
    assert picture is not None
    gallery.keep([picture], tmp_path)
    gallery.keep([], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [gallery.LIST]


def test_without_matplotlib_one_line_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else object())
    with pytest.raises(UserError, match=r"^Pictures need matplotlib: pip install matplotlib\.$"):
        gallery.check_drawable()
