"""Planning where the best plan is known: a quadratic program, and actions on their bounds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax import config
from ctrlax.agent.plan import Cem, Planner
from ctrlax.agent.roll import held_model
from ctrlax.errors import UserError
from ctrlax.model.families.true import TrueDynamics

INTERVAL, STEPS, ETA, COST = 0.2, 5, 2.0, 0.3
START = 0.8


def drift(state, action):
    return action


def costs(observation, action):
    return -(observation[0] ** 2) - COST * action[0] ** 2


def identity(state):
    return state


def planner(reward_rate=costs, reach=5.0, kind=Planner, **settings):
    model = held_model(config.Agent(), TrueDynamics(drift, identity, identity, jnp.ones(1)), key=jax.random.key(0))
    own = {"horizon": STEPS * INTERVAL, "interval": INTERVAL, "discount_time": ETA, "population": 300, "elites": 30}
    return kind(
        Cem(**(own | {"iterations": 12} | settings)), model, reward_rate, jnp.full(1, -reach), jnp.full(1, reach)
    )


def exact():
    """The best held actions for ``ds/dt = a``, ``r = -s^2 - c a^2``: a quadratic form, assembled by quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(6)
    times = INTERVAL * (np.arange(STEPS)[:, None] + (nodes + 1) / 2)
    edges = ETA * np.exp(-INTERVAL * np.arange(STEPS + 1) / ETA)
    discount = (edges[:-1] - edges[1:]) / INTERVAL  # its mean over a step, as the planner has it
    quadratic, linear = np.zeros((STEPS, STEPS)), np.zeros(STEPS)
    for step in range(STEPS):
        for time, weight in zip(times[step], weights * INTERVAL / 2, strict=True):
            reached = np.clip(time - INTERVAL * np.arange(STEPS), 0, INTERVAL)  # ds at `time` by each action
            quadratic += discount[step] * weight * np.outer(reached, reached)
            linear += discount[step] * weight * START * reached
        quadratic[step, step] += discount[step] * INTERVAL * COST
    return -np.linalg.solve(quadratic, linear)


def planned(planner, keys=3):
    """The whole plan of several draws: the action taken now, and what is to follow."""

    def one(key):
        action, rest = planner.decide(jnp.full(1, START), planner.begin(), key=key)
        return jnp.concatenate([action, rest[:-1, 0]]), rest[-1, 0]

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), keys))


class Worst(Planner):
    """The elites are the worst."""

    def returns(self, observation, sequences, *, key):
        return -super().returns(observation, sequences, key=key)


def test_the_plan_is_the_quadratic_programs():
    plans, added = planned(planner())
    np.testing.assert_allclose(plans[:, 0], exact()[0], rtol=0.05)
    np.testing.assert_allclose(plans, np.tile(exact(), (3, 1)), atol=0.1)
    assert (added == 0).all()  # shifted by one decision, the middle of the bounds at its end
    wrong, _ = planned(planner(kind=Worst))
    assert not np.allclose(wrong[:, 0], exact()[0], rtol=0.5)


def test_returns_are_the_closed_form():
    found = planner().returns(jnp.full(1, START), jnp.zeros((300, STEPS, 1)), key=jax.random.key(0))
    expected = -(START**2) * ETA * (1 - np.exp(-STEPS * INTERVAL / ETA))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_bang_actions_are_found_on_their_bounds():
    plans, _ = planned(planner(reward_rate=lambda observation, action: observation[0], reach=2.0))
    assert (plans[:, :-1] > 1.7).all()  # the last action hardly matters
    assert (plans <= 2.0).all()


def test_what_cannot_be_planned_is_refused():
    refused: list[dict[str, Any]] = [
        {"elites": 400}, {"population": 0}, {"interval": 5.0}, {"momentum": 1.0}, {"horizon": -1.0},
    ]  # fmt: skip
    for wrong in refused:
        with pytest.raises(UserError):
            Cem(**wrong)
