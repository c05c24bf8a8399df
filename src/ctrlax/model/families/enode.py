"""ENODE: an ensemble of neural ODEs, the posterior a mixture of point masses on the weights."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.blueprint import Blueprint, neural_ode
from ctrlax.model.dynamics import HIDDEN, AbstractPosterior, NeuralODE
from ctrlax.model.network import Layers, init_layers


class Enode(AbstractPosterior):
    """Separate weights for every member; each learns its own field from its own start."""

    layers: Layers
    members: int = eqx.field(static=True)

    def draw(self, *, key: PRNGKeyArray) -> Layers:
        return self.layers

    def divergence(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def member_count(self) -> int:
        return self.members


def init(
    inputs: int, outputs: int, members: int, *, gain: float, key: PRNGKeyArray, hidden: tuple[int, ...] = HIDDEN
) -> Enode:
    """A fresh ensemble."""
    sizes = (inputs, *hidden, outputs)
    layers = jax.vmap(lambda k: init_layers(sizes, gain=gain, key=k))(jax.random.split(key, members))
    return Enode(layers, members)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralODE:
    """An ensemble of neural ODEs."""
    return neural_ode(init, blueprint, key=key)
