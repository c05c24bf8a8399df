"""Every model found, with every structure, keeps the same promises."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.model import registry
from ctrlax.model.dynamics import AbstractDynamics
from ctrlax.model.fit import simulate_windows
from ctrlax.model.structure import KNOWN, STRUCTURES, Coordinates, Scaling
from ctrlax.model.windows import Windows
from ctrlax.ode.solvers import named

ENVIRONMENT = ctrlax.make("cartpole")
NEEDS_KNOWN = "known-plus-residual"
MEMBERS = 3
WINDOWS = 4
SOLVER = named("discrete")  # compiles fastest; how solvers differ is tested elsewhere
NAMES = ("", *(name for name in STRUCTURES if name != KNOWN))  # which stands for others


def scaling():
    return Scaling(jnp.zeros(5), jnp.full(5, 1.5), jnp.zeros(1), jnp.full(1, 3.0), jnp.ones(5))


def part(observation, action):
    """A known part of the rate."""
    return -0.1 * observation


@functools.cache
def builder(family, names):
    known = part if NEEDS_KNOWN in names else None
    settings = config.Model(family, names, MEMBERS)
    return eqx.filter_jit(lambda key: registry.build(settings, ENVIRONMENT, scaling(), key=key, known=known))


def made(family, names, *, key):
    return builder(family, names)(key)


def windows():
    random = np.random.default_rng(0)
    angle = random.uniform(-3, 3, WINDOWS)
    x, v, omega = random.normal(size=(3, WINDOWS))
    starts = jnp.asarray(np.stack([x, v, np.cos(angle), np.sin(angle), omega], axis=1), jnp.float32)
    targets = jnp.repeat(starts[:, None], 3, axis=1)
    paths = jnp.asarray(random.normal(size=(WINDOWS, 3, 2, 1)), jnp.float32)
    return Windows(starts, targets, jnp.full((WINDOWS, 3), 0.1), paths, jnp.ones(WINDOWS, bool))


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one compiled program saw of one model, so that every promise below is cheap."""

    model: Any
    rates: Any
    divergence: Any
    slopes: Any
    states: Any
    healthy: Any
    other_action: Any


def look(model, windows, *, key):
    members = model.draw(key=key)
    observation, action = windows.starts[0], jnp.ones(1)
    rates = jax.vmap(lambda member: model.rate(member, observation, action))(members)
    divergence, slopes = eqx.filter_value_and_grad(lambda model: model.divergence())(model)
    pushed = eqx.tree_at(lambda w: w.paths, windows, windows.paths.at[:, :, 0].add(1.0))
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), windows, pushed)
    states, healthy, _ = simulate_windows(model, members, both, SOLVER)
    return rates, divergence, slopes, states[:, :WINDOWS], healthy[:, :WINDOWS], states[:, WINDOWS:]


LOOK = eqx.filter_jit(look)


@pytest.fixture(scope="module", params=[(f, s) for f in registry.families() for s in NAMES], ids="-".join)
def seen(request):
    family, name = request.param
    key = jax.random.key(0)
    model = made(family, (name,) if name else (), key=key)
    if not isinstance(model, AbstractDynamics):
        pytest.skip(f"{family} has no rate")
    return Seen(model, *LOOK(model, windows(), key=key))


def test_the_member_axis_is_first_everywhere(seen):
    count = seen.model.member_count()
    assert count in (MEMBERS, 1)
    assert seen.rates.shape == (count, 5)
    assert seen.states.shape == (count, WINDOWS, 3, 5)
    assert seen.healthy.shape == (count, WINDOWS)


def test_all_numbers_are_finite_float32(seen):
    for leaf in jax.tree.leaves((seen.model, seen.rates, seen.divergence, seen.slopes, seen.states)):
        if eqx.is_inexact_array(leaf):
            assert leaf.dtype == jnp.float32
            assert np.isfinite(leaf).all()
    assert bool(np.all(seen.healthy))
    assert float(seen.divergence) >= 0
    assert seen.model.length_scales().shape == (5,)


def test_members_follow_the_control_each_in_its_own_way(seen):
    assert np.abs(seen.states - seen.other_action).max() > 1e-4
    if seen.model.member_count() > 1:
        assert np.ptp(np.asarray(seen.rates), axis=0).max() > 1e-4


@pytest.mark.parametrize("family", registry.families())
def test_the_same_key_makes_the_same_model_and_another_key_another(family):
    one, two, other = (made(family, (), key=jax.random.key(seed)) for seed in (0, 0, 1))
    assert eqx.tree_equal(one, two)
    learned = [leaf for leaf in jax.tree.leaves(one) if leaf.ndim > 1]
    assert eqx.tree_equal(one, other) == (not learned)
    draws = [one.draw(key=jax.random.key(seed)) for seed in (0, 0)]
    assert eqx.tree_equal(*draws)


@pytest.mark.parametrize("family", registry.families())
def test_seeds_are_a_vmap(family):
    keys = jax.random.split(jax.random.key(2), 2)
    if not isinstance(made(family, (), key=keys[0]), AbstractDynamics):
        pytest.skip(f"{family} has no rate")
    build = jax.vmap(lambda key, scaling: registry.build(settings, ENVIRONMENT, scaling, key=key))
    settings = config.Model(family, (), MEMBERS)
    both = jax.jit(build)(keys, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), scaling()))
    states = jax.jit(jax.vmap(lambda model, key: look(model, windows(), key=key)[3]))(both, keys)
    for i, key in enumerate(keys):
        alone = LOOK(made(family, (), key=key), windows(), key=key)[3]
        assert np.allclose(states[i], alone, atol=1e-5)


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"Unknown model 'enod'. Did you mean 'enode'.* Known: benode, .*true"):
        made("enod", (), key=jax.random.key(0))
    with pytest.raises(UserError, match="at least one member, but members = 0"):
        registry.build(config.Model("enode", (), 0), ENVIRONMENT, scaling(), key=jax.random.key(0))


def test_the_true_field_needs_the_system():
    with pytest.raises(UserError, match="only data is at hand"):
        registry.build(config.Model("true"), Coordinates(5, 1), scaling(), key=jax.random.key(0))
