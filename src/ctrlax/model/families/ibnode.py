"""IBNODE: an implicit Bayesian neural ODE, a mixture of Gaussians on factors that multiply every layer's inputs.

Layer ``l`` computes ``W (z * x) + b`` with shared ``W`` and ``b`` (point estimates) and random factors ``z`` (Trinh et
al. 2020). The factors ``z`` of all layers together have the posterior ``q(z) = 1/K sum_k N(z | mu_k, diag sigma_k^2)``
and the prior ``N(1, 1)``. A member is a component: one draw ``z_k = mu_k + sigma_k eps`` of each is the sample of
`eq:mc`, stratified over the mixture.

The ELBO's divergence is that of the components, averaged::

    D = 1/K sum_k KL[N(mu_k, sigma_k^2) || N(1, 1)]
      = 1/K sum_k sum_j -log sigma_kj + (sigma_kj^2 + (mu_kj - 1)^2) / 2 - 1/2

which is an upper bound, so the ELBO with it stays a bound: with ``I(k; z)`` the mutual information of a factor and its
component, ``KL[q || p] = D - I(k; z)`` and ``0 <= I <= log K``. With hundreds of factors the components do not
overlap, ``I = log K``, and the bound's gradient is the exact one; the mixture's own divergence has no closed form.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model import gaussians
from ctrlax.model.blueprint import Blueprint, neural_ode
from ctrlax.model.dynamics import HIDDEN, AbstractPosterior, NeuralODE
from ctrlax.model.network import Layer, Layers, init_layers

SPREAD = 0.25  # standard deviation of the components' means at the start
INITIAL_LOG_SCALE = -2.0  # log sigma_k at the start
PRIOR_MEAN, PRIOR_SCALE = 1.0, 1.0  # of every factor


class Factored(NamedTuple):
    """One layer: its shared weights, and the components' factors on its inputs."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]
    mean: Float[Array, "member in"]
    log_scale: Float[Array, "member in"]

    def drawn(self, *, key: PRNGKeyArray) -> Layer:
        factor = self.mean + jnp.exp(self.log_scale) * jax.random.normal(key, self.mean.shape)
        members = self.mean.shape[0]
        return self.weight * factor[:, None, :], jnp.broadcast_to(self.bias, (members, *self.bias.shape))


class Ibnode(AbstractPosterior):
    """Shared weights and a mixture of Gaussians on multiplicative factors; a member is one component."""

    layers: tuple[Factored, ...]
    members: int = eqx.field(static=True)

    def draw(self, *, key: PRNGKeyArray) -> Layers:
        keys = jax.random.split(key, len(self.layers))
        return tuple(layer.drawn(key=k) for layer, k in zip(self.layers, keys, strict=True))

    def divergence(self) -> Float[Array, ""]:
        of_layers = [gaussians.divergence(o.mean, o.log_scale, PRIOR_MEAN, PRIOR_SCALE) for o in self.layers]
        return jnp.sum(jnp.stack(of_layers)) / self.members

    def member_count(self) -> int:
        return self.members


def init(
    inputs: int, outputs: int, members: int, *, gain: float, key: PRNGKeyArray, hidden: tuple[int, ...] = HIDDEN
) -> Ibnode:
    """Fresh shared weights, and a mixture of ``members`` components around one."""
    shared_key, mean_key = jax.random.split(key)
    layers = []
    shared = init_layers((inputs, *hidden, outputs), gain=gain, key=shared_key)
    for (weight, bias), layer_key in zip(shared, jax.random.split(mean_key, len(shared)), strict=True):
        mean = 1 + SPREAD * jax.random.normal(layer_key, (members, weight.shape[1]))
        layers.append(Factored(weight, bias, mean, jnp.full_like(mean, INITIAL_LOG_SCALE)))
    return Ibnode(tuple(layers), members)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralODE:
    """An implicit Bayesian neural ODE."""
    return neural_ode(init, blueprint, key=key)
