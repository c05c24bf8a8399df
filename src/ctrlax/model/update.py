"""One optimiser step that is not taken when its numbers are bad, and the counts of what was left out."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree


class Health(eqx.Module):
    """Counts of what a phase applied and left out, for one seed or with a leading seed axis."""

    updates: Int[Array, "*seed"]  # applied
    skipped: Int[Array, "*seed"]
    skipped_in_a_row: Int[Array, "*seed"]  # up to now
    longest_skipped: Int[Array, "*seed"]  # the most there were in a row
    unhealthy_trajectories: Int[Array, "*seed"]
    rollbacks: Int[Array, "*seed"]

    @classmethod
    def none(cls, shape: tuple[int, ...] = ()) -> Health:
        """Nothing counted yet: what a chunk begins with."""
        return cls(*(jnp.zeros(shape, jnp.int32) for _ in dataclasses.fields(cls)))

    def counted(self, applied: Bool[Array, "*seed"], unhealthy_trajectories: Int[Array, "*seed"] | int = 0) -> Health:
        """With one update more, ``applied`` or not, that left out ``unhealthy_trajectories``."""
        taken = jnp.asarray(applied).astype(jnp.int32)
        in_a_row = (self.skipped_in_a_row + 1) * (1 - taken)
        return Health(
            updates=self.updates + taken,
            skipped=self.skipped + 1 - taken,
            skipped_in_a_row=in_a_row,
            longest_skipped=jnp.maximum(self.longest_skipped, in_a_row),
            unhealthy_trajectories=self.unhealthy_trajectories + jnp.asarray(unhealthy_trajectories, jnp.int32),
            rollbacks=self.rollbacks,
        )

    def then(self, later: Health) -> Health:
        """These counts and those of what came after."""
        return Health(
            updates=self.updates + later.updates,
            skipped=self.skipped + later.skipped,
            skipped_in_a_row=later.skipped_in_a_row,
            longest_skipped=jnp.maximum(self.longest_skipped, later.longest_skipped),
            unhealthy_trajectories=self.unhealthy_trajectories + later.unhealthy_trajectories,
            rollbacks=self.rollbacks + later.rollbacks,
        )


def guarded_update(
    optimiser: optax.GradientTransformation,
    gradients: PyTree,
    loss: Float[Array, ""],
    optimiser_state: PyTree,
    parameters: PyTree,
    step_scale: Float[Array, ""] | float = 1.0,
) -> tuple[PyTree, PyTree, Bool[Array, ""]]:
    """One Optax update times ``step_scale``, or none: new parameters, new optimiser state, whether it was applied.

    It is applied when the loss, every gradient, and all that the update makes of them are finite: a gradient of 1e20 is
    finite and its square, Adam's second moment, is not. Otherwise parameters and moments stay as they were, bit for
    bit. For one seed; ``vmap`` is the caller's. A loss over no healthy trajectory must be NaN to be seen here.
    """
    updates, new_state = optimiser.update(gradients, optimiser_state, parameters)
    updates = jax.tree.map(lambda update: update * jnp.asarray(step_scale, update.dtype), updates)
    new_parameters = eqx.apply_updates(parameters, updates)
    old, new = (parameters, optimiser_state), (new_parameters, new_state)
    applied = jnp.all(jnp.isfinite(loss)) & _all_finite(gradients) & _none_became_bad(old, new)
    parameters, optimiser_state = jax.tree.map(
        lambda kept, made: jnp.where(applied, made, kept) if eqx.is_array(made) else made, old, new
    )
    return parameters, optimiser_state, applied


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.all(jnp.stack(finite)) if finite else jnp.array(True)


def _none_became_bad(old: PyTree, new: PyTree) -> Bool[Array, ""]:
    """Whether what was finite still is; an optimiser may hold an infinity on purpose, as a best loss so far."""
    return _all_finite(
        jax.tree.map(
            lambda kept, made: jnp.where(jnp.isfinite(kept), made, 0.0) if eqx.is_inexact_array(made) else None,
            old,
            new,
        )
    )
