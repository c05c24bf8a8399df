"""Critics with ReLU and tanh outside their data, and dynamics with ELU, ReLU and tanh on unseen paths (claim 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.agent.policy import HIDDEN as ACTOR_CRITIC
from ctrlax.lab import policies
from ctrlax.lab.claims import Claim, judge
from ctrlax.lab.gallery import Panel
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, band, column, look, unique
from ctrlax.model.dynamics import HIDDEN as DYNAMICS
from ctrlax.model.network import apply_layers, elu, init_layers
from ctrlax.world.collect import Trajectory, random_controls, simulate
from ctrlax.world.environment import Environment
from ctrlax.world.grids import fixed_times
from ctrlax.world.load import make

ANSWERS = (12,)  # claims
TITLE = "Activations outside the data"
CAPTION = (
    "Left: critics (2 x 200) regressed on discounted returns of a solving policy along its own roll-outs, then asked "
    "about states whose positions and speeds are so many times the largest in these data; no return can exceed 5 in "
    "size by more than action costs. Right: perceptrons (3 x 200) regressed on the true rates along random roll-outs, "
    "then asked about the roll-outs of solving policies. The text states both findings without a picture."
)
CRITICS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
FIELDS: dict[str, Callable[[Array], Array]] = {"elu": elu, "relu": jax.nn.relu, "tanh": jnp.tanh}
FACTORS = (1.0, 2.0, 3.0, 5.0, 10.0)  # times the data's largest
FAR = 5.0
DISCOUNT_TIME = 5.0  # s, eta: with rewards of at most 1 no return exceeds it
RATE = 1e-3
# environment, seeds, updates, roll-outs
SIZES = {"smoke": ("pendulum", 2, 3, 3), "small": ("cartpole", 10, 1500, 10), "paper": ("cartpole", 20, 5000, 20)}


def wanted(scale: Scale) -> list[Wanted]:
    """No runs of its own."""
    return []


def table(made: Made) -> list[Row]:
    """Rows of kind `critic`: largest value by factor; of kind `dynamics`: errors on seen and unseen roll-outs."""
    name, seeds, updates, roll_outs = SIZES[made.scale.name]
    environment = make(name)
    known = policies.solving(policies.read(name, *made.policies))
    solved = _rolled(environment, policies.double(known[0].policy), roll_outs, 10.0)
    return [*_critics(environment, solved, seeds, updates), *_fields(environment, solved, seeds, updates)]


def _rolled(environment: Environment, control: Any, count: int, seconds: float) -> Trajectory:
    times = fixed_times(0.05, seconds)
    if control is None:
        rows = np.broadcast_to(times, (count, len(times)))
        control = random_controls(environment, rows, key=jax.random.key(5))
    starts = environment.draw_starts(count, key=jax.random.key(6))
    return simulate(environment, control, times, key=jax.random.key(7), starts=starts)


def returns(seen: Trajectory) -> Float[np.ndarray, "trajectory time"]:
    """Discounted returns from every time to the end, trapezoidal; what comes after the end is the last reward kept."""
    step = float(seen.times[0, 1] - seen.times[0, 0])
    decay = np.exp(-step / DISCOUNT_TIME)
    value = np.empty_like(seen.rewards)
    value[:, -1] = DISCOUNT_TIME * seen.rewards[:, -1]
    for place in range(seen.rewards.shape[1] - 2, -1, -1):
        piece = step / 2 * (seen.rewards[:, place] + decay * seen.rewards[:, place + 1])
        value[:, place] = piece + decay * value[:, place + 1]
    return value


def _critics(environment: Environment, seen: Trajectory, seeds: int, updates: int) -> list[Row]:
    inputs = jnp.asarray(seen.observations.reshape(-1, environment.observation_size), jnp.float32)
    targets = jnp.asarray(returns(seen).reshape(-1, 1), jnp.float32)
    rows = []
    for name, activation in CRITICS.items():
        trained = _trained(
            activation, ACTOR_CRITIC, updates, inputs, targets, jax.random.split(jax.random.key(1), seeds)
        )
        for factor in FACTORS:
            outside = jnp.asarray(_outside(environment, seen, factor), jnp.float32)
            largest = np.abs(np.asarray(_asked(activation, trained, outside))).max(axis=(1, 2))
            rows += [
                {"kind": "critic", "activation": name, "seed": seed, "factor": factor, "largest": float(value)}
                for seed, value in enumerate(largest)
            ]
    return rows


def _outside(environment: Environment, seen: Trajectory, factor: float) -> Float[np.ndarray, "state observation"]:
    """States on the corners and faces of a box ``factor`` times as large as the data, angles anywhere."""
    random = np.random.default_rng(3)
    reach = np.abs(seen.states).max(axis=(0, 1))
    states = random.uniform(-1, 1, (2000, environment.state_size)) * reach * factor
    for place, name in enumerate(environment.state_names):
        if name in environment.angles:
            states[:, place] = random.uniform(-np.pi, np.pi, len(states))
    return np.asarray(jax.vmap(environment.observe)(jnp.asarray(states)))


def _fields(environment: Environment, solved: Trajectory, seeds: int, updates: int) -> list[Row]:
    random = _rolled(environment, None, environment.initial_trajectories, 5.0)
    inputs, targets = _rates(environment, random)
    shift, unit = targets.mean(axis=0), targets.std(axis=0) + 1e-6
    middle, reach = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    unseen, wished = _rates(environment, solved)
    rows = []
    for name, activation in FIELDS.items():
        keys = jax.random.split(jax.random.key(2), seeds)
        scaled = [jnp.asarray((each - middle) / reach, jnp.float32) for each in (inputs, unseen)]
        trained = _trained(
            activation, DYNAMICS, updates, scaled[0], jnp.asarray((targets - shift) / unit, jnp.float32), keys
        )
        for where, asked, true in (("seen", scaled[0], targets), ("unseen", scaled[1], wished)):
            wrong = np.asarray(_asked(activation, trained, asked)) - (true - shift) / unit
            errors = np.sqrt((wrong**2).mean(axis=(1, 2)))
            rows += [
                {"kind": "dynamics", "activation": name, "seed": seed, "where": where, "error": float(error)}
                for seed, error in enumerate(errors)
            ]
    return rows


def _rates(environment: Environment, seen: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Observations with actions, and the true rates of the observations there."""

    def rate(state: Array, action: Array) -> Array:
        return jax.jvp(environment.observe, (state,), (environment.field(state, action),))[1]

    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        rates = np.asarray(jax.vmap(jax.vmap(rate))(jnp.asarray(seen.states), jnp.asarray(seen.actions)))
    inputs = np.concatenate([seen.observations, seen.actions], axis=2)
    return inputs.reshape(-1, inputs.shape[2]), rates.reshape(-1, rates.shape[2])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _trained(activation, hidden, updates, inputs, targets, keys):
    optimiser = optax.adam(RATE)

    def one(key: PRNGKeyArray) -> Any:
        key, init_key = jax.random.split(key)
        layers = init_layers((inputs.shape[1], *hidden, targets.shape[1]), gain=1.0, key=init_key)

        def loss(layers: Any, chosen: Array) -> Array:
            said = jax.vmap(lambda x: apply_layers(layers, activation, x))(inputs[chosen])
            return jnp.mean((said - targets[chosen]) ** 2)

        def step(carry: Any, key: PRNGKeyArray) -> Any:
            layers, moments = carry
            chosen = jax.random.randint(key, (256,), 0, len(inputs))
            update, moments = optimiser.update(jax.grad(loss)(layers, chosen), moments)
            return (optax.apply_updates(layers, update), moments), None

        return jax.lax.scan(step, (layers, optimiser.init(layers)), jax.random.split(key, updates))[0][0]

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(keys)


@partial(jax.jit, static_argnums=0)
def _asked(activation, trained, inputs):
    return jax.vmap(lambda layers: jax.vmap(lambda x: apply_layers(layers, activation, x))(inputs))(trained)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Critics by factor, dynamics seen and unseen."""
    critics, fields = ([row for row in rows if row["kind"] == kind] for kind in ("critic", "dynamics"))

    def outside(axes: Any) -> None:
        for name in unique(critics, "activation"):
            own = [row for row in critics if row["activation"] == name]
            band(axes, own, "factor", "largest", name, look(name, list(CRITICS)))
        axes.axhline(DISCOUNT_TIME, color="0.5", linewidth=1, linestyle=":", label="largest possible")
        axes.set_yscale("log")
        axes.set_title("Critics outside their data")
        axes.set_xlabel("size of the states, in the data's largest")
        axes.set_ylabel("largest |value|")
        axes.legend()

    def unseen(axes: Any) -> None:
        names = unique(fields, "activation")
        for place, name in enumerate(names):
            for shift, where, fill in ((-0.15, "seen", "none"), (0.15, "unseen", None)):
                own = column([row for row in fields if row["activation"] == name and row["where"] == where], "error")
                style = look(name, names)
                axes.plot(
                    np.full(len(own), place + shift), own, "o", color=style["color"],
                    markerfacecolor=fill or style["color"], markersize=4,
                )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_title("Dynamics: seen (open) and unseen paths")
        axes.set_ylabel("rms error [std of the seen rates]")

    return outside, unseen


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 12 in its three parts."""
    answers = []
    bound = 2 * DISCOUNT_TIME
    for name, above, below in (("relu", bound, None), ("tanh", None, bound)):
        own = [row for row in rows if row["kind"] == "critic" and row["activation"] == name and row["factor"] == FAR]
        side = f"{'below' if above is None else 'above'} {bound:g}, twice the largest possible"
        measure = f"largest |value| of {name} critics at {FAR:g} times the data, {side}"
        answers.append(judge(12, measure, column(own, "largest"), above=above, below=below))
    unseen = [row for row in rows if row["kind"] == "dynamics" and row["where"] == "unseen"]
    errors = {name: column([row for row in unseen if row["activation"] == name], "error") for name in FIELDS}
    for other in ("relu", "tanh"):
        measure = f"log ratio of the errors on unseen paths, elu to {other}, by seed, below 0"
        answers.append(judge(12, measure, np.log(errors["elu"] / errors[other]), below=0.0))
    return answers
