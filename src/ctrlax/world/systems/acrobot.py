"""Acrobot: two links in a chain, a motor in the shoulder and one in the elbow.

Coordinates
    theta1 [rad]: angle of the first link from hanging straight down, growing counter-clockwise.
    theta2 [rad]: angle of the second link from the line of the first; hanging (0, 0), upright (pi, 0).
    omega1, omega2 [rad/s]: their rates. The second tip is at
    ``(sin theta1 + sin(theta1 + theta2), -cos theta1 - cos(theta1 + theta2))``, in metres, y up.
Actions
    joint torques tau [N m]: `torque1` of the ground on link 1, `torque2` of link 1 on link 2 (which presses back on
    link 1), each growing counter-clockwise and doing the work ``tau_i omega_i``. ``|tau_i| <= 4`` (`reference`: 5).
    Setting `actuation`: "both", or "second" for the elbow alone.
Equations
    From the Lagrangian ``L = omega' M omega / 2 - V``, both links m = 1 kg, l = 1 m, centre of mass at c = 0.5 m,
    inertia I = 1 kg m^2 about it, g = 9.8 m/s^2, no friction::

        M11 = 2 I + m (l^2 + 2 c^2 + 2 l c cos theta2)    M12 = I + m (c^2 + l c cos theta2)    M22 = I + m c^2
        V = -m g ((c + l) cos theta1 + c cos(theta1 + theta2))
        M d(omega)/dt = tau - dV/dtheta + m l c sin(theta2) (2 omega1 omega2 + omega2^2, -omega1^2)

Reward rate
    ``exp(-|q - goal|^2 - c_p |omega|^2) - c_a |tau|^2``: q the second tip, goal (0, 2 l).
Starts
    uniform over +-0.1 in every coordinate about hanging at rest.
Variants
    `paper`: c_p = 1e-4 (`velocity_cost`), c_a = 1e-2 (`action_cost`), |tau| <= 4. `reference`: c_p = 1e-2,
    c_a = 1e-4, |tau| <= 5. The paper's two costs look swapped: hanging, its reward's only gradient is that of the
    action cost. So `training_reward_rate` of `paper` has the other two, for the preset `default` to imagine with.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ctrlax.world.environment import Environment
from ctrlax.world.render import Canvas
from ctrlax.world.settings import choose

MASS, LENGTH, CENTRE, INERTIA, GRAVITY = 1.0, 1.0, 0.5, 1.0, 9.8  # of either link
TORQUE = {"paper": 4.0, "reference": 5.0}
CONSTANTS = {
    "paper": {"actuation": "both", "velocity_cost": 1e-4, "action_cost": 1e-2},
    "reference": {"actuation": "both", "velocity_cost": 1e-2, "action_cost": 1e-4},
}
ACTUATION = {"both": (1, 2), "second": (2,)}  # the joints with a motor


def make(variant: str = "paper", **settings: Any) -> Environment:
    """The acrobot; settings are `actuation` ("both", "second"), `velocity_cost` and `action_cost`."""
    choices = {"actuation": tuple(ACTUATION)}
    constants = choose("acrobot", variant, settings, variants=CONSTANTS, choices=choices)
    training = choose("acrobot", "reference", settings, variants=CONSTANTS, choices=choices)
    joints, bound = ACTUATION[constants["actuation"]], TORQUE[variant]

    def torques(action):
        return action if len(joints) == 2 else (0.0, action[0])

    return Environment(
        name="acrobot",
        variant=variant,
        state_names=("theta1", "theta2", "omega1", "omega2"),
        state_units=("rad", "rad", "rad/s", "rad/s"),
        action_names=tuple(f"torque{joint}" for joint in joints),
        action_units=("N m",) * len(joints),
        action_low=(-bound,) * len(joints),
        action_high=(bound,) * len(joints),
        start_low=(-0.1,) * 4,
        start_high=(0.1,) * 4,
        angles=("theta1", "theta2"),
        velocities=("omega1", "omega2"),
        rates_of=("theta1", "theta2"),
        actuated=tuple(f"omega{joint}" for joint in joints),
        known_structure=("second-order", "affine"),
        field=lambda state, action: field(state, torques(action)),
        reward_rate=reward_rate(constants["velocity_cost"], constants["action_cost"]),
        training_reward_rate=(
            reward_rate(training["velocity_cost"], training["action_cost"]) if variant == "paper" else None
        ),
        energy=energy,
        energy_scale=2 * MASS * GRAVITY * (2 * CENTRE + LENGTH),
        draw=lambda canvas, state, action: draw(canvas, state, np.asarray(torques(action)) / bound),
        initial_trajectories=7,
        exploring_trajectories=3,
        time_limit=24.0,
        rise_time=3.0,
    )


def inertias(theta2):
    bend = MASS * LENGTH * CENTRE * jnp.cos(theta2)
    shoulder = 2 * INERTIA + MASS * (LENGTH**2 + 2 * CENTRE**2) + 2 * bend
    return shoulder, INERTIA + MASS * CENTRE**2 + bend, INERTIA + MASS * CENTRE**2


def field(state, torques):
    theta1, theta2, omega1, omega2 = state
    m11, m12, m22 = inertias(theta2)
    whirl = MASS * LENGTH * CENTRE * jnp.sin(theta2)
    weight1 = MASS * GRAVITY * (CENTRE + LENGTH) * jnp.sin(theta1)
    weight2 = MASS * GRAVITY * CENTRE * jnp.sin(theta1 + theta2)
    load1 = torques[0] - weight1 - weight2 + whirl * (2 * omega1 * omega2 + omega2**2)
    load2 = torques[1] - weight2 - whirl * omega1**2
    determinant = m11 * m22 - m12**2
    turn1, turn2 = (m22 * load1 - m12 * load2) / determinant, (m11 * load2 - m12 * load1) / determinant
    return jnp.stack([omega1, omega2, turn1, turn2])


def energy(state):
    theta1, theta2, omega1, omega2 = state
    m11, m12, m22 = inertias(theta2)
    motion = m11 * omega1**2 / 2 + m12 * omega1 * omega2 + m22 * omega2**2 / 2
    return motion - MASS * GRAVITY * ((CENTRE + LENGTH) * jnp.cos(theta1) + CENTRE * jnp.cos(theta1 + theta2))


def reward_rate(velocity_cost: float, action_cost: float):
    def rate(observation, action):
        cos1, sin1, cos2, sin2, omega1, omega2 = observation
        across = LENGTH * (sin1 + sin1 * cos2 + cos1 * sin2)
        up = -LENGTH * (cos1 + cos1 * cos2 - sin1 * sin2)
        distance = across**2 + (up - 2 * LENGTH) ** 2
        return jnp.exp(-distance - velocity_cost * (omega1**2 + omega2**2)) - action_cost * jnp.sum(action**2)

    return rate


def draw(canvas: Canvas, state: np.ndarray, shares: np.ndarray) -> None:
    canvas.view(-2.5, 2.5, -2.2, 2.35)
    elbow = np.array([np.sin(state[0]), -np.cos(state[0])])
    tip = elbow + np.array([np.sin(state[0] + state[1]), -np.cos(state[0] + state[1])])
    canvas.goal((0, 2 * LENGTH))
    canvas.line([(0, 0), elbow], "body", width=0.13)
    canvas.line([elbow, tip], "second", width=0.11)
    canvas.joint((0, 0))
    canvas.joint(elbow)
    canvas.torque((0, 0), shares[0], radius=0.42)
    canvas.torque(elbow, shares[1], radius=0.42)
    canvas.rewarded(tip)
