"""Every model found, with every structure, keeps the same promises."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.model import registry
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, AbstractTransition
from ctrlax.model.structure import KNOWN, STRUCTURES, Coordinates, Scaling
from ctrlax.model.training import mean_rate, roll_windows
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
    rates = jax.vmap(lambda member: mean_rate(model, member, observation, action))(members)
    divergence, slopes = eqx.filter_value_and_grad(lambda model: model.divergence())(model)
    pushed = eqx.tree_at(lambda w: w.paths, windows, windows.paths.at[:, :, 0].add(1.0))
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), windows, pushed)
    states, healthy, _ = roll_windows(model, members, both, SOLVER)
    return rates, divergence, slopes, states[:, :WINDOWS], healthy[:, :WINDOWS], states[:, WINDOWS:]


LOOK = eqx.filter_jit(look)


def structures(family):
    """Structures are of fields; what a transition is asked for beside none is refused before it is built."""
    return ("",) if registry.makes_transitions(family) else NAMES


@pytest.fixture(scope="module", params=[(f, s) for f in registry.families() for s in structures(f)], ids="-".join)
def seen(request):
    family, name = request.param
    key = jax.random.key(0)
    model = made(family, (name,) if name else (), key=key)
    assert isinstance(model, registry.kind_of(family))
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
    build = jax.vmap(lambda key, scaling: registry.build(settings, ENVIRONMENT, scaling, key=key))
    settings = config.Model(family, (), MEMBERS)
    both = jax.jit(build)(keys, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), scaling()))
    states = jax.jit(jax.vmap(lambda model, key: look(model, windows(), key=key)[3]))(both, keys)
    for i, key in enumerate(keys):
        alone = LOOK(made(family, (), key=key), windows(), key=key)[3]
        assert np.allclose(states[i], alone, atol=1e-5)


@pytest.mark.parametrize("family", registry.families())
def test_a_model_is_one_of_two_kinds_and_says_which(family):
    model = made(family, (), key=jax.random.key(0))
    kinds = [isinstance(model, kind) for kind in (AbstractField, AbstractTransition)]
    assert kinds == [not registry.makes_transitions(family), registry.makes_transitions(family)]
    assert isinstance(model, AbstractDynamics)


@pytest.mark.parametrize("family", registry.families())
def test_gradients_by_the_weights_agree_with_finite_differences(family):
    """Of paths under a control, and of the divergence, along one direction of all weights at once."""
    model = made(family, (), key=jax.random.key(0))
    with jax.enable_x64(True):
        model = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), model)
        few = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[:2], jnp.float64 if leaf.dtype == jnp.float32 else None), windows()
        )
        weights, rest = eqx.partition(model, eqx.is_inexact_array)
        numbers, form = jax.flatten_util.ravel_pytree(weights)
        # Scalings are no weights, and no derivative is asked of them.
        scales = jax.flatten_util.ravel_pytree(scaling_as(weights, 0.0))[0]
        direction = scales * jax.random.normal(jax.random.key(1), numbers.shape, jnp.float64)

        @jax.jit
        @jax.value_and_grad
        def loss(size):
            moved = eqx.combine(form(numbers + size * direction), rest)
            states, _, _ = roll_windows(moved, moved.draw(key=jax.random.key(2)), few, SOLVER)
            return jnp.mean(jnp.sin(states)) + moved.divergence() / 1e4

        small = 1e-5
        central = (loss(small)[0] - loss(-small)[0]) / (2 * small)
        if (direction != 0).any():
            assert float(loss(0.0)[1]) == pytest.approx(float(central), rel=1e-4, abs=1e-9)


def scaling_as(weights, value):
    """One for every weight, ``value`` for every number that is a unit and not learned."""
    ones = jax.tree.map(jnp.ones_like, weights)
    units = [
        part for part in (getattr(weights, name, None) for name in ("scaling", "kappa", "scales")) if part is not None
    ]
    kept = {id(leaf) for part in units for leaf in jax.tree.leaves(part)}
    return jax.tree.map(lambda leaf, one: jnp.full_like(one, value) if id(leaf) in kept else one, weights, ones)


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"Unknown model 'enod'. Did you mean 'enode'.* Known: benode, .*true"):
        made("enod", (), key=jax.random.key(0))
    with pytest.raises(UserError, match="at least one member, but members = 0"):
        registry.build(config.Model("enode", (), 0), ENVIRONMENT, scaling(), key=jax.random.key(0))


def test_the_true_field_needs_the_system():
    with pytest.raises(UserError, match="only data is at hand"):
        registry.build(config.Model("true"), Coordinates(5, 1), scaling(), key=jax.random.key(0))
