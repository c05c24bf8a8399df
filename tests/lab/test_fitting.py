"""A dataset -> FitRun: what is held out, when a lane stops, what is kept, and that lanes do not see each other."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.config import FITS, PRESETS
from ctrlax.errors import UserError
from ctrlax.lab import fitted, fitting
from ctrlax.lab.fitted import data_scaling, fit, open_fit
from ctrlax.lab.fitting import _Best, chunk_length, without_some
from ctrlax.lab.guard import Guard
from ctrlax.lab.run import load
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import AbstractField
from ctrlax.model.families.true import TrueDynamics
from ctrlax.model.fit import Learned
from ctrlax.model.update import Health

TINY: dict[str, Any] = {
    "fit__updates": 20, "fit__warmup_updates": 0, "fit__matching_updates": 10, "model__members": 2,
    "fit__windows": 4, "fit__window_points": 3,
}  # fmt: skip


def swing(trajectories: int = 6, points: int = 12, seed: int = 0) -> Dataset:
    draws = np.random.default_rng(seed)
    logs = []
    for _ in range(trajectories):
        times = np.cumsum(draws.uniform(0.05, 0.15, points))
        phase = draws.uniform(0, 6)
        seen = np.stack([np.cos(times + phase), -np.sin(times + phase)], axis=1)
        logs.append(Log(times, seen + 0.01 * draws.standard_normal(seen.shape), np.zeros((points, 1))))
    return Dataset(tuple(logs), ("x", "v"), ("u",), rates={"v": "x"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    told = []
    out = tmp_path_factory.mktemp("runs") / "swing"
    made = fit(swing(), seeds=(0, 3), out=out, watch=told.append, held_out=0.3, **TINY)
    return made, told


def test_a_fit_says_what_it_did(run):
    made, told = run
    assert [each.phase for each in told] == ["match", "fit"]
    assert told[-1].done == told[-1].total == 30
    assert told[-1].held_out is not None
    summary = made.summary()
    assert list(summary) == ["error", "nll", "coverage90", "noise", "updates", "seconds", "compile_seconds", "run"]
    assert set(summary["error"]) == {"0.5", "1", "2"}
    assert set(summary["noise"]) == {"x", "v"}
    assert [row["seed"] for row in made.rows] == [0, 3]
    first, second = (row["error"]["0.5"] for row in made.rows)
    assert summary["error"]["0.5"] == pytest.approx((first + second) / 2)
    assert first != second


def test_what_is_kept_predicts_the_same(run):
    made, _ = run
    again = load(made.folder)
    assert isinstance(again, fitted.FitRun)
    assert again.seeds == (0, 3)
    assert again.config == made.config
    assert again.rows == tuple(dict(row) for row in made.rows) or [r["nll"] for r in again.rows] == [
        r["nll"] for r in made.rows
    ]
    data = swing(2, seed=5)
    for seed in (0, 3):
        mine, theirs = made.forecast(data, seed=seed), again.forecast(data, seed=seed)
        np.testing.assert_array_equal(mine[1].mean, theirs[1].mean)
        np.testing.assert_array_equal(mine[1].high, theirs[1].high)
    assert made.folder is not None
    assert {"metrics-fit.csv", "metrics-scored.csv", "header.json"} <= {path.name for path in made.folder.iterdir()}


def test_other_columns_are_refused_in_words(run):
    made, _ = run
    data = dataclasses.replace(swing(), observation_names=("v", "x"), rates={})
    with pytest.raises(UserError, match="fitted to the observations x, v, but the data has v, x"):
        made.forecast(data)
    with pytest.raises(UserError, match="this run has no seed 1; it has 0, 3"):
        made.forecast(swing(), seed=1)


def test_a_seed_does_not_depend_on_those_beside_it(run):
    made, _ = run
    alone = fit(swing(), seeds=(3,), held_out=0.3, **TINY)
    for mine, theirs in zip(jax.tree.leaves(alone.of(0)), jax.tree.leaves(made.of(1)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-3)  # Adam turns roundings of tiny gradients into steps
    assert alone.rows[0]["error"]["0.5"] == pytest.approx(made.rows[1]["error"]["0.5"], rel=0.05)


def test_only_default_stops_early():
    assert FITS["default"]["fit__held_out"] > 0
    for name in PRESETS:
        chosen = fitted.settled(name, None, None, {})
        assert (chosen.fit.held_out > 0) == (chosen.fit.patience > 0) == (name == "default")


def noises(*values: float) -> Learned:
    """Lanes that differ in their noise."""
    none = TrueDynamics(jnp.add, jnp.negative, jnp.negative, jnp.ones(1))
    return jax.vmap(lambda value: Learned(none, value[None]))(jnp.array(values, jnp.float32))


def test_the_best_of_every_lane_is_kept_and_nothing_after_it_stopped():
    losses = [[3.0, 3.0], [2.0, 2.5], [2.5, 2.0], [np.inf, 1.5], [1.0, 1.2], [0.5, 1.0]]
    best = _Best(noises(0, 0), lanes=2, patience=2)
    for step, loss in enumerate(losses, start=1):
        best.look(noises(step, step), np.array(loss), 50 * step)
    assert best.stopped.tolist() == [True, False]
    assert best.kept.tolist() == [100, 300]  # lane 0 saw lower losses only after it had stopped
    assert best.updates.tolist() == [200, 300]
    np.testing.assert_array_equal(best.learned.log_noise, [[2.0], [6.0]])


def test_without_patience_the_best_is_kept_and_nobody_stops():
    best = _Best(noises(0), lanes=1, patience=0)
    for step in range(1, 6):
        best.look(noises(step), np.array([float(step)]), step)
    assert not best.stopped.any()
    assert best.kept.tolist() == [1]


def test_a_fit_that_gets_worse_stops_by_itself(monkeypatch, tmp_path):
    losses = iter([2.0, 1.0, 1.1, 1.2, 0.1])

    def without_computing(clock, function, static, *arguments):
        if function is fitting._held_out_nll:
            return np.array([next(losses)])
        return arguments[0], {"loss": np.zeros(1), "error": np.zeros(1)}, Health.none((1,))

    monkeypatch.setattr(fitting._Clock, "run", without_computing)
    settings = fitted.settled("default", None, None, {**TINY, "fit__updates": 500, "fit__patience": 2}).fit
    seen = fitting.material([swing()], settings, shared=True)
    told = []
    done = fitting.fit_lanes(
        settings, noises(0), seen, key=jax.random.split(jax.random.key(0), 1), guard=Guard(tmp_path), seeds=[0],
        watch=told.append,
    )  # fmt: skip
    assert told[-1].stopped.all()
    assert (done.kept[0], done.updates[0]) == (100, 200)
    assert next(losses) == 0.1


@pytest.mark.parametrize(("trajectories", "share", "whole"), [(10, 0.2, 8), (4, 0.1, 3), (3, 0.25, 3), (1, 0.2, 1)])
def test_whole_trajectories_are_held_out_and_of_few_the_ends(trajectories, share, whole):
    data = swing(trajectories, points=12)
    kept, held = without_some(data, share)
    assert len(kept.logs) == whole
    assert kept.points + held.points == data.points
    last = {float(log.times[-1]) for log in held.logs}
    assert last <= {float(log.times[-1]) for log in data.logs}


def test_too_little_data_is_said():
    with pytest.raises(UserError, match="leaves one side empty"):
        without_some(swing(1, points=3), 0.2)
    with pytest.raises(UserError, match="a number between 0 and 1"):
        without_some(swing(), 1.0)
    with pytest.raises(UserError, match="no trajectory to learn from has the 3 points of a window"):
        fit(swing(6, points=2), **TINY)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fit__update": 3}, "Unknown setting 'fit.update'. Did you mean 'fit.updates'?"),
        ({"fit__rate": -1.0}, "fit.rate is -1.0"),
        ({"model": "enod"}, "Unknown model 'enod'. Did you mean 'enode'?"),
        ({"preset": "papr"}, "Unknown preset 'papr'. Did you mean 'paper'?"),
        ({"structure": ("second",)}, "Unknown structure 'second'"),
        ({"seeds": ()}, "seeds are whole numbers from 0 on"),
        ({"structure": ("second-order",), "drop_rates": True}, "which position every velocity is the rate of"),
    ],
)
def test_mistakes_are_answered_before_anything_is_written(settings, said, tmp_path):
    data = dataclasses.replace(swing(), rates={}) if settings.pop("drop_rates", False) else swing()
    with pytest.raises(UserError) as refused:
        fit(data, out=tmp_path / "run", **{**TINY, **settings})
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_rates_make_a_second_order_model_of_a_foreign_log():
    data = dataclasses.replace(swing(), rates={})
    made = fit(data, rates={"v": "x"}, structure=("second-order",), held_out=0.3, **TINY)
    learned = made.of(0).dynamics
    assert isinstance(learned, AbstractField)
    members = learned.draw(key=jax.random.key(0))
    first = jax.tree.map(lambda leaf: leaf[0], members)
    rate = learned.rate(first, jnp.array([0.3, 0.7]), jnp.zeros(1))
    assert float(rate[0]) == pytest.approx(0.7)


def test_default_takes_what_the_data_says_of_itself():
    assert fitted._known(("known",), swing()) == ("second-order",)
    assert fitted._known(("known", "affine"), dataclasses.replace(swing(), rates={})) == ("affine",)


def test_actions_are_scaled_by_what_was_seen():
    times = np.arange(5.0)
    acted = np.array([[-2.0, 300.0], [2.0, 301.0], [0.0, 300.5], [1.0, 300.0], [-1.0, 301.0]])
    scaling = data_scaling(Dataset((Log(times, times[:, None] ** 2, acted),), ("x",), ("u", "heat")))
    np.testing.assert_allclose(scaling.action_middle, [0.0, 300.5])
    np.testing.assert_allclose(scaling.action_scale, [2.0, 0.5])
    still = data_scaling(Dataset((Log(times, times[:, None] ** 2, np.zeros((5, 1))),), ("x",), ("u",)))
    assert np.all(np.asarray(still.action_scale) > 0)


def test_gradient_matching_looks_at_pieces_of_long_recordings(monkeypatch):
    monkeypatch.setattr(fitting, "MATCHING_POINTS", 60)
    thin = fitting._thinned(swing(3, points=100))
    assert thin.points <= 60
    assert all(len(log.times) <= fitting.PIECE for log in thin.logs)


def test_chunks_divide_what_there_is_to_do():
    assert [chunk_length(total) for total in (0, 1, 50, 600, 2600)] == [1, 1, 50, 50, 50]
    assert 97 % chunk_length(97) == 0


def test_a_damaged_run_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="is no run"):
        open_fit(tmp_path)
