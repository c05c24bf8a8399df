"""A user's own system tried out before any work, on starts drawn from its own box.

Each check raises `UserError` with what was expected, what came and what to do; the line is given where an exception
names one.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ctrlax.errors import UserError
from ctrlax.world.environment import Environment

STARTS = 16
WIDER = 5.0  # how far around the start box a reward may begin to depend on the state, in half widths plus one
ROUND_TRIP = 1e-6

# What is computed at every sample, in the order in which it is judged: a value before its gradient.
TRIED = (
    *("field", "observe", "reward_rate", "field by state", "field by action"),
    *("reward_rate by observation", "reward_rate by action"),
)

ADVICE = {
    jax.errors.TracerBoolConversionError: (
        "Python's `if`, `and`, `while`, `min` and `max` need numbers, and JAX has none yet when it compiles. "
        "Write jnp.where(condition, this, that), jnp.minimum, jnp.maximum or jnp.clip instead."
    ),
    jax.errors.TracerArrayConversionError: (
        "NumPy cannot compute on JAX's values. Write jnp.sin(x) for np.sin(x), after `import jax.numpy as jnp`."
    ),
    jax.errors.ConcretizationTypeError: (
        "`float(x)` and `math.sin(x)` need numbers, and JAX has none yet when it compiles. "
        "Write jnp.sin(x) for math.sin(x), and leave float(...) out."
    ),
    jax.errors.UnexpectedTracerError: (
        "A value was kept outside the function (in a global, say) and used later. "
        "Return everything the function computes, and keep nothing."
    ),
}


def check(environment: Environment, where: str) -> None:
    """Try every function of a system; `where` is its file, as messages name it."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        _check_shapes(environment, where)
        starts, actions = _samples(environment)
        first, second = (_tried(environment, starts, actions) for _ in range(2))
        _check_repeats(where, first, second)
        _check_finite(environment, where, first, starts, actions)
        _check_round_trip(environment, where, starts)
        _check_reward_depends(environment, where, first, starts, actions)


def check_constants(defined: Mapping[str, Any], where: str) -> None:
    """Say so if a module-level JAX array has rounded its numbers to float32, as the world is solved in float64."""
    rounded = [name for name, value in defined.items() if isinstance(value, jax.Array) and value.dtype == jnp.float32]
    if rounded:
        warnings.warn(
            f"{where}: {', '.join(rounded)} made with jax.numpy at the top of the file: rounded to float32, while the "
            "true world is "
            "solved in float64. Use plain numbers or numpy (np.array) for constants.",
            stacklevel=2,
        )


def line_of(error: BaseException, where: str) -> str:
    """``, line 12``: the innermost line of the file `where` that the error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
    return f", line {lines[-1]}" if lines else ""


def _check_shapes(environment: Environment, where: str) -> None:
    state = jax.ShapeDtypeStruct((environment.state_size,), jnp.float64)
    action = jax.ShapeDtypeStruct((environment.action_size,), jnp.float64)
    observation = jax.ShapeDtypeStruct((environment.observation_size,), jnp.float64)
    of_states = f"one rate per state ({', '.join(environment.state_names)})"
    _expect(where, "field", environment.field, (state, action), (environment.state_size,), of_states)
    if environment.observed is not None:
        of_observation = f"one number per name in observation_names ({', '.join(environment.observation_names)})"
        _expect(where, "observe", environment.observed, (state,), observation.shape, of_observation)
    _expect(where, "reward_rate", environment.reward_rate, (observation, action), (), "one number, without axes")
    if environment.energy is not None:
        _expect(where, "energy", environment.energy, (state,), (), "one number, without axes")


def _expect(where: str, name: str, function: Callable[..., Any], arguments: tuple, shape: tuple, meaning: str) -> None:
    try:
        came = jax.eval_shape(function, *arguments)
    except UserError:
        raise
    except Exception as error:
        raise _failure(where, name, error, arguments) from error
    expected = f"an array of shape {shape}: {meaning}" if shape else meaning
    if not hasattr(came, "shape"):
        raise UserError(
            f"{where}: `{name}` returned a {type(came).__name__}, expected {expected}. Return a jax.numpy array"
            f"{', jnp.stack([...]) of the numbers say' if shape else ''}."
        )
    if came.shape != shape:
        cure = "Return jnp.stack([...]) of them, in that order." if shape else "Sum over the axis, or take one entry."
        raise UserError(f"{where}: `{name}` returned shape {came.shape}, expected {expected}. {cure}")
    if not jnp.issubdtype(came.dtype, jnp.floating):
        raise UserError(
            f"{where}: `{name}` returned {came.dtype}, expected float64. Compute it from its arguments, in floats "
            "(1.0)."
        )
    if came.dtype != jnp.float64:
        raise UserError(
            f"{where}: `{name}` returned {came.dtype} for float64 states, expected float64: the true world is solved "
            "in float64, "
            "a learned one in float32, so the input decides. Remove dtype=..., .astype(...) and jnp.float32(...)."
        )


def _failure(where: str, name: str, error: Exception, arguments: tuple) -> UserError:
    place = f"{where}{line_of(error, where)}: `{name}`"
    for kind, advice in ADVICE.items():
        if isinstance(error, kind):
            return UserError(f"{place} cannot be compiled. {advice}")
    sizes = " and ".join(str(argument.shape) for argument in arguments)
    message = str(error).split("\n", 1)[0]
    return UserError(
        f"{place} fails: {type(error).__name__}: {message} It is called with arrays of shape {sizes}, for one state, "
        "not a batch."
    )


def _samples(environment: Environment) -> tuple[np.ndarray, np.ndarray]:
    """The middle of both boxes (mostly exact zeros, where roots have no gradient), then random starts and actions."""
    generator = np.random.default_rng(0)
    low, high = np.asarray(environment.start_low), np.asarray(environment.start_high)
    starts = np.concatenate([(low + high)[None] / 2, generator.uniform(low, high, (STARTS, len(low)))])
    size = (STARTS, environment.action_size)
    actions = environment.action_middle + environment.action_reach * generator.uniform(-1, 1, size)
    return starts, np.concatenate([environment.action_middle[None], actions])


def _tried(environment: Environment, states: np.ndarray, actions: np.ndarray) -> dict[str, np.ndarray]:
    def one(state: Array, action: Array) -> tuple[Array, ...]:
        observation = environment.observe(state)
        by_state, by_action = jax.jacfwd(environment.field, (0, 1))(state, action)
        reward_by_observation, reward_by_action = jax.grad(environment.reward_rate, (0, 1))(observation, action)
        rates, reward = environment.field(state, action), environment.reward_rate(observation, action)
        return rates, observation, reward, by_state, by_action, reward_by_observation, reward_by_action

    answers = jax.jit(jax.vmap(one))(states, actions)
    return {name: np.asarray(answer) for name, answer in zip(TRIED, answers, strict=True)}


def _check_repeats(where: str, first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    for name in first:
        if not np.array_equal(first[name], second[name], equal_nan=True):
            raise UserError(
                f"{where}: `{name.split()[0]}` gave two answers for the same input, expected a function of its "
                "arguments alone. "
                "Take random draws, counters and clocks out of it."
            )


def _check_finite(
    environment: Environment, where: str, tried: dict[str, np.ndarray], starts: np.ndarray, actions: np.ndarray
) -> None:
    axes = {
        "state": environment.state_names,
        "action": environment.action_names,
        "observation": environment.observation_names,
    }
    outputs = {"field": environment.state_names, "observe": environment.observation_names}
    for name, values in tried.items():
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):
            continue
        function, _, by = name.partition(" by ")
        sample, *place = bad[0]
        what = f"`{function}`" + (f" of {outputs[function][place.pop(0)]}" if function in outputs else "")
        cure = "Look for a division by zero, a root or logarithm of a negative number, or an overflow."
        if by:
            what = f"the gradient of {what} with respect to {axes[by][place.pop(0)]}"
            cure = (
                "jnp.sqrt, jnp.linalg.norm and jnp.abs to a power below 1 have none at zero, and jnp.where passes on "
                "the NaN of the "
                "branch it does not take: square instead of taking a root, or add a small number under it."
            )
        at = _point(environment.state_names, starts[sample]) + "; " + _point(environment.action_names, actions[sample])
        raise UserError(
            f"{where}: {what} is {values[tuple(bad[0])]} at the start {at}, expected a finite number. {cure}"
        )


def _point(names: tuple[str, ...], values: np.ndarray) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in zip(names, values, strict=True))


def _check_round_trip(environment: Environment, where: str, starts: np.ndarray) -> None:
    if environment.restored is None or getattr(environment.restored, "__name__", "") == "_cannot_restore":
        return
    observation = jax.ShapeDtypeStruct((environment.observation_size,), jnp.float64)
    of_states = f"one number per state ({', '.join(environment.state_names)})"
    _expect(where, "restore", environment.restored, (observation,), (environment.state_size,), of_states)
    seen = jax.vmap(environment.observe)(jnp.asarray(starts))
    again = jax.vmap(lambda row: environment.observe(environment.restore(row)))(seen)
    off = np.abs(np.asarray(again - seen)).max(axis=0)
    if not off.max() <= ROUND_TRIP:
        name = environment.observation_names[int(np.argmax(np.nan_to_num(off, nan=np.inf)))]
        raise UserError(
            f"{where}: observe(restore(observation)) differs from the observation by {off.max():.3g} in {name}, "
            "expected the same. "
            "`restore` must give back a state that is observed alike."
        )


def _check_reward_depends(
    environment: Environment, where: str, tried: dict[str, np.ndarray], starts: np.ndarray, actions: np.ndarray
) -> None:
    if np.any(tried["reward_rate by observation"]):
        return
    generator = np.random.default_rng(1)
    reach = (np.asarray(environment.start_high) - np.asarray(environment.start_low)) / 2 + 1.0
    wide = starts + WIDER * reach * generator.uniform(-1, 1, starts.shape)
    slopes = jax.vmap(lambda s, a: jax.grad(environment.reward_rate)(environment.observe(s), a))(wide, actions)
    if not np.any(np.asarray(slopes)):
        raise UserError(
            f"{where}: `reward_rate` does not depend on the state: its gradient with respect to "
            f"{', '.join(environment.observation_names)} is zero at {len(starts)} starts and as many states around "
            "them, expected one "
            "that leads to the goal. Reward nearness smoothly, jnp.exp(-distance**2) say, not by a step."
        )
    warnings.warn(
        f"{where}: `reward_rate` has no gradient with respect to the state anywhere in the start box, so nothing leads "
        "the first "
        "policies to the goal. A wider bell or a milder power helps.",
        stacklevel=3,
    )
