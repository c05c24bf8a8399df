"""Structures: what each one promises of a field, whatever the network says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.model import registry, structure
from ctrlax.model.families import enode
from ctrlax.model.network import apply_layers, elu
from ctrlax.model.structure import Coordinates, Scaling, coordinates_of
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import named

ENVIRONMENTS = [ctrlax.make(name) for name in ("pendulum", "cartpole", "acrobot")]
CARTPOLE = ENVIRONMENTS[1]


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=ENVIRONMENTS, ids=lambda environment: environment.name)
def environment(request):
    return request.param


def scaling_for(coordinates, *, seed=0):
    random = np.random.default_rng(seed)
    sizes = coordinates.observation_size, coordinates.action_size
    draws = [random.uniform(0.5, 2.0, size) for size in (sizes[0], sizes[0], sizes[1], sizes[1], sizes[0])]
    draws[0] -= 1.2
    return Scaling(*map(jnp.asarray, draws))


def built(names, coordinates, known=None, *, seed=0):
    form = structure.build(names, coordinates, known)
    posterior = enode.init(*form.sizes(), 1, gain=1.0, key=jax.random.key(seed), hidden=(16, 16))
    layers = jax.tree.map(lambda leaf: leaf[0], posterior.layers)
    return form, lambda inputs: apply_layers(layers, elu, inputs)


def points(environment, count=5, *, seed=1):
    random = np.random.default_rng(seed)
    states = jnp.asarray(random.uniform(-1.5, 1.5, (count, environment.state_size)))
    return jax.vmap(environment.observe)(states), jnp.asarray(random.uniform(-1, 1, (count, environment.action_size)))


def rates(form, network, scaling, observations, actions):
    return np.asarray(jax.jit(jax.vmap(lambda o, a: form.rate(network, scaling, o, a)))(observations, actions))


@pytest.mark.parametrize("names", [("second-order",), ("second-order", "affine"), ("hamiltonian",)], ids="+".join)
def test_positions_move_with_their_velocities_exactly(environment, names):
    coordinates = registry.world_coordinates(environment)
    form, network = built(names, coordinates)
    observations, actions = points(environment)
    truth = registry.build_field(config.Model("true"), environment, scaling_for(coordinates), key=jax.random.key(0))
    exact = np.asarray(jax.jit(jax.vmap(lambda o, a: truth.rate(jnp.zeros(()), o, a)))(observations, actions))
    rate = rates(form, network, scaling_for(coordinates), observations, actions)
    places = np.array(coordinates.positions())
    assert np.allclose(rate[:, places], exact[:, places], rtol=0, atol=1e-12)
    assert not np.allclose(rate, exact, atol=1e-2)  # accelerations are the network's, not the truth


def test_affine_is_affine_and_plain_is_not():
    environment = CARTPOLE
    coordinates = registry.world_coordinates(environment)
    scaling = scaling_for(coordinates)
    observations, actions = points(environment)
    for names, affine in (
        (("affine",), True),
        (("affine", "second-order"), True),
        (("hamiltonian",), True),
        ((), False),
    ):
        form, network = built(names, coordinates)
        first, last, middle = (rates(form, network, scaling, observations, actions * by) for by in (0.0, 2.0, 1.0))
        assert (np.abs(first + last - 2 * middle).max() < 1e-12) == affine


def rolled(form, network, scaling, start, action):
    times, setting = jnp.linspace(0.0, 2.0, 41), named("rk4-10")
    run = jax.jit(lambda s, a: solve(lambda _, s: form.rate(network, scaling, s, a), s, times, setting))
    return run(start, action)


def test_energy_is_conserved_without_action(environment):
    coordinates = registry.world_coordinates(environment)
    form, network = built(("hamiltonian",), coordinates)
    plain, other = built(("second-order",), coordinates)
    assert isinstance(form, structure.SecondOrder)
    hamiltonian = form.inner
    assert isinstance(hamiltonian, structure.Hamiltonian)
    scaling = scaling_for(coordinates)

    def energy(observation):
        return hamiltonian.energy(network, scaling, observation)

    def gained(form, network, by):
        def one(observation, action):
            moved = form.rate(network, scaling, observation, by * action)
            return jax.jvp(energy, (observation,), (moved,))[1]

        return np.abs(jax.jit(jax.vmap(one))(observations, actions)).max()

    observations, actions = points(environment)
    observations = observations * 1.02  # off the circle too, where noise puts it
    assert gained(form, network, 0.0) < 1e-12
    assert gained(form, network, 1.0) > 1e-2
    assert gained(plain, other, 0.0) > 1e-2
    free = rolled(form, network, scaling, observations[0], jnp.zeros(environment.action_size))
    at_rest = free.states.at[:, np.array(coordinates.velocities())].set(0.0)
    assert bool(free.healthy)
    assert np.ptp(jax.vmap(energy)(at_rest)) > 1e-2  # kinetic and potential energy do exchange
    assert np.ptp(jax.vmap(energy)(free.states)) < 1e-5  # second derivatives of ELU jump: Runge-Kutta loses its order


def cartpoles_energy(positions):
    """What a network would have to say of CartPole: Cholesky factor of the mass matrix, potential, input matrix."""
    _, cos, _ = positions
    mass = jnp.array([[1.1, 0.0], [0.0, 0.1 * 4 / 3]]) + 0.1 * cos * jnp.array([[0.0, 1.0], [1.0, 0.0]])
    factor = jnp.linalg.cholesky(mass)
    diagonal = jnp.diag(factor) - structure.LEAST_FACTOR
    raw = jnp.log(jnp.expm1(diagonal)) - jnp.log(jnp.expm1(1 - structure.LEAST_FACTOR))
    return jnp.concatenate([raw, factor[1, :1], 0.1 * 9.8 * cos[None], jnp.array([3.0, 0.0])])


def test_with_cartpoles_energy_it_is_cartpole():
    environment = CARTPOLE
    coordinates = registry.world_coordinates(environment)
    form = structure.build(("hamiltonian",), coordinates)
    one = Scaling(jnp.zeros(5), jnp.ones(5), jnp.zeros(1), jnp.ones(1), jnp.ones(5))
    truth = registry.build_field(config.Model("true"), environment, one, key=jax.random.key(0))
    observations, actions = points(environment)
    exact = jax.jit(jax.vmap(lambda o, a: truth.rate(jnp.zeros(()), o, a)))(observations, actions)
    assert np.allclose(rates(form, cartpoles_energy, one, observations, actions), exact, atol=1e-10)

    def simplified(observation, action):  # eq:ham3 to the letter: no derivative of the mass matrix
        here = cartpoles_energy(observation[jnp.array(coordinates.positions())])
        return form.rate(lambda q: here.at[3].set(cartpoles_energy(q)[3]), one, observation, action)

    assert not np.allclose(jax.jit(jax.vmap(simplified))(observations, actions), exact, atol=1e-3)


def test_the_network_gives_what_the_known_part_leaves_over():
    environment = CARTPOLE
    coordinates = registry.world_coordinates(environment)
    scaling = scaling_for(coordinates)

    def known(observation, action):
        return jnp.sin(observation) * (1 + jnp.sum(action))

    observations, actions = points(environment)
    expected = np.asarray(jax.vmap(known)(observations, actions))
    for names in ((), ("second-order",), ("hamiltonian",), ("affine", "known-plus-residual")):
        (whole, network), (rest, _) = built(names, coordinates, known), built(names[:1], coordinates)
        more = rates(whole, network, scaling, observations, actions) - rates(
            rest, network, scaling, observations, actions
        )
        wanted = expected.copy()
        if names and names[0] != "affine":
            wanted[:, np.array(coordinates.positions())] = 0.0  # kinematics are known already, and exact
        assert np.allclose(more, wanted, atol=1e-12)


def test_a_known_part_of_the_wrong_shape_is_told():
    coordinates = Coordinates(3, 1)
    form, network = built((), coordinates, known=lambda observation, action: observation[:2])
    with pytest.raises(UserError, match=r"all 3 observation coordinates, but the shape \(2,\) came"):
        form.rate(network, scaling_for(coordinates), jnp.zeros(3), jnp.zeros(1))


@pytest.mark.parametrize(
    ("names", "coordinates", "message"),
    [
        (("afine",), Coordinates(2, 1), "Unknown structure 'afine'. Did you mean 'affine'?"),
        (("known-plus-residual",), Coordinates(2, 1), "pass known=, a function of observation and action"),
        (
            ("second-order",),
            coordinates_of(("x", "v", "q"), 1, {"v": "x"}),
            "structure second-order .* but q is neither",
        ),
        (("hamiltonian",), Coordinates(1, 1), "structure hamiltonian .* but number 0 is neither"),
    ],
)
def test_what_cannot_be_built_is_told(names, coordinates, message):
    with pytest.raises(UserError, match=message):
        structure.build(names, coordinates)


def test_coordinates_are_read_from_names():
    environment = ENVIRONMENTS[2]
    coordinates = registry.world_coordinates(environment)
    assert coordinates.circles == ((0, 1), (2, 3))
    assert coordinates.rates == ((4, 0), (5, 2))
    assert coordinates.positions() == (0, 1, 2, 3)
    assert coordinates.velocities() == (4, 5)
    assert coordinates_of(("y",), 1, {"v": "x"}).rates == ()  # observations of its own
