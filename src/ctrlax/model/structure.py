"""What is known of a field before learning: wrappers between a network and a rate.

A structure says how many outputs it wants from a network and which inputs it gives it, and turns the network into the rate of
an observation. Structures compose: ``second-order`` decides *which* coordinates are learned, ``affine`` *how* the action enters.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ctrlax.errors import UserError

Observation = Float[Array, " observation"]
Action = Float[Array, " action"]
Network = Callable[[Float[Array, " in"]], Float[Array, " out"]]


class Coordinates(eqx.Module):
    """What the coordinates of an observation are, so far as a structure needs it. Places index the observation."""

    observation_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    circles: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())  # places of (cos, sin) of each angle
    rates: tuple[tuple[int, int], ...] = eqx.field(
        static=True, default=()
    )  # (place of velocity, place of position or of cos)


def coordinates_of(names: tuple[str, ...], action_size: int, rates: dict[str, str]) -> Coordinates:
    """From observation names (``cos_theta``, ``sin_theta``, ``omega``) and which position each velocity is the rate of."""
    circles = tuple(
        (place, place + 1)
        for place, name in enumerate(names[:-1])
        if name.startswith("cos_") and names[place + 1] == f"sin_{name[4:]}"
    )
    pairs = []
    for velocity, position in rates.items():
        place = names.index(f"cos_{position}") if f"cos_{position}" in names else names.index(position)
        pairs.append((names.index(velocity), place))
    return Coordinates(len(names), action_size, circles, tuple(pairs))


class Scaling(eqx.Module):
    """Units in which a network sees and moves the world; part of the model, so that it travels with it."""

    observation_middle: Float[Array, " observation"]
    observation_scale: Float[Array, " observation"]
    action_middle: Float[Array, " action"]
    action_scale: Float[Array, " action"]
    rate_scale: Float[Array, " observation"]

    def observed(self, observation: Observation) -> Observation:
        """The observation in units of its scale."""
        return (observation - self.observation_middle) / self.observation_scale

    def acted(self, action: Action) -> Action:
        """The action in units of its scale."""
        return (action - self.action_middle) / self.action_scale


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
    """``ds/dt = f(s) + h(s) a`` (`eq:lin-act`) for the learned coordinates: one network gives ``f`` and the columns of ``h``."""

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


def build(names: tuple[str, ...], coordinates: Coordinates) -> AbstractStructure:
    """The structure of those names, in any order; none is `Plain`."""
    unknown = [name for name in names if name not in STRUCTURES]
    if unknown:
        raise UserError(f"no structure is called {unknown[0]!r}: choose from {', '.join(STRUCTURES)}")
    second = "second-order" in names
    if second:
        _check_second_order(coordinates)
    everything = tuple(range(coordinates.observation_size))
    learned = tuple(velocity for velocity, _ in coordinates.rates) if second else everything
    inner = Affine(coordinates, learned) if "affine" in names else Plain(coordinates, learned)
    return SecondOrder(inner, coordinates) if second else inner


STRUCTURES = {
    "affine": "the action enters linearly",
    "second-order": "velocities are the rates of positions, accelerations are learned",
}


def _check_second_order(coordinates: Coordinates) -> None:
    circles = dict(coordinates.circles)
    moved = {place for _, place in coordinates.rates}
    moved |= {circles[place] for place in moved if place in circles}
    missing = set(range(coordinates.observation_size)) - moved - {place for place, _ in coordinates.rates}
    if missing:
        raise UserError(
            "the structure second-order needs to know which position every velocity is the rate of, but observation "
            f"coordinates {sorted(missing)} are neither: name them in the system's `rates_of`, or drop the structure"
        )
