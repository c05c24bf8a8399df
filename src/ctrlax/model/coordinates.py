"""What the coordinates of an observation are, and the units in which a network sees them."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Array, Float

Observation = Float[Array, " observation"]
Action = Float[Array, " action"]


class Coordinates(eqx.Module):
    """What the coordinates of an observation are, so far as a structure needs it. Places index the observation."""

    observation_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    circles: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())  # places of (cos, sin) of each angle
    # (place of velocity, place of position or of cos)
    rates: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())
    names: tuple[str, ...] = eqx.field(static=True, default=())

    def velocities(self) -> tuple[int, ...]:
        """Places of the velocities."""
        return tuple(velocity for velocity, _ in self.rates)

    def positions(self) -> tuple[int, ...]:
        """Places of all positions, an angle's cosine and sine one after the other."""
        circles = dict(self.circles)
        places = [(place, circles[place]) if place in circles else (place,) for _, place in self.rates]
        return tuple(place for pair in places for place in pair)


def coordinates_of(names: tuple[str, ...], action_size: int, rates: dict[str, str]) -> Coordinates:
    """From observation names (``cos_theta``, ``sin_theta``, ``omega``) and the position of each velocity."""
    circles = tuple(
        (place, place + 1)
        for place, name in enumerate(names[:-1])
        if name.startswith("cos_") and names[place + 1] == f"sin_{name[4:]}"
    )
    pairs = []
    for velocity, position in rates.items():
        place = f"cos_{position}" if f"cos_{position}" in names else position
        if velocity in names and place in names:  # a system with observations of its own need not show both
            pairs.append((names.index(velocity), names.index(place)))
    return Coordinates(len(names), action_size, circles, tuple(pairs), names)


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
