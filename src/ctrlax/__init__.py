"""Continuous-time model-based reinforcement learning in JAX.

The walk in ten lines, which is Algorithm 1 of the text (Yildiz, Heinonen, Lahdesmaki, ICML 2021)::

    env = ctrlax.make("cartpole")                       world/  ds/dt = f(s, a), no time step anywhere
    data = [simulate(env, random actions, times)]       world/  N0 smooth random trajectories, observed at any times
    repeat
        model = fit(windows of data)                    model/  Bayesian neural ODEs, ELBO on simulated windows
        repeat
            imagined = model x policy x starts          agent/  one solve, the reward integral part of its state
            policy, critic = improve(imagined)          agent/  gradients through the solver
        data += simulate(env, policy, times)            world/  act once; then explore around the policy
        evaluate(env, policy)                           lab/    ten trials in the true world
    until solved

Five rooms, `ode`, `world`, `model`, `agent`, `lab`, in the order in which data walks through them; a room knows those
before it. The public names below load on first use, so importing this package is quick and imports no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ctrlax._gymnasium import register_now_or_on_import

if TYPE_CHECKING:
    from ctrlax.errors import UserError as UserError
    from ctrlax.lab.fitted import FitRun as FitRun
    from ctrlax.lab.fitted import fit as fit
    from ctrlax.lab.run import Run as Run
    from ctrlax.lab.run import load as load
    from ctrlax.lab.run import resume as resume
    from ctrlax.lab.run import train as train
    from ctrlax.model.dataset import Dataset as Dataset
    from ctrlax.world.collect import Trajectory as Trajectory
    from ctrlax.world.collect import simulate as simulate
    from ctrlax.world.environment import Environment as Environment
    from ctrlax.world.load import make as make

__version__ = "0.1.0"

# Public name -> the module it lives in. To publish a name: one line here, one import above for type checkers.
_PUBLIC = {
    "Dataset": "ctrlax.model.dataset",
    "Environment": "ctrlax.world.environment",
    "FitRun": "ctrlax.lab.fitted",
    "Run": "ctrlax.lab.run",
    "Trajectory": "ctrlax.world.collect",
    "UserError": "ctrlax.errors",
    "fit": "ctrlax.lab.fitted",
    "load": "ctrlax.lab.run",
    "make": "ctrlax.world.load",
    "resume": "ctrlax.lab.run",
    "simulate": "ctrlax.world.collect",
    "train": "ctrlax.lab.run",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ctrlax' has no attribute {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


register_now_or_on_import()
