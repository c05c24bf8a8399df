"""Kill -9 a real run again and again: it ends as if it had been left alone, bit for bit but for the clock.

Run as a program this file is one session of that run: `python test_kill.py FOLDER HOW SEED`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

SETTINGS = {
    "seeds": (3, 5),
    "fit__updates": 20,
    "fit__matching_updates": 10,
    "fit__warmup_updates": 0,
    "agent__updates": 20,
    "agent__starts": 8,
    "model__members": 2,
    "schedule__trials": 2,
    "schedule__trial_seconds": 4.0,
    "schedule__confirm": False,
}
MOMENTS = ("left alone", "any time", "in a write", "at the start")


def session(folder, how, seed, rounds):
    """Begin or go on with the run in ``folder``, and die as ``how`` says, by chance from ``seed``."""
    from ctrlax.cli import prepare_jax

    prepare_jax()
    chance = random.Random(seed)
    if how == "at the start":
        die_after(chance.uniform(0.0, 3.0))

    from ctrlax.lab import checkpoint, run
    from ctrlax.lab.keeper import Silent

    class Fuse(Silent):
        def see(self, state, phase, rows, seconds):
            if how == "any time" and not self.lit:
                self.lit = True
                die_after(chance.expovariate(1 / 0.4))

        lit = False

    if how == "in a write":
        die_in_a_write(checkpoint, chance)
    if (Path(folder) / "checkpoints").exists():
        run.resume(folder, show=Fuse())
    else:
        run.train("pendulum", out=folder, show=Fuse(), schedule__rounds=rounds, **SETTINGS)


def die_after(seconds):
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def die_in_a_write(checkpoint, chance):
    """In the n-th write, after some of its parts."""
    honest, writes = checkpoint.write_aside, [chance.randint(2, 5)]

    def write_aside(path, parts):
        writes[0] -= 1
        if writes[0]:
            return honest(path, parts)
        parts = list(parts)
        with open(path.with_name(path.name + checkpoint.ASIDE), "wb") as file:
            for part in parts[: chance.randint(1, len(parts))]:
                file.write(part)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.write_aside = write_aside


def campaign(folder, kills, seed, rounds):
    """Kill the run as ``kills`` (names of `MOMENTS`) say, then leave it alone to its end. How many died, by how."""
    import ctrlax

    died: dict[str, int] = dict.fromkeys(MOMENTS, 0)
    here = str(Path(ctrlax.__file__).parents[1].resolve())
    for number, how in enumerate([*kills, "left alone"]):
        code = subprocess.run(
            [sys.executable, __file__, str(folder), how, str(1000 * seed + number), str(rounds)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": here},
            check=False,
        ).returncode
        assert code in (0, -signal.SIGKILL), f"session {number} ({how}) ended with {code}"
        died[how] += code != 0
        if code == 0:
            break
    return died


def outcome(folder):
    """What must not depend on how often the run was killed."""
    import jax

    from ctrlax.lab import checkpoint, keeper
    from ctrlax.lab.run import Run

    run = Run(folder)
    rows = [json.dumps({name: value for name, value in row.items() if name != "wall_seconds"}) for row in run.rows()]
    leaves = {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes()
        for path, leaf in jax.tree_util.tree_leaves_with_path(run.state)
        if jax.tree_util.keystr(path) != ".seconds"
    }
    ended = {path.name: checkpoint.read(path).leaves for path in sorted((run.folder / keeper.FINISHED).glob("*.ckpt"))}
    return rows, leaves, sorted(ended)


def is_key(leaf):
    import jax

    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_left_alone(tmp_path):
    campaign(tmp_path / "alone", [], 0, 3)
    died = campaign(tmp_path / "killed", ["any time", "in a write", "at the start", "in a write"], 1, 3)
    assert died["in a write"] >= 1
    assert sum(died.values()) >= 3
    alone, killed = outcome(tmp_path / "alone"), outcome(tmp_path / "killed")
    assert len(alone[0]) == 2 * (1 + 3 * 3)
    assert killed == alone


if __name__ == "__main__":
    began = time.perf_counter()
    session(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print(f"{sys.argv[2]}: ended after {time.perf_counter() - began:.1f} s")
