"""20 seeds as one program on a GPU: time per update and seed, share of the ceiling, ratio to PyTorch.

One script for one short call: every stage is written to ``$OUT/device_updates.json`` when it ends, and one that would
begin behind ``--seconds`` is left out. Useful operations only: forward and backward matrix products of evaluations that
the update needs, no recomputation, no padding. The ceiling is measured beside it on plain products of the same shapes.

    PYTHONPATH=src:.portable python3 benchmarks/device_updates.py --seconds 420
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the peer shares the GPU

import agent_update
import dynamics_update
import jax
import jax.numpy as jnp
import numpy as np
from measure import SIZE, Peer, perceptron_flop, summary, timed, write_record
from scene import cartpole, fitting_again, improving_again, trained, with_settings

from ctrlax.model.network import elu

MEMBERS, WINDOWS, STARTS = 10, 25, 100
LANES = {"all": STARTS, "one": STARTS // MEMBERS}  # trajectories of each member


def ceilings(batch: int, rows: int, *, products: int = 100, repeats: int = 5) -> dict[str, float]:
    """TFLOP/s of a layer's three products with all members of all seeds as one batch, in float32."""
    weight = jax.random.normal(jax.random.key(0), (batch, SIZE, SIZE)) / SIZE**0.5
    inputs = jax.random.normal(jax.random.key(1), (batch, rows, SIZE))
    einsum = lambda subscripts, a, b: jnp.einsum(subscripts, a, b, precision="highest")  # noqa: E731
    bodies = {
        "forward": (inputs, lambda state: elu(einsum("mbi,mio->mbo", state, weight))),
        "input_gradient": (inputs, lambda state: einsum("mbo,mio->mbi", state, weight)),
        # One factor hangs on the state, or the product would be taken out of the loop.
        "weight_gradient": (
            weight,
            lambda state: state + einsum("mbi,mbo->mio", inputs + state[:, :1, :] * 1e-30, inputs),
        ),
    }
    flop, rates = 2 * products * batch * rows * SIZE * SIZE, {}
    for name, (begin, body) in bodies.items():
        run = jax.jit(lambda state, body=body: jax.lax.scan(lambda s, _: (body(s), None), state, None, products)[0])
        jax.block_until_ready(run(begin))
        rates[name] = flop / min(timed(lambda run=run, begin=begin: run(begin))[0] for _ in range(repeats)) / 1e12
    rates["all_three"] = 3 / sum(1 / rates[name] for name in bodies)
    rates["without_weight_gradient"] = 2 / (1 / rates["forward"] + 1 / rates["input_gradient"])
    return rates


def bursts(call: Callable[[], Any], updates: int, seeds: int, repeats: int) -> tuple[dict[str, float], float]:
    """Per update and seed, and the seconds of the first call, which compiles."""
    first, _ = timed(call)
    return summary([timed(call)[0] / updates / seeds for _ in range(repeats)]), first


class Stages:
    """Results so far, and whether there is time for more."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.begun, self.options, self.load = time.monotonic(), options, os.getloadavg()
        self.result: dict[str, Any] = {"seeds": options.seeds, "quick": options.quick}

    def run(self, name: str, stage: Callable[[], dict[str, Any]]) -> None:
        """One stage; what goes wrong in it is recorded and does not stop the next."""
        left = self.options.seconds - (time.monotonic() - self.begun)
        if left <= 0:
            self.result[name] = {"left_out": "no time left"}
        else:
            try:
                self.result[name] = stage()
            except Exception as problem:
                self.result[name] = {"failed": f"{type(problem).__name__}: {problem}"[:500]}
        print(f"[{time.monotonic() - self.begun:5.0f} s] {name}: {shown(self.result[name])}", flush=True)
        write_record(self.options.out / "device_updates.json", self.result, self.load)


def shown(part: dict[str, Any]) -> str:
    """Numbers in short."""
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in part.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=420.0, help="no stage begins later")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a field that is hardly trained, few updates")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "results/benchmarks")))
    options = parser.parse_args()
    stages = Stages(options)
    laboratory = cartpole(
        quick=options.quick, agent__members_per_start="one", agent__updates=2 if options.quick else 250
    )
    state = trained(laboratory, list(range(options.seeds)), rounds=0)
    print(f"[{time.monotonic() - stages.begun:5.0f} s] a trained field for every seed", flush=True)
    fitting, improving = fitting_again(state), improving_again(laboratory, state)
    stages.run("dynamics ceiling, TFLOP/s", lambda: ceilings(options.seeds * MEMBERS, WINDOWS))
    for members, rows in LANES.items():
        name = f"agent ceiling, {members} members, TFLOP/s"
        stages.run(name, lambda rows=rows: ceilings(options.seeds * MEMBERS, rows))
    dynamics_stage(stages, laboratory, fitting, "rk4")
    agent_stages(stages, laboratory, improving, "rk4")
    peer_stages(stages, laboratory, state)
    # Last, since they compile longest.
    dynamics_stage(stages, laboratory, fitting, "dopri5")
    agent_stages(stages, laboratory, improving, "dopri5")
    finish(stages)


def dynamics_stage(stages: Stages, laboratory: Any, state: Any, solver: str) -> None:
    """The dynamics update by one of the presets' solvers."""
    seeds, updates = stages.options.seeds, 2 if stages.options.quick else 50
    recordings = laboratory.recordings(state)
    ceiling = stages.result["dynamics ceiling, TFLOP/s"].get("all_three", float("nan"))
    lab = with_settings(laboratory, fit__solver=solver, fit__warmup_updates=0, fit__updates=updates)

    def stage() -> dict[str, Any]:
        row, first = bursts(lambda: lab.fit_chunk(state, recordings), updates, seeds, stages.options.repeats)
        after, _ = lab.fit_chunk(state, recordings)
        evaluations = float(np.mean(after.work - state.work)) / updates / MEMBERS / WINDOWS
        flop = 3 * evaluations * MEMBERS * WINDOWS * perceptron_flop(6, 5, 3)
        return with_share(row | {"first_call_seconds": first, "evaluations": evaluations}, flop, ceiling)

    stages.run(f"dynamics {solver}", stage)


def agent_stages(stages: Stages, laboratory: Any, state: Any, solver: str) -> None:
    """The actor-critic update, all members and drawn ones."""
    seeds, updates = stages.options.seeds, 2 if stages.options.quick else 10
    for members, rows in LANES.items():
        ceiling = stages.result[f"agent ceiling, {members} members, TFLOP/s"].get(
            "without_weight_gradient", float("nan")
        )
        settings = {"members_per_start": members, "solver": solver, "updates": updates, "imagined_starts": 0.0}
        lab = with_settings(laboratory, **{f"agent__{name}": value for name, value in settings.items()})

        def stage(lab: Any = lab, rows: int = rows, ceiling: float = ceiling) -> dict[str, Any]:
            row, first = bursts(lambda: lab.improve_chunk(state), updates, seeds, stages.options.repeats)
            after, _ = lab.improve_chunk(state)
            evaluations = float(np.mean(after.work - state.work)) / updates / MEMBERS / rows
            field = 2 * perceptron_flop(6, 5, 3) + 3 * perceptron_flop(5, 1, 2)
            row |= {"first_call_seconds": first, "evaluations": evaluations}
            return with_share(row, evaluations * MEMBERS * rows * field, ceiling)

        stages.run(f"agent {members} members, {solver}", stage)


def with_share(row: dict[str, float], flop: float, ceiling: float) -> dict[str, float]:
    """A row with its arithmetic rate."""
    rate = flop / row["median_ms"] / 1e9
    return row | {"tflops": rate, "share_of_ceiling": rate / ceiling}


def peer_stages(stages: Stages, laboratory: Any, state: Any) -> None:
    """PyTorch with TorchDiffEqPack on the same device, one seed, as it comes."""
    if stages.options.no_peer:
        return
    updates = 2 if stages.options.quick else 10
    device = "cuda" if jax.devices()[0].platform == "gpu" else "cpu"
    peer: list[Peer] = []
    with tempfile.TemporaryDirectory() as folder:

        def stage(task: str) -> dict[str, Any]:
            if not peer:
                peer.append(Peer(stages.options.peer_python))
            file = f"{folder}/{task}.npz"
            if task == "dynamics":
                begun = fitting_again(state)
                drawn = dynamics_update.batches(laboratory, begun, laboratory.recordings(begun), updates)
                dynamics_update.exported(laboratory, begun, drawn, file)
            else:
                begun = improving_again(laboratory, state)
                agent_update.exported(laboratory, begun, agent_update.batches(laboratory, begun, updates), file)
            request = {"task": task, "file": file, "updates": updates, "device": device}
            peer[0].ask(do="burst", **request)
            answers = [peer[0].ask(do="burst", **request) for _ in range(stages.options.repeats)]
            row = summary([second for answer in answers for second in answer["seconds"]])
            return row | {"evaluations": answers[0]["evaluations"], "versions": peer[0].versions}

        stages.run("peer dynamics", lambda: stage("dynamics"))
        stages.run("peer agent", lambda: stage("agent"))
    if peer:
        peer[0].close()


def finish(stages: Stages) -> None:
    """The ratios, and the table once more."""
    ratios = {}
    for name, row in stages.result.items():
        part = name.split()[0]
        other = stages.result.get(f"peer {part}")
        if isinstance(row, dict) and isinstance(other, dict) and {"median_ms", "tflops"} <= row.keys():
            ratios[name] = other.get("median_ms", float("nan")) / row["median_ms"]
    stages.result["ratio to PyTorch, per seed"] = ratios
    write_record(stages.options.out / "device_updates.json", stages.result, stages.load)
    head = f"{'per update and seed':34}{'median':>12}{'minimum':>12}{'evaluations':>13}"
    print(head + f"{'TFLOP/s':>9}{'of ceiling':>12}{'ratio':>8}")
    for name, row in stages.result.items():
        if isinstance(row, dict) and "median_ms" in row:
            print(
                f"{name:34}{row['median_ms']:9.3f} ms{row['min_ms']:9.3f} ms{row['evaluations']:13.1f}"
                f"{row.get('tflops', float('nan')):9.2f}{row.get('share_of_ceiling', float('nan')):12.0%}"
                f"{ratios.get(name, 1.0):8.1f}"
            )


if __name__ == "__main__":
    main()
