"""Members shared out over CPU devices: the same losses and gradients to rounding.

JAX must be told how many devices there are before it starts. Run as a program, this file is a process that has two; it
compares an update of each phase on both with that on one, from the same state.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

# Of the largest number of each array. An adaptive solver in float32 may take another step where rounding decides, and
# is then off by what its tolerance allows (rtol 1e-3).
AGREE = {"match": 1e-5, "fit": 1e-5, "improve": 1e-5, "improve, dopri5": 1e-3}


def _laboratory(solver):
    import ctrlax
    from ctrlax.config import preset
    from ctrlax.lab.phases import Laboratory

    settings = preset("paper", "pendulum").replaced(
        fit__solver="rk4", agent__solver=solver, model__members=2, fit__matching_updates=1, fit__updates=1,
        fit__warmup_updates=0, agent__updates=1, agent__starts=10,
    )  # fmt: skip
    return Laboratory(ctrlax.make("pendulum"), settings)


def _update(laboratory, state):
    """One update: the state; losses and Adam's moments, which are the gradient's; how many devices they lie on."""
    import jax
    import numpy as np

    if state.phase == "improve":
        after, rows = laboratory.improve_chunk(state)
        moments = after.agent.policy_moments, after.agent.critic_moments
    else:
        after, rows = laboratory.fit_chunk(state, laboratory.recordings(state))
        moments = after.fitting.optimiser
    rows.pop("health")
    devices = max(len(leaf.devices()) for leaf in jax.tree.leaves(moments))
    return after, [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((moments, rows))], devices


def _compared(laboratory, state):
    import numpy as np

    from ctrlax.lab import phases

    after, several, devices = _update(laboratory, state)
    with mock.patch.object(phases, "all_cores", _one_core):
        _, alone, one = _update(laboratory, _on_one(state))
    wrong = [np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(several, alone, strict=True)]
    return after, {"devices": [devices, one], "wrong": float(max(wrong))}


def _one_core(members):
    return contextlib.nullcontext(lambda tree: tree)


def _on_one(state):
    import jax

    first = jax.devices()[0]
    return jax.tree.map(lambda leaf: jax.device_put(leaf, first) if isinstance(leaf, jax.Array) else leaf, state)


def _program():
    import jax.numpy as jnp

    from ctrlax.ode.cores import all_cores

    laboratory, found = _laboratory("rk4"), {}
    state = laboratory.start([0, 1, 2])
    for phase in ("match", "fit", "improve"):
        before = state
        after, found[phase] = _compared(laboratory, state)
        state = laboratory.next_phase(after)
    _, found["improve, dopri5"] = _compared(_laboratory("dopri5"), before)
    used = {}
    for members in (3, 4):
        with all_cores(members) as everywhere:
            used[members] = len(everywhere(jnp.zeros(1)).devices())
    print(json.dumps({"updates": found, "used": used}))


@pytest.mark.slow
def test_an_update_on_two_devices_is_that_on_one():
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "EQX_ON_ERROR": "nan"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["used"] == {"3": 1, "4": 2}  # three cannot be shared equally by two
    assert set(said["updates"]) == set(AGREE)
    for phase, bound in AGREE.items():
        assert said["updates"][phase]["devices"] == [2, 1], phase
        assert 0 < said["updates"][phase]["wrong"] < bound, phase  # another computation, the same numbers


def test_the_command_line_asks_for_a_device_for_every_core(monkeypatch):
    from ctrlax.cli import prepare_jax

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "anywhere")
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    prepare_jax()
    assert int(os.environ["JAX_NUM_CPU_DEVICES"]) >= 1
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # who says otherwise is heard
    prepare_jax()
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "1"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    _program()
