"""Variance of the critic's gradient with the horizon marginalised and with it fixed (claim 16)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ctrlax import config
from ctrlax.agent import improve
from ctrlax.agent.critic import Critic, init_critic
from ctrlax.agent.imagine import imagine
from ctrlax.agent.policy import Policy
from ctrlax.lab import policies
from ctrlax.lab.claims import Claim, judge
from ctrlax.lab.gallery import Panel
from ctrlax.lab.phases import Laboratory
from ctrlax.lab.run import prepare
from ctrlax.lab.scales import Made, Scale, Wanted
from ctrlax.lab.strokes import Row, column, look, unique
from ctrlax.ode.solvers import named
from ctrlax.world.collect import simulate
from ctrlax.world.grids import fixed_times

ANSWERS = (16,)  # claims
TITLE = "Variance of the critic's gradient, horizon marginalised and fixed"
CAPTION = (
    "The critic's loss in the true world, a hundred starts per update drawn from roll-outs of the policy: the total "
    "variance of its gradient over draws of starts and horizons, with h ~ U[0, H] in twenty strata (marginalised), "
    "with one draw of h per update, and with h fixed, each divided by that of h fixed at H = 2 s. One point per "
    "policy, from first rounds to solving ones, each with a critic trained on it by the marginalised loss. The "
    "policies are those of one run's rounds. The text names lower variance as the reason, without a picture."
)
LAWS = ("marginalised", "one draw", "h = 0.5", "h = 1", "h = 2")
HORIZON = 2.0
# environment, policies, critic updates before, gradients drawn
SIZES = {"smoke": ("pendulum", 2, 2, 6), "small": ("cartpole", 8, 200, 128), "paper": ("cartpole", 20, 1000, 512)}


class Scene(NamedTuple):
    """What a critic learns from."""

    policy: Policy
    dynamics: Any
    reward_rate: Any
    starts: improve.Starts


def wanted(scale: Scale) -> list[Wanted]:
    """No runs of its own."""
    return []


def table(made: Made) -> list[Row]:
    """A row for every policy and law: the gradient's total variance and the size of its mean."""
    name, count, updates, draws = SIZES[made.scale.name]
    known = policies.read(name, *made.policies)
    chosen = [known[place] for place in np.unique(np.linspace(0, len(known) - 1, count).round().astype(int))]
    laboratory, _, _ = prepare(
        name, seeds=[0], preset="default",
        **{"model.family": "true", "model.structure": (), "agent.horizon": HORIZON,
           "agent.starts": 20 if made.scale.smoke else 100, "agent.imagined_starts": 0.0},
    )  # fmt: skip
    dynamics = jax.tree.map(lambda leaf: leaf[0], laboratory.start([0]).fitting.learned.dynamics)
    rows = []
    for number, one in enumerate(chosen):
        key, critic_key, train_key = jax.random.split(jax.random.key(number), 3)
        scene = _scene(laboratory, one.policy, dynamics)
        fresh = init_critic(laboratory.environment.observation_size, gain=0.1, key=critic_key)
        critic = _trained(laboratory.agent_settings, scene, fresh, updates, train_key)
        for law in LAWS:
            gradients = np.asarray(_gradients(_settings(laboratory.agent_settings, law), scene, critic, draws, key))
            mean = gradients.mean(axis=0)
            rows.append({
                "policy": one.round, "solving": one.solving, "reward": one.reward, "law": law,
                "variance": float(gradients.var(axis=0, ddof=1).sum()), "signal": float((mean**2).sum()),
            })  # fmt: skip
    return rows


def _settings(settings: config.Agent, law: str) -> config.Agent:
    if law == "marginalised":
        return settings
    if law == "one draw":
        return dataclasses.replace(settings, horizons=1)
    return dataclasses.replace(settings, horizon_law="point", horizon=float(law.removeprefix("h = ")))


def _scene(laboratory: Laboratory, policy: Policy, dynamics: Any) -> Scene:
    environment = laboratory.environment
    starts = environment.draw_starts(10, key=jax.random.key(11))
    seen = simulate(environment, policies.double(policy), fixed_times(0.1, 5.0), key=jax.random.key(0), starts=starts)
    flat = jnp.asarray(seen.observations.reshape(-1, environment.observation_size), jnp.float32)
    policy = jax.tree.map(jnp.asarray, policy)
    return Scene(policy, dynamics, laboratory.reward_rate, improve.Starts(flat, jnp.ones(len(flat), bool)))


@eqx.filter_jit
def _trained(settings, scene: Scene, critic: Critic, updates: int, key: PRNGKeyArray) -> Critic:
    """The policy stays what it is: only the critic's part of an update is kept."""
    state = improve.begin(scene.policy, critic, scene.starts, keep=1, key=key)

    def step(state: improve.AgentState, _: None) -> tuple[improve.AgentState, None]:
        after, _metrics = improve.agent_update(
            settings, scene.reward_rate, scene.dynamics, state, scene.starts, jnp.ones(()), jnp.ones(())
        )
        return eqx.tree_at(lambda each: each.policy, after, scene.policy), None

    with jax.default_matmul_precision("highest"):
        return jax.lax.scan(step, state, None, length=updates)[0].critic


@eqx.filter_jit
def _gradients(settings, scene: Scene, critic: Critic, draws: int, key: PRNGKeyArray) -> Array:
    trained, rest = eqx.partition(critic, eqx.is_inexact_array)

    def one(key: PRNGKeyArray) -> Array:
        horizon_key, start_key, member_key = jax.random.split(key, 3)
        horizons = improve.draw_horizons(settings, key=horizon_key)
        begins = improve.draw_starts(scene.starts, settings.starts, key=start_key)
        imagined = imagine(
            scene.dynamics, scene.dynamics.draw(key=member_key), scene.policy, scene.reward_rate, begins[None],
            horizons.times, named(settings.solver), discount_time=settings.discount_time,
        )  # fmt: skip
        wished = improve.horizon_target(imagined, critic, horizons, settings.discount_time)

        def loss(trained: Critic) -> Array:
            said = jax.vmap(jax.vmap(eqx.combine(trained, rest)))(begins[None])
            return improve.healthy_mean((said - wished) ** 2, imagined.healthy)

        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(jax.grad(loss)(trained))])

    with jax.default_matmul_precision("highest"):
        return jax.lax.map(one, jax.random.split(key, draws))


def ratios(rows: Sequence[Row], law: str, to: str) -> np.ndarray:
    """The variance under one law over that under another, policy by policy."""
    by = {(row["policy"], row["law"]): row["variance"] for row in rows}
    return np.array([by[policy, law] / by[policy, to] for policy in unique(rows, "policy")], np.float64)


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Ratios of variances, and of variance to signal."""

    def variance(axes: Any) -> None:
        for place, law in enumerate(LAWS):
            own = ratios(rows, law, LAWS[-1])
            style = look(law, LAWS)
            axes.plot(np.full(len(own), place), own, style["marker"], color=style["color"], alpha=0.7)
            axes.plot([place - 0.25, place + 0.25], [np.exp(np.log(own).mean())] * 2, color=style["color"])
        axes.axhline(1.0, color="0.5", linewidth=1, linestyle=":")
        axes.set_yscale("log")
        axes.set_xticks(range(len(LAWS)), [law.replace("marginalised", "all h") for law in LAWS])
        axes.set_ylabel("variance, in that of h = 2")
        axes.set_title("Total variance of the gradient")

    def noise(axes: Any) -> None:
        for law in LAWS:
            own = sorted((row for row in rows if row["law"] == law), key=lambda row: row["policy"])
            ratio = column(own, "variance") / np.maximum(column(own, "signal"), 1e-30)
            axes.plot(column(own, "policy"), ratio, label=law, markersize=4, **look(law, LAWS))
        axes.set_yscale("log")
        axes.set_xlabel("round the policy is from")
        axes.set_ylabel("variance / |mean gradient| squared")
        axes.set_title("Noise against signal")
        axes.legend(fontsize=7)

    return variance, noise


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim 16 against each fixed horizon, and for a single draw."""
    answers = []
    for fixed in ("h = 2", "h = 1", "h = 0.5"):
        measure = f"log ratio of the variances, marginalised to {fixed} s, by policy, below 0"
        answers.append(judge(16, measure, np.log(ratios(rows, "marginalised", fixed)), below=0.0))
    measure = "log ratio of the variances, marginalised to one draw of h, by policy, below 0"
    answers.append(judge(16, measure, np.log(ratios(rows, "marginalised", "one draw")), below=0.0))
    return answers
