"""PETS: an ensemble of networks that give mean and variance of the next state's difference, one step being one step.

``s_{i+1} = s_i + Delta``, ``Delta ~ N(mu_theta(s_i, a_i), diag sigma^2_theta(s_i, a_i))`` (Chua et al. 2018). How
long a step was is not known to it: on an irregular grid the same inputs have different targets, which is what `mpets`
repairs. The log variance is softly bounded above and below by learned limits::

    l = l_max - softplus(l_max - l),   l = l_min + softplus(l - l_min)

and what is minimised per point is ``-log N(Delta) + w_b sum(l_max - l_min) + w_d |W|^2 / 2``.

Departures: layers are 3 x 200 ELU as for all methods of the text; every member has limits of its own, so that members
share nothing; one weight decay for all layers; inputs are normalised once, by the first data.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.blueprint import Blueprint
from ctrlax.model.dynamics import HIDDEN, Cloud, Gaussian
from ctrlax.model.network import Layers, apply_layers, elu, init_layers
from ctrlax.model.transition import (
    AbstractInputs,
    AbstractWeights,
    NeuralTransition,
    Untimed,
    network_sizes,
    neural_transition,
)

HIGHEST, LOWEST = 0.5, -10.0  # where the limits of the log variance start, in scaled units
PARTICLES = 2  # per member and start (SPEC 4)

Member = tuple[Layers, Float[Array, "*member observation"], Float[Array, "*member observation"]]


class Ensemble(AbstractWeights):
    """Separate networks with separate limits; the member axis first."""

    layers: Layers
    highest: Float[Array, "*member observation"]  # l_max
    lowest: Float[Array, "*member observation"]  # l_min
    members: int = eqx.field(static=True)

    def draw(self, *, key: PRNGKeyArray) -> Member:
        return self.layers, self.highest, self.lowest

    def outputs(self, member: Member, inputs: Float[Array, " in"]) -> Gaussian:
        layers, highest, lowest = member
        mean, log_variance = jnp.split(apply_layers(layers, elu, inputs), 2)
        return Gaussian(mean, bounded(log_variance, lowest, highest))

    def divergence(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def penalty(self, weight_decay: float, bound_weight: float) -> Float[Array, " learner"]:
        squares = sum(jnp.sum(weight**2, axis=(-2, -1)) for weight, _ in self.layers)
        return 0.5 * weight_decay * squares + bound_weight * jnp.sum(self.highest - self.lowest, axis=-1)

    def member_count(self) -> int:
        return self.members

    def learner_count(self) -> int:
        return self.members

    def cloud(self) -> Cloud:
        return Cloud("ts-inf", PARTICLES * self.members)


def bounded(
    log_variance: Float[Array, "..."], lowest: Float[Array, "..."], highest: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Softly between the limits, which so have a gradient."""
    log_variance = highest - jax.nn.softplus(highest - log_variance)
    return lowest + jax.nn.softplus(log_variance - lowest)


def ensemble(inputs: AbstractInputs, blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralTransition:
    """A fresh ensemble."""
    settings = blueprint.settings
    sizes = network_sizes(inputs, blueprint, HIDDEN, 2)
    keys = jax.random.split(key, settings.members)
    layers = jax.vmap(lambda k: init_layers(sizes, gain=settings.gain, key=k))(keys)
    shape = settings.members, blueprint.coordinates.observation_size
    weights = Ensemble(
        layers, jnp.full(shape, HIGHEST, jnp.float32), jnp.full(shape, LOWEST, jnp.float32), settings.members
    )
    return neural_transition(weights, inputs, blueprint)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralTransition:
    """An ensemble of stochastic transitions."""
    return ensemble(Untimed(), blueprint, key=key)
