"""What a family is told when a model of it is built, and the building that all posteriors share."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from ctrlax import config
from ctrlax.model.dynamics import AbstractPosterior, NeuralODE
from ctrlax.model.structure import AbstractStructure, Coordinates, Known, Scaling, build
from ctrlax.world.environment import Environment


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A model before it is built: settings, what its observations are, and the system where one is at hand."""

    settings: config.Model
    coordinates: Coordinates
    scaling: Scaling
    environment: Environment | None = None  # None: all that is known of the system is data
    known: Known | None = None  # the part of the rate that need not be learned
    step: float = 0.1  # s, the mean step kappa between observations: the unit of a transition

    def structure(self) -> AbstractStructure:
        """The structure asked for, on these coordinates."""
        return build(self.settings.structure, self.coordinates, known=self.known)


@runtime_checkable
class Init(Protocol):
    """A fresh posterior over the weights of a perceptron with so many inputs and outputs."""

    def __call__(
        self, inputs: int, outputs: int, members: int, *, gain: float, key: PRNGKeyArray
    ) -> AbstractPosterior: ...


def neural_ode(init: Init, blueprint: Blueprint, *, key: PRNGKeyArray) -> NeuralODE:
    """The structure asked for around a perceptron with the posterior of ``init``."""
    structure, settings = blueprint.structure(), blueprint.settings
    inputs, outputs = structure.sizes()
    posterior = init(inputs, outputs, settings.members, gain=settings.gain, key=key)
    scaling = jax.tree.map(jnp.asarray, blueprint.scaling)
    return NeuralODE(posterior, structure, scaling)
