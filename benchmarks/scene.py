"""The field that is timed: CartPole, observed every 0.1 s, learned from random actions and then from a policy's own."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import layers_as_arrays

from ctrlax.agent import improve
from ctrlax.config import preset
from ctrlax.lab.phases import KEPT_STATES, Laboratory
from ctrlax.lab.state import COLLECT, EVALUATE, FIT, IMPROVE, MATCH, RunState
from ctrlax.model import fit
from ctrlax.model.dynamics import NeuralODE
from ctrlax.world.load import make


def cartpole(*, quick: bool = False, **settings: Any) -> Laboratory:
    """A laboratory on CartPole: the text's model, 25 windows, trained with fixed steps; ``quick`` hardly trains."""
    lengths = {"fit__matching_updates": 300, "fit__warmup_updates": 100, "fit__updates": 500}
    if quick:
        lengths = dict.fromkeys(lengths, 5)
    fixed = {"fit__windows_per_trajectory": None, "fit__windows": 25, "fit__solver": "rk4", "agent__solver": "rk4"}
    config = preset("paper", "cartpole").replaced(**fixed, **lengths, **settings)
    return Laboratory(make("cartpole"), config)


def with_settings(laboratory: Laboratory, **settings: Any) -> Laboratory:
    """The same with settings changed."""
    return Laboratory(laboratory.environment, laboratory.config.replaced(**settings))


def trained(laboratory: Laboratory, seeds: list[int], *, rounds: int) -> RunState:
    """After ``rounds`` rounds and the fit of the next, its agent not yet improved; nothing is evaluated."""
    state = laboratory.start(seeds)
    while not (state.phase == IMPROVE and state.round > rounds):
        if state.phase in (MATCH, FIT):
            recordings = laboratory.recordings(state)
            while laboratory.unfinished(state):
                state, _ = laboratory.fit_chunk(state, recordings)
        elif state.phase == IMPROVE:
            while laboratory.unfinished(state):
                state, _ = laboratory.improve_chunk(state)
        elif state.phase == COLLECT:
            state = laboratory.collect(state)
        elif state.phase == EVALUATE:
            pass
        state = laboratory.next_phase(state)
    return state


def fitting_again(state: RunState) -> RunState:
    """About to fit, behind the warm-up and without moments."""
    fitting = jax.vmap(lambda learned, key: fit.begin(learned, key=key))(state.fitting.learned, state.fitting.key)
    iteration = jnp.full_like(fitting.iteration, 1_000_000)
    return dataclasses.replace(state, fitting=dataclasses.replace(fitting, iteration=iteration), phase=FIT, iteration=0)


def improving_again(laboratory: Laboratory, state: RunState) -> RunState:
    """About to improve, without moments: the target is the critic itself."""
    begun = jax.vmap(partial(improve.begin, keep=KEPT_STATES))(
        state.agent.policy, state.agent.critic, laboratory._starts(state.experience), key=state.agent.key
    )
    return dataclasses.replace(state, agent=begun, phase=IMPROVE, iteration=0)


def first_seed(tree: Any) -> Any:
    """The arrays of the first seed."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def dynamics_arrays(dynamics: NeuralODE) -> dict[str, np.ndarray]:
    """An ensemble's weights and scaling under the names the peer reads."""
    scaling = {field.name: getattr(dynamics.scaling, field.name) for field in dataclasses.fields(dynamics.scaling)}
    members = dynamics.draw(key=jax.random.key(0))
    return layers_as_arrays("dynamics", members) | {name: np.asarray(value) for name, value in scaling.items()}
