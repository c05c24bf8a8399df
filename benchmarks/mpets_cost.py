"""What a mini-batch update of modified PETS costs, against PyTorch code of the same size in the same run (issue 6, 5).

CartPole's sizes: ten networks of 3 x 200 ELU, inputs (5 observations, 1 action, the step), mean and bounded log
variance of 5 differences, 32 transitions a network, Gaussian likelihood with the limits' penalty and weight decay,
Adam. The PyTorch side is eager code with batched products (`torch.baddbmm`), the rows gathered from one table as ours
are. The sides take turns; both use every core. Ours is `model.one_step`: its share of resampling and of the look at 256
held-out transitions after every 50 updates is in its time.

    PYTHONPATH=src python benchmarks/mpets_cost.py    # seconds; needs PyTorch; writes results/baselines/mpets_cost.json
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import ROOT, summary, timed, write_record

from ctrlax import config
from ctrlax.model import one_step, registry
from ctrlax.model.coordinates import Coordinates, Scaling
from ctrlax.model.fit import Learned
from ctrlax.model.windows import Recording

OBSERVATIONS, ACTIONS, MEMBERS, HIDDEN, BATCH = 5, 1, 10, 200, 32
TRAJECTORIES, POINTS, UPDATES = 20, 50, 50
OUT = ROOT / "results" / "baselines" / "mpets_cost.json"


def recording() -> Recording:
    """Numbers of the right shape: what they are does not change what an update costs."""
    random = np.random.default_rng(0)
    observations = random.normal(size=(TRAJECTORIES, POINTS, OBSERVATIONS)).cumsum(axis=1) / 10
    actions = random.uniform(-1, 1, (TRAJECTORIES, POINTS, ACTIONS))
    steps = random.uniform(0.01, 0.2, (TRAJECTORIES, POINTS - 1))
    paths = np.zeros((TRAJECTORIES, POINTS - 1, 1, ACTIONS))
    seen, acted, gaps, between = (jnp.asarray(part, jnp.float32) for part in (observations, actions, steps, paths))
    return Recording(seen, acted, gaps, between, jnp.full(TRAJECTORIES, POINTS, jnp.int32))


def ours() -> tuple[Any, one_step.OneStepState]:
    """A compiled chunk of updates and where it starts."""
    ones = jnp.ones(OBSERVATIONS)
    scaling = Scaling(0 * ones, ones, jnp.zeros(ACTIONS), jnp.ones(ACTIONS), ones)
    coordinates = Coordinates(OBSERVATIONS, ACTIONS)
    model = registry.build(config.Model("mpets", (), MEMBERS), coordinates, scaling, key=jax.random.key(0))
    settings, data = config.OneStep(batch=BATCH), recording()

    @jax.jit
    def chunk(state: one_step.OneStepState) -> Any:
        with jax.default_matmul_precision("highest"):
            seen = one_step.prepared(settings, state, data)
            update = partial(one_step.update, settings, seen=seen, step_scale=jnp.ones(()))
            state, metrics = jax.lax.scan(lambda state, _: update(state), state, None, length=UPDATES)
            return one_step.looked(settings, state, seen), metrics.loss[-1]

    return chunk, one_step.begin(Learned(model, jnp.zeros(OBSERVATIONS)), key=jax.random.key(1))


def theirs() -> Any:
    """The same updates in eager PyTorch."""
    import torch

    torch.manual_seed(0)
    sizes = [OBSERVATIONS + ACTIONS + 1, HIDDEN, HIDDEN, HIDDEN, 2 * OBSERVATIONS]
    weights = [torch.nn.init.xavier_uniform_(torch.empty(MEMBERS, i, o)) for i, o in pairwise(sizes)]
    biases = [torch.zeros(MEMBERS, 1, o) for o in sizes[1:]]
    highest, lowest = torch.full((MEMBERS, 1, OBSERVATIONS), 0.5), torch.full((MEMBERS, 1, OBSERVATIONS), -10.0)
    parameters = [part.requires_grad_() for part in (*weights, *biases, highest, lowest)]
    adam = torch.optim.Adam(parameters, lr=1e-3)
    seen = recording()
    rows = [torch.from_numpy(np.array(part).reshape(-1, part.shape[-1])) for part in (
        seen.observations[:, :-1], seen.actions[:, :-1], seen.steps[..., None] / 0.1 - 1,
        seen.observations[:, 1:] - seen.observations[:, :-1],
    )]  # fmt: skip
    inputs, targets = torch.cat(rows[:3], dim=1), rows[3] / 0.1
    table = torch.randint(len(inputs), (MEMBERS, len(inputs)))
    softplus, elu = torch.nn.functional.softplus, torch.nn.functional.elu

    def chunk() -> float:
        loss = torch.zeros(())
        for _ in range(UPDATES):
            chosen = table.gather(1, torch.randint(len(inputs), (MEMBERS, BATCH)))
            hidden, wanted = inputs[chosen], targets[chosen]
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                hidden = elu(torch.baddbmm(bias, hidden, weight))
            mean, spread = torch.baddbmm(biases[-1], hidden, weights[-1]).chunk(2, dim=-1)
            spread = highest - softplus(highest - spread)
            spread = lowest + softplus(spread - lowest)
            likelihood = 0.5 * ((wanted - mean) ** 2 * torch.exp(-spread) + spread).sum(-1).mean(-1).sum()
            decay = 0.5 * 5e-5 * sum((weight**2).sum() for weight in weights)
            loss = likelihood + decay + 0.01 * (highest - lowest).sum()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
        return float(loss.detach())

    return chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    import torch

    load = os.getloadavg()
    torch.set_num_threads(os.cpu_count() or 1)
    chunk, state = ours()
    compile_seconds, _ = timed(lambda: chunk(state))
    peer = theirs()
    peer()
    seconds: dict[str, list[float]] = {"ctrlax": [], "torch": []}
    for _ in range(options.turns):
        seconds["ctrlax"].append(timed(lambda: chunk(state))[0] / UPDATES)
        began = time.perf_counter()
        peer()
        seconds["torch"].append((time.perf_counter() - began) / UPDATES)
    rows = {side: summary(each) for side, each in seconds.items()}
    turns = {side: [1e3 * s for s in each] for side, each in seconds.items()}
    ratio = {name: rows["torch"][name] / rows["ctrlax"][name] for name in ("median_ms", "min_ms")}
    for side, row in rows.items():
        print(f"{side:8}{row['median_ms']:8.2f} ms an update, at best {row['min_ms']:.2f} ms")
    print(f"PyTorch over ctrlax: {ratio['median_ms']:.2f} (minima {ratio['min_ms']:.2f})")
    shapes = {"members": MEMBERS, "batch": BATCH, "hidden": [HIDDEN] * 3, "updates_per_turn": UPDATES}
    result = {"shapes": shapes, "torch": torch.__version__, "compile_seconds": compile_seconds}
    write_record(options.out, result | {"rows": rows, "ratio": ratio, "turns_ms": turns}, load)


if __name__ == "__main__":
    main()
