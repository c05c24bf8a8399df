"""What a dynamics model is: a distribution over fields, or over transitions, of which members are drawn."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from ctrlax.model.network import Layers, apply_layers, elu
from ctrlax.model.structure import AbstractStructure, Scaling

Observation = Float[Array, " observation"]
Action = Float[Array, " action"]
Members = Any  # a tree whose arrays carry the member axis first

HIDDEN = (200, 200, 200)  # of every dynamics network (the text's S2)


class AbstractDynamics(eqx.Module):
    """What learned models have in common. It is one of two kinds: `AbstractField` or `AbstractTransition`."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Members:
        """One draw ``theta ~ q(theta)`` for every member (`eq:mc`)."""

    @abc.abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """``KL[q(theta) || p(theta)]`` of `eq:elbo`, in nats; zero for a model without a prior."""

    @abc.abstractmethod
    def member_count(self) -> int:
        """How many members a draw has."""

    @abc.abstractmethod
    def length_scales(self) -> Observation:
        """Units in which errors of each coordinate are comparable."""


class AbstractField(AbstractDynamics):
    """Continuous: a distribution over controlled fields ``ds/dt = f(s, a)`` on observations."""

    @abc.abstractmethod
    def rate(self, member: Members, observation: Observation, action: Action) -> Observation:
        """The field of one member, its axis removed."""


class Gaussian(NamedTuple):
    """Independent Gaussians, one per coordinate."""

    mean: Float[Array, "*row observation"]
    log_variance: Float[Array, "*row observation"]


class Cloud(NamedTuple):
    """How a transition's own paper rolls it out from one start."""

    propagation: str  # a name in `agent.particles.PROPAGATIONS`
    particles: int


class AbstractTransition(AbstractDynamics):
    """Discrete: a distribution over stochastic steps ``s_{i+1} = s_i + N(mean, variance)`` of length ``dt_i``.

    The action is held over the step. Learners are the separate sets of weights behind the members, equally many members
    each: every trainable array outside the scaling has the learner axis first.
    """

    @abc.abstractmethod
    def change(
        self, member: Members, observation: Observation, action: Action, step: Float[Array, ""] | float
    ) -> Gaussian:
        """``s_{i+1} - s_i`` of one member over ``step`` seconds."""

    @abc.abstractmethod
    def typical_step(self) -> Float[Array, ""]:
        """The mean step kappa it was built for, in seconds."""

    @abc.abstractmethod
    def penalty(self, weight_decay: float, bound_weight: float) -> Float[Array, " learner"]:
        """What its own paper adds to every point's negative log likelihood, by learner; zero if nothing."""

    @abc.abstractmethod
    def learner_count(self) -> int:
        """How many separate sets of weights learn, each from a bootstrap of its own if there are several."""

    @abc.abstractmethod
    def cloud(self) -> Cloud:
        """Its own way of rolling out."""


class AbstractPosterior(eqx.Module):
    """A distribution over the weights of one perceptron: what tells ENODE, BENODE, IBNODE and wnode apart."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Layers:
        """Weights of every member, the member axis first."""

    @abc.abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """``KL[q || p]`` in nats."""

    @abc.abstractmethod
    def member_count(self) -> int:
        """How many members a draw has."""


class NeuralODE(AbstractField):
    """``ds/dt = f_theta(s, a)``: a structure around a perceptron whose weights have a posterior."""

    posterior: AbstractPosterior
    structure: AbstractStructure
    scaling: Scaling

    def draw(self, *, key: PRNGKeyArray) -> Layers:
        return self.posterior.draw(key=key)

    def rate(self, member: Layers, observation: Observation, action: Action) -> Observation:
        scaling = jax.lax.stop_gradient(self.scaling)
        return self.structure.rate(lambda inputs: apply_layers(member, elu, inputs), scaling, observation, action)

    def divergence(self) -> Float[Array, ""]:
        return self.posterior.divergence()

    def member_count(self) -> int:
        return self.posterior.member_count()

    def length_scales(self) -> Observation:
        return jax.lax.stop_gradient(self.scaling.observation_scale)
