"""One ENODE update on irregular windows against one on regular windows, at equal accuracy (issue 3, must show 2).

CartPole, 10 members, 25 windows of 5 points; one trained field for both sides. Regular windows are observed every
0.1 s, irregular ones at exponential steps of the same mean. Both have a mean length of 0.4 s, and their time is warped,
so that all windows of a batch share one grid whatever their times. For every solver: the time of an update, field
evaluations for one window and member, and how far windows' end states are from a tight solve. Bursts of the two sides
alternate.

Equal accuracy is that of the other benchmarks, end states within 1e-3 of a tight solve (root mean square, over the
windows of a whole burst); the ratio is that of the quickest solver of each side that keeps it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dynamics_update import accuracy, batches, window_states
from measure import ROOT, summary, timed, write_record
from scene import cartpole, fitting_again, trained, with_settings

from ctrlax.lab.phases import Laboratory
from ctrlax.lab.state import RunState
from ctrlax.ode.solvers import SOLVERS, Fixed

UPDATES = 10  # in a burst
GRIDS = {"regular": "fixed", "irregular": "exponential"}
ACCURATE = 1e-3  # root mean square of the end states' errors, in the observation's own units
LIMIT = 1.2
TIGHTER = 10.0  # than the setting's own tolerance

# Beside the presets' solvers: one that is dearer, for a side that would not be accurate enough otherwise.
SOLVERS["rk4-2"] = Fixed(SOLVERS["rk4"].tableau, 2, 4, "two steps per observation interval")  # pyright: ignore[reportArgumentType]
SOLVERS["dopri5-tighter"] = SOLVERS["dopri5"].at(1e-3 / TIGHTER, 1e-6 / TIGHTER)
TRIED = ("rk4", "rk4-2", "dopri5", "dopri5-tighter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="a field that is hardly trained: to try the script")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "irregular_update.json")
    options = parser.parse_args()
    load = os.getloadavg()
    result = compare(2 if options.quick else UPDATES, options.bursts, quick=options.quick)
    report(result)
    write_record(options.out, result, load)


def compare(updates: int, bursts: int, *, quick: bool) -> dict[str, Any]:
    """Train the field, record both kinds of data, then let them take turns."""
    laboratory = cartpole(quick=quick)
    state = fitting_again(trained(laboratory, [0], rounds=0))
    recordings = {}
    for side, grid in GRIDS.items():
        sampled = with_settings(laboratory, sampling__grid=grid)
        recordings[side] = sampled.recordings(sampled.start([0]))
    labs = {
        name: with_settings(laboratory, fit__solver=name, fit__warmup_updates=0, fit__updates=updates) for name in TRIED
    }
    rows = {
        side: {name: row(labs[name], state, recordings[side], updates, name) for name in TRIED} for side in GRIDS
    }  # fmt: skip
    for _ in range(bursts):
        for name in TRIED:
            for side in GRIDS:
                seconds, _ = timed(lambda name=name, side=side: labs[name].fit_chunk(state, recordings[side]))
                rows[side][name]["seconds"].append(seconds / updates)
    for side in GRIDS:
        for each in rows[side].values():
            each |= summary(each.pop("seconds"))
    kept = {side: quickest(rows[side]) for side in GRIDS}
    ratio = {
        what: rows["irregular"][kept["irregular"]][what] / rows["regular"][kept["regular"]][what]
        for what in ("median_ms", "min_ms", "evaluations")
    }
    alike = {name: rows["irregular"][name]["median_ms"] / rows["regular"][name]["median_ms"] for name in TRIED}
    return {
        "rows": rows, "accurate": ACCURATE, "limit": LIMIT, "quickest_accurate": kept, "ratio": ratio,
        "ratio_by_solver": alike, "updates_per_burst": updates, "bursts": bursts, "quick": quick,
    }  # fmt: skip


def row(laboratory: Laboratory, state: RunState, recordings: Any, updates: int, name: str) -> dict[str, Any]:
    """Work and accuracy of one solver on one side's windows."""
    _, _ = laboratory.fit_chunk(state, recordings)  # compiled
    after, _ = laboratory.fit_chunk(state, recordings)
    drawn = batches(laboratory, state, recordings, updates)
    windows = jax.tree.map(lambda *parts: jnp.concatenate(parts), *drawn)
    with jax.enable_x64(True):
        tight = window_states(state, windows, "dopri8", jnp.float64)
    found = window_states(state, windows, name)
    lengths = np.asarray(windows.steps).sum(axis=1)
    solves = tight.shape[0] * tight.shape[1]
    return {
        "evaluations": int(after.work[0] - state.work[0]) / solves,
        "error": accuracy(found, tight),
        "window_seconds": {"mean": float(lengths.mean()), "longest": float(lengths.max())},
        "longest_step": float(np.asarray(windows.steps).max()),
        "seconds": [],
    }


def quickest(rows: dict[str, dict[str, Any]]) -> str:
    """Of the solvers that are accurate enough, or of all where none is."""
    accurate = {name: each for name, each in rows.items() if each["error"]["rms"] <= ACCURATE} or rows
    return min(accurate, key=lambda name: accurate[name]["median_ms"])


def report(result: dict[str, Any]) -> None:
    """The table and the ratio."""
    print(f"{'':28}{'median':>9}{'minimum':>11}{'evaluations':>13}{'rms error':>11}{'max error':>11}")
    for side, rows in result["rows"].items():
        for name, each in rows.items():
            print(
                f"{side + ', ' + name:28}{each['median_ms']:6.1f} ms{each['min_ms']:8.1f} ms{each['evaluations']:13.1f}"
                f"{each['error']['rms']:11.1e}{each['error']['max']:11.1e}"
            )
    kept, ratio = result["quickest_accurate"], result["ratio"]
    sides = " to ".join(f"{side} by {kept[side]}" for side in ("irregular", "regular"))
    print(
        f"within {result['accurate']:g} of a tight solve, {sides}: {ratio['median_ms']:.2f}x (minima "
        f"{ratio['min_ms']:.2f}x, evaluations {ratio['evaluations']:.2f}x); at most {result['limit']:g}x is asked for"
    )
    alike = ", ".join(f"{name} {value:.2f}x" for name, value in result["ratio_by_solver"].items())
    print(f"by the same solver: {alike}")


if __name__ == "__main__":
    main()
