import errno
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ctrlax.lab.guard import ROLLBACKS, Guard, TrainingStoppedError, read_dump, select_lanes
from ctrlax.model.update import Health, guarded_update

ADAM = optax.chain(optax.scale_by_adam(), optax.add_noise(0.01, 0.5, jax.random.key(7)), optax.scale(-0.1))
FINE = {"weight": jnp.array([1.0, -2.0]), "bias": jnp.array(0.5), "fixed": None}
BAD_NUMBERS = {
    "NaN loss": (jnp.nan, FINE),
    "infinite loss": (jnp.inf, FINE),
    "NaN gradient": (1.0, FINE | {"bias": jnp.array(jnp.nan)}),
    "infinite gradient": (1.0, FINE | {"weight": jnp.array([1.0, -jnp.inf])}),
    "second moment overflows": (1.0, FINE | {"weight": jnp.array([1.0, 1e25])}),
}


def begun():
    parameters = jax.tree.map(jnp.ones_like, FINE)
    parameters, state, applied = guarded_update(ADAM, FINE, jnp.array(1.0), ADAM.init(parameters), parameters)
    assert applied
    return parameters, state


def same(one, other):
    return bool(eqx.tree_equal(one, other, typematch=True))


def test_a_good_update_is_optax_times_the_scale():
    parameters, state = begun()
    updates, expected_state = ADAM.update(FINE, state, parameters)
    expected = optax.apply_updates(parameters, jax.tree.map(lambda update: 0.5 * update, updates))
    made, made_state, applied = guarded_update(ADAM, FINE, jnp.array(1.0), state, parameters, 0.5)
    assert applied
    assert same(made, expected)
    assert same(made_state, expected_state)


def skips_leave_everything(update, loss, gradients):
    parameters, state = begun()
    kept, kept_state, applied = eqx.filter_jit(update)(ADAM, gradients, jnp.array(loss), state, parameters, 1.0)
    return not applied and same(kept, parameters) and same(kept_state, state)


@pytest.mark.parametrize("fault", BAD_NUMBERS)
def test_a_skipped_update_leaves_parameters_and_moments_bit_for_bit(fault):
    assert skips_leave_everything(guarded_update, *BAD_NUMBERS[fault])


@pytest.mark.parametrize("fault", BAD_NUMBERS)
def test_the_check_sees_moments_that_move_on_a_skip(fault):
    def wrong(optimiser, gradients, loss, state, parameters, step_scale):
        made, _, applied = guarded_update(optimiser, gradients, loss, state, parameters, step_scale)
        return made, optimiser.update(gradients, state, parameters)[1], applied

    assert not skips_leave_everything(wrong, *BAD_NUMBERS[fault])


def test_an_infinity_an_optimiser_holds_on_purpose_is_no_fault():
    parameters = jnp.ones(2)
    optimiser = optax.GradientTransformation(
        lambda params: {"best": jnp.array(jnp.inf)}, lambda updates, state, params=None: (updates, state)
    )
    _, state, applied = guarded_update(optimiser, parameters, jnp.array(1.0), optimiser.init(parameters), parameters)
    assert applied
    assert state["best"] == jnp.inf


def test_seeds_are_guarded_one_by_one_under_vmap():
    adam = optax.adam(0.1)
    parameters = jnp.ones((3, 2))
    states = jax.vmap(adam.init)(parameters)
    gradients = jnp.ones((3, 2)).at[1, 0].set(jnp.nan)
    losses = jnp.array([1.0, 1.0, jnp.inf])
    update = jax.vmap(lambda *each: guarded_update(adam, *each))
    made, _, applied = update(gradients, losses, states, parameters, jnp.ones(3))
    assert applied.tolist() == [True, False, False]
    assert (made[0] != 1).all()
    assert (made[1:] == 1).all()


def test_health_counts():
    health = Health.none()
    for applied in [True, False, False, False, True, False]:
        health = health.counted(jnp.array(applied), 2)
    counts = (health.updates, health.skipped, health.skipped_in_a_row, health.longest_skipped)
    assert [int(count) for count in counts] == [2, 4, 1, 3]
    assert int(health.unhealthy_trajectories) == 12
    both = health.then(Health.none().counted(jnp.array(True)))
    assert int(both.updates) == 3
    assert int(both.longest_skipped) == 3


UPDATES = 20
SEEDS = (3, 4, 5, 6)
NO_LANE = np.zeros(len(SEEDS), bool)


def start():
    key = jax.random.split(jax.random.key(0), len(SEEDS))
    parameters = jnp.ones((len(SEEDS), 2))
    return {"parameters": parameters, "moments": jax.vmap(optax.adam(0.1).init)(parameters), "key": key}


def one_seed(state, step_scale, bad_above):
    def update(carry, _):
        state, health = carry
        key, draw = jax.random.split(state["key"])
        gradients = jax.random.normal(draw, (2,))
        loss = jnp.where(step_scale > bad_above, jnp.nan, 1.0)
        parameters, moments, applied = guarded_update(
            optax.adam(0.1), gradients, loss, state["moments"], state["parameters"], step_scale
        )
        return ({"parameters": parameters, "moments": moments, "key": key}, health.counted(applied)), loss

    (state, health), losses = jax.lax.scan(update, (state, Health.none()), None, UPDATES)
    return state, {"loss": losses}, health


ALL_SEEDS = jax.jit(jax.vmap(one_seed))


def make_chunk(bad_above):
    """A chunk in which a seed sees NaN losses while its step scale is above its entry of ``bad_above``."""
    return lambda state, step_scale: ALL_SEEDS(state, step_scale, jnp.asarray(bad_above))


def run(guard, bad_above, scale=None):
    state = start()
    scale = np.ones(len(SEEDS), np.float32) if scale is None else scale
    return guard.run(make_chunk(bad_above), state, scale, key=state["key"], seeds=SEEDS, phase="fit", iteration=40)


def test_good_chunks_pass_untouched_and_give_the_step_back(tmp_path):
    scale = np.array([1, 0.5, 0.25, 1], np.float32)
    outcome = run(Guard(tmp_path), [2.0] * 4, scale)
    expected, metrics, health = make_chunk([2.0] * 4)(start(), scale)
    assert same(outcome.state, expected)
    assert same(outcome.metrics, metrics)
    assert same(outcome.health, health)
    np.testing.assert_array_equal(outcome.step_scale, np.array([1, 1, 0.5, 1], np.float32))
    assert not list(tmp_path.iterdir())


def test_only_the_bad_seed_is_rolled_back(tmp_path):
    outcome = run(Guard(tmp_path), [2.0, 0.3, 2.0, 2.0])
    scale = np.array([1, 0.25, 1, 1], np.float32)
    expected, metrics, _ = make_chunk([2.0] * 4)(start(), scale)
    assert same(outcome.state, expected)
    assert same(outcome.metrics, metrics)
    np.testing.assert_array_equal(outcome.step_scale, scale)
    assert outcome.health.rollbacks.tolist() == [0, 2, 0, 0]
    assert outcome.health.skipped.tolist() == [0, 2 * UPDATES, 0, 0]
    assert outcome.health.updates.tolist() == [UPDATES] * 4


def test_a_seed_that_stays_bad_stops_with_a_dump_that_replays(tmp_path):
    bad_above = [2.0, 0.3, 0.0, 0.0]
    with pytest.raises(TrainingStoppedError, match=r"Seeds \[5, 6\] stopped in phase fit, iteration 40") as caught:
        run(Guard(tmp_path / "dumps"), bad_above)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.seeds == [5, 6]
    assert error.lanes.tolist() == [False, False, True, True]
    assert error.outcome.health.rollbacks.tolist() == [0, 2, ROLLBACKS, ROLLBACKS]
    dump = read_dump(error.dump, start())
    assert (dump.phase, dump.iteration, dump.seeds) == ("fit", 40, [5, 6])
    assert same(dump.state, jax.tree.map(lambda leaf: leaf[2:], start()))
    assert same(dump.key, start()["key"][2:])
    assert dump.step_scale.tolist() == [0.125, 0.125]
    _, metrics, health = make_chunk(bad_above[2:])(dump.state, dump.step_scale)
    assert np.isnan(metrics["loss"]).all()
    assert health.skipped.tolist() == [UPDATES] * 2
    # The others are done with their chunk, and can go on without these two.
    good, _, _ = make_chunk([2.0] * 4)(start(), error.outcome.step_scale)
    assert same(select_lanes(error.lanes, start(), good), error.outcome.state)


def test_a_full_disk_does_not_hide_that_training_stopped(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingStoppedError, match="No space left on device"):
        run(Guard(tmp_path), [2.0, 2.0, 2.0, 0.0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("skips", "bad"),
    [([], False), ([3], False), ([3, 9, 12, 15], False), (range(0, 16, 4), False), (range(0, 18, 3), True),
     (range(5, 15), True)],
)  # fmt: skip
def test_single_skips_pass_and_repeated_ones_do_not(tmp_path, skips, bad):
    health = Health.none()
    for update in range(UPDATES if len(skips) < 10 else 100):
        health = health.counted(jnp.array(update not in skips))
    batched = jax.tree.map(lambda count: count[None], health)
    assert Guard(tmp_path)._bad(batched).tolist() == [bad]


def test_select_lanes_keeps_kinds_and_names_what_does_not_fit():
    lanes = np.array([True, False])
    inside = {"host": np.zeros(2), "device": jnp.zeros((2, 3)), "key": jax.random.split(jax.random.key(0)), "no": None}
    outside = {"host": np.ones(2), "device": jnp.ones((2, 3)), "key": jax.random.split(jax.random.key(1)), "no": None}
    chosen = select_lanes(lanes, inside, outside)
    assert isinstance(chosen["host"], np.ndarray)
    assert chosen["host"].tolist() == [0, 1]
    assert chosen["device"].sum() == 3
    assert same(chosen["key"][0], inside["key"][0])
    assert same(chosen["key"][1], outside["key"][1])
    with pytest.raises(ValueError, match="'shared'"):
        select_lanes(lanes, {"shared": jnp.zeros(())}, {"shared": jnp.zeros(())})
    assert select_lanes(np.array([False, False]), inside, outside) is outside
