"""Stable-Baselines3 accepts the Gymnasium worlds as they are, and learns in one."""

import warnings

import gymnasium
import numpy as np
import pytest

import ctrlax  # noqa: F401  (registers the ids)

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")
pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("default")]  # PyTorch's own warnings are not ours

NAMES = ["ctrlax/Pendulum-v0", "ctrlax/CartPole-v0", "ctrlax/Acrobot-v0"]
GRIDS = ["fixed", "uniform", "exponential"]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NAMES)
def test_stable_baselines_has_nothing_to_complain_of(name, grid):
    from stable_baselines3.common.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, grid=grid, noise=0.025, render_mode="rgb_array").unwrapped)


def test_sac_trains():
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)  # threads that wait for each other on two shared cores take twenty times as long
    env = gymnasium.make("ctrlax/Pendulum-v0", grid="uniform", dt=0.05, noise=0.01, max_time=10.0)
    learner = SAC("MlpPolicy", env, seed=0, learning_starts=100, policy_kwargs={"net_arch": [64, 64]}, device="cpu")
    before = [parameter.detach().clone() for parameter in learner.actor.parameters()]
    learner.learn(2000)
    assert learner.num_timesteps == 2000
    after = list(learner.actor.parameters())
    assert all(bool(parameter.isfinite().all()) for parameter in after)
    assert any(not bool((new == old).all()) for new, old in zip(after, before, strict=True))
    action, _ = learner.predict(np.array([1.0, 0.0, 0.0], np.float32), deterministic=True)
    assert env.action_space.contains(action)
