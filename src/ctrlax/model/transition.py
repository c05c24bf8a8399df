"""One-step models: a network of the normalised observation, held action and perhaps step gives the state difference."""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.blueprint import Blueprint
from ctrlax.model.coordinates import Scaling
from ctrlax.model.dynamics import AbstractTransition, Action, Cloud, Gaussian, Members, Observation


class AbstractInputs(eqx.Module):
    """What the network is given beside the observation."""

    @abc.abstractmethod
    def size(self, observations: int, actions: int) -> int:
        """How many numbers it is given in all."""

    @abc.abstractmethod
    def gathered(self, observation: Observation, action: Action, step: Float[Array, ""]) -> Float[Array, " in"]:
        """All of them in one row; the step in units of the typical one."""


class Untimed(AbstractInputs):
    """``f(s_i, a_i)``: every step counts as one, however long."""

    def size(self, observations: int, actions: int) -> int:
        return observations + actions

    def gathered(self, observation: Observation, action: Action, step: Float[Array, ""]) -> Float[Array, " in"]:
        return jnp.concatenate([observation, action])


class Timed(AbstractInputs):
    """``f(s_i, a_i, dt_i)`` (`eq:mod-pets`); the step as ``dt_i / kappa - 1``, zero on a regular grid."""

    def size(self, observations: int, actions: int) -> int:
        return observations + actions + 1

    def gathered(self, observation: Observation, action: Action, step: Float[Array, ""]) -> Float[Array, " in"]:
        return jnp.concatenate([observation, action, step[None] - 1])


class AbstractWeights(eqx.Module):
    """A distribution over the weights of a network with Gaussian outputs: what tells PETS and Deep PILCO apart."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Members:
        """Every member, the member axis first."""

    @abc.abstractmethod
    def outputs(self, member: Members, inputs: Float[Array, " in"]) -> Gaussian:
        """The network's answer in scaled units."""

    @abc.abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """As `AbstractTransition.divergence`."""

    @abc.abstractmethod
    def penalty(self, weight_decay: float, bound_weight: float) -> Float[Array, " learner"]:
        """As `AbstractTransition.penalty`."""

    @abc.abstractmethod
    def member_count(self) -> int:
        """As `AbstractTransition.member_count`."""

    @abc.abstractmethod
    def learner_count(self) -> int:
        """As `AbstractTransition.learner_count`."""

    @abc.abstractmethod
    def cloud(self) -> Cloud:
        """As `AbstractTransition.cloud`."""


class NeuralTransition(AbstractTransition):
    """``s_{i+1} - s_i ~ c N(mean, variance)`` with mean and log variance by a network, ``c`` the data's unit.

    Inputs are normalised as those of the fields are. The unit of a difference is the first data's rate times kappa.
    """

    weights: AbstractWeights
    inputs: AbstractInputs
    scaling: Scaling
    kappa: Float[Array, ""]  # s

    def draw(self, *, key: PRNGKeyArray) -> Members:
        return self.weights.draw(key=key)

    def change(
        self, member: Members, observation: Observation, action: Action, step: Float[Array, ""] | float
    ) -> Gaussian:
        scaling, kappa = jax.lax.stop_gradient((self.scaling, self.kappa))
        given = self.inputs.gathered(scaling.observed(observation), scaling.acted(action), jnp.asarray(step / kappa))
        mean, log_variance = self.weights.outputs(member, given)
        unit = scaling.rate_scale * kappa
        return Gaussian(unit * mean, log_variance + 2 * jnp.log(unit))

    def divergence(self) -> Float[Array, ""]:
        return self.weights.divergence()

    def member_count(self) -> int:
        return self.weights.member_count()

    def length_scales(self) -> Observation:
        return jax.lax.stop_gradient(self.scaling.observation_scale)

    def typical_step(self) -> Float[Array, ""]:
        return jax.lax.stop_gradient(self.kappa)

    def penalty(self, weight_decay: float, bound_weight: float) -> Float[Array, " learner"]:
        return self.weights.penalty(weight_decay, bound_weight)

    def learner_count(self) -> int:
        return self.weights.learner_count()

    def cloud(self) -> Cloud:
        return self.weights.cloud()


def neural_transition(weights: AbstractWeights, inputs: AbstractInputs, blueprint: Blueprint) -> NeuralTransition:
    """The blueprint's scaling around a network; structures are of fields and do not apply."""
    scaling = jax.tree.map(jnp.asarray, blueprint.scaling)
    return NeuralTransition(weights, inputs, scaling, jnp.asarray(blueprint.step, jnp.float32))


def network_sizes(inputs: AbstractInputs, blueprint: Blueprint, hidden: tuple[int, ...], outputs: int) -> list[int]:
    """Layer sizes with ``outputs`` numbers for every coordinate of the observation."""
    observations, actions = blueprint.coordinates.observation_size, blueprint.coordinates.action_size
    return [inputs.size(observations, actions), *hidden, outputs * observations]
