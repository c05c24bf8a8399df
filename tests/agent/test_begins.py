"""Where imagination begins: data, the update before's imagined states, the system's start distribution."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import init_critic
from ctrlax.agent.policy import init_policy

SEEN, IMAGINED, FRESH = 0.0, 1.0, 2.0
COUNT = 4000
SETTINGS = config.Agent(starts=COUNT, imagined_starts=0.6)


def all_at(place, present=True):
    return improve.Starts(jnp.full((50, 1), place), jnp.full(50, present))


def fresh(count, *, key):
    return jnp.full((count, 1), FRESH)


def agent(imagined):
    policy = init_policy(1, jnp.zeros(1), jnp.ones(1), gain=1.0, key=jax.random.key(0), hidden=(4, 4))
    critic = init_critic(1, gain=1.0, key=jax.random.key(1), hidden=(4, 4))
    state = improve.begin(policy, critic, all_at(SEEN), keep=50, key=jax.random.key(2))
    return dataclasses.replace(state, imagined=imagined)


def shares(settings, imagined, draw=fresh, key=3):
    begins = improve.draw_begins(settings, agent(imagined), all_at(SEEN), draw, key=jax.random.key(key))
    return np.array([np.mean(np.asarray(begins) == place) for place in (SEEN, IMAGINED, FRESH)])


def test_each_source_gives_the_share_asked_for():
    mixed = dataclasses.replace(SETTINGS, fresh_starts=0.25)
    tolerance = 4 * 0.5 / np.sqrt(COUNT)  # four standard errors
    np.testing.assert_allclose(shares(SETTINGS, all_at(IMAGINED)), [0.4, 0.6, 0.0], atol=tolerance)
    np.testing.assert_allclose(shares(mixed, all_at(IMAGINED)), [0.3, 0.45, 0.25], atol=tolerance)
    # The check can fail: other shares are outside its tolerance.
    assert np.abs(shares(mixed, all_at(IMAGINED)) - [0.25, 0.5, 0.25]).max() > tolerance


def test_nothing_imagined_yet_leaves_data_and_starts():
    mixed = dataclasses.replace(SETTINGS, fresh_starts=0.25)
    seen, imagined, drawn = shares(mixed, all_at(IMAGINED, present=False))
    assert imagined == 0
    assert seen + drawn == 1
    assert 0 < drawn < 0.5


def test_without_fresh_starts_the_draws_are_what_they_were_without_the_setting():
    first, second = (
        improve.draw_begins(SETTINGS, agent(all_at(IMAGINED)), all_at(SEEN), draw, key=jax.random.key(4))
        for draw in (fresh, None)
    )
    np.testing.assert_array_equal(first, second)
