"""The Gymnasium world: held actions, integrated rewards, clocks, seeds, and Gymnasium's own checker."""

import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.integrate import solve_ivp

import ctrlax.world.gym as ours
from ctrlax.errors import UserError
from ctrlax.world import load
from ctrlax.world.environment import Environment

NAMES = ["ctrlax/Pendulum-v0", "ctrlax/CartPole-v0", "ctrlax/Acrobot-v0"]
GRIDS = ["fixed", "uniform", "exponential"]
SLOW_GROWTH = Environment(  # ds/dt = a, observed as it is; reward rate s: everything is known in closed form
    name="integrator",
    state_names=("s",),
    action_names=("a",),
    action_low=(-1.0,),
    action_high=(3.0,),
    start_low=(0.0,),
    start_high=(1.0,),
    field=lambda state, action: action,
    reward_rate=lambda observation, action: observation[0],
)


NEAR_GOAL = {NAMES[0]: [0.4, 0.5], NAMES[1]: [0.1, 0.2, 0.4, -0.5], NAMES[2]: [2.8, 0.2, 0.1, -0.3]}  # rewards vary


def random_steps(env, count, seed=0, options=None):
    """Observations, rewards and told dictionaries of random actions, and the actions."""
    env.action_space.seed(seed)
    observation, told = env.reset(seed=seed, options=options)
    rows, actions = [(observation, 0.0, told)], []
    for _ in range(count):
        actions.append(env.action_space.sample())
        observation, reward, terminated, truncated, told = env.step(actions[-1])
        rows.append((observation, reward, told))
        assert terminated is False
        if truncated:
            break
    return rows, actions


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_has_nothing_to_complain_of(name, grid):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, grid=grid, noise=0.025).unwrapped)


@pytest.mark.parametrize("name", NAMES)
def test_an_action_is_held_and_the_reward_is_the_integral_of_the_rate(name):
    env = gymnasium.make(name, grid="exponential").unwrapped
    system = env.worlds.env  # pyright: ignore[reportAttributeAccessIssue]
    with jax.enable_x64(True):
        rows, actions = random_steps(env, 15, options={"start": NEAR_GOAL[name]})
        state, crude = np.array(NEAR_GOAL[name]), []
        field, rate = jax.jit(system.field), jax.jit(lambda s, a: system.reward_rate(system.observe(s), a))
        for (_, _, before), (observation, reward, after), action in zip(rows[:-1], rows[1:], actions, strict=True):
            held = jnp.asarray(system.action_middle + system.action_reach * action)
            step = after["time"] - before["time"]
            path = solve_ivp(
                lambda _, s, held=held: np.asarray(field(jnp.asarray(s), held)),
                (0, step),
                state,
                method="DOP853",
                rtol=1e-11,
                atol=1e-12,
                dense_output=True,
            )
            state = path.y[:, -1]
            assert np.allclose(observation, system.observe(jnp.asarray(state)), atol=2e-6)  # float32 observations
            nodes, weights = np.polynomial.legendre.leggauss(24)
            rates = [float(rate(jnp.asarray(s), held)) for s in path.sol((nodes + 1) * step / 2).T]
            assert abs(reward - step / 2 * weights @ rates) < 1e-8
            crude.append(abs(reward - step * rates[0]))
    assert max(crude) > 1e-4  # the rate where the step begins, times its length, would not pass


def test_closed_form_with_lopsided_bounds():
    env = gymnasium.make("ctrlax/System-v0", system=SLOW_GROWTH, dt=0.5, max_time=2.0)
    observation, _ = env.reset(seed=1, options={"start": [2.0]})
    assert observation == pytest.approx([2.0])
    observation, reward, *_ = env.step(np.array([0.5], np.float32))  # half way from the middle, 1, to the top, 3
    assert observation == pytest.approx([2.0 + 2.0 * 0.5])
    assert reward == pytest.approx(2.0 * 0.5 + 2.0 * 0.5**2 / 2)
    plain = gymnasium.make("ctrlax/System-v0", system=SLOW_GROWTH, dt=0.5, normalize_actions=False)
    assert plain.action_space.low == [-1.0]  # pyright: ignore[reportAttributeAccessIssue]
    plain.reset(seed=1, options={"start": [2.0]})
    assert plain.step(np.array([9.0], np.float32))[0] == pytest.approx([2.0 + 3.0 * 0.5])


@pytest.mark.parametrize("grid", GRIDS)
def test_time_is_told_from_reset_on_and_truncation_is_exact(grid):
    env = gymnasium.make("ctrlax/System-v0", system=SLOW_GROWTH, grid=grid, dt=0.1, max_time=30.0)
    _, told = env.reset(seed=3)
    assert told["time"] == 0.0
    assert told["last_dt"] == 0.0
    steps, total, truncated = [], 0.0, False
    while not truncated:
        coming = told["dt"]
        _, _, terminated, truncated, now = env.step(np.zeros(1, np.float32))
        assert (type(terminated), type(truncated)) == (bool, bool)
        assert now["last_dt"] == coming > 0
        assert now["time"] - told["time"] == pytest.approx(coming, abs=1e-12)
        steps.append(coming)
        told = now
    total = sum(steps)
    assert told["time"] == 30.0
    assert told["dt"] == 0.0
    assert total == pytest.approx(30.0, abs=1e-9)
    if grid == "fixed":
        assert steps == [0.1] * 300
    else:
        assert np.mean(steps) == pytest.approx(0.1, rel=0.2)
        assert max(steps) <= 0.2 or grid == "exponential"
    with pytest.raises(UserError, match="reset"):
        env.step(np.zeros(1, np.float32))


def test_a_last_step_that_does_not_fit_is_shortened():
    env = gymnasium.make("ctrlax/System-v0", system=SLOW_GROWTH, dt=0.3, max_time=1.0)
    rows, _ = random_steps(env, 10)
    assert [told["time"] for *_, told in rows] == pytest.approx([0, 0.3, 0.6, 0.9, 1.0])
    assert rows[3][2]["dt"] == pytest.approx(0.1)


@pytest.mark.parametrize("grid", GRIDS)
def test_noise_is_on_observations_only(grid):
    clean, _ = random_steps(gymnasium.make("ctrlax/CartPole-v0", grid=grid), 60, seed=4)
    noisy, _ = random_steps(gymnasium.make("ctrlax/CartPole-v0", grid=grid, noise=0.1), 60, seed=4)
    assert [reward for _, reward, _ in clean] == [reward for _, reward, _ in noisy]
    assert [told for *_, told in clean] == [told for *_, told in noisy]
    difference = np.array([noisy[i][0] - clean[i][0] for i in range(61)])
    assert difference.std() == pytest.approx(0.1, rel=0.15)
    assert np.abs(np.corrcoef(difference.T) - np.eye(5)).max() < 0.5


def test_the_same_seed_gives_the_same_steps():
    env = gymnasium.make("ctrlax/Acrobot-v0", grid="uniform", noise=0.05)
    first, _ = random_steps(env, 20, seed=7)
    again, _ = random_steps(env, 20, seed=7)
    other, _ = random_steps(env, 20, seed=8)
    for (seen, reward, told), (seen_again, reward_again, told_again) in zip(first, again, strict=True):
        assert np.array_equal(seen, seen_again)
        assert (reward, told) == (reward_again, told_again)
    assert not np.array_equal(first[0][0], other[0][0])
    assert first[0][2] != other[0][2]


@pytest.mark.parametrize("grid", GRIDS)
def test_vector_worlds_are_single_worlds_side_by_side(grid):
    count, settings = 3, {"grid": grid, "dt": 0.1, "noise": 0.02, "max_time": 0.55}
    many = gymnasium.make_vec("ctrlax/CartPole-v0", num_envs=count, vectorization_mode="vector_entry_point", **settings)
    singly = gymnasium.make_vec("ctrlax/CartPole-v0", num_envs=count, vectorization_mode="sync", **settings)
    assert many.unwrapped is many
    assert many.observation_space == singly.observation_space
    assert many.action_space == singly.action_space
    many.action_space.seed(0)
    seen, told = many.reset(seed=11)
    seen_singly, told_singly = singly.reset(seed=11)
    restarted = 0
    for _ in range(25):
        assert np.allclose(seen, seen_singly, atol=1e-6)
        assert set(told) == set(told_singly)
        for name in told:
            assert np.allclose(told[name], told_singly[name], atol=1e-12)
        actions = many.action_space.sample()
        seen, rewards, terminated, truncated, told = many.step(actions)
        seen_singly, rewards_singly, terminated_singly, truncated_singly, told_singly = singly.step(actions)
        assert seen.dtype == np.float32
        assert np.allclose(rewards, rewards_singly, atol=1e-10)
        assert np.array_equal(truncated, truncated_singly)
        assert not (terminated | terminated_singly).any()
        restarted += int((told["time"] == 0).sum())
    assert restarted >= count


def test_one_compiled_step_for_all_instances_and_episodes():
    counts = []

    def field(state, action):
        counts.append(1)  # runs while tracing only
        return action - state

    system = Environment(
        name="leak",
        state_names=("s",),
        action_names=("a",),
        action_low=(-1.0,),
        action_high=(1.0,),
        start_low=(0.0,),
        start_high=(1.0,),
        field=field,
        reward_rate=lambda observation, action: -(observation[0] ** 2),
    )
    random_steps(gymnasium.make("ctrlax/System-v0", system=system, grid="uniform"), 3)
    traced = len(counts)
    random_steps(gymnasium.make("ctrlax/System-v0", system=system, grid="exponential", max_time=1.0), 30)
    assert len(counts) == traced > 0
    assert not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def test_rendering():
    env = gymnasium.make("ctrlax/Pendulum-v0", render_mode="rgb_array", dt=0.05)
    assert env.metadata["render_fps"] == 20
    env.reset(seed=0)
    before = np.asarray(env.render())
    for _ in range(5):
        env.step(np.ones(1, np.float32))
    assert before.dtype == np.uint8
    assert before.ndim == 3
    assert (before != env.render()).any()


def test_users_mistakes_are_answered():
    make = gymnasium.make
    with pytest.raises(UserError, match="system"):
        make("ctrlax/System-v0")
    with pytest.raises(UserError, match="grid"):
        make(NAMES[0], grid="regular")
    with pytest.raises(UserError, match="dt"):
        make(NAMES[0], dt=0.0)
    with pytest.raises(UserError, match="noise"):
        make(NAMES[0], noise=-1.0)
    with pytest.raises(UserError, match="setting"):
        make(NAMES[0], gravitas=3.0)
    with pytest.raises(UserError, match="variant"):
        make(NAMES[0], variant="other")
    env = make(NAMES[0]).unwrapped
    env.reset(seed=0)
    with pytest.raises(UserError, match="finite"):
        env.step(np.array([np.nan], np.float32))
    with pytest.raises(UserError, match="1 coordinate"):
        env.step(np.zeros(2, np.float32))
    with pytest.raises(UserError, match="start"):
        env.reset(options={"start": [1.0]})


def test_a_blow_up_is_an_error_not_a_step():
    system = Environment(
        name="burst",
        state_names=("s",),
        action_names=("a",),
        action_low=(-1.0,),
        action_high=(1.0,),
        start_low=(1.0,),
        start_high=(2.0,),
        field=lambda state, action: state**2 + action,
        reward_rate=lambda observation, action: observation[0] * 0.0 - action[0],
    )
    env = gymnasium.make("ctrlax/System-v0", system=system, dt=1.0)
    env.reset(seed=0, options={"start": [2.0]})  # infinite after half a second
    with pytest.raises(UserError, match="burst"):
        env.step(np.zeros(1, np.float32))


def test_a_users_own_file(tmp_path):
    path = tmp_path / "tank.py"
    path.write_text(
        'state_names = ("level",)\naction_names = ("inflow",)\naction_low, action_high = (0.0,), (2.0,)\n'
        "start_low, start_high = (0.5,), (1.5,)\n\n\n"
        "def field(state, action):\n    return action - state\n\n\n"
        "def reward_rate(observation, action):\n    return -((observation[0] - 1.0) ** 2)\n"
    )
    env = gymnasium.make("ctrlax/System-v0", system=str(path), dt=0.2)
    env.reset(seed=0, options={"start": [1.0]})
    assert env.step(np.zeros(1, np.float32))[0] == pytest.approx(
        [1.0], abs=1e-6
    )  # the middle of the bounds holds the level
    assert env.step(-np.ones(1, np.float32))[0] == pytest.approx([np.exp(-0.2)], abs=1e-6)


@pytest.mark.parametrize("order", ["import ctrlax, gymnasium", "import gymnasium, ctrlax", "import gymnasium"])
def test_ids_are_known_in_either_order_of_imports(order):
    name = NAMES[0] if "ctrlax" in order else f"ctrlax.world.gym:{NAMES[0]}"
    program = f"{order}; env = gymnasium.make({name!r}); env.reset(seed=0)"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


def test_registering_again_changes_nothing():
    before = {gym_id: gymnasium.registry[gym_id] for gym_id in [*NAMES, "ctrlax/System-v0"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.register()
    assert all(gymnasium.registry[gym_id] is spec for gym_id, spec in before.items())
    assert {spec.kwargs.get("system") for spec in before.values()} >= {None, *load.names()}


def test_record_our_own_world():
    env = gymnasium.make("ctrlax/CartPole-v0", grid="uniform", max_time=1.0)
    logs = ours.record(env, episodes=2, key=jax.random.key(0))
    again = ours.record(env, episodes=2, key=jax.random.key(0))
    for log, same in zip(logs, again, strict=True):
        assert log.times[0, 0] == 0.0
        assert log.times[0, -1] == 1.0
        assert log.observations.shape == (1, log.times.shape[1], 5)
        assert log.healthy.all()
        assert np.array_equal(log.observations, same.observations)
        assert np.array_equal(log.actions, same.actions)
    assert logs[0].times.shape != logs[1].times.shape or not np.array_equal(logs[0].times, logs[1].times)


def test_record_any_gymnasium_world():
    env = gymnasium.make("Pendulum-v1")
    (log,) = ours.record(env, lambda observation: -observation[2:], key=jax.random.key(1), dt=0.05)
    assert log.times.shape == (1, 201)
    assert log.times[0, -1] == pytest.approx(10.0)
    assert np.allclose(log.actions[0, :-1, 0], -log.observations[0, :-1, 2])
    with pytest.raises(UserError, match="dt"):
        ours.record(env, key=jax.random.key(1))
    with pytest.raises(UserError, match="Box"):
        ours.record("CartPole-v1", key=jax.random.key(1), dt=0.02)
