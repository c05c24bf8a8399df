"""What learning sees of a dataset: padded float32 arrays, and windows drawn from them.

A logged action becomes a polynomial on every observation interval, whichever way it acts in between: held is its first
term, linear its first two, a kernel interpolation is matched at Chebyshev points. On interval i time is warped to tau
in [0, 1] with ``ds/dtau = dt_i f`` (FACTS 5), so windows with any times share one grid.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ctrlax.model.dataset import Dataset, Log
from ctrlax.ode.control import LENGTH_SCALE, Kernel, kernel_matrix

# Degree 7 follows a kernel path of half a second's length scale across a gap of one second to 4e-5 of its size.
PATH_DEGREE = 7


Packed = Array | np.ndarray  # on the host until a phase takes it


class Recording(eqx.Module):
    """A dataset in arrays of one shape; a trajectory without points is padding."""

    observations: Float[Packed, "*seed trajectory point observation"]
    actions: Float[Packed, "*seed trajectory point action"]
    steps: Float[Packed, "*seed trajectory interval"]
    paths: Float[Packed, "*seed trajectory interval coefficient action"]
    counts: Int[Packed, "*seed trajectory"]


class Windows(eqx.Module):
    """Short pieces of trajectories: start, what was seen after it, and the action in between."""

    starts: Float[Array, "*window observation"]
    targets: Float[Array, "*window interval observation"]
    steps: Float[Array, "*window interval"]
    paths: Float[Array, "*window interval coefficient action"]
    present: Bool[Array, "*window"]


def pack(dataset: Dataset, *, trajectories: int, points: int, length_scale: float = LENGTH_SCALE) -> Recording:
    """Pad a dataset to ``trajectories`` of ``points``; times and kernels in float64, made relative before the cast."""
    sizes = len(dataset.observation_names), len(dataset.action_names)
    observations = np.zeros((trajectories, points, sizes[0]), np.float32)
    actions = np.zeros((trajectories, points, sizes[1]), np.float32)
    steps = np.ones((trajectories, points - 1), np.float32)
    paths = np.zeros((trajectories, points - 1, PATH_DEGREE + 1, sizes[1]), np.float32)
    counts = np.zeros(trajectories, np.int32)
    for place, log in enumerate(dataset.logs):
        count = len(log.times)
        observations[place, :count] = log.observations
        actions[place, :count] = log.actions
        steps[place, : count - 1] = np.diff(log.times)
        paths[place, : count - 1] = action_paths(log, dataset.hold, length_scale=length_scale)
        counts[place] = count
    return Recording(observations, actions, steps, paths, counts)


def action_paths(log: Log, hold: str, *, length_scale: float = LENGTH_SCALE) -> np.ndarray:
    """``[interval, coefficient, action]``: the action on every interval as a polynomial in ``u = 2 tau - 1``."""
    left, right = log.actions[:-1], log.actions[1:]
    paths = np.zeros((len(left), PATH_DEGREE + 1, log.actions.shape[1]))
    if hold == "hold":
        paths[:, 0] = left
    elif hold == "linear":
        paths[:, 0], paths[:, 1] = (left + right) / 2, (right - left) / 2
    else:
        kernel = Kernel(log.times, log.actions, length_scale=length_scale)
        nodes = np.cos(np.pi * (np.arange(PATH_DEGREE + 1) + 0.5) / (PATH_DEGREE + 1))
        knots = np.asarray(kernel.knots)
        times = knots[:-1, None] + np.diff(knots)[:, None] * (nodes + 1) / 2
        values = kernel_matrix(times.ravel(), knots, length_scale) @ np.asarray(kernel.weights)
        paths = np.linalg.solve(np.vander(nodes, increasing=True), values.reshape(*times.shape, -1))
    return paths


def path_action(path: Float[Array, "coefficient action"], tau: Float[Array, ""] | float) -> Float[Array, " action"]:
    """The action at ``tau`` in [0, 1] of an interval, by Horner's rule."""
    u = 2 * tau - 1
    action = path[-1]
    for place in range(path.shape[0] - 2, -1, -1):
        action = action * u + path[place]
    return action


def newest(recording: Recording, count: int | None) -> Recording:
    """The last ``count`` trajectories that are there; None: all. Padding comes after them."""
    room = recording.counts.shape[0]
    if count is None or count >= room:
        return recording
    first = jnp.maximum(jnp.sum(jnp.asarray(recording.counts) > 0) - count, 0)
    return jax.tree.map(lambda part: jax.lax.dynamic_slice_in_dim(part, first, count), recording)


def draw_windows(
    recording: Recording, *, points: int, per_trajectory: int | None, total: int, key: PRNGKeyArray
) -> Windows:
    """Windows of ``points`` observations with uniform starts: ``per_trajectory`` of each, or ``total`` of all.

    Of all: a trajectory is drawn in proportion to the windows it holds, so every window is as likely as any other.
    """
    trajectory_key, place_key = jax.random.split(key)
    room = jnp.maximum(recording.counts - points + 1, 0)
    if per_trajectory is not None:
        chosen = jnp.repeat(jnp.arange(recording.counts.shape[0]), per_trajectory)
    else:
        chosen = jax.random.categorical(trajectory_key, jnp.log(room.astype(jnp.float32)), shape=(total,))
    first = jnp.floor(jax.random.uniform(place_key, chosen.shape) * room[chosen]).astype(jnp.int32)
    return cut(recording, chosen, jnp.minimum(first, jnp.maximum(room[chosen] - 1, 0)), points=points)


def cut(recording: Recording, chosen: Int[Array, " window"], first: Int[Array, " window"], *, points: int) -> Windows:
    """The windows of ``points`` observations beginning at ``first`` in the ``chosen`` trajectories."""
    recording = jax.tree.map(jnp.asarray, recording)

    def one(trajectory: Int[Array, ""], place: Int[Array, ""]) -> Windows:
        seen = jax.lax.dynamic_slice_in_dim(recording.observations[trajectory], place, points)
        steps = jax.lax.dynamic_slice_in_dim(recording.steps[trajectory], place, points - 1)
        paths = jax.lax.dynamic_slice_in_dim(recording.paths[trajectory], place, points - 1)
        return Windows(seen[0], seen[1:], steps, paths, place + points <= recording.counts[trajectory])

    return jax.vmap(one)(chosen, first)
