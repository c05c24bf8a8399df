"""The wait for the first dynamics update after a start, with a cold and a warm compilation cache.

Every start is a process of its own. Measured from the start of the process and from the first import to the end of the
first update; the data and the gradient-matching update before it, which a run has as well, are in it. CartPole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import ROOT, write_record

LIMITS = {"cold": 20.0, "warm": 5.0}  # s


def child(preset_name: str, begun: float) -> None:
    """In a fresh process: start, data, model, one update."""
    imported = time.time()
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    from ctrlax.config import preset
    from ctrlax.lab.phases import Laboratory
    from ctrlax.lab.state import FIT
    from ctrlax.world.load import make

    modules = time.time()
    # One update in a chunk: what is compiled is the same loop, what is waited for is the first update alone.
    config = preset(preset_name, "cartpole").replaced(
        fit__matching_updates=1, fit__warmup_updates=0, fit__updates=1, agent__updates=1
    )
    laboratory = Laboratory(make("cartpole"), config)
    state = laboratory.start([0])
    recordings = laboratory.recordings(state)
    started = time.time()
    state, _ = laboratory.fit_chunk(state, recordings)
    matched = time.time()
    while state.phase != FIT:
        state = laboratory.next_phase(state)
    state, rows = laboratory.fit_chunk(state, recordings)
    fitted = time.time()
    assert rows["loss"].shape == (1,)
    print(
        json.dumps(
            {
                "from_process_start": fitted - begun,
                "from_import": fitted - imported,
                "matching_from_process_start": matched - begun,
                "python": imported - begun,
                "imports": modules - imported,
                "data_and_model": started - modules,
                "matching_update": matched - started,
                "dynamics_update": fitted - matched,
            }
        )
    )


def started(preset_name: str, cache: str) -> dict[str, float]:
    """One start with this cache folder."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache, "EQX_ON_ERROR": "nan"}
    command = [sys.executable, __file__, "--child", preset_name, str(time.time())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "first_update.json")
    options = parser.parse_args()
    load = os.getloadavg()
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for name in rows:
                rows[name].append(started(options.preset, cache))
    result: dict[str, Any] = {"preset": options.preset, "limits_seconds": LIMITS, "starts": rows}
    for name, starts in rows.items():
        best = min(starts, key=lambda start: start["from_process_start"])
        parts = ", ".join(f"{key.replace('_', ' ')} {value:.1f}" for key, value in best.items())
        print(f"{name} cache, best of {len(starts)}, limit {LIMITS[name]:.0f} s: {parts}")
    write_record(options.out, result, load)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], float(sys.argv[3]))
    else:
        main()
