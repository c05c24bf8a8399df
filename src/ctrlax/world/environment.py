"""What an environment is: physics without a time step.

A *system file* (the built-in ones in ``world/systems``, or a user's own) describes one controlled ODE; `Environment` is
that description in a form every room can use. Nothing here knows how the ODE is solved or when it is observed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.ode.randomness import host_generator

State = Float[Array, " state"]
Observation = Float[Array, " observation"]
Action = Float[Array, " action"]
Scalar = Float[Array, ""]

HELD_REWARD_RATE = 0.8  # the goal is held where the reward rate without its action term is at least this (SPEC 4)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Environment:
    """A controlled ODE ``ds/dt = f(s, a)`` (`eq:ode-def`) with a differentiable reward rate.

    An angle among the states is observed as its cosine and sine, in its place; every other coordinate as it is.
    ``field`` and ``reward_rate`` are written for one state and one action in `jax.numpy`; ``vmap`` is the caller's.
    Environments are compared by identity, so one may be a static argument of a compiled function.
    """

    name: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    start_low: tuple[float, ...]  # starts are uniform over this box
    start_high: tuple[float, ...]
    field: Callable[[State, Action], State]
    reward_rate: Callable[[Observation, Action], Scalar]
    training_reward_rate: Callable[[Observation, Action], Scalar] | None = None  # what preset `default` imagines with
    state_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()  # names of the states that live on a circle
    velocities: tuple[str, ...] = ()  # names of the states that are rates
    rates_of: tuple[str, ...] = ()  # the position each velocity is the rate of
    actuated: tuple[str, ...] = ()  # the velocity each action pushes on
    known_structure: tuple[str, ...] = ()  # what a model may take as known of the field, see `model.structure`
    observed: Callable[[State], Observation] | None = None  # a system's own `observe`; None: angles as cos and sin
    restored: Callable[[Observation], State] | None = None  # its inverse
    observed_names: tuple[str, ...] | None = None
    energy: Callable[[State], Scalar] | None = None  # joules, without action
    energy_scale: float | None = None  # joules between hanging and upright
    draw: Callable[..., None] | None = None  # see `world.render`
    variant: str = "paper"
    initial_trajectories: int = 5  # N0
    exploring_trajectories: int = 2  # N_exp, after every round
    time_limit: float = 24.0  # hours of computing
    rise_time: float = 3.0  # seconds from a start until the goal must be held
    source: str = ""  # the built-in's name or the file's path, as `make` takes it
    settings: tuple[tuple[str, str], ...] = ()  # what `make` was asked for beyond the variant

    @property
    def state_size(self) -> int:
        return len(self.state_names)

    @property
    def action_size(self) -> int:
        return len(self.action_names)

    @property
    def observation_size(self) -> int:
        return len(self.observation_names)

    @cached_property
    def observation_names(self) -> tuple[str, ...]:
        if self.observed_names is not None:
            return self.observed_names
        names: list[str] = []
        for name in self.state_names:
            names += [f"cos_{name}", f"sin_{name}"] if name in self.angles else [name]
        return tuple(names)

    @cached_property
    def action_middle(self) -> np.ndarray:
        return (np.asarray(self.action_high) + np.asarray(self.action_low)) / 2

    @cached_property
    def action_reach(self) -> np.ndarray:
        """Half the width of the bounds: the text's a_max where they are symmetric."""
        return (np.asarray(self.action_high) - np.asarray(self.action_low)) / 2

    def observe(self, state: State) -> Observation:
        """State to observation; an angle becomes its cosine and sine."""
        if self.observed is not None:
            return self.observed(state)
        parts: list[Array] = []
        for i, name in enumerate(self.state_names):
            parts += [jnp.cos(state[i]), jnp.sin(state[i])] if name in self.angles else [state[i]]
        return jnp.stack(parts)

    def restore(self, observation: Observation) -> State:
        """The inverse of `observe`; angles come back in (-pi, pi], also from a point off the circle."""
        if self.restored is not None:
            return self.restored(observation)
        parts: list[Array] = []
        place = 0
        for name in self.state_names:
            if name in self.angles:
                parts.append(jnp.arctan2(observation[place + 1], observation[place]))
                place += 2
            else:
                parts.append(observation[place])
                place += 1
        return jnp.stack(parts)

    def clip(self, action: Action) -> Action:
        """Into the action bounds."""
        return jnp.clip(action, jnp.asarray(self.action_low), jnp.asarray(self.action_high))

    def draw_starts(self, count: int, *, key: PRNGKeyArray) -> np.ndarray:
        """``[count, state]`` from the start distribution, float64."""
        return host_generator(key).uniform(self.start_low, self.start_high, size=(count, self.state_size))

    def begin_observations(self, count: int, *, key: PRNGKeyArray) -> Float[Array, "start observation"]:
        """Observations of states from the start distribution, as compiled learning draws them: float32, in JAX."""
        low, high = jnp.asarray(self.start_low, jnp.float32), jnp.asarray(self.start_high, jnp.float32)
        states = jax.random.uniform(key, (count, self.state_size), jnp.float32, minval=low, maxval=high)
        return jax.vmap(self.observe)(states).astype(jnp.float32)
