"""WNODE: a weight-space Bayesian neural ODE, an independent Gaussian on every weight and bias.

``q(theta) = prod_j N(m_j, s_j^2)`` against ``p(theta) = prod_j N(0, 1/fan_in)``, biases included: a prior under which
every layer keeps the size of its inputs, whatever its width. A member is one draw ``m + s eps``; all members share
``m`` and ``s``. Means start as ENODE's weights do and log s at -5, a tenth of the prior's width in the 200-wide
layers: wider, and the first gradients are noise.

With 80,000 weights the divergence outweighs the likelihood of a few hundred points, and the mean-field posterior then
falls back to its prior: `kl_weight` is the setting for that.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model import gaussians
from ctrlax.model.blueprint import Blueprint, neural_ode
from ctrlax.model.dynamics import HIDDEN, AbstractPosterior, NeuralODE
from ctrlax.model.network import Layers, init_layers

INITIAL_LOG_SCALE = -5.0  # log s at the start


class Wnode(AbstractPosterior):
    """One mean and one width for every weight; members are draws of the same posterior."""

    means: Layers
    log_scales: Layers
    members: int = eqx.field(static=True)

    def draw(self, *, key: PRNGKeyArray) -> Layers:
        means, form = jax.tree.flatten(self.means)
        keys = jax.tree.unflatten(form, list(jax.random.split(key, len(means))))

        def drawn(mean: Array, log_scale: Array, key: PRNGKeyArray) -> Array:
            return mean + jnp.exp(log_scale) * jax.random.normal(key, (self.members, *mean.shape))

        return jax.tree.map(drawn, self.means, self.log_scales, keys)

    def divergence(self) -> Float[Array, ""]:
        total = jnp.zeros(())
        for means, log_scales in zip(self.means, self.log_scales, strict=True):
            prior_scale = 1 / math.sqrt(means[0].shape[1])
            for mean, log_scale in zip(means, log_scales, strict=True):
                total += gaussians.divergence(mean, log_scale, 0.0, prior_scale)
        return total

    def member_count(self) -> int:
        return self.members


def init(
    inputs: int, outputs: int, members: int, *, gain: float, key: PRNGKeyArray, hidden: tuple[int, ...] = HIDDEN
) -> Wnode:
    """Means as a fresh network's weights, and narrow widths."""
    means = init_layers((inputs, *hidden, outputs), gain=gain, key=key)
    return Wnode(means, jax.tree.map(lambda mean: jnp.full_like(mean, INITIAL_LOG_SCALE), means), members)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralODE:
    """A weight-space Bayesian neural ODE."""
    return neural_ode(init, blueprint, key=key)
