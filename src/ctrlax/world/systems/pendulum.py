"""Pendulum: a uniform rod on a hinge whose motor is too weak to lift it in one go.

Coordinates
    theta [rad]: angle of the rod from upright, growing clockwise; upright 0, hanging pi.
    omega [rad/s]: its rate.
    The tip is at ``(sin theta, cos theta)``, in metres, y up.
Action
    torque a [N m] about the hinge, growing clockwise, ``|a| <= 2`` (holding the rod level takes 5).
Equation
    ``m l^2 / 3 * domega/dt = m g l / 2 * sin theta + a``, with m = 1 kg, l = 1 m, g = 10 m/s^2, that is
    ``domega/dt = 3 g / (2 l) sin theta + 3 a / (m l^2)``; no friction.
Reward rate
    ``exp(-|q - goal|^2 - c_p omega^2) - c_a a^2``: q the tip, goal (0, l).
Starts
    uniform over [-pi, pi] x [-3, 3].
Variants
    `paper` and `reference` are the same here: c_p = 1e-2 (`velocity_cost`), c_a = 1e-2 (`action_cost`).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ctrlax.world.environment import Environment
from ctrlax.world.render import Canvas
from ctrlax.world.settings import choose

MASS, LENGTH, GRAVITY = 1.0, 1.0, 10.0
TORQUE = 2.0
CONSTANTS = {"velocity_cost": 1e-2, "action_cost": 1e-2}


def make(variant: str = "paper", **settings: Any) -> Environment:
    """The pendulum; settings are `velocity_cost` and `action_cost`."""
    constants = choose("pendulum", variant, settings, variants={"paper": CONSTANTS, "reference": CONSTANTS})
    velocity_cost, action_cost = constants["velocity_cost"], constants["action_cost"]

    def reward_rate(observation, action):
        cos, sin, omega = observation
        distance = sin**2 + (cos - LENGTH) ** 2
        return jnp.exp(-distance - velocity_cost * omega**2) - action_cost * jnp.sum(action**2)

    return Environment(
        name="pendulum",
        variant=variant,
        state_names=("theta", "omega"),
        state_units=("rad", "rad/s"),
        action_names=("torque",),
        action_units=("N m",),
        action_low=(-TORQUE,),
        action_high=(TORQUE,),
        start_low=(-np.pi, -3.0),
        start_high=(np.pi, 3.0),
        angles=("theta",),
        velocities=("omega",),
        rates_of=("theta",),
        actuated=("omega",),
        known_structure=("second-order", "affine"),
        field=field,
        reward_rate=reward_rate,
        energy=energy,
        energy_scale=MASS * GRAVITY * LENGTH,
        draw=draw,
        initial_trajectories=3,
        exploring_trajectories=0,
        time_limit=12.0,
        rise_time=3.0,
    )


def field(state, action):
    theta, omega = state
    (torque,) = action
    return jnp.stack([omega, 1.5 * GRAVITY / LENGTH * jnp.sin(theta) + 3 * torque / (MASS * LENGTH**2)])


def energy(state):
    theta, omega = state
    return MASS * LENGTH**2 / 6 * omega**2 + MASS * GRAVITY * LENGTH / 2 * jnp.cos(theta)


def draw(canvas: Canvas, state: np.ndarray, action: np.ndarray) -> None:
    canvas.view(-1.3, 1.3, -1.2, 1.2)
    tip = (LENGTH * np.sin(state[0]), LENGTH * np.cos(state[0]))
    canvas.goal((0, LENGTH))
    canvas.line([(0, 0), tip], "body", width=0.09)
    canvas.joint((0, 0))
    canvas.rewarded(tip)
    canvas.torque((0, 0), -action[0] / TORQUE, radius=0.3)
