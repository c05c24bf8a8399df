"""Members shared out over CPU devices: the same update to rounding.

JAX must be told how many devices there are before it starts. Run as a program, this file is a process that has two; it
compares one update of each phase on both with that on one, from the same state.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

PHASES = ("match", "fit", "improve")


def _laboratory():
    import ctrlax
    from ctrlax.config import preset
    from ctrlax.lab.phases import Laboratory

    settings = preset("paper", "pendulum").replaced(
        fit__solver="rk4", agent__solver="dopri5", model__members=2, fit__matching_updates=1, fit__updates=1, fit__warmup_updates=0, agent__updates=1,
        agent__starts=10,
    )  # fmt: skip
    return Laboratory(ctrlax.make("pendulum"), settings)


def _update(laboratory, state):
    """One update of the phase: the state, and what must agree: losses, and Adam's moments, which are the gradient's."""
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


def _program():
    import jax.numpy as jnp
    import numpy as np

    from ctrlax.lab import phases

    laboratory, found = _laboratory(), {}
    state = laboratory.start([0, 1, 2])
    for phase in PHASES:
        assert state.phase == phase
        after, several, devices = _update(laboratory, state)
        with mock.patch.object(phases, "all_cores", _one_core):
            _, alone, one = _update(laboratory, _on_one(state))
        wrong = [np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(several, alone, strict=True)]
        found[phase] = {"devices": devices, "one": one, "wrong": float(max(wrong))}
        state = laboratory.next_phase(after)
    for members in (3, 4):
        with phases.all_cores(members) as everywhere:
            found[f"{members} members"] = len(everywhere(jnp.zeros(1)).devices())
    print(json.dumps(found))


def _one_core(members):
    return contextlib.nullcontext(lambda tree: tree)


def _on_one(state):
    import jax

    return jax.tree.map(
        lambda leaf: jax.device_put(leaf, jax.devices()[0]) if isinstance(leaf, jax.Array) else leaf, state
    )


@pytest.mark.slow
def test_an_update_on_two_devices_is_that_on_one():
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "EQX_ON_ERROR": "nan"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("3 members") == 1  # cannot be shared equally by two
    assert found.pop("4 members") == 2
    assert set(found) == set(PHASES)
    for phase, said in found.items():
        assert (said["devices"], said["one"]) == (2, 1), phase
        assert 0 < said["wrong"] < 1e-5, phase  # not one and the same computation, and the same numbers


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
