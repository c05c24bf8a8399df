"""Transitions learn by likelihood on one-step data: mini-batches, a bootstrap per learner, early stopping.

Pure phases of one seed, as in `model.fit`; `vmap` adds more.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ctrlax import config
from ctrlax.model.dynamics import AbstractTransition, Gaussian, Members
from ctrlax.model.fit import WINDOW_LIMIT, FitMetrics, Learned
from ctrlax.model.update import guarded_update
from ctrlax.model.windows import Recording, Windows, path_action

HELD_MOST = 256  # held-out transitions that decide about stopping

_ADAM = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


class OneStepState(eqx.Module):
    """Between two updates. What is kept are each learner's weights at its best look at the held-out transitions."""

    learned: Learned  # kept
    trained: AbstractTransition
    optimiser: optax.OptState
    lowest: Float[Array, "*seed learner"]  # held-out loss
    kept: Int[Array, "*seed learner"]  # the update whose weights are kept
    waited: Int[Array, "*seed learner"]  # looks since then
    iteration: Int[Array, "*seed"]
    key: PRNGKeyArray
    resampling: PRNGKeyArray  # of the bootstraps and the held-out transitions: one choice for the whole phase


class Steps(eqx.Module):
    """One-step data; rows are padded."""

    observations: Float[Array, "row observation"]
    actions: Float[Array, "row action"]
    steps: Float[Array, " row"]
    changes: Float[Array, "row observation"]


class Material(eqx.Module):
    """What a phase sees: the data, what each learner draws its mini-batches from, and what none of them does."""

    data: Steps
    resampled: Int[Array, "learner row"]  # the first `count` places of each are its bootstrap
    count: Int[Array, ""]
    held: Int[Array, " held"]
    is_held: Bool[Array, " held"]  # the first ones; the others serve where nothing is held out
    total: Int[Array, ""]


def begin(learned: Learned, *, key: PRNGKeyArray) -> OneStepState:
    """Fresh moments, bootstraps and best losses, as at the start of every round; weights go on from where they were."""
    dynamics = learned.dynamics
    assert isinstance(dynamics, AbstractTransition)
    moments = _ADAM.init(eqx.filter(dynamics, eqx.is_inexact_array))
    key, resampling = jax.random.split(key)
    none = jnp.zeros(dynamics.learner_count(), jnp.int32)
    lowest = jnp.full(dynamics.learner_count(), jnp.inf, jnp.float32)
    return OneStepState(learned, dynamics, moments, lowest, none, none, jnp.zeros((), jnp.int32), key, resampling)


def steps_of(recording: Recording) -> tuple[Steps, Bool[Array, " row"]]:
    """Every pair of consecutive observations, and which rows are one; the action is the one at the step's start."""
    observations, actions, steps, counts = (
        jnp.asarray(part) for part in (recording.observations, recording.actions, recording.steps, recording.counts)
    )
    present = jnp.arange(steps.shape[1]) < (counts - 1)[:, None]
    parts = (observations[:, :-1], actions[:, :-1], steps, observations[:, 1:] - observations[:, :-1])
    return Steps(*(part.reshape(-1, *part.shape[2:]) for part in parts)), present.reshape(-1)


def prepared(settings: config.OneStep, state: OneStepState, recording: Recording) -> Material:
    """Held out and resampled by the phase's own key, so that every chunk of it sees the same.

    Each of several learners resamples the training transitions with replacement, as often as there are (its bootstrap);
    a single one sees them as they are.
    """
    data, present = steps_of(recording)
    order_key, draw_key = jax.random.split(state.resampling)
    rows = present.shape[0]
    order = jnp.argsort(jnp.where(present, jax.random.uniform(order_key, (rows,)), jnp.inf)).astype(jnp.int32)
    total = jnp.sum(present)
    held = jnp.minimum(jnp.round(settings.held_out * total).astype(jnp.int32), min(HELD_MOST, rows))
    count = total - held
    learners = state.trained.learner_count()
    place = jnp.broadcast_to(jnp.arange(rows), (learners, rows))
    if learners > 1:
        place = _places(jax.random.uniform(draw_key, (learners, rows)), count)
    resampled = order[jnp.minimum(held + place, rows - 1)]
    first = order[:HELD_MOST]
    return Material(data, resampled, count, first, jnp.arange(len(first)) < held, total)


def _places(uniform: Float[Array, "*place"], count: Int[Array, ""]) -> Int[Array, "*place"]:
    # A number just below one times a large count may round up to the count.
    return jnp.minimum(jnp.floor(uniform * count).astype(jnp.int32), count - 1)


def log_density(of: Gaussian, change: Float[Array, "*row observation"]) -> Float[Array, "*row"]:
    """``log N(change | mean, diag exp(log_variance))``, summed over coordinates."""
    standard = (change - of.mean) ** 2 * jnp.exp(-of.log_variance)
    return -0.5 * jnp.sum(standard + of.log_variance + jnp.log(2 * jnp.pi), axis=-1)


def changes(
    dynamics: AbstractTransition, members: Members, data: Steps, rows: Int[Array, "*member row"]
) -> tuple[Gaussian, Float[Array, "member row observation"]]:
    """What every member says of its rows, and what was seen there."""
    rows = jnp.broadcast_to(rows, (dynamics.member_count(), rows.shape[-1]))

    def one(member: Members, rows: Int[Array, " row"]) -> tuple[Gaussian, Array]:
        chosen = jax.tree.map(lambda part: part[rows], data)
        said = jax.vmap(lambda o, a, h: dynamics.change(member, o, a, h))
        return said(chosen.observations, chosen.actions, chosen.steps), chosen.changes

    return jax.vmap(one)(members, rows)


def negative_likelihood(
    dynamics: AbstractTransition, members: Members, data: Steps, rows: Int[Array, "*member row"]
) -> tuple[Float[Array, "member row"], Float[Array, "member row observation"]]:
    """``-log p`` of every member and row in units of the length scales, and the mean's error in them."""
    said, seen = changes(dynamics, members, data, rows)
    scales = dynamics.length_scales()
    scaled = Gaussian(said.mean / scales, said.log_variance - 2 * jnp.log(scales))
    return -log_density(scaled, seen / scales), (said.mean - seen) / scales


def update(
    settings: config.OneStep, state: OneStepState, seen: Material, step_scale: Float[Array, ""]
) -> tuple[OneStepState, FitMetrics]:
    """One mini-batch: every member's own rows of its learner's bootstrap, drawn alike.

    The loss is the sum over learners of mean ``-log p`` per transition, plus the model's own penalty, plus its
    divergence over the number of transitions.
    """
    key, row_key, draw_key = jax.random.split(state.key, 3)
    members_each = state.trained.member_count() // state.trained.learner_count()
    table = jnp.repeat(seen.resampled, members_each, axis=0)
    place = _places(jax.random.uniform(row_key, (len(table), settings.batch)), seen.count)
    rows = jnp.take_along_axis(table, place, axis=1)
    trained, fixed = eqx.partition(state.trained, eqx.is_inexact_array)

    def loss_of(trained: AbstractTransition) -> tuple[Array, tuple[Array, Array]]:
        dynamics = eqx.combine(trained, fixed)
        loss, wrong = negative_likelihood(dynamics, dynamics.draw(key=draw_key), seen.data, rows)
        by_learner = _by_learner(jnp.mean(loss, axis=1), dynamics)
        own = dynamics.penalty(settings.weight_decay, settings.bound_weight)
        prior = settings.kl_weight * dynamics.divergence() / seen.count
        total = jnp.sum(by_learner + own) + prior
        return total, (jnp.mean(by_learner), jnp.sqrt(jnp.mean(wrong**2)))

    (loss, (told, error)), gradient = jax.value_and_grad(loss_of, has_aux=True)(trained)
    rate = settings.rate * step_scale
    trained, moments, applied = guarded_update(_ADAM, gradient, loss, state.optimiser, trained, rate)
    state = eqx.tree_at(
        lambda s: (s.trained, s.optimiser, s.iteration, s.key),
        state,
        (eqx.combine(trained, fixed), moments, state.iteration + 1, key),
    )
    zero = jnp.zeros((), jnp.int32)
    return state, FitMetrics(told, error, zero, applied, jnp.asarray(rows.size, jnp.int32))


def _by_learner(of_members: Float[Array, " member"], dynamics: AbstractTransition) -> Float[Array, " learner"]:
    return jnp.mean(of_members.reshape(dynamics.learner_count(), -1), axis=1)


def looked(settings: config.OneStep, state: OneStepState, seen: Material) -> OneStepState:
    """The end of a chunk: learners better than ever on the held-out transitions are kept, others wait.

    One that waited ``patience`` looks has stopped: nothing of it is looked at again. The noise of `Learned` becomes the
    root mean variance that is predicted for a step.
    """
    # The same draw at every look, so that two looks differ by the weights alone.
    members = state.trained.draw(key=state.resampling)
    loss, _ = negative_likelihood(state.trained, members, seen.data, seen.held)
    any_held = jnp.any(seen.is_held)
    loss = jnp.sum(jnp.where(seen.is_held, loss, 0.0), axis=1) / jnp.maximum(jnp.sum(seen.is_held), 1)
    loss = _by_learner(loss, state.trained)
    before = state.learned.dynamics
    assert isinstance(before, AbstractTransition)
    going = ~stopped_learners(settings, state)
    better = going & jnp.isfinite(loss) & ((loss < state.lowest) | ~any_held)
    kept = _chosen(better, state.trained, before)
    said, _ = changes(kept, kept.draw(key=state.resampling), seen.data, seen.held)
    present = (jnp.arange(len(seen.held)) < seen.total)[:, None]
    variance = jnp.sum(jnp.where(present, jnp.exp(said.log_variance), 0.0), axis=(0, 1))
    variance = variance / (kept.member_count() * jnp.maximum(jnp.sum(present), 1))
    log_noise = 0.5 * jnp.log(variance) - jnp.log(kept.length_scales())
    return eqx.tree_at(
        lambda s: (s.learned, s.lowest, s.kept, s.waited),
        state,
        (
            Learned(kept, log_noise),
            jnp.where(better, loss, state.lowest),
            jnp.where(better, state.iteration, state.kept),
            jnp.where(better, 0, state.waited + going),
        ),
    )


def stopped_learners(settings: config.OneStep, state: OneStepState) -> Bool[Array, "*seed learner"]:
    """Who has waited long enough for a better held-out likelihood."""
    if not settings.patience:
        return jnp.zeros(state.waited.shape, bool)
    return state.waited >= settings.patience


def _chosen(better: Bool[Array, " learner"], new: AbstractTransition, old: AbstractTransition) -> AbstractTransition:
    """``new`` for the learners that are better: along the first axis of what is trained; all else is the same."""

    def one(new: Array, old: Array) -> Array:
        if new.shape[:1] != better.shape:
            return new
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(one, new, old)


def simulate_steps(
    dynamics: AbstractTransition, members: Members, windows: Windows
) -> tuple[Float[Array, "member window interval observation"], Bool[Array, "member window"], Int[Array, ""]]:
    """Every member's mean along every window: states at its later points, health, transitions taken.

    Each interval is one step with its action held at the value at its start; in one of no length nothing changes.
    """
    limit = WINDOW_LIMIT * dynamics.length_scales()
    held = jax.vmap(jax.vmap(lambda path: path_action(path, 0.0)))(windows.paths)

    def one(member: Members, start: Array, steps: Array, actions: Array) -> tuple[Array, Array]:
        def stepped(state: Array, piece: tuple[Array, Array]) -> tuple[Array, Array]:
            step, action = piece
            inside = jnp.all(jnp.abs(state) < limit)
            moved = dynamics.change(member, jnp.where(inside, state, 0.0), action, step).mean
            state = jnp.where(inside & (step > 0), state + moved, state)
            return state, state

        _, states = jax.lax.scan(stepped, start, (steps, actions))
        return states, jnp.all(jnp.isfinite(states)) & jnp.all(jnp.abs(states) < limit)

    over_windows = jax.vmap(one, in_axes=(None, 0, 0, 0))
    over_members = jax.vmap(over_windows, in_axes=(0, None, None, None))
    states, healthy = over_members(members, windows.starts, windows.steps, held)
    healthy = healthy & windows.present
    return states, healthy, jnp.sum(windows.present) * windows.steps.shape[1] * states.shape[0]
