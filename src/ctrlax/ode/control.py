"""An action as a function of time: a policy, a draw from a Gaussian process, a logged sequence between its samples.

A control maps an observation and a time to an action. Times are the trajectory's own clock.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.ode.randomness import host_generator

AnyArray = Array | np.ndarray  # float64 on the host is NumPy's, inside a compiled function it is JAX's
Observation = Float[Array, " observation"]
Action = Float[Array, " action"]

LENGTH_SCALE = 0.5  # seconds, of the text's squared exponential kernels
JITTER = 1e-5  # variance added to the interpolating kernel's diagonal, in units of its own variance
# A draw needs only enough to factor: float64 rounding of a unit-variance matrix of a few hundred points.
DRAW_JITTER = 1e-10
CLOCK_TICK = 2.0**-36  # seconds
# The points a sampled interpolation is drawn on, per length scale: exact to 1e-4 of the scale between them.
DRAWN_POINTS_PER_LENGTH = 8


class AbstractControl(eqx.Module):
    """Observation and time to action."""

    @abc.abstractmethod
    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        """The action acting at ``time``; at a break, the one acting from there on."""

    @abc.abstractmethod
    def breaks(self) -> Float[AnyArray, " break"]:
        """Times at which the action jumps or has a kink; a solver must not step across one."""

    @abc.abstractmethod
    def delayed(self, by: Float[AnyArray, ""] | float) -> AbstractControl:
        """The same control on a clock that reads ``by`` more."""


class PolicyControl(AbstractControl):
    """``a(t) = pi(s(t))`` (`eq:policy`)."""

    policy: Callable[[Observation], Action]

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        return self.policy(observation)

    def breaks(self) -> Float[AnyArray, " break"]:
        return jnp.zeros(0)

    def delayed(self, by: Float[AnyArray, ""] | float) -> PolicyControl:
        return self


class Constant(AbstractControl):
    """One action for ever."""

    action: Float[AnyArray, " action"]

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        return jnp.asarray(self.action)

    def breaks(self) -> Float[AnyArray, " break"]:
        return jnp.zeros(0)

    def delayed(self, by: Float[AnyArray, ""] | float) -> Constant:
        return self


class Held(AbstractControl):
    """Each logged action acts from its time to the next one's: a zero-order hold. Before them the first acts."""

    origin: Float[AnyArray, ""]
    knots: Float[AnyArray, " knot"]
    actions: Float[AnyArray, "knot action"]

    def __init__(self, times: np.ndarray, actions: np.ndarray) -> None:
        self.origin, self.knots = own_clock(times)
        self.actions = _host_array(actions)

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        last = jnp.searchsorted(self.breaks(), time, side="right") - 1  # the very sums a solver stops at
        return jnp.asarray(self.actions)[jnp.maximum(last, 0)]

    def breaks(self) -> Float[AnyArray, " break"]:
        return jnp.asarray(self.origin + self.knots)

    def delayed(self, by: Float[AnyArray, ""] | float) -> Held:
        return eqx.tree_at(lambda control: control.origin, self, self.origin + by)


class Linear(AbstractControl):
    """Straight lines between logged actions, constant outside them."""

    origin: Float[AnyArray, ""]
    knots: Float[AnyArray, " knot"]
    actions: Float[AnyArray, "knot action"]

    def __init__(self, times: np.ndarray, actions: np.ndarray) -> None:
        self.origin, self.knots = own_clock(times)
        self.actions = _host_array(actions)

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        knots, actions = self.breaks(), jnp.asarray(self.actions)
        left = jnp.clip(jnp.searchsorted(knots, time, side="right") - 1, 0, knots.shape[0] - 2)
        share = jnp.clip((time - knots[left]) / (knots[left + 1] - knots[left]), 0.0, 1.0)
        return (1 - share) * actions[left] + share * actions[left + 1]

    def breaks(self) -> Float[AnyArray, " break"]:
        return jnp.asarray(self.origin + self.knots)

    def delayed(self, by: Float[AnyArray, ""] | float) -> Linear:
        return eqx.tree_at(lambda control: control.origin, self, self.origin + by)


class Kernel(AbstractControl):
    """``a(t) = sum_j k(t, t_j) w_j`` with the squared exponential kernel ``k`` of unit variance.

    The weights make the path pass through the given actions, up to the jitter; factored in float64 on the host.
    """

    origin: Float[AnyArray, ""]
    knots: Float[AnyArray, " knot"]
    weights: Float[AnyArray, "knot action"]
    length_scale: Float[AnyArray, ""]

    def __init__(
        self, times: np.ndarray, actions: np.ndarray, *, length_scale: float = LENGTH_SCALE, jitter: float = JITTER
    ) -> None:
        self.origin, self.knots = own_clock(times)
        self.length_scale = _host_array(length_scale)
        gram = kernel_matrix(self.knots, self.knots, length_scale) + jitter * np.eye(len(times))
        factor = np.linalg.cholesky(gram)
        self.weights = _host_array(np.linalg.solve(factor.T, np.linalg.solve(factor, np.asarray(actions, np.float64))))

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        # Never expanded: (t^2 - 2 t t_j + t_j^2) loses every digit far from zero.
        distance = (time - self.origin - jnp.asarray(self.knots)) / self.length_scale
        return jnp.exp(-0.5 * distance**2) @ jnp.asarray(self.weights)

    def breaks(self) -> Float[AnyArray, " break"]:
        return jnp.zeros(0)

    def delayed(self, by: Float[AnyArray, ""] | float) -> Kernel:
        return eqx.tree_at(lambda control: control.origin, self, self.origin + by)


class Squashed(AbstractControl):
    """``middle + reach * tanh(inner)``: a path without bounds brought into the action's bounds."""

    inner: AbstractControl
    middle: Float[AnyArray, " action"]
    reach: Float[AnyArray, " action"]

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        return jnp.asarray(self.middle) + self.reach * jnp.tanh(self.inner(observation, time))

    def breaks(self) -> Float[AnyArray, " break"]:
        return self.inner.breaks()

    def delayed(self, by: Float[AnyArray, ""] | float) -> Squashed:
        return Squashed(self.inner.delayed(by), self.middle, self.reach)


class Exploring(AbstractControl):
    """``pi(s(t)) + z(t)``, clipped to the bounds; ``z`` a Gaussian process's draw in the action's units (SPEC A3)."""

    policy: Callable[[Observation], Action]
    disturbance: AbstractControl
    low: Float[AnyArray, " action"]
    high: Float[AnyArray, " action"]

    def __call__(self, observation: Observation, time: Float[Array, ""]) -> Action:
        return jnp.clip(self.policy(observation) + self.disturbance(observation, time), self.low, self.high)

    def breaks(self) -> Float[AnyArray, " break"]:
        return self.disturbance.breaks()

    def delayed(self, by: Float[AnyArray, ""] | float) -> Exploring:
        return Exploring(self.policy, self.disturbance.delayed(by), self.low, self.high)


def own_clock(
    times: Float[np.ndarray, "*trajectory time"],
) -> tuple[Float[np.ndarray, "*trajectory"], Float[np.ndarray, "*trajectory time"]]:
    """The first time, and all times counted from it, float64 on the host.

    Counted times are rounded to `CLOCK_TICK` (of their span's power of two, if that is below a second): a log that
    begins at 1e4 s has its times rounded at 1e-12 s, an unstable system multiplies that a millionfold, and the same log
    moved along the clock must give the same trajectory.
    """
    times = np.asarray(times, np.float64)
    counted = times - times[..., :1]
    resolution = CLOCK_TICK * np.exp2(np.minimum(np.round(np.log2(np.max(counted, axis=-1, keepdims=True))), 0.0))
    return _host_array(times[..., 0]), _host_array(np.round(counted / resolution) * resolution)


def _host_array(value: np.ndarray | float) -> np.ndarray:
    # JAX would round it while its global flag is off.
    return np.asarray(value, np.float64)


def kernel_matrix(rows: AnyArray, columns: AnyArray, length_scale: AnyArray | float) -> np.ndarray:
    """The squared exponential kernel of unit variance between two sets of times, float64."""
    distance = (np.asarray(rows, np.float64)[:, None] - np.asarray(columns, np.float64)[None, :]) / length_scale
    return np.exp(-0.5 * distance**2)


def draw_path(
    times: np.ndarray,
    action_size: int,
    *,
    key: PRNGKeyArray,
    scale: float,
    length_scale: float = LENGTH_SCALE,
) -> Kernel:
    """``z ~ GP(0, SE(scale, length_scale))`` drawn at ``times`` and interpolated by the same kernel (SPEC A2)."""
    knots = own_clock(times)[1]
    gram = kernel_matrix(knots, knots, length_scale) + DRAW_JITTER * np.eye(len(times))
    white = host_generator(key).standard_normal((len(times), action_size))
    return Kernel(times, scale * np.linalg.cholesky(gram) @ white, length_scale=length_scale)


def draw_between(
    times: np.ndarray,
    actions: np.ndarray,
    *,
    key: PRNGKeyArray,
    scale: float,
    length_scale: float = LENGTH_SCALE,
) -> Kernel:
    """A sample of the Gaussian process that passes through logged actions: what they leave open is drawn, not averaged.

    By Matheron's rule: a prior draw plus the kernel interpolation of what the draw misses at the logged times.
    """
    count = int(np.ceil((times[-1] - times[0]) / length_scale * DRAWN_POINTS_PER_LENGTH)) + 1
    points = np.union1d(np.linspace(times[0], times[-1], count), times)
    white = host_generator(key).standard_normal((len(points), actions.shape[1]))
    gram = kernel_matrix(points, points, length_scale) + DRAW_JITTER * np.eye(len(points))
    prior = scale * np.linalg.cholesky(gram) @ white
    missed = np.asarray(actions, np.float64) - prior[np.searchsorted(points, times)]
    correction = Kernel(times, missed, length_scale=length_scale)
    path = prior + kernel_matrix(points, times, length_scale) @ np.asarray(correction.weights)
    return Kernel(points, path, length_scale=length_scale)
