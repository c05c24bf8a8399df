"""What the preset `reference` does differently from `paper` (SPEC 4), setting by setting."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.policy import init_policy
from ctrlax.config import preset
from ctrlax.lab import phases
from ctrlax.lab.phases import Laboratory
from ctrlax.model import fit
from ctrlax.model.full_loss import full_loss
from ctrlax.model.windows import Recording, newest
from ctrlax.world.load import make


def small(**changes):
    """The preset `reference` on the pendulum, small enough for a test."""
    settings = preset("reference", "pendulum").replaced(
        model__members=1, fit__matching_updates=1, fit__warmup_updates=0, fit__updates=1, agent__updates=1,
        agent__starts=4, agent__critic_steps=1, sampling__seconds=0.8, fit__solver="rk4", agent__solver="rk4", **changes
    )  # fmt: skip
    return Laboratory(make("pendulum", variant="reference"), settings)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.fixture(scope="module")
def begun():
    laboratory = small()
    return laboratory, laboratory.start([0, 1])


def test_the_presets_say_what_the_specification_says():
    paper, reference = preset("paper", "acrobot"), preset("reference", "acrobot")
    assert (paper.variant, reference.variant) == ("paper", "reference")
    assert (paper.model.gain, reference.model.gain) == (1.0, 0.1)
    assert (paper.fit.warmup_updates, paper.fit.updates) == (100, 1250)
    assert reference.fit.warmup_updates + reference.fit.updates == 1250  # the warm-up counts inside
    assert (paper.fit.windows_per_trajectory, paper.fit.recent) == (5, None)
    assert (reference.fit.windows_per_trajectory, reference.fit.recent) == (3, 50)
    assert (paper.agent.recent, paper.agent.start_from_exploring) == (10, False)
    assert (reference.agent.recent, reference.agent.start_from_exploring) == (5, True)
    assert (paper.agent.horizon_law, paper.agent.horizons, paper.agent.actor_objective) == ("uniform", 20, "horizon")
    assert (reference.agent.horizon_law, reference.agent.actor_objective) == ("steps", "mean")
    assert (paper.agent.critic_steps, reference.agent.critic_steps) == (1, 10)
    assert (paper.agent.bootstrap_ramp, reference.agent.bootstrap_ramp) == (0, 5)
    assert (paper.fit.learn_noise, reference.fit.learn_noise) == (True, False)
    assert (paper.sampling.least_effort, reference.sampling.least_effort) == (0.0, 0.25)
    assert (paper.fit.undo_matching, reference.fit.undo_matching) == (False, True)
    for dt in (0.025, 0.05, 0.1, 0.2):
        assert paper.replaced(sampling__dt=dt).sampling.count() == 50
        assert (reference.replaced(sampling__dt=dt).sampling.count() - 1) * dt == pytest.approx(5.0)


def test_acrobot_s_constants_are_the_variant_s():
    paper, reference = make("acrobot"), make("acrobot", variant="reference")
    assert (paper.action_high[0], reference.action_high[0]) == (4.0, 5.0)
    observation = jnp.array([-1.0, 0.0, 1.0, 0.0, 0.0, 0.0])  # upright, at rest
    pushed = jnp.ones(2)
    np.testing.assert_allclose(reference.reward_rate(observation, pushed), 1 - 1e-4 * 2, rtol=1e-5)
    np.testing.assert_allclose(paper.reward_rate(observation, pushed), 1 - 1e-2 * 2, rtol=1e-5)
    moving = observation.at[4].set(1.0)
    np.testing.assert_allclose(reference.reward_rate(moving, 0 * pushed), np.exp(-1e-2), rtol=1e-5)


def test_horizons_are_multiples_of_the_mean_step(begun):
    laboratory, _ = begun
    assert laboratory.agent_settings.horizon_step == 0.1
    finer = dataclasses.replace(laboratory, config=laboratory.config.replaced(sampling__dt=0.05))
    assert finer.agent_settings.horizon_step == 0.05


@pytest.mark.parametrize(("round", "weight"), [(1, 0.0), (2, 0.2), (6, 1.0), (9, 1.0)])
def test_the_bootstrap_weight_rises_over_five_rounds(begun, monkeypatch, round, weight):
    laboratory, state = begun
    given = []

    def spy(settings, reward_rate, fresh, length, dynamics, agent, starts, bootstrap, step_scale):
        given.append(float(bootstrap))
        raise StopIteration

    monkeypatch.setattr(phases, "_agent_updates", spy)
    with pytest.raises(StopIteration):
        laboratory.improve_chunk(dataclasses.replace(state, round=round))
    np.testing.assert_allclose(given, weight, rtol=1e-6)


@pytest.mark.parametrize(("iteration", "weight"), [(0, 0.0), (313, 313 / 625), (625, 1.0), (1249, 1.0)])
def test_the_kl_weight_rises_over_the_first_half_of_all_iterations(begun, monkeypatch, iteration, weight):
    laboratory, state = begun
    given = []

    def spy(learned, windows, points, setting, kl_weight, *, key, first_state):
        given.append(kl_weight)
        return jnp.sum(learned.log_noise), (jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    monkeypatch.setattr(fit, "negative_elbo", spy)
    one = jax.tree.map(lambda leaf: leaf[0], (state.fitting, laboratory.recordings(state)))
    fitting = dataclasses.replace(one[0], iteration=jnp.asarray(iteration))
    settings = preset("reference", "pendulum").fit
    with jax.disable_jit():
        fit.fit_update(settings, fitting, one[1], jnp.ones(()))
    np.testing.assert_allclose(given[0], weight, rtol=1e-6)


def test_windows_come_from_the_last_trajectories():
    counts = jnp.array([5, 5, 5, 5, 5, 0, 0])
    rows = jnp.arange(7.0)
    recording = Recording(
        rows[:, None, None], rows[:, None, None], rows[:, None], rows[:, None, None, None], counts
    )  # fmt: skip
    assert newest(recording, 3).steps.ravel().tolist() == [2, 3, 4]
    assert newest(recording, 6).steps.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert newest(recording, 50) is recording
    assert newest(recording, None) is recording


@pytest.mark.parametrize("worse", [True, False])
def test_matching_is_undone_where_the_loss_on_all_data_is_worse(begun, worse):
    laboratory, state = begun
    before, recordings = state.fitting.learned, laboratory.recordings(state)
    if worse:  # the second seed's field now moves far too fast; the first's is as it was
        spoilt = jax.tree.map(lambda leaf: leaf.at[1].multiply(5.0), before)
        after = eqx.tree_at(lambda fitting: fitting.learned, state.fitting, spoilt)
    else:
        fitting, _ = phases._fit_updates(
            dataclasses.replace(laboratory.config.fit, matching_updates=30), True, 30, state.fitting, recordings,
            jnp.ones(2),
        )  # fmt: skip
        after = fitting
    keys = jax.random.split(jax.random.key(0), 2)

    def losses(learned):
        each = lambda one, seen, key: full_loss(laboratory.config.fit, one, seen, key=key)  # noqa: E731
        return np.asarray(jax.vmap(each)(learned, recordings, keys))

    state = eqx.tree_at(lambda state: state.fitting, state, after)
    kept = laboratory._unless_worse(state, keys).fitting.learned
    assert (losses(kept) <= losses(before)).all()
    assert (losses(after.learned)[1] > losses(before)[1]) == worse
    expected = before if worse else after.learned
    second, other = (flat(jax.tree.map(lambda leaf: leaf[1], learned)) for learned in (kept, expected))
    np.testing.assert_array_equal(second, other)


def test_a_timid_policy_collects_with_random_actions(begun):
    laboratory, state = begun
    bias = lambda state: state.agent.policy.layers[-1][1]  # noqa: E731
    state = eqx.tree_at(lambda state: state.agent.imagined.present, state, jnp.ones((2, phases.KEPT_STATES), bool))
    state = eqx.tree_at(bias, state, bias(state).at[0].set(0.0).at[1].set(3.0))  # the second seed's torque is two
    assert laboratory.effort(state, 0) < 0.25 < laboratory.effort(state, 1)
    key = jax.random.key(3)
    timid, brave = laboratory._act(state, 0, key), laboratory._act(state, 1, key)
    follows = [
        np.asarray(phases._actions(laboratory.policy(state, seed), seen.observations[0].astype(np.float32)))
        for seed, seen in enumerate((timid, brave))
    ]
    assert np.abs(timid.actions[0] - follows[0]).max() > 0.1
    np.testing.assert_allclose(brave.actions[0], follows[1], atol=1e-3)


def test_exploring_starts_weigh_by_reward_plus_variance(begun):
    laboratory, state = begun
    by_variance = dataclasses.replace(laboratory, config=laboratory.config.replaced(sampling__explore_by="variance"))
    key = jax.random.key(5)
    # One member has no variance: by variance alone all states are alike, by reward the upright ones are preferred.
    near = [np.mean(np.cos(lab._uncertain_states(state, 0, 400, key=key)[:, 0])) for lab in (by_variance, laboratory)]
    assert near[1] > near[0] + 0.1


def test_targets_are_copied_at_every_hundredth_iteration():
    assert config.Agent().target_every == 100
    policy_key, critic_key = jax.random.split(jax.random.key(0))
    policy = init_policy(1, jnp.zeros(1), jnp.ones(1), gain=1.0, key=policy_key, hidden=(2,))
    critic = init_critic(1, gain=1.0, key=critic_key, hidden=(2,))
    other = init_critic(1, gain=1.0, key=policy_key, hidden=(2,))
    starts = improve.Starts(jnp.zeros((1, 1)), jnp.ones(1, bool))
    state = dataclasses.replace(improve.begin(policy, critic, starts, keep=0, key=policy_key), target=other)
    for iteration in range(201):
        at = dataclasses.replace(state, iteration=jnp.asarray(iteration))
        copied = np.array_equal(flat(improve._refreshed(at, 100)), flat(critic))
        assert copied == (iteration in (0, 100, 200))
