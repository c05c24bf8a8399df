"""Every setting once: what the command line offers, what a run's header records, what the docs explain.

A preset is a complete `Config`. ``paper`` is the text to the letter, ``reference`` the authors' code with its defects
repaired, ``default`` ours, chosen by measurement.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ctrlax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the true system is observed while data is collected."""

    grid: str = "fixed"  # spacing of observations: fixed, uniform, exponential
    dt: float = 0.1  # s, mean step kappa
    points: int | None = 50  # observations in a trajectory (the text's T); None: as many as `seconds` holds
    seconds: float = 5.0  # s, length of a trajectory where `points` is None
    noise: float = 0.0  # standard deviation of the observation noise sigma
    hold: Literal["gp", "linear", "hold"] = "gp"  # how logged actions act between observations
    action_length_scale: float = 0.5  # s, of the kernel that interpolates actions
    explore_from: Literal["data", "reset"] = (
        "data"  # exploring roll-outs start from data, or from the start distribution
    )
    explore_by: Literal["variance", "reward"] = (
        "variance"  # starts in data weigh by the model's variance there, or by reward rate plus variance
    )
    exploration_scale: float = 0.1  # of the disturbance z(t), in the action's units
    least_effort: float = 0.0  # mean imagined |action|, in its units, below which a round collects with random actions

    def count(self) -> int:
        """Observations in one trajectory."""
        return self.points if self.points is not None else round(self.seconds / self.dt) + 1


@dataclasses.dataclass(frozen=True)
class Model:
    """Which dynamics are learned."""

    family: str = "enode"  # see `ctrlax list models`
    structure: tuple[
        str, ...
    ] = ()  # what is known of the field: affine, second-order, hamiltonian, or known: what the system's file says
    members: int = 10  # n_ens
    gain: float = 1.0  # of the network's initial weights
    dropout: float | None = None  # share of units that Deep PILCO drops; None: learned


@dataclasses.dataclass(frozen=True)
class Fit:
    """Dynamics learning: lines 4 to 8 of Algorithm 1."""

    window_points: int = 5  # t_s
    windows_per_trajectory: int | None = 5  # None: `windows` of all trajectories together
    windows: int = 25  # windows in an update where `windows_per_trajectory` is None
    recent: int | None = None  # trajectories that windows are drawn from, the last ones; None: all
    matching_updates: int = 500  # gradient matching, before round 1
    matching_rate: float = 5e-3  # its learning rate
    undo_matching: bool = False  # go back to before it where the loss on all data is worse after it
    warmup_updates: int = 100  # geometric, from `warmup_rate` to `rate`
    warmup_rate: float = 1e-4
    rate: float = 1e-3  # learning rate after the warm-up
    decay: float = 0.0  # share of that rate lost by the last of the updates, linearly
    updates: int = 1250  # N_dyn, after the warm-up
    solver: str = "dopri5"  # of the windows
    initial_log_noise: float = -1.0  # log sigma at the start, in scaled units
    learn_noise: bool = True  # Sigma is trainable
    noise_speed: float = 1.0  # learning rate of log sigma in units of `rate`
    first_state: Literal["observed", "inferred"] = (
        "observed"  # where a window starts: at its first observation, or inferred
    )
    kl_weight: float = 1.0
    kl_ramp: float = 0.0  # share of the updates over which the KL weight rises from 0
    held_out: float = (
        0.0  # share of the trajectories whose windows tell `ctrlax fit` when to stop; 0: it never stops early
    )
    patience: int = 0  # chunks of 50 updates without a better held-out likelihood before it stops; 0: it goes on


@dataclasses.dataclass(frozen=True)
class OneStep:
    """Learning of transitions (PETS, modified PETS, Deep PILCO), in place of `Fit`: one observation step at a time."""

    updates: int = 2000  # mini-batches in a round at most, in chunks of 50
    batch: int = 32  # transitions in a mini-batch, for each member its own
    rate: float = 1e-3  # learning rate
    held_out: float = 0.1  # share of the transitions that tell when to stop; 0: none, and the last weights are kept
    patience: int = 10  # chunks of 50 updates without a better held-out likelihood before a member stops; 0: it goes on
    weight_decay: float = 5e-5  # times half the squared weights, per transition (PETS)
    bound_weight: float = 0.01  # times the width of the log variance's learned limits, per transition (PETS)
    kl_weight: float = 1.0  # of the dropout prior (Deep PILCO)


@dataclasses.dataclass(frozen=True)
class Agent:
    """Actor-critic learning: lines 9 to 13 of Algorithm 1."""

    horizon: float = 2.0  # s, H
    horizon_law: Literal["uniform", "point", "steps"] = (
        "uniform"  # q(h): U[0, H]; all on H (TD-H); on multiples of `horizon_step` alike (mean of h-step returns)
    )
    horizons: int = 20  # stratified draws of h in an update
    horizon_step: float | None = None  # s, of the law `steps`; None: the mean step kappa of the observations
    starts: int = 100  # N_p
    members_per_start: Literal["all", "one"] = "all"  # every start through every member, or through one drawn for it
    updates: int = 250  # N_ac
    rate: float = 1e-3  # learning rate of actor and critic
    decay: float = 0.0  # share of that rate lost by the end of a round's updates, linearly
    solver: str = "dopri5"  # of imagination
    discount_time: float = 5.0  # s, eta
    target_every: int = 100  # updates between copies of the critic to its target
    critic_steps: int = 1  # critic steps in an update
    gain: float = 0.1  # of actor's and critic's initial weights
    recent: int = 10  # trajectories that starts are drawn from
    start_from_exploring: bool = False  # exploring trajectories count among the recent ones
    imagined_starts: float = 0.0  # probability of a start from the update before's imagined states
    fresh_starts: float = 0.0  # probability of a start from the system's start distribution instead
    actor_objective: Literal["horizon", "mean"] = "horizon"  # V^H, or the mean over the horizons
    propagation: Literal["ts1", "ts-inf", "moments"] | None = (
        None  # how transitions imagine: a member redrawn at every step, kept, or a matched Gaussian; None: their own
    )
    particles: int | None = None  # per start, of transitions; None: their own, two per member of PETS and 100
    bootstrap_ramp: int = 0  # rounds over which the critic's weight in the actor loss rises; 0: full from the start


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a run ends."""

    rounds: int = 20
    rounds_after_solved: int = 0
    budget: float | None = None  # hours of computing; None: the environment's time limit
    trials: int = 10  # of the true environment after every round
    trial_seconds: float = 30.0
    confirm: bool = False  # ten fresh trials on top before a seed counts as solved
    snapshots: bool = False  # keep every round's model and policy in the run's folder, as figures over rounds need


@dataclasses.dataclass(frozen=True)
class Config:
    """A complete experiment but for its seeds."""

    environment: str = "pendulum"
    variant: str = "paper"
    preset: str = "default"
    training_reward: bool = False  # imagine with the environment's training reward rate, where it has one
    sampling: Sampling = Sampling()
    model: Model = Model()
    fit: Fit = Fit()
    one_step: OneStep = OneStep()
    agent: Agent = Agent()
    schedule: Schedule = Schedule()

    def replaced(self, **changes: Any) -> Config:
        """With single settings changed, named as ``group__setting`` or ``setting``."""
        config = self
        for name, value in changes.items():
            group, _, setting = name.rpartition("__")
            if group:
                inner = dataclasses.replace(getattr(config, group), **{setting: value})
                config = dataclasses.replace(config, **{group: inner})
            else:
                config = dataclasses.replace(config, **{setting: value})
        return config


def preset(name: str, environment: str) -> Config:
    """The preset's configuration for an environment."""
    if name not in PRESETS:
        raise UserError(f"no preset is called {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name].replaced(environment=environment)


def fit_preset(name: str) -> Config:
    """The preset as `ctrlax fit` takes it, where one fit is all there is: no rounds, no environment."""
    return preset(name, "").replaced(**FITS.get(name, {}))


PRESETS_EXPLAINED = {
    "default": "ours, chosen by measurement",
    "paper": "the text to the letter",
    "reference": "the authors' code with its defects repaired",
}
PRESETS = {
    "paper": Config(preset="paper"),
    "reference": Config(
        preset="reference",
        variant="reference",
        sampling=Sampling(points=None, explore_by="reward", least_effort=0.25),
        model=Model(gain=0.1),
        fit=Fit(windows_per_trajectory=3, recent=50, undo_matching=True, updates=1150, learn_noise=False, kl_ramp=0.5),
        agent=Agent(
            horizon_law="steps",
            actor_objective="mean",
            bootstrap_ramp=5,
            critic_steps=10,
            recent=5,
            start_from_exploring=True,
        ),
    ),
    "default": Config(
        preset="default",
        training_reward=True,
        model=Model(structure=("known",)),
        fit=Fit(windows_per_trajectory=None, windows=25, matching_updates=300, updates=500, solver="rk4"),
        agent=Agent(members_per_start="one", updates=1000, horizons=20, solver="rk4", imagined_starts=0.6),
        schedule=Schedule(confirm=True),
    ),
}

# One fit of a whole recording: `updates` is a bound, held-out windows say when to stop. Measured: `docs/fitting.md`.
FITS: dict[str, dict[str, Any]] = {
    "default": {"fit__updates": 2500, "fit__held_out": 0.1, "fit__patience": 8, "fit__noise_speed": 20.0}
}
