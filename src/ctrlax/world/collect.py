"""Environment + control + times + key -> Trajectory: the only way a learner sees the true world."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray

from ctrlax.errors import UserError
from ctrlax.ode.batch import solve_batch
from ctrlax.ode.control import CLOCK_TICK, AbstractControl, AnyArray, PolicyControl, Squashed, draw_path, own_clock
from ctrlax.ode.randomness import host_generator
from ctrlax.ode.solvers import SolverSetting, named
from ctrlax.world.check import ADVICE
from ctrlax.world.environment import Environment

RANDOM_ACTION_SCALE = 0.5  # of the process under the tanh, without unit (SPEC A2)

Policy = Callable[[Float[Array, " observation"]], Float[Array, " action"]]


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What was seen of the true world: NumPy float64, trajectory axis first.

    ``rewards`` are rates at the true states; ``observations`` carry the noise; ``actions`` act from their time on.
    """

    times: Float64[np.ndarray, "trajectory time"]
    states: Float64[np.ndarray, "trajectory time state"]
    observations: Float64[np.ndarray, "trajectory time observation"]
    actions: Float64[np.ndarray, "trajectory time action"]
    rewards: Float64[np.ndarray, "trajectory time"]
    healthy: Bool[np.ndarray, " trajectory"]
    work: Int[np.ndarray, " trajectory"]  # field evaluations


def simulate(
    env: Environment,
    control: AbstractControl | Policy | Sequence[AbstractControl | Policy],
    times: np.ndarray,
    *,
    key: PRNGKeyArray,
    starts: np.ndarray | None = None,
    noise: float = 0.0,
    solver: str = "dopri8",
    rtol: float | None = None,
    atol: float | None = None,
) -> Trajectory:
    """Roll out the true system in float64 on the host, whatever the global precision and device.

    ``control`` is a policy (observation -> action) or a control object, one for all or a list with one per trajectory;
    ``times`` is ``[time]`` or ``[trajectory, time]``; ``starts`` is ``[trajectory, state]``, drawn if absent.
    """
    if not isinstance(env, Environment):
        raise UserError(f"an Environment is rolled out, but {env!r} came: make one with ctrlax.make({env!r}), say")
    setting = named(solver).at(rtol, atol)
    if not (np.isfinite(noise) and noise >= 0):
        raise UserError(f"the observation noise must be a standard deviation of at least 0, but {noise} came")
    start_key, noise_key = jax.random.split(key)
    times = _checked_times(times)
    count = _trajectory_count(control, times, starts)
    if starts is None:
        starts = env.draw_starts(count, key=start_key)
    starts = _checked_starts(env, starts)
    times = np.broadcast_to(times, (count, times.shape[-1]))
    controls, one_each = _as_controls(control)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        controls = jax.tree.map(_to_float64, controls)
        # On the trajectory's own clock: a log that begins at 1e4 s loses no digits.
        answer = _roll_out(env, setting, one_each, controls, *own_clock(times), starts)
        states, observations, actions, rewards, healthy, work = (np.asarray(part) for part in answer)
    if noise > 0:
        observations = observations + noise * host_generator(noise_key).standard_normal(observations.shape)
    return Trajectory(times.copy(), states, observations, actions, rewards, healthy, work.astype(np.int64))


def random_controls(env: Environment, times: np.ndarray, *, key: PRNGKeyArray) -> list[AbstractControl]:
    """One smooth random control per row of ``times``: a_max tanh(GP(0, SE(0.5, 0.5 s))) (SPEC A2)."""
    keys = jax.random.split(key, len(times))
    middle, reach = env.action_middle, env.action_reach
    paths = [
        draw_path(row, env.action_size, key=k, scale=RANDOM_ACTION_SCALE) for row, k in zip(times, keys, strict=True)
    ]
    return [Squashed(path, middle, reach) for path in paths]


@partial(eqx.filter_jit)
def _roll_out(
    env: Environment,
    setting: SolverSetting,
    one_each: bool,
    controls: AbstractControl,
    origin: Float[AnyArray, " trajectory"],
    times: Float[AnyArray, "trajectory time"],
    starts: Float[AnyArray, "trajectory state"],
) -> tuple[Array, ...]:
    def own_control(own: tuple[AbstractControl | None, Array]) -> AbstractControl:
        control, origin = own
        return (controls if control is None else control).delayed(-origin)

    def field(own: tuple[AbstractControl | None, Array], time: Array, state: Array) -> Array:
        return env.field(state, _action(env, own_control(own), env.observe(state), time))

    def seen(own: tuple[AbstractControl | None, Array], time: Array, state: Array) -> tuple[Array, ...]:
        observation = env.observe(state)
        action = _action(env, own_control(own), observation, time)
        return observation, action, env.reward_rate(observation, action)

    origin, times, starts = (jnp.asarray(part) for part in (origin, times, starts))
    own = (controls if one_each else None, origin)
    breaks = eqx.filter_vmap(lambda own: own_control(own).breaks())(own)
    solution = solve_batch(field, own, starts, times, setting, breaks=breaks)
    # Two logs' clocks may round the same instant apart; what is recorded is the action from there on.
    instants = times + 2 * CLOCK_TICK * jnp.minimum(times[:, -1:] - times[:, :1], 1.0)
    # Instant by instant: a network's layers at all instants at once are hundreds of megabytes and six times slower.
    along = jax.lax.map(
        lambda each: eqx.filter_vmap(seen)(own, *each), (instants.T, jnp.moveaxis(solution.states, 1, 0))
    )
    observations, actions, rewards = (jnp.moveaxis(part, 0, 1) for part in along)
    finite = jnp.all(jnp.isfinite(actions), axis=(1, 2)) & jnp.all(jnp.isfinite(rewards), axis=1)
    return solution.states, observations, actions, rewards, solution.healthy & finite, solution.work


def _action(env: Environment, control: AbstractControl, observation: Array, time: Array) -> Array:
    """Looked at as it is compiled, so that a mistake in a policy is told in its own words."""
    try:
        action = control(observation, time)
    except tuple(ADVICE) as error:
        advice = next(advice for kind, advice in ADVICE.items() if isinstance(error, kind))
        raise UserError(f"the policy cannot be compiled. {advice}") from error
    if jnp.shape(action) != (env.action_size,):
        raise UserError(
            f"the control of {env.name} gives an action of shape {jnp.shape(action)}, expected ({env.action_size},): "
            f"one number per action ({', '.join(env.action_names)})"
        )
    return jnp.asarray(action)


def _to_float64(leaf: Any) -> Any:
    if eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating):
        return np.asarray(leaf, np.float64)
    return leaf


def _as_controls(
    control: AbstractControl | Policy | Sequence[AbstractControl | Policy],
) -> tuple[AbstractControl, bool]:
    if not isinstance(control, Sequence):
        return _as_control(control), False
    if not control:
        raise UserError("a list of controls has one per trajectory, but the list is empty")
    controls = [_as_control(each) for each in control]
    first = jax.tree.structure(controls[0])
    for place, each in enumerate(controls):
        if jax.tree.structure(each) != first:
            raise UserError(
                f"the controls of a list must be of one kind, but number {place} differs from the first "
                f"({type(each).__name__} and {type(controls[0]).__name__}): simulate each kind on its own"
            )
    return jax.tree.map(_stacked, *controls), True


def _stacked(*leaves: Any) -> Any:
    if eqx.is_array(leaves[0]) or isinstance(leaves[0], float):
        return np.stack([np.asarray(leaf) for leaf in leaves])
    return leaves[0]


def _as_control(control: AbstractControl | Policy) -> AbstractControl:
    if isinstance(control, AbstractControl):
        return control
    if callable(control):
        return PolicyControl(control)
    raise UserError(
        f"a control must be a policy (observation -> action) or a control object, but a {type(control).__name__} came"
    )


def _checked_times(times: np.ndarray) -> np.ndarray:
    times = np.asarray(times, np.float64)
    if times.ndim not in (1, 2) or times.shape[-1] < 2:
        raise UserError(
            f"times must be [time] or [trajectory, time] with at least 2 points, but the shape {times.shape} came"
        )
    rows = np.atleast_2d(times)
    for wrong, what in ((~np.isfinite(rows), "not a finite number"), (_not_after(rows), "not after the one before it")):
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise UserError(
                f"times must increase, but time {place} of trajectory {row} is {rows[row, place]}, {what}: "
                "sort the times and drop repeated ones"
            )
    return times


def _not_after(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(rows), 1), bool), ~(np.diff(rows, axis=1) > 0)], axis=1)


def _checked_starts(env: Environment, starts: np.ndarray) -> np.ndarray:
    starts = np.asarray(starts, np.float64)
    if starts.ndim != 2 or starts.shape[1] != env.state_size:
        raise UserError(
            f"starts must be [trajectory, state] with {env.state_size} coordinates ({', '.join(env.state_names)}), "
            f"but the shape {starts.shape} came"
        )
    if not np.isfinite(starts).all():
        row, place = np.argwhere(~np.isfinite(starts))[0]
        raise UserError(
            f"starts must be finite, but {env.state_names[place]} of trajectory {row} is {starts[row, place]}"
        )
    return starts


def _trajectory_count(control: Any, times: np.ndarray, starts: np.ndarray | None) -> int:
    counts = {
        "controls": len(control) if isinstance(control, Sequence) else None,
        "rows of times": len(times) if times.ndim == 2 else None,
        "starts": len(starts) if starts is not None else None,
    }
    known = {what: count for what, count in counts.items() if count is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{count} {what}" for what, count in known.items())
        raise UserError(f"every trajectory needs one of each, but {listed} came")
    return next(iter(known.values()), 1)
