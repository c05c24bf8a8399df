"""Many adaptive solves in one loop: the answers of each alone, and their gradients, whatever runs beside them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ctrlax.ode.lanes import FEWEST, solve_lanes
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import SOLVERS, Adaptive

ADAPTIVE = [name for name, setting in SOLVERS.items() if isinstance(setting, Adaptive)]
TIMES = np.array([0.0, 0.4, 1.1, 1.3, 2.0])
MEMBERS, LANES = 2, 9  # enough for both stages: the slowest go on alone
CHANCE = np.random.default_rng(0)
STARTS = CHANCE.normal(size=(MEMBERS, LANES, 2))
WEIGHTS = CHANCE.normal(size=(MEMBERS, LANES, len(TIMES), 2))
ARRAYS = {
    "common": CHANCE.normal(size=(2, 2)),
    "members": CHANCE.normal(size=(MEMBERS, 2)),
    "own": CHANCE.uniform(0.5, 6.0, size=(MEMBERS, LANES)),  # of different speeds: they do not step together
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def adaptive(name):
    setting = SOLVERS[name]
    assert isinstance(setting, Adaptive)
    return setting


def field(common, member, own, time, state):
    return jnp.tanh(common @ state) * member - own * state + jnp.stack([jnp.sin(own * time), jnp.cos(3 * time)])


def jumping(common, member, own, time, state):
    return (
        field(common, member, own, time, state) + jnp.asarray([0.0, 3.0, -2.0, 1.0, 1.0])[jnp.floor(time).astype(int)]
    )


def together(setting, arrays, starts, jumps, max_steps=4000):
    which, times = (jumping, jnp.arange(5.0)) if jumps else (field, jnp.asarray(TIMES))
    return solve_lanes(
        which, arrays["common"], arrays["members"], arrays["own"], starts, times, setting,
        jumps=jumps, max_steps=max_steps,
    )  # fmt: skip


def each_alone(setting, arrays, starts, jumps):
    which, times = (jumping, jnp.arange(5.0)) if jumps else (field, jnp.asarray(TIMES))

    def one(member, own, start):
        whole = lambda time, state: which(arrays["common"], member, own, time, state)  # noqa: E731
        return solve(whole, start, times, setting, breaks=times[1:-1] if jumps else None, max_steps=4000)

    return jax.vmap(jax.vmap(one, (None, 0, 0)))(arrays["members"], arrays["own"], starts)


def slopes(how, setting, jumps, arrays, starts):
    def loss(inputs):
        return jnp.sum(WEIGHTS[:, : starts.shape[1]] * jnp.sin(how(setting, inputs[0], inputs[1], jumps).states))

    return jax.jit(jax.value_and_grad(loss))((jax.tree.map(jnp.asarray, arrays), jnp.asarray(starts)))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_states_health_and_work_are_those_of_each_alone(name):
    setting = adaptive(name).at(1e-5, 1e-7)
    inputs = setting, jax.tree.map(jnp.asarray, ARRAYS), jnp.asarray(STARTS), False
    many, each = (jax.jit(lambda how=how: how(*inputs))() for how in (together, each_alone))
    np.testing.assert_allclose(many.states, each.states, atol=1e-9)
    np.testing.assert_array_equal(many.healthy, each.healthy)
    assert np.abs(np.asarray(many.work - each.work)).max() <= 1  # one evaluation at the start is not repeated
    assert len(set(np.asarray(many.work).ravel())) > 1  # they did not step together


def test_few_trajectories_are_all_in_one_stage():
    setting, few = adaptive("dopri5"), lambda leaf: leaf[:, : FEWEST - 1]
    arrays = jax.tree.map(jnp.asarray, ARRAYS)
    fewer = {**arrays, "own": few(arrays["own"])}
    found = {}
    for name, inputs in {"all": (arrays, STARTS), "few": (fewer, few(STARTS))}.items():
        solve = jax.make_jaxpr(lambda a, s: together(setting, a, s, False).states)
        found[name] = str(solve(inputs[0], jnp.asarray(inputs[1]))).count("while[")
    assert (found["few"], found["all"]) == (1, 2)
    some = together(setting, fewer, jnp.asarray(few(STARTS)), False)
    every = together(setting, arrays, jnp.asarray(STARTS), False)
    np.testing.assert_allclose(some.states, few(every.states), atol=1e-12)


def difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize("name", ["dopri5", "tsit5", "bosh3", "heun", "dopri8"])
def test_gradients_are_those_of_the_same_steps_taken_alone(name):
    setting = adaptive(name).at(1e-4, 1e-6)
    lanes = LANES if name == "dopri5" else 3  # both stages once; the methods differ in neither
    arrays, starts = {**ARRAYS, "own": ARRAYS["own"][:, :lanes]}, STARTS[:, :lanes]
    value, many = slopes(together, setting, False, arrays, starts)
    expected, each = slopes(each_alone, setting, False, arrays, starts)
    assert value == pytest.approx(float(expected), rel=1e-10)
    assert difference(many, each) < 1e-7
    if name == "dopri5":  # the check can fail: other steps have other derivatives
        assert difference(slopes(together, setting.at(3e-4, 3e-6), False, arrays, starts)[1], each) > 1e-6


def test_a_field_that_jumps_is_stepped_to_its_jumps():
    # Behind a jump the two propose steps of different lengths: both are right to the tolerance.
    setting = adaptive("dopri5").at(1e-10, 1e-10)
    value, many = slopes(together, setting, True, ARRAYS, STARTS)
    expected, each = slopes(each_alone, setting, True, ARRAYS, STARTS)
    assert value == pytest.approx(float(expected), rel=1e-8)
    assert difference(many, each) < 1e-6
    work = int(together(setting, jax.tree.map(jnp.asarray, ARRAYS), jnp.asarray(STARTS), True).work.sum())
    arrays = jax.tree.map(jnp.asarray, ARRAYS)
    blind = solve_lanes(
        jumping, arrays["common"], arrays["members"], arrays["own"], jnp.asarray(STARTS), jnp.arange(5.0), setting,
        max_steps=4000,
    )  # fmt: skip
    assert int(blind.work.sum()) > 1.5 * work  # an adaptive solver that is not told of the jumps pays for them


def test_gradients_are_those_of_finite_differences():
    setting = adaptive("dopri5").at(1e-10, 1e-10)

    @jax.jit
    def value(inputs):
        return jnp.sum(WEIGHTS * jnp.sin(together(setting, inputs[0], inputs[1], False).states))

    inputs = jax.tree.map(jnp.asarray, (ARRAYS, STARTS))
    found, by_starts = jax.jit(jax.grad(value))(inputs)
    small = 1e-4
    for name, place in (("common", (1, 0)), ("members", (1, 1)), ("own", (0, 2))):
        ends = []
        for sign in (1, -1):
            moved = {**inputs[0], name: inputs[0][name].at[place].add(sign * small)}
            ends.append(value((moved, inputs[1])))
        assert found[name][place] == pytest.approx(float(ends[0] - ends[1]) / (2 * small), rel=1e-5, abs=1e-7)
    assert np.all(np.asarray(by_starts) != 0)


def test_seeds_run_in_one_loop_and_get_what_each_gets_alone():
    setting = adaptive("dopri5")
    seeds = [jax.tree.map(lambda leaf, k=k: jnp.asarray(leaf * (1 + 0.3 * k)), (ARRAYS, STARTS)) for k in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)

    def one(inputs):
        return jax.value_and_grad(lambda inputs: jnp.sum(together(setting, inputs[0], inputs[1], False).states ** 2))(
            inputs
        )

    every = jax.jit(jax.vmap(one))(stacked)
    for place, seed in enumerate(seeds):
        alone = jax.jit(one)(seed)
        here = jax.tree.map(lambda leaf, place=place: leaf[place], every)
        for got, wanted in zip(jax.tree.leaves(here), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)
    loops = str(jax.make_jaxpr(jax.vmap(one))(stacked)).count("while[")
    assert loops == str(jax.make_jaxpr(one)(seeds[0])).count("while[")


@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_what_fails_is_told_and_has_no_gradient_and_costs_the_others_none(bad):
    setting = adaptive("dopri5")
    starts = STARTS.copy()
    starts[0, 1] = bad

    def loss(inputs):
        solution = together(setting, inputs[0], inputs[1], False)
        return jnp.sum(jnp.where(solution.healthy[..., None, None], solution.states, 0.0) ** 2), solution.healthy

    def run(starts):
        return jax.jit(jax.grad(loss, has_aux=True))((jax.tree.map(jnp.asarray, ARRAYS), jnp.asarray(starts)))

    (found, by_starts), healthy = run(starts)
    assert not healthy[0, 1]
    assert int(healthy.sum()) == MEMBERS * LANES - 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert np.all(by_starts[0, 1] == 0)
    (_, sound), _ = run(STARTS)
    np.testing.assert_allclose(np.delete(by_starts.reshape(-1, 2), 1, 0), np.delete(sound.reshape(-1, 2), 1, 0))


def test_too_many_steps_are_no_success():
    solution = together(
        adaptive("dopri5").at(1e-9, 1e-9), jax.tree.map(jnp.asarray, ARRAYS), jnp.asarray(STARTS), False, 3
    )
    assert not np.any(solution.healthy)


def test_what_is_no_array_may_travel_with_the_arrays():
    class Named(eqx.Module):
        matrix: jax.Array
        name: str = eqx.field(static=True)

    def named(common, member, own, time, state):
        return field(common.matrix if common.name == "this" else None, member, own, time, state)

    arrays = jax.tree.map(jnp.asarray, ARRAYS)
    setting = adaptive("dopri5")
    found = solve_lanes(
        named, Named(arrays["common"], "this"), arrays["members"], arrays["own"], jnp.asarray(STARTS),
        jnp.asarray(TIMES), setting, max_steps=4000,
    )  # fmt: skip
    np.testing.assert_array_equal(found.states, together(setting, arrays, jnp.asarray(STARTS), False).states)


def test_what_nothing_is_asked_of_has_the_gradient_zero():
    def loss(inputs):
        solution = together(adaptive("dopri5"), inputs[0], inputs[1], False)
        return jnp.sum(solution.healthy) * inputs[1][0, 0, 0]

    _, by_starts = jax.grad(loss)((jax.tree.map(jnp.asarray, ARRAYS), jnp.asarray(STARTS)))
    assert by_starts[0, 0, 0] == MEMBERS * LANES
    assert np.count_nonzero(by_starts) == 1
