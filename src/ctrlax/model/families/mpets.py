"""Modified PETS: PETS with the step's length as an input, ``s_{i+1} = s_i + f(s_i, a_i, dt_i)`` (`eq:mod-pets`).

All else is `pets`. The step enters as ``dt_i / kappa - 1``.
"""

from __future__ import annotations

from jaxtyping import PRNGKeyArray

from ctrlax.model.blueprint import Blueprint
from ctrlax.model.families.pets import ensemble
from ctrlax.model.transition import NeuralTransition, Timed


def build(blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralTransition:
    """An ensemble of stochastic transitions that know how long they take."""
    return ensemble(Timed(), blueprint, key=key)
