"""The critic: observation to value."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.agent.policy import HIDDEN
from ctrlax.model.network import Layers, apply_layers, init_layers


class Critic(eqx.Module):
    """``nu(s)`` with two tanh layers (`eq:critic`)."""

    layers: Layers

    def __call__(self, observation: Float[Array, " observation"]) -> Float[Array, ""]:
        return apply_layers(self.layers, jnp.tanh, observation)[0]


def init_critic(observation_size: int, *, gain: float, key: PRNGKeyArray, hidden: tuple[int, ...] = HIDDEN) -> Critic:
    """A fresh critic."""
    return Critic(init_layers((observation_size, *hidden, 1), gain=gain, key=key))
