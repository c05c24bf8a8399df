"""Runs from Python: trained, kept, loaded, resumed; seeds side by side; how often it compiles."""

import dataclasses
import json
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax.config import PRESETS, Config
from ctrlax.errors import UserError
from ctrlax.lab import keeper
from ctrlax.lab.configure import as_dict, changed, configure, from_dict, settings_of
from ctrlax.lab.experience import pieces_of
from ctrlax.lab.guard import Guard
from ctrlax.lab.keeper import Interrupted, Silent
from ctrlax.lab.learn import learn
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.run import Run, load, resume, train
from ctrlax.lab.state import FIT, IMPROVE, SHAPES, fitted_shape, joined, take
from ctrlax.model.dataset import Dataset, Log, write

TINY: dict[str, Any] = {
    "fit__updates": 20,
    "fit__matching_updates": 10,
    "fit__warmup_updates": 0,
    "agent__updates": 20,
    "agent__starts": 8,
    "model__members": 2,
    "schedule__rounds": 1,
    "schedule__trials": 2,
    "schedule__trial_seconds": 4.0,
    "schedule__confirm": False,
}


def tiny(**changes: Any) -> dict[str, Any]:
    return TINY | changes


WORLD = ctrlax.make("pendulum")  # one for all tests, so that what was compiled for it is there for the next


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two seeds, one round."""
    return train(WORLD, seeds=(3, 5), out=tmp_path_factory.mktemp("run") / "tiny", **TINY)


def laboratory(**settings):
    return Laboratory(WORLD, configure("default", "pendulum", TINY | settings))


def test_a_run_is_read_back_as_it_was_made(finished):
    run = load(finished.folder)
    assert isinstance(run, Run)
    assert run.config == finished.config == configure("default", "pendulum", TINY | {"schedule__budget": 12.0})
    assert run.seeds == [3, 5]
    assert {row["kind"] for row in run.rows()} == {"fit", "improve", "round"}
    assert [row["seed"] for row in run.rows("round")] == [3, 5]
    summary = run.summary()
    assert list(summary) == ["run", "seeds", "rounds_to_solve", "interaction_seconds", "wall_seconds", "reward"]
    assert all(len(summary[name]) == 2 for name in list(summary)[1:])
    assert summary["interaction_seconds"] == pytest.approx([4 * 4.9] * 2)  # N0 = 3, and one of the round
    json.dumps(summary)


def test_the_policy_answers_one_observation_or_many_in_float64(finished):
    one = finished.policy(np.array([1.0, 0.0, 0.3]))
    assert one.shape == (1,)
    assert one.dtype == np.float64
    many = finished.policy(np.tile([1.0, 0.0, 0.3], (4, 2, 1)))
    assert many.shape == (4, 2, 1)
    assert np.allclose(many, one)
    assert abs(one[0]) <= 2.0
    assert not np.allclose(finished.policy([1.0, 0.0, 0.3], seed=3), finished.policy([1.0, 0.0, 0.3], seed=5))
    with pytest.raises(UserError, match="3 finite numbers"):
        finished.policy([1.0, 0.0])
    with pytest.raises(UserError, match="no seed 4"):
        finished.policy([1.0, 0.0, 0.3], seed=4)


def test_evaluating_is_repeatable_and_acts_as_the_policy_says(finished):
    one = finished.evaluate(2, 1.0, key=jax.random.key(0))
    two = finished.evaluate(2, 1.0, key=jax.random.key(0))
    assert one.reward == two.reward
    seen = one.trajectory
    assert np.allclose(finished.policy(seen.observations), seen.actions, atol=1e-6)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_comes_back_from_json_exactly(preset):
    config = configure(preset, "cartpole", {"model.structure": "second-order,affine", "agent": {"horizon": "1.5"}})
    assert config.model.structure == ("second-order", "affine")
    assert from_dict(json.loads(json.dumps(as_dict(config)))) == config


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent__horizn": 2.0}, "Did you mean 'agent.horizon'"),
        ({"agent.horizon": "long"}, "agent.horizon must be a number"),
        ({"agent__updates": 1.5}, "agent.updates must be a whole number"),
        ({"agent__updates": 0}, "expected more than zero"),
        ({"sampling__noise": -1.0}, "expected zero or more"),
        ({"sampling__hold": "kept"}, "must be gp, linear, hold"),
        ({"model__family": "enod"}, "Did you mean 'enode'"),
        ({"model__structure": "afine"}, "Did you mean 'affine'"),
        ({"fit__solver": "dopri6"}, "dopri"),
        ({"environment": "cartpole"}, "Unknown setting"),
        ({"agent__starts": 5}, "every member needs a start"),
        ({"sampling__points": 3}, "fewer than the 5 of a"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(settings, said):
    with pytest.raises(UserError, match=re.escape(said)):
        configure("default", "pendulum", settings)


def test_every_setting_has_a_name_and_keeps_its_value():
    config = Config()
    for name, value in settings_of(config):
        assert changed(config, {name: value}) == config


def test_resuming_something_else_is_refused_field_by_field(finished):
    before = (finished.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError) as refused:
        resume(finished.folder, environment="cartpole", preset="paper", agent__updates=7, schedule__rounds=9)
    said = str(refused.value)
    for line in (
        'environment: recorded "pendulum", asked for "cartpole"',
        'preset: recorded "default"',
        "agent.updates",
    ):
        assert line in said
    assert "rounds" not in said.split("\n", 1)[1]
    assert (finished.folder / "metrics.jsonl").read_bytes() == before


def test_a_folder_with_a_run_is_not_written_over(finished):
    with pytest.raises(UserError, match="already holds a run"):
        train(WORLD, out=finished.folder, **TINY)


def test_a_changed_system_file_is_refused(tmp_path, finished):
    path = tmp_path / "own.py"
    path.write_text(json.dumps("not used"))
    header = json.loads((finished.folder / "header.json").read_text())
    header["configuration"] |= {"environment": str(path), "environment_source": "0" * 64}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "header.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match="environment_source: recorded"):
        resume(folder)


@pytest.mark.slow
def test_interrupted_and_resumed_with_more_rounds_it_goes_on(tmp_path):
    keepers, entered = [], keeper.Keeper.__enter__

    class Impatient(Silent):
        def see(self, state, phase, rows, seconds):
            if phase == FIT:
                keepers[0]._heard(2, None)  # Ctrl-C

    def catching(self):
        keepers.append(self)
        return entered(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper.Keeper, "__enter__", catching)
        with pytest.raises(Interrupted, match=r"ctrlax resume .*run"):
            train(WORLD, out=tmp_path / "run", show=Impatient(), **TINY)
    assert not Run(tmp_path / "run").rows("round")
    run = resume(tmp_path / "run", environment=WORLD, schedule__rounds=2)
    assert [row["round"] for row in run.rows("round")] == [1, 2]
    assert Run(run.folder).config.schedule.rounds == 2


def test_the_budget_ends_a_run_after_a_round(tmp_path):
    run = train(WORLD, out=tmp_path / "run", budget=1e-9, **tiny(schedule__rounds=5))
    assert [row["round"] for row in run.rows("round")] == [1]


def test_a_run_may_begin_with_a_log(tmp_path):
    made = laboratory()
    times = np.arange(120) * 0.1
    log = Log(times, np.random.default_rng(0).normal(size=(120, 3)), np.zeros((120, 1)))
    data = Dataset((log,), *made.names, hold="hold")
    state = made.start([0, 1], data)
    assert state.experience.interaction_seconds() == pytest.approx([11.9, 11.9])
    assert state.experience.counts.tolist() == [[50, 50, 22]] * 2
    assert np.all(state.experience.holds == 2)
    write(data, tmp_path / "log.csv")
    with pytest.raises(UserError, match=r"log\.csv has the observations .* but cartpole has"):
        train("cartpole", data=tmp_path / "log.csv", out=tmp_path / "run", **TINY)


def test_held_and_smooth_actions_lie_side_by_side():
    made = laboratory()
    times = np.arange(20) * 0.1
    actions = np.sin(3 * times)[:, None]
    held = pieces_of(Dataset((Log(times, np.zeros((20, 3)), actions),), *made.names, hold="hold"), 20, 1)
    smooth = pieces_of(Dataset((Log(times, np.zeros((20, 3)), actions),), *made.names, hold="gp"), 20, 1)
    both = held.joined(smooth).recordings(made.names, capacity=4, length_scale=0.5)
    paths = np.asarray(both.paths)[0]
    assert np.allclose(paths[0, :-1, 0, 0], actions[:18, 0])
    assert np.all(paths[0, :, 1:] == 0)
    assert np.abs(paths[1, :, 1:]).max() > 0.05


# Seeds.


def test_a_seed_draws_the_same_numbers_whoever_runs_beside_it():
    made = laboratory()
    alone, beside = made.start([5]), made.start([3, 5])
    for one, two in zip(jax.tree.leaves(alone), jax.tree.leaves(take(beside, np.array([False, True]))), strict=True):
        if hasattr(one, "dtype") and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
        elif isinstance(one, jax.Array):
            assert np.allclose(one, two, rtol=1e-6, atol=1e-9)  # the same draws, scaled in another order


@pytest.mark.slow
def test_one_update_agrees_alone_and_in_a_batch():
    made = laboratory(fit__updates=1, agent__updates=1)
    beside = made.start([3, 5])
    alone = take(beside, np.array([False, True]))
    for phase in (FIT, IMPROVE):
        both, one = (dataclasses.replace(state, phase=phase) for state in (beside, alone))
        if phase == FIT:
            both, _ = made.fit_chunk(both, made.recordings(both))
            one, _ = made.fit_chunk(one, made.recordings(one))
        else:
            both, _ = made.improve_chunk(both)
            one, _ = made.improve_chunk(one)
        for name in ("fitting", "agent"):
            batch = jax.tree.leaves(getattr(take(both, np.array([False, True])), name))
            for left, right in zip(batch, jax.tree.leaves(getattr(one, name)), strict=True):
                if jnp.issubdtype(left.dtype, jnp.floating):
                    assert np.allclose(left, right, rtol=1e-5, atol=1e-5)


def test_lanes_that_ended_leave_when_the_arrays_change_size():
    state = laboratory().start([1, 2, 3, 4])
    sizes = [4, 12, 24]
    state = dataclasses.replace(state, capacity=4)
    assert fitted_shape(state, sizes) is state
    state = dataclasses.replace(state, ended=np.array([0, 2, 0, 0]))
    assert fitted_shape(state, sizes) is state  # one of four: not worth a compilation
    state = dataclasses.replace(state, ended=np.array([0, 2, 2, 0]))
    half = fitted_shape(state, sizes)
    assert half.seeds.tolist() == [1, 4]
    assert half.capacity == 4
    assert half.shapes == 2
    last = fitted_shape(dataclasses.replace(half, ended=np.array([0, 3])), sizes)
    assert last.seeds.tolist() == [1]
    assert last.capacity == 24  # the last size has room for the whole run
    assert last.shapes == SHAPES
    everything = joined([take(last, np.array([True])), half])
    assert everything.seeds.tolist() == [1, 1, 4]


@pytest.mark.slow
def test_solved_seeds_stop_and_the_others_go_on(tmp_path, monkeypatch):
    """Seed 3 is declared solved in its first round."""
    honest = Laboratory.evaluate

    def generous(self, state):
        state, answers = honest(self, state)
        lucky = (state.seeds == 3) & (state.ended == 0)
        round = np.where(lucky, state.round, 0)
        return dataclasses.replace(
            state, solved_round=state.solved_round + round, ended=np.where(lucky, state.round, state.ended)
        ), answers

    monkeypatch.setattr(Laboratory, "evaluate", generous)
    run = train(WORLD, seeds=(3, 5), out=tmp_path / "run", **tiny(schedule__rounds=3))
    assert [(row["seed"], row["round"]) for row in run.rows("round")] == [(3, 1), (5, 1), (5, 2), (5, 3)]
    assert run.summary()["rounds_to_solve"] == [1, None]
    assert run._newest.seeds.tolist() == [5]  # its lane was dropped
    assert run.state.seeds.tolist() == [3, 5]
    assert run.best_seed == 3
    assert run.state.experience.interaction_seconds() == pytest.approx([4 * 4.9, 6 * 4.9])
    assert run.policy([1.0, 0.0, 0.0], seed=3).shape == (1,)


@pytest.mark.slow
def test_each_phase_compiles_at_most_three_times(caplog, tmp_path):
    """Over a run whose data outgrow every size of the arrays."""
    made = laboratory(schedule__rounds=14, fit__updates=2, agent__updates=2, fit__matching_updates=2, fit__rate=2e-3)
    state = made.start([0])
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        state = learn(made, state, lambda *_: None, Guard(tmp_path))
    assert state.shapes == SHAPES
    compiled = re.findall(r"Compiling jit\((\w+)\)", caplog.text)
    # Gradient matching and fitting share a function; matching is compiled once, in round 1.
    most = {"_fit_updates": 1 + 3, "_agent_updates": 3, "_variance": 3, "_roll_out": 9}
    counted = {name: compiled.count(name) for name in most}
    assert all(counted[name] >= 1 for name in ("_fit_updates", "_agent_updates")), sorted(set(compiled))
    assert all(counted[name] <= most[name] for name in most), counted
