"""Posteriors: their divergences by Monte Carlo, their gradients by differences, and a linear system found again."""

import importlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import logsumexp
from scipy.stats import norm

from ctrlax import config
from ctrlax.model import gaussians, registry
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import AbstractPosterior, NeuralODE
from ctrlax.model.families import benode, ibnode, wnode
from ctrlax.model.fit import LIKELIHOODS, Learned, begin, fit_update, negative_elbo
from ctrlax.model.network import apply_layers, elu
from ctrlax.model.structure import Coordinates, Scaling, build, coordinates_of
from ctrlax.model.windows import Windows, pack
from ctrlax.names import module_of
from ctrlax.ode.solvers import named


def inits():
    """Every family that is a posterior over the weights of a perceptron."""
    modules = {name: importlib.import_module(module_of(registry.FAMILIES, name)) for name in registry.families()}
    return {name: vars(module)["init"] for name, module in modules.items() if "init" in vars(module)}


def one_scaling(observations, actions):
    sizes = observations, observations, actions, actions, observations
    return Scaling(*(jnp.full(size, value) for size, value in zip(sizes, (0.0, 1.0, 0.0, 1.0, 1.0), strict=True)))


# A damped oscillator with two inputs.
A = np.array([[0.0, 1.0], [-2.0, -0.4]])
B = np.array([[0.0, 0.5], [1.5, 0.0]])


def linear_recording(*, shift=0, trajectories=6, count=26, step=0.1):
    """Exact solutions of ds/dt = A s + B a under held actions; with ``shift`` the log's actions come late."""
    random = np.random.default_rng(0)
    together = np.zeros((4, 4))
    together[:2, :2], together[:2, 2:] = A * step, B * step
    transition = expm(together)[:2]
    logs = []
    for _ in range(trajectories):
        actions = random.uniform(-1, 1, (count, 2))
        states = [random.normal(size=2)]
        for action in actions[:-1]:
            states.append(transition @ np.concatenate([states[-1], action]))
        logs.append(Log(step * np.arange(count), np.stack(states), np.roll(actions, shift, axis=0)))
    return pack(Dataset(tuple(logs), ("x", "v"), ("u", "w"), hold="hold"), trajectories=trajectories, points=count)


def fitted_matrices(init, recording, *, updates, key):
    """A and B as the members' mean field has them: its least-squares matrices over where the data is."""
    init_key, fit_key, draw_key = jax.random.split(key, 3)
    posterior = jax.jit(lambda key: init(4, 2, 3, gain=1.0, key=key, hidden=(24,)))(init_key)
    model = NeuralODE(posterior, build((), Coordinates(2, 2)), one_scaling(2, 2))
    settings = config.Fit(solver="rk4", rate=1e-2, warmup_rate=1e-3, warmup_updates=50, kl_weight=0.0)
    state = begin(Learned(model, jnp.full(2, -3.0)), key=fit_key)

    def step(state, scale):
        return fit_update(settings, state, recording, scale)

    pace = jnp.linspace(1.0, 0.01, updates)  # Adam's last steps must be small for two digits
    state, metrics = jax.jit(lambda state: jax.lax.scan(step, state, pace))(state)
    assert bool(jnp.all(metrics.applied))
    learned = state.learned.dynamics
    seen = np.concatenate([np.asarray(recording.observations), np.asarray(recording.actions)], axis=-1).reshape(-1, 4)

    def mean_rate(point, members):
        return jnp.mean(jax.vmap(lambda member: learned.rate(member, point[:2], point[2:]))(members), axis=0)

    draws = jax.vmap(lambda key: learned.draw(key=key))(jax.random.split(draw_key, 20))
    members = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
    rates = jax.jit(jax.vmap(mean_rate, in_axes=(0, None)))(jnp.asarray(seen), members)
    found = np.linalg.lstsq(np.c_[seen, np.ones(len(seen))], np.asarray(rates), rcond=None)[0].T
    return found[:, :2], found[:, 2:4]


def apart(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("name", inits())
def test_a_linear_system_is_found_again(name):
    found = fitted_matrices(inits()[name], linear_recording(), updates=1500, key=jax.random.key(0))
    print(name, "A off by", round(apart(found[0], A), 4), "B by", round(apart(found[1], B), 4))
    assert apart(found[0], A) < 0.02
    assert apart(found[1], B) < 0.02


def test_from_late_actions_it_is_not():
    found = fitted_matrices(inits()["enode"], linear_recording(shift=1), updates=500, key=jax.random.key(0))
    assert apart(found[1], B) > 0.2


SYSTEM = coordinates_of(("x", "cos_q", "sin_q", "v", "w"), 1, {"v": "x", "w": "q"})


def known(observation, action):
    return jnp.sin(observation) + action


FORMS = {
    "plain": ((), None),
    "affine": (("affine",), None),
    "second-order": (("second-order",), None),
    "second-order+affine": (("second-order", "affine"), None),
    "hamiltonian": (("hamiltonian",), None),
    "known-plus-residual": (("second-order",), known),
}


def small_learned(init, form, *, key):
    names, part = FORMS[form]
    structure = build(names, SYSTEM, part)
    posterior = jax.jit(lambda key: init(*structure.sizes(), 2, gain=1.0, key=key, hidden=(6, 5)))(key)
    return Learned(NeuralODE(posterior, structure, one_scaling(5, 1)), jnp.full(5, -0.5))


def small_windows():
    random = np.random.default_rng(1)
    angle = random.uniform(-2, 2, 3)
    starts = np.stack([random.normal(size=3), np.cos(angle), np.sin(angle), *random.normal(size=(2, 3))], axis=1)
    targets = starts[:, None] + 0.2 * random.normal(size=(3, 2, 5))
    steps, paths = random.uniform(0.05, 0.3, (3, 2)), random.normal(size=(3, 2, 3, 1))
    starts, targets, steps, paths = map(jnp.asarray, (starts, targets, steps, paths))
    return Windows(starts, targets, steps, paths, jnp.ones(3, bool))


def gradient_error(learned, setting, first_state):
    windows, key, points = small_windows(), jax.random.key(3), jnp.asarray(40.0)
    parameters, fixed = eqx.partition(learned, eqx.is_inexact_array)
    # Units of the world are no parameters: they are stopped, and differences would see them.
    scaling = learned.dynamics.scaling

    def loss(parameters):
        whole = eqx.combine(parameters, fixed)
        whole = eqx.tree_at(lambda o: o.dynamics.scaling, whole, scaling)
        return negative_elbo(whole, windows, points, setting, 1.0, key=key, first_state=first_state)[0]

    both = jax.jit(jax.value_and_grad(loss))
    gradient = jax.tree.leaves(both(parameters)[1])
    leaves, form = jax.tree.flatten(jax.tree.map(np.asarray, parameters))
    random, worst, largest, size = np.random.default_rng(2), 0.0, 0.0, 1e-4
    for _ in range(3):
        direction = [random.normal(size=leaf.shape) for leaf in leaves]

        def at(by, direction=direction):
            moved = [leaf + by * size * part for leaf, part in zip(leaves, direction, strict=True)]
            return float(both(form.unflatten(moved))[0])

        numeric = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * size)  # of fourth order
        mine = sum(float(np.vdot(slope, part)) for slope, part in zip(gradient, direction, strict=True))
        worst, largest = max(worst, abs(mine - numeric)), max(largest, abs(numeric))
    return worst / largest


# A family and a structure do not know of each other: each of one with one of the other, and the two most involved.
PAIRS = [(name, "plain") for name in inits()] + [("enode", form) for form in FORMS][1:] + [("ibnode", "hamiltonian")]


@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_the_gradient_agrees_with_differences(name, form):
    with jax.enable_x64(True):
        learned = small_learned(inits()[name], form, key=jax.random.key(4))
        assert gradient_error(learned, named("rk4"), "observed") < 1e-6


@pytest.mark.parametrize(
    ("setting", "first_state"), [("rk4", "inferred"), ("dopri5", "observed"), ("dopri5", "inferred")]
)
def test_so_it_does_through_adaptive_steps_and_inferred_starts(setting, first_state):
    # Steps are chosen anew for every difference: they agree to the tolerance over the difference's size.
    chosen, bound = (named("rk4"), 1e-6) if setting == "rk4" else (named("dopri5").at(1e-9, 1e-9), 3e-4)
    with jax.enable_x64(True):
        learned = small_learned(inits()["enode"], "plain", key=jax.random.key(4))
        assert gradient_error(learned, chosen, first_state) < bound


def test_a_wrong_gradient_does_not(monkeypatch):
    observed = LIKELIHOODS["observed"]

    def blind(dynamics, members, windows, log_noise, setting):
        return observed(dynamics, jax.lax.stop_gradient(members), windows, log_noise, setting)

    monkeypatch.setitem(LIKELIHOODS, "observed", blind)
    with jax.enable_x64(True):
        learned = small_learned(inits()["ibnode"], "plain", key=jax.random.key(4))
        assert gradient_error(learned, named("rk4"), "observed") > 1e-2


def spread(posterior):
    """The same posterior with widths that differ, as after some learning."""
    random = np.random.default_rng(5)

    def widened(path, leaf):
        wide = "log_scale" in jax.tree_util.keystr(path)
        return jnp.asarray(random.uniform(-2.0, 0.2, leaf.shape), leaf.dtype) if wide else leaf

    return jax.tree_util.tree_map_with_path(widened, posterior)


def estimate(samples):
    return samples.mean(), samples.std() / np.sqrt(samples.size)


def test_ibnodes_divergence_is_that_of_its_components_and_bounds_the_mixtures():
    posterior = spread(ibnode.init(3, 2, 4, gain=1.0, key=jax.random.key(6), hidden=(5,)))
    means = np.concatenate([np.asarray(layer.mean) for layer in posterior.layers], axis=1)
    scales = np.exp(np.concatenate([np.asarray(layer.log_scale) for layer in posterior.layers], axis=1))
    drawn = means + scales * np.random.default_rng(7).normal(size=(20_000, *means.shape))
    prior = norm.logpdf(drawn, 1, 1).sum(-1)
    by_component = norm.logpdf(drawn[:, :, None], means, scales).sum(-1)  # of every draw under every component
    own = by_component[:, np.arange(4), np.arange(4)]
    mine = float(posterior.divergence())
    mean, error = estimate(own - prior)
    assert error < 0.02 * mean
    assert abs(mine - mean) < 4 * error
    mixture, error = estimate(logsumexp(by_component, axis=2) - np.log(4) - prior)
    assert mixture - 4 * error < mine < mixture + np.log(4) + 4 * error
    about_zero, error = estimate(
        own - norm.logpdf(drawn, 0, 1).sum(-1)
    )  # a prior that forgets that factors are about one
    assert abs(mine - about_zero) > 20 * error


def test_draws_of_ibnode_are_its_components():
    posterior = ibnode.init(3, 2, 4, gain=1.0, key=jax.random.key(6), hidden=())
    (layer,), keys = posterior.layers, jax.random.split(jax.random.key(8), 4000)
    weights = np.asarray(jax.vmap(lambda key: posterior.draw(key=key)[0][0])(keys))
    factors = weights / np.asarray(layer.weight)
    assert np.allclose(factors[:, :, 0], factors[:, :, 1], rtol=1e-4)  # one factor for each input
    assert np.allclose(factors[:, :, 0].mean(0), layer.mean, atol=5 * np.exp(-2) / np.sqrt(4000))
    assert np.allclose(factors[:, :, 0].std(0), np.exp(-2), rtol=0.06)


def test_the_weight_space_divergence_by_monte_carlo():
    posterior = spread(wnode.init(3, 2, 4000, gain=1.0, key=jax.random.key(6), hidden=(4,)))
    logs = np.zeros(4000)
    leaves = zip(
        *map(jax.tree.leaves, (posterior.draw(key=jax.random.key(7)), posterior.means, posterior.log_scales)),
        strict=True,
    )
    for (drawn, mean, log_scale), fan_in in zip(leaves, (3, 3, 4, 4), strict=True):
        each = norm.logpdf(drawn, mean, np.exp(log_scale)) - norm.logpdf(drawn, 0, fan_in**-0.5)
        logs += each.reshape(4000, -1).sum(1)
    mean, error = estimate(logs)
    assert abs(float(posterior.divergence()) - mean) < 4 * error
    assert error < 0.02 * mean


def test_point_masses_have_no_divergence():
    for name in ("enode", "benode"):
        assert float(inits()[name](3, 2, 4, gain=1.0, key=jax.random.key(0), hidden=(5,)).divergence()) == 0
    assert float(gaussians.divergence(jnp.ones(3), jnp.zeros(3), 1.0, 1.0)) == 0


def test_benode_multiplies_what_comes_in_and_what_goes_out():
    posterior = benode.init(3, 2, 4, gain=1.0, key=jax.random.key(9), hidden=(6, 6))
    layers, inputs = posterior.draw(key=jax.random.key(10)), jnp.array([0.3, -1.2, 0.8])
    for member in range(4):
        values = inputs
        for place, layer in enumerate(posterior.layers):
            values = layer.outward[member] * (layer.weight @ (layer.inward[member] * values)) + layer.bias[member]
            values = values if place == 2 else elu(values)
        own = jax.tree.map(lambda leaf, m=member: leaf[m], layers)
        assert np.allclose(apply_layers(own, elu, inputs), values, atol=1e-6)
    assert not np.allclose(layers[0][0][0], layers[0][0][1])


@pytest.mark.parametrize(("module", "spreads"), [(benode, ("outward", "inward")), (ibnode, ("mean",))])
def test_factors_start_around_one(module, spreads):
    posterior: AbstractPosterior = module.init(4, 3, 10, gain=1.0, key=jax.random.key(11))
    for name in spreads:
        values = np.concatenate([np.asarray(getattr(layer, name)).ravel() for layer in vars(posterior)["layers"]])
        assert abs(values.mean() - 1) < 5 * 0.25 / np.sqrt(values.size)
        assert abs(values.std() - 0.25) < 0.02
