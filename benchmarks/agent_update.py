"""One paper-size actor-critic update against PyTorch with TorchDiffEqPack, at equal accuracy: how much faster is it.

CartPole, 100 starts x 10 members, H = 2 s, on a field learned from ten random trajectories and a policy's own. Both
sides start from the same weights and take the same starts and horizons; the update is all of it: imagination with the
reward integral in the state, actor and critic losses, gradients, two Adam steps. The peer solves as the authors do,
dopri5 at rtol 1e-3 and atol 1e-6. RK4 steps from horizon to horizon: twenty are the presets', twenty-five make shorter
steps, should twenty be less exact than the peer. One start through one drawn member has the same expectation (FACTS 6):
it is compared with the same peer.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import ROOT, SIZE, Peer, layers_as_arrays, perceptron_flop, product_ceiling, summary, timed, write_record
from scene import cartpole, dynamics_arrays, first_seed, improving_again, trained, with_settings

from ctrlax.agent import improve
from ctrlax.agent.imagine import imagine
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.state import RunState
from ctrlax.ode.solvers import RK4, Fixed, SolverSetting, named
from ctrlax.world.systems.cartpole import CONSTANTS

UPDATES = 3  # in a burst
# Members of a start, solver, horizons drawn.
OURS = {
    f"{members} members, {solver}, {count}": {"members_per_start": how, "solver": solver, "horizons": count}
    for members, how in (("all", "all"), ("drawn", "one"))
    for solver, count in (("rk4", 20), ("rk4", 25), ("dopri5", 20))
}
# With a graph over all steps: checkpointing (ACA) solves a second time and cannot give the states at the horizons.
PEER = {f"peer, {count}": {"solve": "graph", "horizons": count} for count in (20, 25)}


# What errors are measured against: small steps that end on the horizons. An adaptive solver at 1e-8 runs into the
# limit of steps on a policy that switches. The second, with steps twice as long, says how exact the first is.
TIGHT = [Fixed(RK4, steps, 4, "the benchmark's reference") for steps in (40, 20)]

QUICK = ("all members, rk4, 20", "drawn members, rk4, 20", "peer, 20")


def batches(laboratory: Laboratory, state: RunState, count: int = UPDATES) -> list[tuple[Any, improve.Horizons]]:
    """Starts and horizons of the burst's updates, from the same keys as `agent_update`."""
    key, starts = first_seed(state.agent.key), first_seed(laboratory._starts(state.experience))
    drawn = []
    for _ in range(count):
        key, horizon_key, start_key, _ = jax.random.split(key, 4)
        settings = laboratory.config.agent
        begins = improve.draw_begins(settings, first_seed(state.agent), starts, None, key=start_key)
        drawn.append((begins, improve.draw_horizons(settings, key=horizon_key)))
    return drawn


def exported(laboratory: Laboratory, state: RunState, drawn: list[tuple[Any, Any]], file: str) -> None:
    """Weights, starts and horizons for the peer."""
    agent, dynamics = first_seed(state.agent), first_seed(state.fitting.learned.dynamics)
    settings = laboratory.config.agent
    arrays = layers_as_arrays("policy", agent.policy.layers) | layers_as_arrays("critic", agent.critic.layers)
    arrays |= dynamics_arrays(dynamics)
    arrays |= {"policy_middle": np.asarray(agent.policy.middle), "policy_reach": np.asarray(agent.policy.reach)}
    arrays["starts"] = np.stack([starts for starts, _ in drawn])
    arrays["times"] = np.stack([horizons.times for _, horizons in drawn])
    arrays["weights"] = np.stack([horizons.weights for _, horizons in drawn])
    arrays |= {name: np.asarray(CONSTANTS[name]) for name in ("velocity_cost", "action_cost")}
    arrays |= {"rate": np.asarray(settings.rate), "discount_time": np.asarray(settings.discount_time)}
    np.savez(file, allow_pickle=False, **arrays)


def imagined(
    laboratory: Laboratory, state: RunState, batch: Any, setting: SolverSetting, dtype: Any = jnp.float32
) -> np.ndarray:
    """``[member, start, time, observation and return]`` of every start through every member."""
    cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf  # noqa: E731
    parts = first_seed(state.fitting.learned.dynamics), first_seed(state.agent.policy), batch

    @jax.jit
    def solve(dynamics: Any, policy: Any, batch: Any) -> Any:
        starts, horizons = batch
        lanes = jnp.broadcast_to(starts, (dynamics.member_count(), *starts.shape))
        with jax.default_matmul_precision("highest"):
            found = imagine(
                dynamics, dynamics.draw(key=jax.random.key(0)), policy, laboratory.reward_rate, lanes, horizons.times,
                setting, discount_time=laboratory.config.agent.discount_time,
            )  # fmt: skip
        return jnp.concatenate([found.states, found.returns[..., None]], -1)

    return np.asarray(solve(*jax.tree.map(cast, parts)))


def accuracy(found: np.ndarray, tight: np.ndarray, scale: np.ndarray) -> dict[str, float]:
    """At the horizon's end: states in units of the data's scale, returns in units of reward times seconds."""
    wrong = np.abs(found[:, :, -1] - tight[:, :, -1])
    states, returns = wrong[..., :-1] / scale, wrong[..., -1]
    return {
        "state_rms": float(np.sqrt((states**2).mean())), "state_median": float(np.median(states)),
        "state_max": float(states.max()), "return_rms": float(np.sqrt((returns**2).mean())),
        "return_median": float(np.median(returns)), "return_max": float(returns.max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="a Python with PyTorch and TorchDiffEqPack; made if not given")
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument(
        "--rounds", type=int, default=2, help="rounds of policy roll-outs before the field that is timed"
    )
    parser.add_argument("--quick", action="store_true", help="a field that is hardly trained: to try the script")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "agent_update.json")
    options = parser.parse_args()
    load = os.getloadavg()
    peer = Peer(options.peer_python)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(peer, options, folder)
    peer.close()
    report(result)
    write_record(options.out, result, load)


def scene(options: argparse.Namespace) -> tuple[Laboratory, RunState]:
    """Ten random trajectories, then rounds of one roll-out of the policy and two exploring ones."""
    laboratory = cartpole(
        quick=options.quick, agent__members_per_start="one", agent__updates=20 if options.quick else 500,
        agent__imagined_starts=0.6,
    )  # fmt: skip
    environment = dataclasses.replace(laboratory.environment, initial_trajectories=10)
    laboratory = Laboratory(environment, laboratory.config)
    state = improving_again(laboratory, trained(laboratory, [0], rounds=0 if options.quick else options.rounds))
    return with_settings(laboratory, agent__imagined_starts=0.0, agent__updates=UPDATES), state


def compare(peer: Peer, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train the field, then let the sides take turns."""
    laboratory, state = scene(options)
    print("a trained field", flush=True)
    ours, theirs = OURS, PEER
    if options.quick:
        ours, theirs = ({name: row for name, row in rows.items() if name in QUICK} for rows in (OURS, PEER))
    labs = {
        name: with_settings(laboratory, **{f"agent__{key}": value for key, value in changes.items()})
        for name, changes in ours.items()
    }
    scale = np.asarray(first_seed(state.fitting.learned.dynamics).scaling.observation_scale)
    drawn, tight, doubt = {}, {}, {}
    for count in sorted({row["horizons"] for row in ours.values()}):
        lab = with_settings(laboratory, agent__horizons=count)
        drawn[count] = batches(lab, state)
        exported(lab, state, drawn[count], f"{folder}/agent{count}.npz")
        with jax.enable_x64(True):
            found = [imagined(lab, state, drawn[count][0], setting, jnp.float64) for setting in TIGHT]
            tight[count], doubt[count] = found[0], accuracy(found[1], found[0], scale)
    rows: dict[str, dict[str, Any]] = {}
    for name, lab in labs.items():
        count, solver = OURS[name]["horizons"], OURS[name]["solver"]
        compile_seconds, (after, metrics) = timed(lambda lab=lab: lab.improve_chunk(state))
        lanes = lab.config.agent.starts * (lab.config.model.members if "all" in name else 1)
        evaluations = float(after.work[0] - state.work[0]) / UPDATES / lanes
        error = accuracy(imagined(lab, state, drawn[count][0], named(solver)), tight[count], scale)
        print(f"{name}: first call {compile_seconds:.1f} s", flush=True)
        rows[name] = {"value": float(metrics["value"][0]), "first_call_seconds": compile_seconds, "lanes": lanes}
        rows[name] |= {"evaluations": evaluations, "differentiated": evaluations, "error": error, "seconds": []}
    lanes = laboratory.config.agent.starts * laboratory.config.model.members
    for name, request in theirs.items():
        count = request["horizons"]
        file = {"task": "agent", "file": f"{folder}/agent{count}.npz", "solve": request["solve"]}
        peer.ask(do="states", into=f"{folder}/states.npy", **file)
        found = np.load(f"{folder}/states.npy").transpose(1, 2, 0, 3)
        answer = peer.ask(do="burst", updates=UPDATES, **file)
        error = accuracy(found, tight[count], scale)
        rows[name] = {"value": -float(np.mean(answer["losses"])), "error": error, "lanes": lanes, "seconds": []}
        rows[name] |= {key: answer[key] for key in ("evaluations", "differentiated")}
    for _ in range(options.bursts):
        for name, lab in labs.items():
            rows[name]["seconds"].append(timed(lambda lab=lab: lab.improve_chunk(state))[0] / UPDATES)
        for name, request in theirs.items():
            file = {"task": "agent", "file": f"{folder}/agent{request['horizons']}.npz", "solve": request["solve"]}
            answer = peer.ask(do="burst", updates=UPDATES, **file)
            rows[name]["seconds"].append(float(np.mean(answer["seconds"])))
    finished(rows)
    fastest = min((name for name in rows if name.startswith("peer")), key=lambda name: rows[name]["median_ms"])
    ratio = {
        name: {key: rows[fastest][f"{key}_ms"] / rows[name][f"{key}_ms"] for key in ("median", "min")} for name in ours
    }
    ceiling = {
        "xla": max(product_ceiling(10, 100).values()),
        "torch": peer.ask(do="ceiling", members=10, rows=100, device="cpu")["gflops"],
    }
    seen: dict[str, float] = {"trajectories": int((state.experience.counts[0] > 0).sum())}
    seen["interaction_seconds"] = float(state.experience.interaction_seconds()[0])
    return {
        "shapes": {"starts": 100, "members": 10, "hidden": SIZE, "updates_per_burst": UPDATES}, "data": seen,
        "rows": rows, "peer": fastest, "ratio": ratio, "reference_error": doubt,
        "peer_versions": peer.versions, "ceiling_gflops": ceiling,
    }  # fmt: skip


def finished(rows: dict[str, dict[str, Any]]) -> None:
    """Times become figures. The dynamics' weights have no gradient here, the policy's do."""
    flop = 2 * perceptron_flop(6, 5, 3) + 3 * perceptron_flop(5, 1, 2)
    for row in rows.values():
        seconds = row.pop("seconds")
        row |= summary(seconds)
        row["ms_per_evaluation"] = row["median_ms"] / row["evaluations"]
        row["gflops"] = flop * row["differentiated"] * row["lanes"] / np.median(seconds) / 1e9
        row["burst_ms"] = [1e3 * s for s in seconds]


def report(result: dict[str, Any]) -> None:
    """The table and the ratios."""
    head = f"{'':28}{'median':>10}{'minimum':>10}{'evaluations':>13}{'ms each':>9}{'GFLOP/s':>9}"
    print(head + "   error at H, rms: states, returns (largest)")
    for name, row in result["rows"].items():
        error = row["error"]
        print(
            f"{name:28}{row['median_ms']:7.1f} ms{row['min_ms']:7.1f} ms{row['evaluations']:13.1f}"
            f"{row['ms_per_evaluation']:9.2f}{row['gflops']:9.1f}   {error['state_rms']:.1e} ({error['state_max']:.1e})"
            f"  {error['return_rms']:.1e} ({error['return_max']:.1e})"
        )
    for count, error in result["reference_error"].items():
        moved = f"{error['state_rms']:.1e} (states), {error['return_rms']:.1e} (returns)"
        print(f"reference with {count} horizons: half the steps differ by {moved}")
    ceiling = ", ".join(f"{name} {value:.0f}" for name, value in result["ceiling_gflops"].items())
    print(f"ceiling of [10,100,200]x[10,200,200]: {ceiling} GFLOP/s")
    for name, ratio in result["ratio"].items():
        print(f"{name}: {ratio['median']:.2f}x faster than {result['peer']} (minima {ratio['min']:.2f}x)")


if __name__ == "__main__":
    main()
