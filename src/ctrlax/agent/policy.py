"""The actor: observation to action, within the action's bounds."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.network import Layers, apply_layers, init_layers

HIDDEN = (200, 200)  # of actor and critic (the text's S2)


class Policy(eqx.Module):
    """``pi(s) = middle + a_max tanh(network(s))`` with two ReLU layers (`eq:policy`)."""

    layers: Layers
    middle: Float[Array, "*seed action"]
    reach: Float[Array, "*seed action"]

    def __call__(self, observation: Float[Array, " observation"]) -> Float[Array, " action"]:
        inputs = jnp.asarray(observation)
        outputs = apply_layers(self.layers, jax.nn.relu, inputs)
        return jax.lax.stop_gradient(self.middle) + jax.lax.stop_gradient(self.reach) * jnp.tanh(outputs)


def init_policy(
    observation_size: int,
    middle: Float[Array, " action"],
    reach: Float[Array, " action"],
    *,
    gain: float,
    key: PRNGKeyArray,
    hidden: tuple[int, ...] = HIDDEN,
) -> Policy:
    """A fresh actor."""
    layers = init_layers((observation_size, *hidden, len(middle)), gain=gain, key=key)
    return Policy(layers, jnp.asarray(middle, jnp.float32), jnp.asarray(reach, jnp.float32))
