"""The true field seen through observations: the yardstick that separates model error from policy error."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.model.blueprint import Blueprint
from ctrlax.model.dynamics import AbstractField


class TrueDynamics(AbstractField):
    """``d o/dt = (d observe/d s) f(s, a)`` at ``s = restore(o)``; one member, nothing to learn."""

    field: Callable[[Array, Array], Array] = eqx.field(static=True)
    observe: Callable[[Array], Array] = eqx.field(static=True)
    restore: Callable[[Array], Array] = eqx.field(static=True)
    scales: Float[Array, " observation"]

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " member"]:
        return jnp.zeros(1)

    def rate(
        self, member: Float[Array, ""], observation: Float[Array, " observation"], action: Float[Array, " action"]
    ) -> Float[Array, " observation"]:
        state = self.restore(observation)
        return jax.jvp(self.observe, (state,), (self.field(state, action),))[1]

    def divergence(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def member_count(self) -> int:
        return 1

    def length_scales(self) -> Float[Array, " observation"]:
        return jax.lax.stop_gradient(self.scales)


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> TrueDynamics:
    """The environment's own field; structure and members do not apply to it."""
    environment = blueprint.environment
    if environment is None:
        raise UserError(
            "the model 'true' is a system's own field, but only data is at hand: "
            "choose a model that learns, such as enode"
        )
    scales = jnp.asarray(blueprint.scaling.observation_scale)
    return TrueDynamics(environment.field, environment.observe, environment.restore, scales)
