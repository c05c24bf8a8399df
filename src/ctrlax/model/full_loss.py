"""The loss of a model on all of its data: how two models of the same data are compared."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax import config
from ctrlax.model.fit import Learned, negative_elbo
from ctrlax.model.windows import Recording, cut
from ctrlax.ode.solvers import named


@partial(jax.jit, static_argnums=0)
def full_loss(settings: config.Fit, learned: Learned, recording: Recording, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """`negative_elbo` over windows that follow each other, every point once; infinite where one cannot be solved."""
    trajectories, points = recording.observations.shape[:2]
    between = settings.window_points - 1
    first = jnp.arange(0, max(points - between, 1), between)
    chosen = jnp.repeat(jnp.arange(trajectories), len(first))
    windows = cut(recording, chosen, jnp.tile(first, trajectories), points=settings.window_points)
    total = jnp.sum(recording.counts).astype(jnp.float32)
    with jax.default_matmul_precision("highest"):
        loss, (_, unhealthy, _) = negative_elbo(
            learned, windows, total, named(settings.solver), settings.kl_weight, key=key,
            first_state=settings.first_state,
        )  # fmt: skip
    return jnp.where((unhealthy == 0) & jnp.isfinite(loss), loss, jnp.inf)
