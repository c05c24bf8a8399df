"""Deep PILCO: one network with dropout as its posterior, rolled out as a cloud that is a Gaussian at every step.

``s_{i+1} = s_i + Delta``, ``Delta ~ N(f(s_i, a_i; W diag(z)), diag sigma^2)`` (Gal, McAllister and Rasmussen 2016):
units in
front of every layer but the first are kept with probability ``1 - p_l`` and divided by it. A member is one draw of all
masks ``z``, fixed for as long as the member is. The rate is learned (`Model.dropout = None`) with the concrete
relaxation of Gal, Hron and Kendall (2017) at temperature 0.1::

    z = 1 - sigmoid((logit p + logit u) / 0.1),   u ~ U(0, 1)

or fixed. The divergence, from a Bernoulli(1/2) prior on the masks and ``N(0, 1/l^2)`` on the weights, is

    KL = sum_l (1 - p_l) l^2 |W_l|^2 / 2 + K_l (log 2 - H(p_l))

with ``K_l`` masked inputs and ``H`` the entropy in nats.

Departures: 3 x 200 ELU as for all methods of the text; a mini-batch has one mask per member, not per point; the noise
``sigma`` is learned, one for every coordinate, where the paper tunes it.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.blueprint import Blueprint
from ctrlax.model.dynamics import HIDDEN, Cloud, Gaussian
from ctrlax.model.families.pets import HIGHEST, LOWEST, bounded
from ctrlax.model.network import Layers, elu, init_layers
from ctrlax.model.transition import AbstractWeights, NeuralTransition, Untimed, network_sizes, neural_transition

INITIAL_RATE = 0.1  # of units dropped, where it is learned
TEMPERATURE = 0.1  # of the concrete relaxation
LENGTH_SCALE = 0.1  # l of the weights' prior
INITIAL_LOG_VARIANCE = -4.0  # of the noise, in scaled units
PARTICLES = 100  # (SPEC 4)

Masks = tuple[Float[Array, "*member _in"], ...]


class Dropout(AbstractWeights):
    """One network, and the rates at which its units are dropped; the learner axis, of length one, first."""

    layers: Layers
    # In tenths: Adam moves every number alike, and these have further to go than weights have.
    tenth_logits: Float[Array, "*learner layer"]  # of the rates
    tenth_log_variance: Float[Array, "*learner observation"]
    members: int = eqx.field(static=True)
    fixed_rate: float | None = eqx.field(static=True)

    def rates(self) -> Float[Array, " layer"]:
        """The share of units dropped in front of every layer but the first."""
        if self.fixed_rate is not None:
            return jnp.full(self.tenth_logits.shape[-1], self.fixed_rate)
        return jax.nn.sigmoid(10 * self.tenth_logits[0])

    def draw(self, *, key: PRNGKeyArray) -> Masks:
        keys = jax.random.split(key, len(self.layers) - 1)
        sizes = [weight.shape[-1] for weight, _ in self.layers[1:]]
        masks = []
        for rate, size, mask_key in zip(self.rates(), sizes, keys, strict=True):
            uniform = jax.random.uniform(mask_key, (self.members, size), minval=1e-6, maxval=1 - 1e-6)
            if self.fixed_rate is not None:
                kept = (uniform > self.fixed_rate).astype(rate.dtype)
            else:
                kept = 1 - jax.nn.sigmoid((_logit(rate) + _logit(uniform)) / TEMPERATURE)
            masks.append(kept / (1 - rate))
        return tuple(masks)

    def outputs(self, member: Masks, inputs: Float[Array, " in"]) -> Gaussian:
        (weight, bias), *rest = [(weight[0], bias[0]) for weight, bias in self.layers]
        inputs = weight @ inputs + bias
        for mask, (weight, bias) in zip(member, rest, strict=True):
            inputs = weight @ (mask * elu(inputs)) + bias
        limits = (jnp.asarray(limit, inputs.dtype) for limit in (LOWEST, HIGHEST))
        return Gaussian(inputs, bounded(10 * self.tenth_log_variance[0], *limits))

    def divergence(self) -> Float[Array, ""]:
        total = jnp.zeros(())
        for rate, (weight, _) in zip(self.rates(), self.layers[1:], strict=True):
            entropy = -rate * jnp.log(rate) - (1 - rate) * jnp.log1p(-rate)
            total += (1 - rate) * LENGTH_SCALE**2 * jnp.sum(weight**2) / 2
            total += weight.shape[-1] * (math.log(2) - entropy)
        return total + LENGTH_SCALE**2 * jnp.sum(self.layers[0][0] ** 2) / 2

    def penalty(self, weight_decay: float, bound_weight: float) -> Float[Array, " learner"]:
        return jnp.zeros(1)

    def member_count(self) -> int:
        return self.members

    def learner_count(self) -> int:
        return 1

    def cloud(self) -> Cloud:
        return Cloud("moments", PARTICLES)


def _logit(share: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.log(share) - jnp.log1p(-share)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralTransition:
    """A dropout network; ``members`` are draws of its masks."""
    settings, inputs = blueprint.settings, Untimed()
    sizes = network_sizes(inputs, blueprint, HIDDEN, 1)
    layers = jax.tree.map(lambda leaf: leaf[None], init_layers(sizes, gain=settings.gain, key=key))
    start = math.log(INITIAL_RATE / (1 - INITIAL_RATE))
    weights = Dropout(
        layers, jnp.full((1, len(HIDDEN)), start / 10, jnp.float32),
        jnp.full((1, sizes[-1]), INITIAL_LOG_VARIANCE / 10, jnp.float32),
        settings.members, settings.dropout,
    )  # fmt: skip
    return neural_transition(weights, inputs, blueprint)
