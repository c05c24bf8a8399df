"""Faults put into a real run on purpose end as the guard promises."""

import dataclasses
import errno
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax.agent import improve
from ctrlax.lab import checkpoint, phases
from ctrlax.lab.checkpoint import NotWrittenError
from ctrlax.lab.configure import configure
from ctrlax.lab.guard import ROLLBACKS, Guard, TrainingStoppedError, read_dump
from ctrlax.lab.learn import STOPPED, guarded
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.run import Run, resume, train
from ctrlax.lab.state import FIT, IMPROVE, MATCH
from ctrlax.model import fit

TINY: dict[str, Any] = {
    "fit__updates": 20,
    "fit__matching_updates": 5,
    "fit__warmup_updates": 0,
    "agent__updates": 20,
    "agent__starts": 8,
    "model__members": 2,
    "schedule__rounds": 1,
    "schedule__trials": 2,
    "schedule__trial_seconds": 4.0,
}


def tiny(**changes: Any) -> dict[str, Any]:
    return TINY | changes


WORLD = ctrlax.make("pendulum")
rates = itertools.count(1)


@pytest.fixture
def made():
    """Rates no other test has: what was compiled without the fault is not asked again."""
    rate = 1e-3 + 1e-9 * next(rates)
    changes = TINY | {"fit__rate": rate, "agent__rate": rate}
    return Laboratory(WORLD, configure("default", "pendulum", changes))


def one_chunk(made, state, folder):
    """A guarded chunk of the state's phase, and all that was told."""
    told = []
    recordings = made.recordings(state)

    def chunk(state):
        return made.improve_chunk(state) if state.phase == IMPROVE else made.fit_chunk(state, recordings)

    state = guarded(Guard(folder), chunk, state, lambda state, phase, seen: told.append((phase, seen)))
    return state, told


def layers_of(state):
    return state.fitting.learned.dynamics.posterior.layers


def finite(tree):
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree) if leaf.dtype == jnp.float32)


def test_a_nan_batch_now_and_then_is_left_out_and_counted(made, tmp_path, monkeypatch):
    honest = fit.draw_windows

    def faulty(recording, *, key, **settings):
        windows = honest(recording, key=key, **settings)
        bad = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.1)
        return dataclasses.replace(windows, targets=jnp.where(bad, jnp.nan, windows.targets))

    monkeypatch.setattr(fit, "draw_windows", faulty)
    state = dataclasses.replace(made.start([0, 1]), phase=FIT)
    after, told = one_chunk(made, state, tmp_path)
    assert [phase for phase, _ in told] == [FIT]
    assert 1 <= after.skipped.sum() <= 8
    assert np.array_equal(told[0][1]["skipped"], after.skipped)
    assert np.all(after.rollbacks == 0)
    assert finite(after.fitting)
    moved = jax.tree.map(lambda new, old: bool(jnp.any(new != old)), after.fitting.learned, state.fitting.learned)
    assert any(jax.tree.leaves(moved))


@pytest.mark.slow
def test_an_exploding_member_is_left_out_and_the_others_learn(made, tmp_path):
    state = dataclasses.replace(made.start([0]), phase=FIT)
    blown = jax.tree.map(lambda leaf: leaf.at[:, 0].multiply(1e6), layers_of(state))
    state = eqx.tree_at(layers_of, state, blown)
    after, told = one_chunk(made, state, tmp_path)
    assert [phase for phase, _ in told] == [FIT]
    assert told[0][1]["unhealthy"][0] > 0
    assert after.ended.tolist() == [0]
    assert finite(after.fitting)
    moved = jax.tree.leaves(
        jax.tree.map(
            lambda new, old: bool(jnp.any(new[:, 1] != old[:, 1])),
            layers_of(after),
            blown,
        )
    )
    assert all(moved)


def test_a_reward_that_is_nan_at_one_state_costs_the_trajectories_that_pass_it(made, tmp_path):
    environment = made.environment

    def holed(observation, action):
        return jnp.where(jnp.abs(observation[0]) < 0.01, jnp.nan, environment.reward_rate(observation, action))

    state = dataclasses.replace(made.start([0, 1]), phase=IMPROVE)
    holed_world = dataclasses.replace(environment, reward_rate=holed, training_reward_rate=None)
    after, told = one_chunk(Laboratory(holed_world, made.config), state, tmp_path)
    assert [phase for phase, _ in told] == [IMPROVE]
    assert np.all(told[0][1]["unhealthy"] > 0)
    assert np.all(after.skipped < 5)
    assert finite(after.agent.policy)
    assert finite(after.agent.critic)
    assert finite(after.agent.policy_moments)


def test_a_system_that_no_random_actions_survive_is_told_before_any_learning(made):
    hopeless = dataclasses.replace(made.environment, field=lambda state, action: state**3 * 1e9 + 1e9)
    with pytest.raises(ctrlax.UserError, match=r"none of the 3 trajectories of random actions .* seed 4"):
        Laboratory(hopeless, made.config).start([4])


@pytest.mark.slow
def test_numbers_that_stay_bad_stop_one_seed_with_a_dump_and_the_other_goes_on(made, tmp_path, monkeypatch):
    honest = improve.actor_loss

    def poisoned(settings, critic, imagined, *rest):
        # Seed 0's critic is marked below; its loss is NaN for ever.
        return honest(settings, critic, imagined, *rest) + jnp.where(critic.layers[-1][1][0] > 50, jnp.nan, 0.0)

    monkeypatch.setattr(improve, "actor_loss", poisoned)
    state = dataclasses.replace(made.start([7, 8]), phase=IMPROVE)
    state = eqx.tree_at(lambda state: state.agent.critic.layers[-1][1], state, replace_fn=lambda b: b.at[0].set(100.0))
    after, told = one_chunk(made, state, tmp_path)
    assert [phase for phase, _ in told] == [IMPROVE, STOPPED]
    error = told[1][1]
    assert isinstance(error, TrainingStoppedError)
    assert error.seeds == [7]
    assert after.ended.tolist() == [1, 0]
    assert after.rollbacks.tolist() == [ROLLBACKS, 0]
    assert after.step_scale.tolist() == [0.5**ROLLBACKS, 1.0]
    dump = read_dump(error.dump, state)
    assert dump.seeds == [7]
    for kept, before in zip(jax.tree.leaves(dump.state.agent.policy), jax.tree.leaves(state.agent.policy), strict=True):
        assert np.array_equal(kept[0], before[0])
    again, told = one_chunk(made, after, tmp_path)  # what has ended stops nobody
    assert [phase for phase, _ in told] == [IMPROVE]
    assert again.ended.tolist() == [1, 0]


def test_a_run_whose_only_seed_stops_ends_with_the_error_and_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(phases.fit, "matching_update", _never_applied(fit.matching_update))
    with pytest.raises(TrainingStoppedError, match=r"Seeds \[0\] stopped in phase match"):
        train(WORLD, out=tmp_path / "run", **tiny(fit__matching_updates=20))
    run = Run(tmp_path / "run")
    assert [row["phase"] for row in run.rows("stopped")] == [MATCH]
    assert (run.folder / "dumps" / run.rows("stopped")[0]["dump"]).exists()
    assert finite(run.state.fitting)


def _never_applied(update):
    def faulty(settings, state, recording, step_scale):
        return update(settings, state, recording, step_scale * jnp.nan)

    return faulty


def test_a_full_disk_ends_in_one_message_and_the_run_can_be_resumed(tmp_path, monkeypatch):
    honest, writes = checkpoint.write_aside, []

    def full(path, parts):
        writes.append(path)
        if len(writes) == 4:
            raise checkpoint.not_written(path, OSError(errno.ENOSPC, "No space left on device"))
        honest(path, parts)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_aside", full)
        with pytest.raises(NotWrittenError, match=r"could not be written .No space left on device"):
            train(WORLD, out=tmp_path / "run", **TINY)
    assert not Run(tmp_path / "run").rows("round")
    assert len(resume(tmp_path / "run", environment=WORLD).rows("round")) == 1
