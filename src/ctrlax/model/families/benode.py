"""BENODE: a batch ensemble of neural ODEs, shared weights with rank-one multipliers for every member.

Layer ``l`` of member ``i`` has the weights ``W_i = W * (r_i s_i^T)`` and biases ``b_i`` of its own (Wen et al. 2020):
``W`` is shared, ``r_i`` multiplies the layer's outputs and ``s_i`` its inputs. The posterior is a mixture of point
masses, as ENODE's is, so there is no divergence. Departure: multipliers start at N(1, 0.25^2) instead of random signs
(SPEC 4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.blueprint import Blueprint, neural_ode
from ctrlax.model.dynamics import HIDDEN, AbstractPosterior, NeuralODE
from ctrlax.model.network import Layer, Layers, init_layers

SPREAD = 0.25  # standard deviation of the multipliers at the start


class Shared(NamedTuple):
    """One layer of all members."""

    weight: Float[Array, "out in"]
    outward: Float[Array, "member out"]  # r
    inward: Float[Array, "member in"]  # s
    bias: Float[Array, "member out"]

    def stacked(self) -> Layer:
        return self.weight * self.outward[:, :, None] * self.inward[:, None, :], self.bias


class Benode(AbstractPosterior):
    """Members that share their weights but for a rank-one multiplier in every layer."""

    layers: tuple[Shared, ...]
    members: int = eqx.field(static=True)

    def draw(self, *, key: PRNGKeyArray) -> Layers:
        return tuple(layer.stacked() for layer in self.layers)

    def divergence(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def member_count(self) -> int:
        return self.members


def init(
    inputs: int, outputs: int, members: int, *, gain: float, key: PRNGKeyArray, hidden: tuple[int, ...] = HIDDEN
) -> Benode:
    """Fresh shared weights, and for every member multipliers around one and biases of its own."""
    shared_key, member_key = jax.random.split(key)
    layers = []
    shared = init_layers((inputs, *hidden, outputs), gain=gain, key=shared_key)
    for (weight, _), layer_key in zip(shared, jax.random.split(member_key, len(shared)), strict=True):
        fan_out, fan_in = weight.shape
        outward_key, inward_key, bias_key = jax.random.split(layer_key, 3)
        outward = 1 + SPREAD * jax.random.normal(outward_key, (members, fan_out))
        inward = 1 + SPREAD * jax.random.normal(inward_key, (members, fan_in))
        bias = jax.random.uniform(bias_key, (members, fan_out), minval=-1.0, maxval=1.0) / math.sqrt(fan_in)
        layers.append(Shared(weight, outward, inward, bias))
    return Benode(tuple(layers), members)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralODE:
    """A batch ensemble of neural ODEs."""
    return neural_ode(init, blueprint, key=key)
