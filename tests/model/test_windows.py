"""Windows: the action between points, which windows are drawn, and what a batch of them predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import chisquare

import ctrlax
from ctrlax import config
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import NeuralODE
from ctrlax.model.families import enode
from ctrlax.model.fit import Learned, begin, fit_update, simulate_windows
from ctrlax.model.network import apply_layers, elu
from ctrlax.model.registry import world_coordinates
from ctrlax.model.structure import Coordinates, Scaling, build
from ctrlax.model.windows import PATH_DEGREE, Recording, Windows, action_paths, draw_windows, pack, path_action
from ctrlax.ode.control import Held, Kernel, Linear, draw_path
from ctrlax.ode.solvers import named

CONTROLS = {"gp": Kernel, "linear": Linear, "hold": Held}
ENVIRONMENT = ctrlax.make("pendulum")


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def smooth_log(steps, *, seed, observations=3):
    times = np.concatenate([[0.0], np.cumsum(steps)])
    path = draw_path(times, 1, key=jax.random.key(seed), scale=0.5)
    actions = 2 * np.tanh(np.asarray(jax.vmap(lambda t: path(jnp.zeros(1), t))(jnp.asarray(times))))
    seen = np.random.default_rng(seed).normal(size=(len(times), observations))
    return Log(times, seen, actions)


def path_error(log, hold, paths):
    """The largest difference between the polynomials and the control itself, and the largest action."""
    control = CONTROLS[hold](log.times, log.actions)
    tau = np.linspace(1e-6, 1 - 1e-6, 41)  # at an end the control may be the next interval's
    times = log.times[:-1, None] + np.diff(log.times)[:, None] * tau
    exact = jax.vmap(jax.vmap(lambda t: control(jnp.zeros(1), t)))(jnp.asarray(times))
    mine = jax.vmap(lambda path: jax.vmap(lambda tau: path_action(path, tau))(jnp.asarray(tau)))(jnp.asarray(paths))
    return float(jnp.max(jnp.abs(exact - mine))), float(np.max(np.abs(log.actions)))


GAPS = {
    "up to 1 s": (lambda random: random.uniform(0.02, 1.0, 40), 1e-4),
    "fixed, 0.2 s": (lambda random: np.full(49, 0.2), 1e-6),
    "fixed, 0.1 s": (lambda random: np.full(49, 0.1), 1e-6),
    "up to 0.2 s": (lambda random: random.uniform(0.01, 0.2, 49), 1e-6),
}


@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("hold", CONTROLS)
def test_the_polynomials_follow_the_control(hold, gaps):
    draw, tolerance = GAPS[gaps]
    for seed in range(3):
        log = smooth_log(draw(np.random.default_rng(seed)), seed=seed)
        paths = action_paths(log, hold)
        error, size = path_error(log, hold, paths)
        assert error < tolerance * size
        shifted = np.roll(paths, 1, axis=0)  # the action of the interval before
        assert path_error(log, hold, shifted)[0] > 100 * tolerance


def marked(counts, *, trajectories, points, padding=0.0):
    """A recording whose observations name their trajectory and place; everything past a count is ``padding``."""
    seen = np.full((trajectories, points, 2), padding)
    actions, steps = np.full((trajectories, points, 1), padding), np.ones((trajectories, points - 1))
    paths = np.full((trajectories, points - 1, PATH_DEGREE + 1, 1), padding)
    for place, count in enumerate(counts):
        seen[place, :count, 0], seen[place, :count, 1] = place / 10, np.arange(count) / 10
        actions[place, :count], paths[place, : max(count - 1, 0)] = 0.1, 0.01
        steps[place, : max(count - 1, 0)] = 0.1
    lengths = jnp.asarray([*counts, *[0] * (trajectories - len(counts))], jnp.int32)
    return Recording(jnp.asarray(seen), jnp.asarray(actions), jnp.asarray(steps), jnp.asarray(paths), lengths)


def tally(windows, counts, points):
    chosen = np.asarray(windows.present)
    where = np.round(np.asarray(windows.starts)[chosen] * 10).astype(int)
    return np.array([
        np.sum((where[:, 0] == i) & (where[:, 1] == first))
        for i, count in enumerate(counts)
        for first in range(count - points + 1)
    ])  # fmt: skip


def test_every_window_of_all_is_as_likely_as_any_other():
    counts, points = (12, 4, 30, 3, 7), 4
    recording = marked(counts, trajectories=8, points=30, padding=1e6)
    windows = draw_windows(recording, points=points, per_trajectory=None, total=20_000, key=jax.random.key(0))
    assert bool(jnp.all(windows.present))
    found = tally(windows, counts, points)
    assert found.sum() == 20_000
    assert chisquare(found).pvalue > 1e-3
    each = draw_windows(recording, points=points, per_trajectory=2500, total=0, key=jax.random.key(0))
    assert chisquare(tally(each, counts, points)).pvalue < 1e-6  # uniform over trajectories is not


def test_windows_of_each_trajectory_are_uniform_and_short_ones_are_absent():
    counts, points = (12, 3, 7), 4
    recording = marked(counts, trajectories=5, points=12, padding=1e6)
    windows = draw_windows(recording, points=points, per_trajectory=4000, total=0, key=jax.random.key(1))
    assert np.array_equal(np.asarray(windows.present).reshape(5, -1).sum(axis=1), [4000, 0, 4000, 0, 0])
    found = tally(windows, counts, points)
    assert chisquare(found[:9]).pvalue > 1e-3
    assert chisquare(found[9:]).pvalue > 1e-3


def test_a_window_holds_consecutive_points_and_no_padding():
    recording = marked((12, 4, 9), trajectories=6, points=12, padding=1e6)
    windows = draw_windows(recording, points=4, per_trajectory=None, total=500, key=jax.random.key(2))
    whole = jnp.concatenate([windows.starts[:, None], windows.targets], axis=1)
    assert np.allclose(np.diff(whole[..., 1], axis=1), 0.1)
    assert np.ptp(whole[..., 0], axis=1).max() == 0
    assert np.allclose(windows.steps, 0.1)
    assert np.allclose(windows.paths, 0.01)


def small_model(*, key, members=3, structure=()):
    coordinates = world_coordinates(ENVIRONMENT)
    form = build(structure, coordinates)
    posterior = enode.init(*form.sizes(), members, gain=1.0, key=key, hidden=(16, 16))
    scaling = Scaling(jnp.zeros(3), jnp.ones(3), jnp.zeros(1), jnp.full(1, 2.0), jnp.ones(3))
    return NeuralODE(posterior, form, scaling)


@pytest.mark.parametrize("per_trajectory", [3, None])
def test_padding_never_leaks_into_an_update(per_trajectory):
    model = NeuralODE(
        enode.init(3, 2, 2, gain=1.0, key=jax.random.key(3), hidden=(8,)),
        build((), Coordinates(2, 1)),
        Scaling(jnp.zeros(2), jnp.ones(2), jnp.zeros(1), jnp.ones(1), jnp.ones(2)),
    )
    settings = config.Fit(windows_per_trajectory=per_trajectory, windows=12, window_points=4, solver="rk4")
    update = jax.jit(lambda state, recording: fit_update(settings, state, recording, jnp.asarray(1.0)))
    state = begin(Learned(model, jnp.zeros(2)), key=jax.random.key(4))
    clean, dirty = (marked((12, 3, 7), trajectories=5, points=12, padding=p) for p in (0.0, 1e6))
    (one, first), (two, second) = update(state, clean), update(state, dirty)
    assert bool(first.applied)
    assert float(first.loss) == float(second.loss)
    for a, b in zip(jax.tree.leaves(one.learned), jax.tree.leaves(two.learned), strict=True):
        assert np.array_equal(a, b)
    inside = jnp.asarray(clean.observations).at[0, 5].set(1e3)  # a point that counts does change it
    third = update(state, Recording(inside, clean.actions, clean.steps, clean.paths, clean.counts))[1]
    assert float(third.loss) != float(first.loss)


def irregular_windows(*, key):
    logs = [smooth_log(np.random.default_rng(seed).exponential(0.1, 11), seed=seed) for seed in range(3)]
    dataset = Dataset(tuple(logs), ENVIRONMENT.observation_names, ENVIRONMENT.action_names)
    recording = pack(dataset, trajectories=3, points=12)
    exact = np.stack([action_paths(log, "gp") for log in logs])  # the arrays that learn are float32
    steps = np.stack([np.diff(log.times) for log in logs])
    seen, actions = (jnp.asarray(leaf, jnp.float64) for leaf in (recording.observations, recording.actions))
    double = Recording(seen, actions, jnp.asarray(steps), jnp.asarray(exact), jnp.asarray(recording.counts))
    windows = draw_windows(double, points=5, per_trajectory=2, total=0, key=key)
    firsts = [
        int(np.argmin(np.abs(np.asarray(logs[i // 2].observations) - start).sum(1)))
        for i, start in enumerate(np.asarray(windows.starts))
    ]
    return logs, firsts, windows


def alone(model, layers, log, first, start):
    """One window on its own clock, under the kernel itself, by SciPy."""
    control = Kernel(log.times, log.actions)
    knots, weights = np.asarray(control.knots), np.asarray(control.weights)
    layers = [(np.asarray(w), np.asarray(b)) for w, b in layers]

    def field(time, state):
        action = np.exp(-0.5 * ((time - knots) / 0.5) ** 2) @ weights
        inputs = np.concatenate([state, action / 2])
        for weight, bias in layers[:-1]:
            inputs = weight @ inputs + bias
            inputs = np.where(inputs > 0, inputs, np.expm1(np.minimum(inputs, 0)))
        return layers[-1][0] @ inputs + layers[-1][1]

    times = log.times[first : first + 5] - log.times[0]
    solved = solve_ivp(field, times[[0, -1]], start, method="DOP853", t_eval=times, rtol=1e-11, atol=1e-12)
    return solved.y.T[1:]


SETTINGS = {"rk4-10": named("rk4-10"), "dopri5, tight": named("dopri5").at(1e-7, 1e-8)}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_irregular_batch_predicts_what_each_window_alone_does(name):
    logs, firsts, windows = irregular_windows(key=jax.random.key(5))
    model = small_model(key=jax.random.key(6))
    members = model.draw(key=jax.random.key(7))
    solve = jax.jit(lambda members, windows: simulate_windows(model, members, windows, SETTINGS[name]))
    states, healthy, work = solve(members, windows)
    assert bool(jnp.all(healthy))
    assert int(work) > 0
    expected = np.stack([
        np.stack([
            alone(model, jax.tree.map(lambda leaf, m=member: leaf[m], members), logs[i // 2], first, start)
            for i, (first, start) in enumerate(zip(firsts, np.asarray(windows.starts), strict=True))
        ]) for member in range(3)
    ])  # fmt: skip
    assert np.max(np.abs(states - expected)) < 1e-5
    uneven = Windows(windows.starts, windows.targets, jnp.full_like(windows.steps, 0.1), windows.paths, windows.present)
    assert np.max(np.abs(solve(members, uneven)[0] - expected)) > 1e-3  # as if times were regular


def test_in_float32_too():
    windows = irregular_windows(key=jax.random.key(5))[2]
    model = small_model(key=jax.random.key(6))
    setting = SETTINGS["rk4-10"]
    double = simulate_windows(model, model.draw(key=jax.random.key(7)), windows, setting)[0]
    single = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, (model, windows)
    )
    states = simulate_windows(single[0], single[0].draw(key=jax.random.key(7)), single[1], setting)[0]
    assert states.dtype == jnp.float32
    assert np.max(np.abs(states - double)) < 1e-5


def test_layers_are_what_the_oracle_above_computes():
    layers = ((jnp.ones((2, 1)), jnp.array([0.0, -3.0])), (jnp.ones((1, 2)), jnp.zeros(1)))
    assert np.allclose(apply_layers(layers, elu, jnp.ones(1)), 1 + np.expm1(-2.0))
