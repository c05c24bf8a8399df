"""The built-in systems against mechanics written a second time: a Lagrangian in NumPy, and SciPy's DOP853.

The oracle never sees an equation of motion. It has kinetic minus potential energy from the positions and velocities of
the bodies, and Lagrange's equation, whose derivatives are exact here: L is quadratic in the velocities (central
differences with step 1 have no error) and analytic in the positions (complex steps have no cancellation).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ctrlax.errors import UserError
from ctrlax.world.collect import simulate
from ctrlax.world.systems import acrobot, cartpole, pendulum

SYSTEMS = {"pendulum": pendulum, "cartpole": cartpole, "acrobot": acrobot}
VARIANTS = ("paper", "reference")
CASES = [(name, variant) for name in SYSTEMS for variant in VARIANTS]
TIMES = np.linspace(0.0, 10.0, 101)
TINY = 1e-30


def rod(theta, omega):
    spin = 0.5 * (1.0 / 12) * omega[0] ** 2  # a uniform rod of 1 m and 1 kg about its middle
    return spin + 0.5 * (0.5 * omega[0]) ** 2 - 10.0 * 0.5 * np.cos(theta[0])


def cart_and_pole(q, v):
    # y up; the pole 2 m long, its middle at (x + sin, cos)
    across, up = v[0] + np.cos(q[1]) * v[1], -np.sin(q[1]) * v[1]
    pole = 0.5 * 0.1 * (across**2 + up**2) + 0.5 * (0.1 * 2.0**2 / 12) * v[1] ** 2
    return 0.5 * 1.0 * v[0] ** 2 + pole - 0.1 * 9.8 * np.cos(q[1])


def two_links(q, v):
    first, second = q[0], q[0] + q[1]  # from hanging, both absolute
    middle1 = 0.5 * v[0] * np.array([np.cos(first), np.sin(first)])
    middle2 = 2 * middle1 + 0.5 * (v[0] + v[1]) * np.array([np.cos(second), np.sin(second)])
    heights = -0.5 * np.cos(first) + (-np.cos(first) - 0.5 * np.cos(second))
    spin = 0.5 * (v[0] ** 2 + (v[0] + v[1]) ** 2)
    return 0.5 * (np.sum(middle1**2, axis=0) + np.sum(middle2**2, axis=0)) + spin - 9.8 * heights


# The Lagrangian, and the generalised forces of an action.
ORACLES = {
    "pendulum": (rod, lambda action: action),
    "cartpole": (cart_and_pole, lambda action: np.array([3.0 * action[0], 0.0 * action[0]])),
    "acrobot": (two_links, lambda action: action),
}
POSITIONS = {"pendulum": [0], "cartpole": [0, 2], "acrobot": [0, 1]}  # places in the state
VELOCITIES = {"pendulum": [1], "cartpole": [1, 3], "acrobot": [2, 3]}
DAMPED = {"pendulum": [1], "cartpole": [1], "acrobot": [2, 3]}  # the actuated velocities
BOUNDS = {
    ("pendulum", "paper"): 2.0,
    ("pendulum", "reference"): 2.0,
    ("cartpole", "paper"): 3.0,
    ("cartpole", "reference"): 3.0,
    ("acrobot", "paper"): 4.0,
    ("acrobot", "reference"): 5.0,
}


def unit_steps(v):
    return np.eye(len(v)).reshape(len(v), len(v), *[1] * (v.ndim - 1))


def momenta(lagrangian, q, v):
    q, v, steps = q[:, None], v[:, None], unit_steps(v)
    return (lagrangian(q, v + steps) - lagrangian(q, v - steps)) / 2


def accelerations(lagrangian, q, v, force):
    """Lagrange: d/dt dL/dv - dL/dq = force, solved for dv/dt; the last axis is the trajectory."""
    steps = unit_steps(v)
    mass = momenta(lagrangian, q[:, None], v[:, None] + steps) - momenta(lagrangian, q, v)[:, None]
    pull = np.imag(lagrangian(q[:, None] + 1j * TINY * steps, v[:, None])) / TINY
    drift = np.imag(momenta(lagrangian, q + 1j * TINY * v, v)) / TINY
    return np.linalg.solve(np.moveaxis(mass, 2, 0), (force + pull - drift).T[:, :, None])[:, :, 0].T


def oracle_field(name, states, actions):
    lagrangian, forces = ORACLES[name]
    rates = np.empty_like(states)
    rates[:, POSITIONS[name]] = states[:, VELOCITIES[name]]
    q, v = states[:, POSITIONS[name]].T, states[:, VELOCITIES[name]].T
    rates[:, VELOCITIES[name]] = accelerations(lagrangian, q, v, forces(actions.T)).T
    return rates


def oracle_paths(name, bound, starts, signs):
    def rates(time, flat):
        states = flat.reshape(starts.shape)
        return oracle_field(name, states, signs[:, None] * bound * np.tanh(-states[:, DAMPED[name]])).ravel()

    span = (0.0, TIMES[-1])
    solution = solve_ivp(rates, span, starts.ravel(), method="DOP853", t_eval=TIMES, rtol=1e-12, atol=1e-12)
    assert solution.success
    return np.moveaxis(solution.y.reshape(*starts.shape, len(TIMES)), 2, 1)


def damping(env):
    places = jnp.array([env.observation_names.index(name) for name in env.actuated])
    reach = tuple(float(bound) for bound in env.action_reach)

    def policy(observation):
        return jnp.asarray(reach) * jnp.tanh(-observation[places])

    return policy


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_fields_are_those_of_the_lagrangian(name, variant):
    env = SYSTEMS[name].make(variant)
    random = np.random.default_rng(0)
    states = random.uniform(-4, 4, size=(200, env.state_size))
    actions = random.uniform(env.action_low, env.action_high, size=(200, env.action_size))
    with jax.enable_x64(True):
        ours = np.asarray(jax.vmap(env.field)(jnp.asarray(states), jnp.asarray(actions)))
    theirs = oracle_field(name, states, actions)
    print(f"{name} {variant}: largest difference of the fields {np.abs(ours - theirs).max():.1e}")
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


# Pendulum's and CartPole's variants differ in the reward alone, and their fields are compared above.
@pytest.mark.parametrize(("name", "variant"), [*CASES[::2], ("acrobot", "reference")])
def test_paths_are_those_of_dop853(name, variant):
    env = SYSTEMS[name].make(variant)
    np.testing.assert_array_equal(env.action_reach, BOUNDS[name, variant])
    assert jnp.zeros(1, float).dtype == jnp.float32, "global x64 is off"
    starts = env.draw_starts(3, key=jax.random.key(1))
    signs = np.array([1.0, 1.0, 1.0, -1.0])
    theirs = oracle_paths(name, BOUNDS[name, variant], np.concatenate([starts, starts[:1]]), signs)
    theirs, wrong = theirs[:3], theirs[3]
    policy, key = damping(env), jax.random.key(2)
    ours = simulate(env, policy, TIMES, key=key, starts=starts, rtol=1e-10, atol=1e-12)
    usual = simulate(env, policy, TIMES, key=key, starts=starts)
    errors = [np.abs(path.states - theirs).max() for path in (ours, usual)]
    print(f"{name} {variant}: largest error over 10 s {errors[0]:.1e}, at the default tolerance {errors[1]:.1e}")
    assert ours.healthy.all()
    assert ours.states.dtype == np.float64
    assert errors[0] < 1e-7
    assert np.abs(ours.states[0] - wrong).max() > 0.01, "a torque of the wrong sign must show"


def test_authors_acrobot_is_told_apart():
    """Their first torque has the wrong sign, and their second does not press back on the first link."""
    env = acrobot.make()
    state, action = np.array([0.3, -0.4, 0.5, 0.6]), np.array([1.0, 2.0])
    with jax.enable_x64(True):
        ours = np.asarray(env.field(jnp.asarray(state), jnp.asarray(action)))
    flipped = np.array([-action[0], action[1]])
    uncoupled = np.array([action[0] + action[1], action[1]])  # cancels the back pressure of the second torque
    for wrong in (flipped, uncoupled):
        assert np.abs(ours - oracle_field("acrobot", state[None], wrong[None])[0]).max() > 0.1


@pytest.mark.parametrize("name", SYSTEMS)
def test_energy_stays_without_action(name):
    env = SYSTEMS[name].make()
    assert env.energy is not None
    assert env.energy_scale is not None
    lively = np.random.default_rng(3).uniform(-2, 2, size=(3, env.state_size))  # the boxes of two are almost at rest
    starts = np.concatenate([env.draw_starts(5, key=jax.random.key(0)), lively])
    still = simulate(
        env,
        lambda observation: jnp.zeros(env.action_size),
        TIMES,
        key=jax.random.key(1),
        starts=starts,
        rtol=1e-10,
        atol=1e-12,
    )
    with jax.enable_x64(True):
        energies = np.asarray(jax.vmap(jax.vmap(env.energy))(jnp.asarray(still.states)))
        hanging, upright = (float(env.energy(jnp.asarray(state))) for state in ends(name))
    drift = np.abs(energies - energies[:, :1]).max() / env.energy_scale
    print(f"{name}: energy drift over 10 s {drift:.1e} of {env.energy_scale} J")
    assert upright - hanging == pytest.approx(env.energy_scale, rel=1e-12)
    assert drift < 1e-8


def ends(name):
    upright = {"pendulum": [0.0, 0], "cartpole": [0.0, 0, 0, 0], "acrobot": [np.pi, 0, 0, 0]}[name]
    hanging = {"pendulum": [np.pi, 0], "cartpole": [0.0, 0, np.pi, 0], "acrobot": [0.0, 0, 0, 0]}[name]
    return hanging, upright


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_power_of_the_action_is_the_rate_of_the_energy(name, variant):
    env = SYSTEMS[name].make(variant)
    random = np.random.default_rng(4)
    with jax.enable_x64(True):
        for _ in range(20):
            state = jnp.asarray(random.uniform(-3, 3, env.state_size))
            action = jnp.asarray(random.uniform(env.action_low, env.action_high))
            rate = jnp.vdot(jax.grad(env.energy)(state), env.field(state, action))
            pushed = state[jnp.array([env.state_names.index(velocity) for velocity in env.actuated])]
            newtons = action * (3.0 if name == "cartpole" else 1.0)
            assert float(rate) == pytest.approx(float(jnp.vdot(newtons, pushed)), abs=1e-9)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_rewards_keep_their_range_and_name_their_goal(name, variant):
    env = SYSTEMS[name].make(variant)
    c_p, c_a = {("acrobot", "paper"): (1e-4, 1e-2), ("acrobot", "reference"): (1e-2, 1e-4)}.get(
        (name, variant), (1e-2, 1e-2)
    )
    random = np.random.default_rng(5)
    states = random.uniform(-4, 4, size=(500, env.state_size))
    actions = random.choice([-1.0, 0.3, 1.0], size=(500, env.action_size)) * env.action_high
    observations = jax.vmap(env.observe)(jnp.asarray(states))
    rewards = np.asarray(jax.vmap(env.reward_rate)(observations, jnp.asarray(actions)))
    floor = -c_a * BOUNDS[name, variant] ** 2 * env.action_size
    assert rewards.min() >= floor - 1e-6
    assert rewards.max() <= 1.0
    velocities = states[:, VELOCITIES[name]]
    wanted = np.exp(-distances(name, variant, states) - c_p * np.sum(velocities**2, axis=1)) - c_a * np.sum(
        actions**2, axis=1
    )
    np.testing.assert_allclose(rewards, wanted, atol=2e-6)
    _, upright = ends(name)
    at_goal = env.reward_rate(env.observe(jnp.asarray(upright)), jnp.zeros(env.action_size))
    assert float(at_goal) == pytest.approx(1.0, abs=1e-6)


def distances(name, variant, states):
    if name == "pendulum":
        q, goal = [np.sin(states[:, 0]), np.cos(states[:, 0])], [0, 1]
    elif name == "cartpole":
        x, theta = states[:, 0], states[:, 2]
        q, goal = [x, np.sin(theta), np.cos(theta)], [0, 0, 1]
        if variant == "reference":
            q, goal = [x + np.sin(theta), np.cos(theta)], [0, 1]
    else:
        first, second = states[:, 0], states[:, 0] + states[:, 1]
        q, goal = [np.sin(first) + np.sin(second), -np.cos(first) - np.cos(second)], [0, 2]
    return sum((along - wanted) ** 2 for along, wanted in zip(q, goal, strict=True))


def test_training_reward_is_acrobots_alone():
    for name, variant in CASES:
        env = SYSTEMS[name].make(variant)
        assert (env.training_reward_rate is not None) == ((name, variant) == ("acrobot", "paper"))
    paper, reference = acrobot.make(), acrobot.make("reference")
    observation, action = jnp.array([0.6, 0.8, -0.8, 0.6, 3.0, -2.0]), jnp.array([1.0, -3.0])
    assert paper.training_reward_rate is not None
    trained, own = paper.training_reward_rate(observation, action), paper.reward_rate(observation, action)
    assert float(trained) == pytest.approx(float(reference.reward_rate(observation, action)))
    assert abs(float(trained) - float(own)) > 0.01


@pytest.mark.parametrize("name", SYSTEMS)
def test_observation_round_trip(name):
    env = SYSTEMS[name].make()
    states = np.random.default_rng(6).uniform(-3.1, 3.1, size=(50, env.state_size))
    with jax.enable_x64(True):
        observations = jax.vmap(env.observe)(jnp.asarray(states))
        again = np.asarray(jax.vmap(env.restore)(observations))
        scaled = np.asarray(jax.vmap(env.restore)(off_the_circle(env, observations)))
    assert observations.shape == (50, env.observation_size)
    np.testing.assert_allclose(again, states, atol=1e-12)
    np.testing.assert_allclose(scaled, states, atol=1e-12)


def off_the_circle(env, observations):
    stretch = [1.3 if name.startswith(("cos_", "sin_")) else 1.0 for name in env.observation_names]
    return observations * jnp.asarray(stretch)


@pytest.mark.parametrize("name", SYSTEMS)
def test_descriptions_are_complete(name):
    env = SYSTEMS[name].make()
    table = {"pendulum": (3, 0, 12.0), "cartpole": (5, 2, 24.0), "acrobot": (7, 3, 24.0)}  # the text's tab:envs
    assert (env.initial_trajectories, env.exploring_trajectories, env.time_limit) == table[name]
    assert [env.state_names.index(position) for position in env.rates_of] == POSITIONS[name]
    assert [env.state_names.index(velocity) for velocity in env.velocities] == VELOCITIES[name]
    assert [env.state_names.index(velocity) for velocity in env.actuated] == DAMPED[name]
    assert len(env.state_units) == env.state_size
    assert len(env.action_units) == env.action_size
    half_widths = {"pendulum": [np.pi, 3], "cartpole": [0.05] * 4, "acrobot": [0.1] * 4}[name]
    middles = {"pendulum": [0, 0], "cartpole": [0, 0, np.pi, 0], "acrobot": [0] * 4}[name]
    np.testing.assert_allclose(np.subtract(env.start_high, env.start_low) / 2, half_widths)
    np.testing.assert_allclose(np.add(env.start_high, env.start_low) / 2, middles)


def test_second_joint_alone():
    both, second = acrobot.make(), acrobot.make(actuation="second")
    assert second.action_names == ("torque2",)
    assert second.actuated == ("omega2",)
    state = jnp.array([0.3, -0.4, 0.5, 0.6])
    np.testing.assert_allclose(
        second.field(state, jnp.array([2.0])), both.field(state, jnp.array([0.0, 2.0])), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("pendulum", {"variant": "papre"}, "Known: paper, reference"),
        ("cartpole", {"gravity": 9.8}, "Known: action_cost, variant, velocity_cost"),
        ("acrobot", {"actuation": "first"}, "Known: both, second"),
        ("pendulum", {"actuation": "both"}, "Unknown setting"),
        ("acrobot", {"velocity_cost": -1.0}, "zero or more"),
        ("acrobot", {"action_cost": "much"}, "finite number"),
        ("cartpole", {"action_cost": float("nan")}, "finite number"),
    ],
)
def test_wrong_settings_are_told(name, settings, said):
    with pytest.raises(UserError, match=said):
        SYSTEMS[name].make(**settings)


def test_costs_are_settings():
    observation, action = jnp.array([1.0, 0.0, 2.0]), jnp.array([2.0])
    env = pendulum.make(velocity_cost="0.5", action_cost=0)
    assert float(env.reward_rate(observation, action)) == pytest.approx(np.exp(-2.0), rel=1e-6)
