"""What is known of a field before learning: wrappers between a network and a rate.

A structure says how many outputs it wants from a network and which inputs it gives it, and turns the network into the
rate of an observation. Structures compose: ``second-order`` decides *which* coordinates are learned, ``affine`` and
``hamiltonian`` *how*, ``known-plus-residual`` on top of what.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ctrlax.errors import UserError
from ctrlax.model.coordinates import Coordinates, Scaling
from ctrlax.model.coordinates import coordinates_of as coordinates_of
from ctrlax.names import unknown_name

Observation = Float[Array, " observation"]
Action = Float[Array, " action"]
Network = Callable[[Float[Array, " in"]], Float[Array, " out"]]
Known = Callable[[Observation, Action], Observation]


class AbstractStructure(eqx.Module):
    """A network's place in a field."""

    @abc.abstractmethod
    def sizes(self) -> tuple[int, int]:
        """How many inputs the network is given and how many outputs are asked of it."""

    @abc.abstractmethod
    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        """The rates this structure answers for, in the world's units."""


class Plain(AbstractStructure):
    """``ds/dt = network(s, a)`` for the learned coordinates."""

    coordinates: Coordinates
    learned: tuple[int, ...] = eqx.field(static=True)

    def sizes(self) -> tuple[int, int]:
        return self.coordinates.observation_size + self.coordinates.action_size, len(self.learned)

    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        inputs = jnp.concatenate([scaling.observed(observation), scaling.acted(action)])
        return network(inputs) * scaling.rate_scale[jnp.array(self.learned)]


class Affine(AbstractStructure):
    """``ds/dt = f(s) + h(s) a`` (`eq:lin-act`) for the learned coordinates: one network gives ``f`` and ``h``."""

    coordinates: Coordinates
    learned: tuple[int, ...] = eqx.field(static=True)

    def sizes(self) -> tuple[int, int]:
        return self.coordinates.observation_size, len(self.learned) * (1 + self.coordinates.action_size)

    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        outputs = network(scaling.observed(observation)).reshape(1 + self.coordinates.action_size, len(self.learned))
        learned = outputs[0] + scaling.acted(action) @ outputs[1:]
        return learned * scaling.rate_scale[jnp.array(self.learned)]


class SecondOrder(AbstractStructure):
    """Positions move with their velocities, which is known; the acceleration is learned by ``inner``.

    ``d cos q = -sin q v dt`` and ``d sin q = cos q v dt`` for an angle, ``dx = v dt`` otherwise.
    """

    inner: AbstractStructure
    coordinates: Coordinates

    def sizes(self) -> tuple[int, int]:
        return self.inner.sizes()

    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        acceleration = self.inner.rate(network, scaling, observation, action)
        circles = dict(self.coordinates.circles)
        rates: list[Array] = [jnp.zeros(())] * self.coordinates.observation_size
        for i, (velocity, position) in enumerate(self.coordinates.rates):
            rates[velocity] = acceleration[i]
            if position in circles:
                rates[position] = -observation[circles[position]] * observation[velocity]
                rates[circles[position]] = observation[position] * observation[velocity]
            else:
                rates[position] = observation[velocity]
        return jnp.stack(rates)


class Hamiltonian(AbstractStructure):
    """Accelerations of a port-Hamiltonian system (`eq:ham`, `eq:ham2`) with energy ``H = v^T M(q) v / 2 + V(q)``.

    With the momentum ``p = M v``, ``dq/dt = dH/dp = v`` and ``dp/dt = -dH/dq + B(q) a`` become, in what is observed::

        M dv/dt = B a - dV/dq + d(v^T M v / 2)/dq - (dM/dt) v

    so that ``dH/dt = v^T B a``: energy comes in through the action alone. One network of the positions gives ``M = L
    L^T`` by its Cholesky factor (positive diagonal), ``V`` and ``B``; derivatives by an angle go along its circle.
    `eq:ham3` leaves out the mass matrix's derivative; here it is kept, since without it energy is not conserved.
    Velocities are in units of their scale inside, and so is the energy.
    """

    coordinates: Coordinates

    def sizes(self) -> tuple[int, int]:
        freedom = len(self.coordinates.rates)
        outputs = freedom * (freedom + 1) // 2 + 1 + freedom * self.coordinates.action_size
        return len(self.coordinates.positions()), outputs

    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        velocities = jnp.array(self.coordinates.velocities())
        scale = scaling.observation_scale[velocities]
        speeds = observation[velocities] / scale
        positions = observation[jnp.array(self.coordinates.positions())]

        def along(direction: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            return jax.jvp(lambda q: self._parts(network, scaling, q), (positions,), (direction,))

        parts, slopes = jax.vmap(along, out_axes=(None, 0))(self._directions(positions, scale))
        (factor, _, inputs), (factor_slopes, potential_slopes, _) = parts, slopes
        half = factor_slopes @ factor.T
        mass_slopes = half + jnp.swapaxes(half, 1, 2)
        mass_rate = jnp.tensordot(speeds, mass_slopes, 1)
        # No middle of the action here: energy is conserved where the action itself is zero.
        pushed = (scaling.rate_scale[velocities] / scale) * (inputs @ (action / scaling.action_scale))
        force = pushed - potential_slopes + 0.5 * (mass_slopes @ speeds) @ speeds - mass_rate @ speeds
        return scale * _solved(factor, force)

    def energy(self, network: Network, scaling: Scaling, observation: Observation) -> Float[Array, ""]:
        """``H``, up to a unit that data without action cannot tell."""
        velocities = jnp.array(self.coordinates.velocities())
        speeds = observation[velocities] / scaling.observation_scale[velocities]
        factor, potential, _ = self._parts(network, scaling, observation[jnp.array(self.coordinates.positions())])
        return 0.5 * jnp.sum((factor.T @ speeds) ** 2) + potential

    def _parts(self, network: Network, scaling: Scaling, positions: Array) -> tuple[Array, Array, Array]:
        places = jnp.array(self.coordinates.positions())
        velocities = jnp.array(self.coordinates.velocities())
        freedom = len(self.coordinates.rates)
        outputs = network((positions - scaling.observation_middle[places]) / scaling.observation_scale[places])
        below = freedom * (freedom - 1) // 2
        diagonal, lower, potential, inputs = jnp.split(outputs, [freedom, freedom + below, freedom + below + 1])
        factor = jnp.diag(LEAST_FACTOR + jax.nn.softplus(diagonal + _SOFTPLUS_SHIFT))
        factor = factor.at[jnp.tril_indices(freedom, -1)].set(lower)
        # A unit in which a network of order one gives accelerations of the data's size.
        lengths = scaling.observation_scale[jnp.array([place for _, place in self.coordinates.rates])]
        unit = jnp.mean(scaling.rate_scale[velocities] * lengths / scaling.observation_scale[velocities] ** 2)
        return factor, unit * potential[0], inputs.reshape(freedom, self.coordinates.action_size)

    def _directions(self, positions: Array, scale: Array) -> Float[Array, "velocity position"]:
        """How the positions move with each velocity of one scale."""
        circles = dict(self.coordinates.circles)
        directions = jnp.zeros((len(self.coordinates.rates), positions.shape[0]))
        place = 0
        for i, (_, position) in enumerate(self.coordinates.rates):
            if position in circles:
                turn = jnp.stack([-positions[place + 1], positions[place]])
                directions = directions.at[i, place : place + 2].set(scale[i] * turn)
                place += 2
            else:
                directions = directions.at[i, place].set(scale[i])
                place += 1
        return directions


LEAST_FACTOR = 0.1  # of the Cholesky factor's diagonal: no mass vanishes, so no acceleration grows without bound
_SOFTPLUS_SHIFT = math.log(math.expm1(1 - LEAST_FACTOR))  # a network's zero is the unit matrix


def _solved(factor: Float[Array, "row column"], right: Float[Array, " row"]) -> Float[Array, " row"]:
    # Written out: a triangular solve of two rows is a library call per trajectory, this fuses into the field.
    size = right.shape[0]
    half: list[Array] = []
    for i in range(size):
        half.append((right[i] - sum(factor[i, j] * half[j] for j in range(i))) / factor[i, i])
    full: list[Array] = [right[0]] * size
    for i in reversed(range(size)):
        full[i] = (half[i] - sum(factor[j, i] * full[j] for j in range(i + 1, size))) / factor[i, i]
    return jnp.stack(full)


class KnownPlusResidual(AbstractStructure):
    """``ds/dt = known(s, a) + inner(s, a)`` for the learned coordinates: what is known need not be learned again.

    ``known`` gives the rate of the whole observation; of it only the learned coordinates are used.
    """

    inner: AbstractStructure
    known: Known = eqx.field(static=True)
    learned: tuple[int, ...] = eqx.field(static=True)

    def sizes(self) -> tuple[int, int]:
        return self.inner.sizes()

    def rate(
        self, network: Network, scaling: Scaling, observation: Observation, action: Action
    ) -> Float[Array, " rate"]:
        rate = jnp.asarray(self.known(observation, action))
        if rate.shape != observation.shape:
            raise UserError(
                f"known(observation, action) must give the rate of all {observation.shape[0]} observation "
                f"coordinates, but the shape {rate.shape} came: give zeros where nothing is known"
            )
        return rate[jnp.array(self.learned)] + self.inner.rate(network, scaling, observation, action)


KNOWN = "known"
STRUCTURES = {
    KNOWN: "whatever the system's file says is known of it",
    "affine": "the action enters linearly",
    "second-order": "velocities are the rates of positions, accelerations are learned",
    "hamiltonian": "accelerations from a mass matrix, a potential and an input matrix; energy comes from actions alone",
    "known-plus-residual": "a known part of the rate, given in Python as known=, and a learned rest",
}


def build(names: tuple[str, ...], coordinates: Coordinates, known: Known | None = None) -> AbstractStructure:
    """The structure of those names, in any order; none is `Plain`.

    ``hamiltonian`` is second-order and affine by itself. Giving ``known`` is asking for ``known-plus-residual``.
    """
    for name in names:
        if name not in STRUCTURES:
            raise unknown_name("structure", name, STRUCTURES)
    if "known-plus-residual" in names and known is None:
        raise UserError(
            "the structure known-plus-residual needs the known part: pass known=, a function of observation and action "
            "that gives a rate, in Python; the command line has no way to give one"
        )
    second = "second-order" in names or "hamiltonian" in names
    if second:
        _check_second_order(coordinates, "hamiltonian" if "hamiltonian" in names else "second-order")
    learned = coordinates.velocities() if second else tuple(range(coordinates.observation_size))
    if "hamiltonian" in names:
        inner = Hamiltonian(coordinates)
    else:
        inner = (Affine if "affine" in names else Plain)(coordinates, learned)
    if known is not None:
        inner = KnownPlusResidual(inner, known, learned)
    return SecondOrder(inner, coordinates) if second else inner


def _check_second_order(coordinates: Coordinates, name: str) -> None:
    accounted = {*coordinates.velocities(), *coordinates.positions()}
    missing = [place for place in range(coordinates.observation_size) if place not in accounted]
    if missing:
        told = [coordinates.names[place] if coordinates.names else f"number {place}" for place in missing]
        raise UserError(
            f"the structure {name} needs to know which position every velocity is the rate of, but {', '.join(told)} "
            "is neither such a velocity nor such a position: name the pair in the system's velocities and rates_of, "
            "or drop the structure"
        )
    if not coordinates.rates:
        raise UserError(f"the structure {name} needs at least one velocity and its position: drop the structure")
