"""The ELBO against a hand computation in NumPy; the likelihood with inferred first states against a dense Gaussian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

import ctrlax
from ctrlax import config
from ctrlax.model import first_state, fit, registry
from ctrlax.model.dataset import Dataset
from ctrlax.model.dynamics import NeuralODE
from ctrlax.model.families import ibnode
from ctrlax.model.fit import Learned, from_inferred, from_observed, negative_elbo, simulate_windows
from ctrlax.model.structure import Coordinates, Scaling, build
from ctrlax.model.windows import Recording, Windows, draw_windows, pack
from ctrlax.ode.solvers import named
from ctrlax.world.collect import random_controls, simulate
from ctrlax.world.grids import draw_times

SCALES = np.array([2.0, 0.5])
RATES = np.array([1.5, 3.0])
ACTION_SCALE = 0.7
LOG_NOISE = np.array([-1.0, -2.0])
POINTS = 250.0  # in the dataset
ELBO = eqx.filter_jit(negative_elbo)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def linear():
    """An IBNODE without hidden layers: its field is linear, its divergence is not zero."""
    scaling = Scaling(*map(jnp.asarray, (np.zeros(2), SCALES, np.zeros(1), np.full(1, ACTION_SCALE), RATES)))
    posterior = jax.jit(lambda key: ibnode.init(3, 2, 3, gain=1.0, key=key, hidden=()))(jax.random.key(0))
    return Learned(NeuralODE(posterior, build((), Coordinates(2, 1)), scaling), jnp.asarray(LOG_NOISE))


@pytest.fixture
def windows():
    random = np.random.default_rng(0)
    starts, targets = jnp.asarray(random.normal(size=(4, 2))), jnp.asarray(random.normal(size=(4, 3, 2)))
    steps, paths = jnp.asarray(random.uniform(0.05, 0.2, (4, 3))), jnp.asarray(random.normal(size=(4, 3, 2, 1)))
    return Windows(starts, targets, steps, paths, jnp.ones(4, bool))


def by_hand(learned, windows, *, key, kl_scale=1 / POINTS, power=2):
    """Loops, NumPy and Runge-Kutta written out once more; three members, four windows of three later points."""
    (layer,), (drawn,) = learned.dynamics.posterior.layers, learned.dynamics.draw(key=key)
    weights, biases = map(np.asarray, drawn)
    total = 0.0
    for weight, bias in zip(weights, biases, strict=True):
        for start, targets, steps, paths in zip(*map(np.asarray, jax.tree.leaves(windows)[:4]), strict=True):
            state = start
            for target, step, path in zip(targets, steps, paths, strict=True):

                def field(tau, s, path=path, weight=weight, bias=bias):
                    action = path[0] + path[1] * (2 * tau - 1)
                    return RATES * (weight @ np.concatenate([s / SCALES, action / ACTION_SCALE]) + bias)

                one = field(0.0, state)
                two = field(0.5, state + step / 2 * one)
                three = field(0.5, state + step / 2 * two)
                four = field(1.0, state + step * three)
                state = state + step / 6 * (one + 2 * two + 2 * three + four)
                total += norm.logpdf(target / SCALES, state / SCALES, np.exp(LOG_NOISE) ** (power / 2)).sum()
    mean, scale = np.asarray(layer.mean), np.exp(np.asarray(layer.log_scale))
    divergence = (-np.log(scale) + (scale**2 + (mean - 1) ** 2) / 2 - 0.5).sum() / 3
    return -total / (3 * 4 * 3) + kl_scale * divergence


def test_it_is_what_a_hand_computes(linear, windows):
    key = jax.random.key(1)
    points = jnp.asarray(POINTS)
    loss, (error, unhealthy, work) = ELBO(linear, windows, points, named("rk4"), 1.0, key=key)
    assert np.isclose(loss, by_hand(linear, windows, key=key), rtol=1e-12)
    assert int(unhealthy) == 0
    assert int(work) == 3 * 4 * 3 * 4
    assert float(error) > 0
    assert not np.isclose(loss, by_hand(linear, windows, key=key, kl_scale=1.0), rtol=1e-6)
    assert not np.isclose(loss, by_hand(linear, windows, key=key, power=1), rtol=1e-6)  # Sigma taken for sigma
    halved = ELBO(linear, windows, points, named("rk4"), 0.5, key=key)[0]
    assert np.isclose(halved, by_hand(linear, windows, key=key, kl_scale=0.5 / POINTS), rtol=1e-12)


def test_windows_left_out_count_nowhere(linear, windows):
    key = jax.random.key(1)
    present = eqx.tree_at(lambda w: w.present, windows, jnp.array([True, True, False, True]))
    three = jax.tree.map(lambda leaf: leaf[np.array([0, 1, 3])], windows)
    for name in fit.LIKELIHOODS:
        some, fewer = (
            ELBO(linear, w, jnp.asarray(POINTS), named("rk4"), 1.0, key=key, first_state=name) for w in (present, three)
        )
        assert np.isclose(some[0], fewer[0], rtol=1e-12)
        assert np.allclose(some[1], fewer[1], rtol=1e-12)


def test_an_update_scales_to_the_whole_dataset(linear):
    random = np.random.default_rng(2)
    counts = jnp.array([9, 12, 0, 5], jnp.int32)
    seen, acted, paths = (jnp.asarray(random.normal(size=size)) for size in ((4, 12, 2), (4, 12, 1), (4, 11, 2, 1)))
    recording = Recording(seen, acted, jnp.full((4, 11), 0.1), paths, counts)
    losses, one = [], jnp.asarray(1.0)
    for weight in (0.0, 1.0):
        settings = config.Fit(solver="rk4", kl_weight=weight)
        state = fit.begin(linear, key=jax.random.key(3))
        update = jax.jit(lambda state, recording, settings=settings: fit.fit_update(settings, state, recording, one)[1])
        losses.append(float(update(state, recording).loss))
    divergence = float(linear.dynamics.divergence())
    assert np.isclose(losses[1] - losses[0], divergence / (9 + 12 + 5), rtol=1e-10)


def density(wrong, covariance):
    return -0.5 * (wrong @ np.linalg.solve(covariance, wrong) + np.linalg.slogdet(2 * np.pi * covariance)[1])


def test_inferred_first_states_are_a_dense_gaussian(linear, windows):
    members = linear.dynamics.draw(key=jax.random.key(4))
    given = linear.dynamics, members, windows, linear.log_noise, named("rk4")
    judged = eqx.filter_jit(from_inferred)(*given)

    def later(start):
        first = jax.tree.map(lambda leaf: leaf[:1], windows)
        moved = eqx.tree_at(lambda w: w.starts, first, start[None])
        return simulate_windows(linear.dynamics, members, moved, named("rk4"))[0][0, 0].ravel()

    jacobian = np.asarray(jax.jit(jax.jacrev(later))(windows.starts[0])) / np.tile(SCALES, 3)[:, None] * SCALES
    noise = np.diag(np.exp(2 * LOG_NOISE))
    covariance = np.kron(np.eye(3), noise) + jacobian @ noise @ jacobian.T
    wrong = np.asarray(judged.wrong[0, 0]).ravel()
    exact = density(wrong, covariance)
    assert np.isclose(judged.log_likelihood[0, 0], exact, rtol=1e-5)  # the ridge
    plain = eqx.filter_jit(from_observed)(*given).log_likelihood[0, 0]
    assert np.isclose(plain, density(wrong, np.kron(np.eye(3), noise)), rtol=1e-12)
    assert not np.isclose(plain, exact, rtol=1e-2)


NOISE = 0.025


def noisy_cartpole():
    environment = ctrlax.make("cartpole")
    keys = jax.random.split(jax.random.key(5), 4)
    times = draw_times("fixed", 0.1, 50, key=keys[0], trajectories=10)
    controls = random_controls(environment, times, key=keys[1])
    seen = simulate(environment, controls, times, key=keys[2], noise=NOISE)
    recording = pack(Dataset.from_trajectory(seen, environment), trajectories=10, points=50)
    scaling = Scaling(jnp.zeros(5), jnp.ones(5), jnp.zeros(1), jnp.ones(1), jnp.ones(5))
    truth = registry.build_field(config.Model("true"), environment, scaling, key=keys[3])
    recording = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float64 if leaf.dtype == np.float32 else None), recording
    )
    return truth, draw_windows(recording, points=5, per_trajectory=15, total=0, key=keys[3])


def most_likely(judge):
    value = jax.jit(jax.value_and_grad(lambda log_noise: -jnp.sum(judge(log_noise))))
    found = minimize(lambda x: tuple(map(np.asarray, value(jnp.asarray(x)))), np.full(5, -3.0), jac=True)
    return np.exp(found.x)


def test_inferring_the_first_state_removes_the_bias_of_a_noisy_start():
    truth, windows = noisy_cartpole()
    members = truth.draw(key=jax.random.key(6))
    begun = eqx.tree_at(lambda w: w.starts, windows, jax.vmap(first_state.beginning)(windows.starts))
    states, healthy, _ = jax.jit(lambda: simulate_windows(first_state.Sensitive(truth), members, begun, named("rk4")))()
    assert bool(jnp.all(healthy))
    states, derivatives = first_state.unpacked(states[0], 5)
    wrong = states - windows.targets
    plain = np.sqrt(np.mean(np.asarray(wrong) ** 2, axis=(0, 1))) / NOISE
    inferred = most_likely(lambda log: jax.vmap(lambda w, d: first_state.log_likelihood(w, d, log))(wrong, derivatives))
    inferred = inferred / NOISE
    print("most likely sigma over the true one: observed", plain.round(2), "inferred", inferred.round(2))
    assert np.all(np.abs(inferred - 1) < 0.2)
    assert np.any(np.abs(plain - 1) > 0.2)
