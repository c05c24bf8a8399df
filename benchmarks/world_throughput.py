"""How much quicker than a SciPy loop `ctrlax.simulate` rolls out CartPole under a network policy.

200 roll-outs of 30 s, 301 times each, the same 2x200 ReLU policy (Glorot, gain 1), the same starts and equations, the
same method (Dormand-Prince 5(4)) and tolerance (rtol = atol = 1e-6); SciPy's loop has a NumPy policy and field. The two
are timed in turn, in one process, and the quickest of each counts, SciPy's by its thread's processor time, ours by the
clock: other programs only ever add. The floor is the time the policy's matrix products alone take, at the best rate
measured for them in the same run.

    python benchmarks/world_throughput.py [--rounds 24] [--out results/benchmarks/world_throughput.json]
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from ctrlax.ode.batch import solve_batch
from ctrlax.ode.solvers import named
from ctrlax.world.collect import simulate
from ctrlax.world.systems import cartpole

ROLLOUTS, SECONDS, WIDTH, TOLERANCE = 200, 30.0, 200, 1e-6
TIMES = np.linspace(0.0, SECONDS, 301)
SCIPY_ROLLOUTS = 4  # of the 200, per round


class Policy(eqx.Module):
    weights: list[np.ndarray]
    biases: list[np.ndarray]

    def __call__(self, observation):
        hidden = observation
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jax.nn.relu(weight @ hidden + bias)
        return 3 * jnp.tanh(self.weights[-1] @ hidden + self.biases[-1])

    def numpy(self, observation):
        hidden = observation
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(weight @ hidden + bias, 0.0)
        return 3 * np.tanh(self.weights[-1] @ hidden + self.biases[-1])


def random_policy(seed):
    random = np.random.default_rng(seed)
    sizes = [5, WIDTH, WIDTH, 1]
    weights = [
        random.uniform(-1, 1, (out, into)) * np.sqrt(6 / (out + into)) for into, out in itertools.pairwise(sizes)
    ]
    return Policy(weights, [random.uniform(-1, 1, len(weight)) / np.sqrt(weight.shape[1]) for weight in weights])


def scipy_rollout(policy, start):
    def field(time, state):
        _, v, theta, omega = state
        sin, cos = np.sin(theta), np.cos(theta)
        force = 3 * policy.numpy(np.array([state[0], v, cos, sin, omega]))[0]
        push = (force + 0.1 * omega**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (4 / 3 - 0.1 * cos**2 / 1.1)
        return np.array([v, push - 0.1 * turn * cos / 1.1, omega, turn])

    return solve_ivp(field, (0.0, SECONDS), start, "RK45", rtol=TOLERANCE, atol=TOLERANCE, t_eval=TIMES)


def timed(function):
    before = time.perf_counter()
    answer = jax.block_until_ready(function())
    return time.perf_counter() - before, answer


def product_rate():
    """GFLOP/s of the policy's one large product in float64, as XLA does it here: [200, 200] x [200, 200]."""
    left, right = (jnp.asarray(np.random.default_rng(i).normal(size=(ROLLOUTS, WIDTH))) for i in (0, 1))
    repeat = 100
    many = jax.jit(lambda left: jax.lax.fori_loop(0, repeat, lambda i, x: x @ right.T * 0.07, left))
    jax.block_until_ready(many(left))
    return repeat * 2 * ROLLOUTS * WIDTH * WIDTH / min(timed(lambda: many(left))[0] for _ in range(5)) / 1e9


def measure(rounds):
    env, policy = cartpole.make(), random_policy(0)
    starts = env.draw_starts(ROLLOUTS, key=jax.random.key(0))
    setting = named("dopri5").at(TOLERANCE, TOLERANCE)

    def ours():
        return simulate(
            env, policy, TIMES, key=jax.random.key(0), starts=starts, solver="dopri5", rtol=TOLERANCE, atol=TOLERANCE
        )

    def solving_only(policy, starts, times):
        return solve_batch(lambda own, t, s: env.field(s, policy(env.observe(s))), None, starts, times, setting)

    first, path = timed(ours)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        solve = jax.jit(solving_only)
        ends, tiled = (jnp.asarray(np.tile(times, (ROLLOUTS, 1))) for times in (TIMES[[0, -1]], TIMES))
        for times in (ends, tiled):
            jax.block_until_ready(solve(policy, starts, times))
    found = {name: [] for name in ("scipy", "ours", "solving", "stepping", "gflops")}
    evaluations = []
    for i in range(rounds):
        found["ours"].append(timed(ours)[0] / ROLLOUTS)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            found["gflops"].append(product_rate())
            found["solving"].append(timed(lambda: solve(policy, starts, tiled))[0] / ROLLOUTS)
            found["stepping"].append(timed(lambda: solve(policy, starts, ends))[0] / ROLLOUTS)
        chosen = starts[i * SCIPY_ROLLOUTS % ROLLOUTS :][:SCIPY_ROLLOUTS]
        # One thread, so its processor time is what it takes undisturbed, on a busy machine as well.
        before = time.thread_time()
        paths = [scipy_rollout(policy, start) for start in chosen]
        found["scipy"].append((time.thread_time() - before) / len(chosen))
        evaluations += [p.nfev for p in paths]
    same = np.abs(scipy_rollout(policy, starts[0]).y.T[:11] - path.states[0, :11]).max()
    assert path.healthy.all()
    assert same < 1e-3, f"the two do not integrate the same system: {same}"
    return summary(first, path.work.mean(), float(np.mean(evaluations)), found)


def summary(first, work, scipy_work, found):
    best = {name: min(values) for name, values in found.items()}
    rate = max(found["gflops"])
    floor = work * 2 * (5 * WIDTH + WIDTH * WIDTH + WIDTH) / rate / 1e9
    return {
        "question": "200 CartPole roll-outs of 30 s under a 2x200 network, against a SciPy RK45 loop",
        "ratio": best["scipy"] / best["ours"],
        "milliseconds_per_rollout": {
            "scipy": 1e3 * best["scipy"],
            "ctrlax": 1e3 * best["ours"],
            "arithmetic_floor": 1e3 * floor,
            "stepping_above_the_floor": 1e3 * (best["stepping"] - floor),
            "reading_off_301_times": 1e3 * (best["solving"] - best["stepping"]),
            "observations_actions_rewards_and_copies": 1e3 * (best["ours"] - best["solving"]),
        },
        "all_rounds_milliseconds": {n: [1e3 * v for v in found[n]] for n in ("scipy", "ours", "solving", "stepping")},
        "float64_gflops": rate,
        "evaluations_per_rollout": {"ctrlax": work, "scipy": scipy_work},
        "first_call_seconds": first,
    }


def surroundings():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "command": "python benchmarks/world_throughput.py",
        "commit": commit.stdout.strip(),
        "versions": {"python": platform.python_version()}
        | {n: version(n) for n in ("jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy")},
        "cores": os.cpu_count(),
        "processor": model[0].split(":")[1].strip() if model else platform.processor(),
        "load_average_at_start": os.getloadavg(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    around = surroundings()
    record = measure(asked.rounds) | around
    for name, value in record["milliseconds_per_rollout"].items():
        print(f"{value:8.2f} ms per roll-out  {name.replace('_', ' ')}")
    print(
        f"{record['float64_gflops']:8.0f} GFLOP/s in float64; {record['first_call_seconds']:.1f} s for the first call"
    )
    print(f"{record['ratio']:8.1f} times as quick as SciPy")
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
