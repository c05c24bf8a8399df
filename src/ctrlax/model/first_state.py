"""The likelihood of a window whose first state is inferred: no bias from starting at a noisy point (FACTS 10)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.dynamics import AbstractField, Members

# Of the largest eigenvalue's order: what keeps a float32 Cholesky factor real where a window amplifies a thousandfold.
RIDGE = 1e-6


class Sensitive(AbstractField):
    """A model's field with the derivatives of its state by the first state, ``dJ/dt = (df/ds) J``, ``J(0) = 1``.

    An observation of it is ``[s, J]`` in one row, ``J`` by rows of the first state's coordinates. A fixed-step solver
    gives the derivative of its own states exactly; an adaptive one to its tolerance.
    """

    dynamics: AbstractField

    def draw(self, *, key: PRNGKeyArray) -> Members:
        return self.dynamics.draw(key=key)

    def rate(
        self, member: Members, observation: Float[Array, " observation"], action: Float[Array, " action"]
    ) -> Float[Array, " observation"]:
        state, derivatives = unpacked(observation, self.dynamics.length_scales().shape[0])

        def along(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda state: self.dynamics.rate(member, state, action), (state,), (direction,))

        rate, moved = jax.vmap(along, out_axes=(None, 0))(derivatives)
        return jnp.concatenate([rate, moved.ravel()])

    def divergence(self) -> Float[Array, ""]:
        return self.dynamics.divergence()

    def member_count(self) -> int:
        return self.dynamics.member_count()

    def length_scales(self) -> Float[Array, " observation"]:
        scales = self.dynamics.length_scales()
        return jnp.concatenate([scales, (scales[None, :] / scales[:, None]).ravel()])


def beginning(start: Float[Array, " observation"]) -> Float[Array, " observation_and_derivatives"]:
    """Where `Sensitive` begins."""
    return jnp.concatenate([start, jnp.eye(start.shape[0], dtype=start.dtype).ravel()])


def unpacked(
    observation: Float[Array, "... observation_and_derivatives"], size: int
) -> tuple[Float[Array, "... observation"], Float[Array, "... first observation"]]:
    """State and derivatives of it by the first state."""
    derivatives = observation[..., size:]
    return observation[..., :size], derivatives.reshape(*derivatives.shape[:-1], size, size)


def log_likelihood(
    wrong: Float[Array, "interval observation"],
    derivatives: Float[Array, "interval first observation"],
    log_noise: Float[Array, " observation"],
) -> Float[Array, ""]:
    """``log p(y_1..y_n | y_0)`` of one window, its first state integrated out.

    Every point is seen with noise, ``y_i = s_i + e_i``, ``e_i ~ N(0, Sigma)``, the first one too. Knowing only
    ``y_0``, the first state is ``s_0 ~ N(y_0, Sigma)``, and to first order ``s_i = S_i(y_0) + J_i (s_0 - y_0)`` with
    ``S_i`` the solve and ``J_i`` its derivative. So ``wrong`` ``r_i = S_i(y_0) - y_i`` is Gaussian with ``Cov(r_i,
    r_j) = Sigma delta_ij + J_i Sigma J_j^T``; `eq:mc` has only the first term, and what the start's noise adds is then
    learned as noise, or followed by the field. In units of the noise, ``r`` stacked over points and ``J`` likewise::

        -2 log p = min_d (|r + J d|^2 + |d|^2) + log det(1 + J^T J) + log det(2 pi Sigma), once for every point

    where ``d`` is one Gauss-Newton step of the first state away from ``y_0``, from what the later points say of it.
    (The text's `eq:mc` starts at ``y_0``: a departure, and an option.) All arguments are in one unit.
    """
    noise = jnp.exp(log_noise)
    misfit = (wrong / noise).ravel()
    moved = jnp.swapaxes(derivatives * noise[:, None] / noise, 0, 1).reshape(noise.shape[0], -1)
    normal = moved @ moved.T
    ridge = 1 + RIDGE * jnp.trace(normal)
    factor = jax.scipy.linalg.cholesky(normal + ridge * jnp.eye(noise.shape[0], dtype=normal.dtype), lower=True)
    step = -jax.scipy.linalg.cho_solve((factor, True), moved @ misfit)
    squared = jnp.sum((misfit + step @ moved) ** 2) + jnp.sum(step**2)
    widened = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -0.5 * squared - widened - wrong.shape[0] * jnp.sum(log_noise + 0.5 * jnp.log(2 * jnp.pi))
