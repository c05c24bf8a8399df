"""The greedy policy of the Hamilton-Jacobi-Bellman equation in closed form: an actor made of model and critic (P7)."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ctrlax.errors import UserError
from ctrlax.model.dynamics import AbstractField, Members

Value = Callable[[Float[Array, " observation"]], Float[Array, ""]]  # a critic, or a value known otherwise

# How far from affine a field may be, relative to what the action does: float32 rounding is a hundred times smaller.
AFFINE_TOLERANCE = 1e-3
PROBES = 16  # observations at which a field is asked whether it is affine


class Greedy(eqx.Module):
    """``a* = clip(h(s)^T grad V(s) / (2 c_a), middle +- reach)``: `eq:opt-act` for the action cost ``c_a |a|^2``.

    With ``r(s, a) = r_s(s) - c_a |a|^2`` and ``ds/dt = f(s) + h(s) a`` (`eq:lin-act`), the right side of `eq:hjb` is
    ``grad V . (f + h a) + r_s - c_a |a|^2``, a parabola in every coordinate of the action, whose maximum on the bounds
    is its vertex clipped. ``V`` is the critic.

    Departures: the text writes `eq:hjb` for costs, with a minimum and so a minus sign in `eq:opt-act`; here rewards are
    maximised and the sign is plus. The text has one model; here ``h`` is the mean over the members, which is exact,
    since `eq:hjb` averaged over members is affine in the action too.
    """

    dynamics: AbstractField
    members: Members
    critic: Value
    middle: Float[Array, " action"]
    reach: Float[Array, " action"]
    action_cost: float  # c_a

    def __call__(self, observation: Float[Array, " observation"]) -> Float[Array, " action"]:
        observation = jnp.asarray(observation)
        slope = jax.grad(self.critic)(observation)
        inputs = jnp.mean(_action_matrices(self.dynamics, self.members, observation, jnp.asarray(self.middle)), axis=0)
        best = slope @ inputs / (2 * self.action_cost)
        return jnp.clip(best, self.middle - self.reach, self.middle + self.reach)


def greedy_policy(
    dynamics: AbstractField,
    members: Members,
    critic: Value,
    observations: Float[Array, "candidate observation"],
    middle: Float[Array, " action"],
    reach: Float[Array, " action"],
    *,
    action_cost: float,
) -> Greedy:
    """`Greedy` for a field that is affine in the action: asked of it at up to `PROBES` of the ``observations``.

    A field may be affine by its structure (``affine``, ``hamiltonian``) or by nature (``--model true`` on a mechanical
    system). ``action_cost`` is the reward rate's ``c_a``, in reward per second and squared unit of action.
    """
    if not action_cost > 0:
        raise UserError(
            f"the greedy policy needs an action cost above zero, but {action_cost} came: without one the best action "
            "is always on its bounds"
        )
    middle, reach = jnp.asarray(middle), jnp.asarray(reach)
    chosen = jnp.linspace(0, len(observations) - 1, min(PROBES, len(observations))).astype(jnp.int32)

    def bend(observation: Float[Array, " observation"]) -> tuple[Array, Array]:
        """How much the matrix changes from one end of the actions to the other, and how large it is."""
        ends = [_action_matrices(dynamics, members, observation, middle + side * reach) for side in (-1.0, 0.0, 1.0)]
        changed = jnp.maximum(jnp.abs(ends[2] - ends[1]), jnp.abs(ends[0] - ends[1]))
        return changed, jnp.abs(ends[1])

    changed, size = (np.asarray(part) for part in jax.vmap(bend)(observations[chosen]))
    if not changed.max() <= AFFINE_TOLERANCE * max(size.max(), np.finfo(np.float32).tiny):
        raise UserError(
            "the greedy policy needs a model whose field is affine in the action, but this one's action matrix changes "
            f"by {changed.max():.3g} over the actions' range (it is at most {size.max():.3g}): "
            "choose the structure affine or hamiltonian"
        )
    return Greedy(dynamics, members, critic, middle, reach, action_cost)


def _action_matrices(
    dynamics: AbstractField,
    members: Members,
    observation: Float[Array, " observation"],
    action: Float[Array, " action"],
) -> Float[Array, "member observation action"]:
    """``h(s) = df/da`` of every member."""
    return jax.vmap(lambda member: jax.jacfwd(lambda a: dynamics.rate(member, observation, a))(action))(members)
