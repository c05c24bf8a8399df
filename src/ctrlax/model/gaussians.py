"""Closed forms of independent Gaussians, which priors and posteriors are made of."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def divergence(
    mean: Float[Array, "..."],
    log_scale: Float[Array, "..."],
    prior_mean: Float[Array, "..."] | float,
    prior_scale: Float[Array, "..."] | float,
) -> Float[Array, ""]:
    """``KL[N(mean, scale^2) || N(prior_mean, prior_scale^2)]`` in nats, summed over all coordinates.

    Of one coordinate: ``log(p / s) + (s^2 + (m - m_p)^2) / (2 p^2) - 1/2`` with ``p`` the prior's scale.
    """
    ratio = (jnp.exp(2 * log_scale) + (mean - prior_mean) ** 2) / (2 * prior_scale**2)
    return jnp.sum(jnp.log(prior_scale) - log_scale + ratio - 0.5)
