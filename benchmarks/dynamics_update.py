"""One ENODE update against PyTorch with TorchDiffEqPack, at equal accuracy: how much faster is it.

CartPole, 10 members, 25 windows of 5 points, observations every 0.1 s. Both sides start from the same weights of a
trained field, take the same batches and pay for the whole update: solve, gradient, Adam. The peer solves as the authors
do, dopri5 at rtol 1e-3 and atol 1e-6; ours are the presets' solvers. Bursts of the two alternate.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import ROOT, SIZE, Peer, perceptron_flop, product_ceiling, summary, timed, write_record
from scene import cartpole, dynamics_arrays, first_seed, fitting_again, trained, with_settings

from ctrlax.lab.phases import Laboratory
from ctrlax.lab.state import RunState
from ctrlax.model.fit import simulate_windows
from ctrlax.model.windows import Windows, draw_windows
from ctrlax.ode.solvers import named

UPDATES = 10  # in a burst
OURS = {"rk4": "rk4 (preset default)", "dopri5": "dopri5 (preset paper)"}
# With a graph over all steps, which spares its backward pass the second solve of the checkpointed one (ACA).
PEER = {
    "peer, baddbmm": {"solve": "graph", "form": "baddbmm"},
    "peer, einsum": {"solve": "graph", "form": "einsum"},
    "peer, baddbmm, ACA": {"solve": "checkpointed", "form": "baddbmm"},
}
ACA_BURSTS = 2  # it is several times slower: no need to wait for more


def batches(laboratory: Laboratory, state: RunState, recordings: Any, count: int) -> list[Windows]:
    """The windows that the burst's updates will draw, from the same keys as `fit_update`."""
    settings, key = laboratory.config.fit, first_seed(state.fitting.key)
    recording, drawn = first_seed(recordings), []
    for _ in range(count):
        key, window_key, _ = jax.random.split(key, 3)
        drawn.append(
            draw_windows(
                recording,
                points=settings.window_points,
                per_trajectory=settings.windows_per_trajectory,
                total=settings.windows,
                key=window_key,
            )
        )
    return drawn


def exported(laboratory: Laboratory, state: RunState, drawn: list[Windows], file: str) -> None:
    """Weights, scaling and batches for the peer."""
    learned = first_seed(state.fitting.learned)
    arrays = {name: np.stack([getattr(w, name) for w in drawn]) for name in ("starts", "targets", "steps", "paths")}
    settings = laboratory.config.fit
    arrays |= dynamics_arrays(learned.dynamics)
    arrays["log_noise"] = np.asarray(learned.log_noise)
    arrays["rate"], arrays["noise_speed"] = np.asarray(settings.rate), np.asarray(settings.noise_speed)
    np.savez(file, allow_pickle=False, **arrays)


def window_states(state: RunState, windows: Windows, solver: str, dtype: Any = jnp.float32) -> np.ndarray:
    """``[member, window, interval, observation]`` by one of our solvers."""
    dynamics = first_seed(state.fitting.learned.dynamics)
    cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf  # noqa: E731
    dynamics, windows = jax.tree.map(cast, (dynamics, windows))

    @jax.jit
    def solve(dynamics: Any, windows: Windows) -> Any:
        with jax.default_matmul_precision("highest"):
            return simulate_windows(dynamics, dynamics.draw(key=jax.random.key(0)), windows, named(solver))[0]

    return np.asarray(solve(dynamics, windows))


def accuracy(found: np.ndarray, tight: np.ndarray) -> dict[str, float]:
    """Of the windows' end states, in the observation's own units."""
    wrong = np.abs(found[:, :, -1] - tight[:, :, -1])
    return {"mean": float(wrong.mean()), "rms": float(np.sqrt((wrong**2).mean())), "max": float(wrong.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="a Python with PyTorch and TorchDiffEqPack; made if not given")
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of policy roll-outs before the field that is timed"
    )
    parser.add_argument("--quick", action="store_true", help="a field that is hardly trained: to try the script")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "dynamics_update.json")
    options = parser.parse_args()
    load = os.getloadavg()
    peer = Peer(options.peer_python)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(peer, options, f"{folder}/dynamics.npz")
    peer.close()
    report(result)
    write_record(options.out, result, load)


def compare(peer: Peer, options: argparse.Namespace, file: str) -> dict[str, Any]:
    """Train the field, then let the sides take turns."""
    updates = 2 if options.quick else UPDATES
    laboratory = cartpole(quick=options.quick)
    state = fitting_again(trained(laboratory, [0], rounds=options.rounds))
    recordings = laboratory.recordings(state)
    labs = {
        name: with_settings(laboratory, fit__solver=name, fit__warmup_updates=0, fit__updates=updates) for name in OURS
    }
    drawn = batches(laboratory, state, recordings, updates)
    exported(laboratory, state, drawn, file)
    with jax.enable_x64(True):
        tight = window_states(state, drawn[0], "dopri8", jnp.float64)
    rows: dict[str, dict[str, Any]] = {}
    for name in OURS:
        compile_seconds, (_, metrics) = timed(lambda name=name: labs[name].fit_chunk(state, recordings))
        evaluations = int(measured_work(labs[name], state, recordings)) / updates / tight.shape[0] / tight.shape[1]
        error = accuracy(window_states(state, drawn[0], name), tight)
        rows[name] = {"loss": float(metrics["loss"][0]), "first_call_seconds": compile_seconds}
        rows[name] |= {"evaluations": evaluations, "differentiated": evaluations, "error": error, "seconds": []}
    for name, request in PEER.items():
        peer.ask(do="states", task="dynamics", file=file, into=f"{file}.npy", **request)
        found = np.load(f"{file}.npy").transpose(1, 2, 0, 3)
        answer = peer.ask(do="burst", task="dynamics", file=file, updates=updates, **request)
        rows[name] = {"loss": float(np.mean(answer["losses"])), "error": accuracy(found, tight), "seconds": []}
        rows[name] |= {key: answer[key] for key in ("evaluations", "differentiated")}
    ceilings: dict[str, list[float]] = {"xla": [], "torch": []}
    members, windows = tight.shape[:2]
    for turn in range(options.bursts):
        for name in OURS:
            rows[name]["seconds"].append(timed(lambda name=name: labs[name].fit_chunk(state, recordings))[0] / updates)
        for name, request in PEER.items():
            if turn >= ACA_BURSTS and request["solve"] == "checkpointed":
                continue
            answer = peer.ask(do="burst", task="dynamics", file=file, updates=updates, **request)
            rows[name]["seconds"].append(float(np.mean(answer["seconds"])))
        ceilings["xla"].append(max(product_ceiling(members, windows, repeats=3).values()))
        ceilings["torch"].append(
            peer.ask(do="ceiling", members=members, rows=windows, device="cpu", repeats=3)["gflops"]
        )
    for row in rows.values():
        seconds = row.pop("seconds")
        row |= summary(seconds)
        flop = 3 * row["differentiated"] * members * windows * perceptron_flop(6, 5, 3)
        row |= {"gflops": flop / np.median(seconds) / 1e9, "burst_ms": [1e3 * s for s in seconds]}
        row["ms_per_evaluation"] = row["median_ms"] / row["evaluations"]
    fastest = min((name for name in rows if name.startswith("peer")), key=lambda name: rows[name]["median_ms"])
    ratio = {
        name: {"median": rows[fastest]["median_ms"] / rows[name]["median_ms"],
               "min": rows[fastest]["min_ms"] / rows[name]["min_ms"]}
        for name in OURS
    }  # fmt: skip
    shapes = {"members": members, "windows": windows, "hidden": SIZE, "updates_per_burst": updates}
    return {
        "shapes": shapes, "rows": rows, "peer": fastest, "ratio": ratio, "peer_versions": peer.versions,
        "ceiling_gflops": {name: max(values) for name, values in ceilings.items()},
    }  # fmt: skip


def measured_work(laboratory: Laboratory, state: RunState, recordings: Any) -> int:
    """Field evaluations of one burst, summed over members and windows."""
    after, _ = laboratory.fit_chunk(state, recordings)
    return int(after.work[0] - state.work[0])


def report(result: dict[str, Any]) -> None:
    """The table and the ratio."""
    print(
        f"{'':26}{'median':>9}{'minimum':>9}{'evaluations':>13}{'ms each':>9}{'GFLOP/s':>9}{'rms':>9}{'max error':>11}"
    )
    for name, row in result["rows"].items():
        print(
            f"{OURS.get(name, name):26}{row['median_ms']:6.1f} ms{row['min_ms']:6.1f} ms{row['evaluations']:13.1f}"
            f"{row['ms_per_evaluation']:9.2f}{row['gflops']:9.1f}{row['error']['rms']:9.1e}{row['error']['max']:11.1e}"
        )
    ceiling = ", ".join(f"{name} {value:.0f}" for name, value in result["ceiling_gflops"].items())
    print(f"ceiling of [10,25,200]x[10,200,200]: {ceiling} GFLOP/s")
    for name, ratio in result["ratio"].items():
        print(f"{OURS[name]}: {ratio['median']:.2f}x faster than {result['peer']} (minima {ratio['min']:.2f}x)")


if __name__ == "__main__":
    main()
