"""Windows -> fitted model: the ELBO on simulated windows, and the gradient-matching start.

Pure phases of one seed; `vmap` adds more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ctrlax import config
from ctrlax.model import first_state as inference
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, Members
from ctrlax.model.update import guarded_update
from ctrlax.model.windows import Recording, Windows, draw_windows, newest, path_action
from ctrlax.ode.cores import spread
from ctrlax.ode.lanes import solve_lanes
from ctrlax.ode.solve import explicit_step
from ctrlax.ode.solvers import Adaptive, Fixed, SolverSetting, named

# In units of the data's scale: a predicted window this far out is stopped and left out of the loss.
WINDOW_LIMIT = 1e3
WINDOW_STEPS = 256  # solver steps a window of half a second may take before it counts as unhealthy


class Learned(eqx.Module):
    """What dynamics learning moves: the model and the observation noise."""

    dynamics: AbstractDynamics
    log_noise: Float[Array, " observation"]  # log sigma, in scaled units


class FitState(eqx.Module):
    """Between two updates."""

    learned: Learned
    optimiser: optax.OptState
    iteration: Int[Array, ""]
    key: PRNGKeyArray


class FitMetrics(NamedTuple):
    """Of one update."""

    loss: Float[Array, ""]  # per point, nats
    error: Float[Array, ""]  # root mean squared, scaled units
    unhealthy: Int[Array, ""]  # member windows left out
    applied: Bool[Array, ""]
    work: Int[Array, ""]


def simulate_windows(
    dynamics: AbstractField, members: Members, windows: Windows, setting: SolverSetting
) -> tuple[Float[Array, "member window interval observation"], Bool[Array, "member window"], Int[Array, ""]]:
    """`eq:dyn-int` for every member and window: states at the window's later points, health, field evaluations."""
    if isinstance(setting, Fixed):
        states, healthy, work = _in_fixed_steps(dynamics, members, windows, setting)
    else:
        states, healthy, work = _in_adaptive_steps(dynamics, members, windows, setting)
    limit = WINDOW_LIMIT * dynamics.length_scales()
    healthy = healthy & jnp.all(jnp.isfinite(states) & (jnp.abs(states) < limit), axis=(-2, -1))
    return states, healthy & windows.present, jnp.sum(jnp.where(windows.present, work, 0))


def _warped(
    dynamics: AbstractField, member: Members, step: Array, path: Array, tau: Array | float, observation: Array
) -> Array:
    """``ds/dtau = Delta_i f(s, a(tau))`` on interval ``i``, which lasts from 0 to 1; far outside nothing moves."""
    inside = jnp.all(jnp.abs(observation) < WINDOW_LIMIT * dynamics.length_scales())
    moved = dynamics.rate(member, jnp.where(inside, observation, 0.0), path_action(path, tau))
    return jnp.where(inside, step * moved, 0.0)


def _in_fixed_steps(
    dynamics: AbstractField, members: Members, windows: Windows, setting: Fixed
) -> tuple[Array, Array, Array]:
    def one(member: Members, start: Array, steps: Array, paths: Array) -> Array:
        def rate(observation: Array, step: Array, path: Array, tau: Array | float) -> Array:
            return _warped(dynamics, member, step, path, tau, observation)

        return _fixed_window(rate, start, steps, paths, setting)

    over_windows = jax.vmap(one, in_axes=(None, 0, 0, 0))
    states = jax.vmap(over_windows, in_axes=(0, None, None, None))(
        members, windows.starts, windows.steps, windows.paths
    )
    evaluations = windows.steps.shape[1] * setting.inner_steps * len(setting.tableau.weights)
    shape = states.shape[:2]
    return states, jnp.ones(shape, bool), jnp.full(shape, evaluations)


def _in_adaptive_steps(
    dynamics: AbstractField, members: Members, windows: Windows, setting: Adaptive
) -> tuple[Array, Array, Array]:
    count = windows.steps.shape[1]

    def field(dynamics: AbstractField, member: Members, own: tuple[Array, Array], tau: Array, state: Array) -> Array:
        steps, paths = own
        place = jnp.clip(jnp.floor(tau).astype(jnp.int32), 0, count - 1)
        return _warped(dynamics, member, steps[place], paths[place], tau - place, state)

    def each(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf, (dynamics.member_count(), *leaf.shape))

    own, starts = (each(windows.steps), each(windows.paths)), each(windows.starts)
    times = jnp.arange(count + 1, dtype=starts.dtype)
    solution = solve_lanes(field, dynamics, members, own, starts, times, setting, jumps=True, max_steps=WINDOW_STEPS)
    return solution.states[:, :, 1:], solution.healthy, solution.work


def _fixed_window(rate: Callable[..., Array], start: Array, steps: Array, paths: Array, setting: Fixed) -> Array:
    inner = setting.inner_steps

    def interval(state: Array, piece: tuple[Array, Array]) -> tuple[Array, Array]:
        def stepped(state: Array, place: Array) -> tuple[Array, None]:
            def field(node: float, state: Array) -> Array:
                return rate(state, *piece, (place + node) / inner)

            return explicit_step(setting.tableau, field, 1 / inner, state), None

        state, _ = jax.lax.scan(stepped, state, jnp.arange(inner))
        return state, state

    _, states = jax.lax.scan(interval, start, (steps, paths))
    return states


class Judged(NamedTuple):
    """Windows as a model simulates them, against what was seen."""

    wrong: Float[Array, "member window interval observation"]  # scaled units; zero where not healthy
    log_likelihood: Float[Array, "member window"]
    healthy: Bool[Array, "member window"]
    work: Int[Array, ""]


def from_observed(
    dynamics: AbstractField,
    members: Members,
    windows: Windows,
    log_noise: Float[Array, " observation"],
    setting: SolverSetting,
) -> Judged:
    """`eq:mc`: a window starts at its first observation, ``log p = sum_i log N(y_i | S_i(y_0), Sigma)``."""
    states, healthy, work = simulate_windows(dynamics, members, windows, setting)
    wrong = jnp.where(healthy[..., None, None], (states - windows.targets) / dynamics.length_scales(), 0.0)
    squared = jnp.sum((wrong / jnp.exp(log_noise)) ** 2, axis=(-2, -1))
    constant = wrong.shape[2] * jnp.sum(log_noise + 0.5 * jnp.log(2 * jnp.pi))
    return Judged(wrong, -0.5 * squared - constant, healthy, work)


def from_inferred(
    dynamics: AbstractField,
    members: Members,
    windows: Windows,
    log_noise: Float[Array, " observation"],
    setting: SolverSetting,
) -> Judged:
    """A window's first state is integrated out: `first_state.log_likelihood`."""
    begun = eqx.tree_at(lambda w: w.starts, windows, jax.vmap(inference.beginning)(windows.starts))
    states, healthy, work = simulate_windows(inference.Sensitive(dynamics), members, begun, setting)
    scales = dynamics.length_scales()
    states, derivatives = inference.unpacked(states, scales.shape[0])
    wrong = jnp.where(healthy[..., None, None], (states - windows.targets) / scales, 0.0)
    derivatives = jnp.where(healthy[..., None, None, None], derivatives * scales[:, None] / scales, 0.0)
    judge = jax.vmap(jax.vmap(lambda wrong, moved: inference.log_likelihood(wrong, moved, log_noise)))
    return Judged(wrong, judge(wrong, derivatives), healthy, work * (1 + scales.shape[0]))


LIKELIHOODS = {"observed": from_observed, "inferred": from_inferred}


def negative_elbo(
    learned: Learned,
    windows: Windows,
    points: Float[Array, ""],
    setting: SolverSetting,
    kl_weight: Float[Array, ""] | float,
    *,
    key: PRNGKeyArray,
    first_state: str = "observed",
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Int[Array, ""], Int[Array, ""]]]:
    """`eq:elbo` with the Monte Carlo likelihood of `eq:mc`, negated and divided by the dataset's ``points``.

    The first point of a window is its start and carries no likelihood; the others stand for the whole dataset, every
    point once. One draw of every member is the sample over ``l``. ``first_state`` names the likelihood of a window.
    """
    dynamics = learned.dynamics
    assert isinstance(dynamics, AbstractField)
    members = spread(dynamics.draw(key=key))
    judged = LIKELIHOODS[first_state](dynamics, members, windows, learned.log_noise, setting)
    wrong, healthy = judged.wrong, judged.healthy
    count = jnp.sum(healthy) * wrong.shape[2]  # none healthy: the loss is NaN and the update is left out
    expected = jnp.sum(jnp.where(healthy, judged.log_likelihood, 0.0)) / count
    loss = -expected + kl_weight * dynamics.divergence() / points
    error = jnp.sqrt(jnp.sum(wrong**2) / (count * wrong.shape[-1]))
    unhealthy = jnp.sum(windows.present) * healthy.shape[0] - jnp.sum(healthy)
    return loss, (error, unhealthy, judged.work)


def learning_rate(settings: config.Fit, iteration: Int[Array, ""]) -> Float[Array, ""]:
    """Geometric from ``warmup_rate`` to ``rate`` in ``warmup_updates``, then constant (F3).

    With ``decay`` it falls from there in a straight line to ``1 - decay`` of ``rate`` at the last of the updates.
    """
    share = jnp.minimum(iteration / max(settings.warmup_updates, 1), 1.0)
    rate = settings.warmup_rate * (settings.rate / settings.warmup_rate) ** share
    passed = jnp.clip((iteration - settings.warmup_updates) / max(settings.updates, 1), 0.0, 1.0)
    return rate * (1 - settings.decay * passed)


def begin(learned: Learned, *, key: PRNGKeyArray) -> FitState:
    """Fresh optimiser moments, as at the start of every round."""
    moments = _ADAM.init(eqx.filter(learned, eqx.is_inexact_array))
    return FitState(learned, moments, jnp.zeros((), jnp.int32), key)


# Adam without its rate, which is the phase's own.
_ADAM = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


def _adam(noise_speed: float) -> optax.GradientTransformation:
    """`_ADAM` with steps of log sigma so many times larger: at a rate of 1e-3 it needs 1000 updates for a factor e."""

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None):
        updates, state = _ADAM.update(updates, state, params)
        return eqx.tree_at(lambda learned: learned.log_noise, updates, replace_fn=lambda u: noise_speed * u), state

    return optax.GradientTransformation(_ADAM.init, update)


def fit_update(
    settings: config.Fit, state: FitState, recording: Recording, step_scale: Float[Array, ""]
) -> tuple[FitState, FitMetrics]:
    """One step of line 7 of Algorithm 1."""
    key, window_key, draw_key = jax.random.split(state.key, 3)
    windows = draw_windows(
        newest(recording, settings.recent),
        points=settings.window_points,
        per_trajectory=settings.windows_per_trajectory,
        total=settings.windows,
        key=window_key,
    )
    points = jnp.sum(recording.counts).astype(jnp.float32)
    ramp = settings.kl_ramp * (settings.warmup_updates + settings.updates)
    kl_weight = settings.kl_weight * jnp.minimum(state.iteration / ramp, 1.0) if ramp else settings.kl_weight
    trained, fixed = eqx.partition(state.learned, eqx.is_inexact_array)

    def loss_of(trained: Learned) -> tuple[Array, tuple[Array, Array, Array]]:
        learned = eqx.combine(trained, fixed)
        if not settings.learn_noise:
            learned = eqx.tree_at(lambda learned: learned.log_noise, learned, replace_fn=jax.lax.stop_gradient)
        setting, first_state = named(settings.solver), settings.first_state
        return negative_elbo(learned, windows, points, setting, kl_weight, key=draw_key, first_state=first_state)

    (loss, (error, unhealthy, work)), gradient = jax.value_and_grad(loss_of, has_aux=True)(trained)
    rate = learning_rate(settings, state.iteration)
    adam = _adam(settings.noise_speed)
    trained, moments, applied = guarded_update(adam, gradient, loss, state.optimiser, trained, rate * step_scale)
    state = FitState(eqx.combine(trained, fixed), moments, state.iteration + 1, key)
    return state, FitMetrics(loss, error, unhealthy, applied, work)


def matching_update(
    settings: config.Fit, state: FitState, recording: Recording, step_scale: Float[Array, ""]
) -> tuple[FitState, FitMetrics]:
    """Gradient matching, ``f(s_i, a_i) ~ (s_{i+1} - s_i) / dt_i`` over all points (F2).

    A difference over a gap shorter than the median is weighted by the square of its share, so that a tiny gap's noise
    does not drown the rest.
    """
    key, draw_key = jax.random.split(state.key)
    gap = recording.steps
    interval = jnp.arange(gap.shape[1])
    present = interval[None, :] < (recording.counts - 1)[:, None]
    slope = (recording.observations[:, 1:] - recording.observations[:, :-1]) / gap[..., None]
    median = jnp.nanmedian(jnp.where(present, gap, jnp.nan))
    weight = jnp.where(present, jnp.minimum(gap / median, 1.0) ** 2, 0.0)
    middle_action = jax.vmap(jax.vmap(lambda path: path_action(path, 0.5)))(recording.paths)
    middle = (recording.observations[:, 1:] + recording.observations[:, :-1]) / 2
    trained, fixed = eqx.partition(state.learned, eqx.is_inexact_array)

    def loss_of(trained: Learned) -> tuple[Array, None]:
        dynamics = eqx.combine(trained, fixed).dynamics
        assert isinstance(dynamics, AbstractField)
        members = spread(dynamics.draw(key=draw_key))
        rates = jax.vmap(lambda m: jax.vmap(jax.vmap(lambda o, a: dynamics.rate(m, o, a)))(middle, middle_action))(
            members
        )
        wrong = (rates - slope) / dynamics.length_scales()
        return jnp.sum(weight[..., None] * wrong**2) / (jnp.sum(weight) * rates.shape[0] * rates.shape[-1]), None

    (loss, _), gradient = jax.value_and_grad(loss_of, has_aux=True)(trained)
    rate = settings.matching_rate * step_scale
    trained, moments, applied = guarded_update(_ADAM, gradient, loss, state.optimiser, trained, rate)
    zero = jnp.zeros((), jnp.int32)
    state = FitState(eqx.combine(trained, fixed), moments, state.iteration + 1, key)
    return state, FitMetrics(loss, jnp.sqrt(loss), zero, applied, zero)
