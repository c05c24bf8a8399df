"""How each kind of model is trained and rolled out: the one place that tells fields and transitions apart."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ctrlax import config
from ctrlax.model import fit, one_step
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, AbstractTransition, Action, Members, Observation
from ctrlax.model.windows import Recording, Windows
from ctrlax.ode.solvers import SolverSetting

TrainingState = fit.FitState | one_step.OneStepState


class AbstractTraining(abc.ABC):
    """One kind's training: pure phases of one seed. Frozen, so that it is a static argument of what is compiled."""

    @property
    @abc.abstractmethod
    def matching_updates(self) -> int:
        """Updates of gradient matching before round 1; 0: there is none."""

    @property
    @abc.abstractmethod
    def updates(self) -> int:
        """Updates of a round at most."""

    @abc.abstractmethod
    def begin(self, learned: fit.Learned, *, key: PRNGKeyArray) -> Any:
        """The state at the start of a phase."""

    @abc.abstractmethod
    def prepared(self, state: Any, recording: Recording) -> Any:
        """What updates need of the data, once for a whole chunk."""

    @abc.abstractmethod
    def match(self, state: Any, seen: Any, step_scale: Float[Array, ""]) -> tuple[Any, fit.FitMetrics]:
        """One update of gradient matching."""

    @abc.abstractmethod
    def update(self, state: Any, seen: Any, step_scale: Float[Array, ""]) -> tuple[Any, fit.FitMetrics]:
        """One update."""

    @abc.abstractmethod
    def looked(self, state: Any, seen: Any) -> Any:
        """After a chunk of updates."""

    @abc.abstractmethod
    def stopped(self, state: Any) -> Bool[Array, "*seed"]:
        """Whether further updates of the phase would change nothing that is kept."""


@dataclasses.dataclass(frozen=True)
class WindowTraining(AbstractTraining):
    """Fields: gradient matching, then the ELBO on simulated windows (`model.fit`)."""

    settings: config.Fit

    @property
    def matching_updates(self) -> int:
        return self.settings.matching_updates

    @property
    def updates(self) -> int:
        return self.settings.warmup_updates + self.settings.updates

    def begin(self, learned: fit.Learned, *, key: PRNGKeyArray) -> fit.FitState:
        return fit.begin(learned, key=key)

    def prepared(self, state: fit.FitState, recording: Recording) -> Recording:
        return recording

    def match(
        self, state: fit.FitState, seen: Recording, step_scale: Float[Array, ""]
    ) -> tuple[fit.FitState, fit.FitMetrics]:
        return fit.matching_update(self.settings, state, seen, step_scale)

    def update(
        self, state: fit.FitState, seen: Recording, step_scale: Float[Array, ""]
    ) -> tuple[fit.FitState, fit.FitMetrics]:
        return fit.fit_update(self.settings, state, seen, step_scale)

    def looked(self, state: fit.FitState, seen: Recording) -> fit.FitState:
        return state

    def stopped(self, state: fit.FitState) -> Bool[Array, "*seed"]:
        return jnp.zeros(state.iteration.shape, bool)


@dataclasses.dataclass(frozen=True)
class OneStepTraining(AbstractTraining):
    """Transitions: likelihood on one-step data (`model.one_step`); a rate of change is nothing they could match."""

    settings: config.OneStep

    @property
    def matching_updates(self) -> int:
        return 0

    @property
    def updates(self) -> int:
        return self.settings.updates

    def begin(self, learned: fit.Learned, *, key: PRNGKeyArray) -> one_step.OneStepState:
        return one_step.begin(learned, key=key)

    def prepared(self, state: one_step.OneStepState, recording: Recording) -> one_step.Material:
        return one_step.prepared(self.settings, state, recording)

    def match(
        self, state: one_step.OneStepState, seen: one_step.Material, step_scale: Float[Array, ""]
    ) -> tuple[one_step.OneStepState, fit.FitMetrics]:
        raise ValueError("transitions have no gradient matching")

    def update(
        self, state: one_step.OneStepState, seen: one_step.Material, step_scale: Float[Array, ""]
    ) -> tuple[one_step.OneStepState, fit.FitMetrics]:
        return one_step.update(self.settings, state, seen, step_scale)

    def looked(self, state: one_step.OneStepState, seen: one_step.Material) -> one_step.OneStepState:
        return one_step.looked(self.settings, state, seen)

    def stopped(self, state: one_step.OneStepState) -> Bool[Array, "*seed"]:
        return jnp.all(one_step.stopped_learners(self.settings, state), axis=-1)


def training_of(
    kind: type[AbstractDynamics], of_fields: config.Fit, of_transitions: config.OneStep
) -> WindowTraining | OneStepTraining:
    """The training of models of that kind."""
    if issubclass(kind, AbstractTransition):
        return OneStepTraining(of_transitions)
    return WindowTraining(of_fields)


def roll_windows(
    dynamics: AbstractDynamics, members: Members, windows: Windows, setting: SolverSetting
) -> tuple[Float[Array, "member window interval observation"], Bool[Array, "member window"], Int[Array, ""]]:
    """Every member along every window; a transition takes one step an interval and knows no solver."""
    if isinstance(dynamics, AbstractTransition):
        return one_step.simulate_steps(dynamics, members, windows)
    assert isinstance(dynamics, AbstractField)
    return fit.simulate_windows(dynamics, members, windows, setting)


def mean_rate(dynamics: AbstractDynamics, member: Members, observation: Observation, action: Action) -> Observation:
    """One member's ``ds/dt``; a transition's expected change over its typical step, by the second."""
    if isinstance(dynamics, AbstractTransition):
        step = dynamics.typical_step()
        return dynamics.change(member, observation, action, step).mean / step
    assert isinstance(dynamics, AbstractField)
    return dynamics.rate(member, observation, action)
