"""CartPole: a cart on an endless rail, pushed from side to side, with a uniform rod hinged on it.

Coordinates
    x [m]: position of the cart, growing to the right; v [m/s]: its rate.
    theta [rad]: angle of the pole from upright, growing clockwise (leaning right is positive); hanging is pi.
    omega [rad/s]: its rate. The pole's centre is at ``(x + l sin theta, l cos theta)``, in metres, y up.
Action
    a, ``|a| <= 3``: the force on the cart in units of three newtons, to the right, F = 3 a (so at most 9 N).
Equations
    From the Lagrangian, with cart M = 1 kg, pole m = 0.1 kg, half its length l = 1 m (inertia m l^2 / 3 about its
    centre), g = 9.8 m/s^2, no friction::

        (M + m) dv/dt + m l cos(theta) domega/dt - m l omega^2 sin(theta) = F
        4/3 l domega/dt + cos(theta) dv/dt - g sin(theta) = 0

Reward rate
    ``exp(-|q - goal|^2 - c_p (v^2 + omega^2)) - c_a a^2``. `paper`: q = (x, sin theta, cos theta), goal (0, 0, 1);
    `reference`: q = (x + sin theta, cos theta), the pole's centre, goal (0, 1).
Starts
    uniform over +-0.05 in every coordinate about (0, 0, pi, 0).
Variants
    They differ in the reward only; in both c_p = 1e-2 (`velocity_cost`) and c_a = 1e-2 (`action_cost`).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ctrlax.world.environment import Environment
from ctrlax.world.render import Canvas
from ctrlax.world.settings import choose

CART, POLE, HALF_LENGTH, GRAVITY = 1.0, 0.1, 1.0, 9.8
FORCE, NEWTONS = 3.0, 3.0  # bound of the action, and newtons to one of its units
CONSTANTS = {"velocity_cost": 1e-2, "action_cost": 1e-2}


def make(variant: str = "paper", **settings: Any) -> Environment:
    """The cart and pole; settings are `velocity_cost` and `action_cost`."""
    constants = choose("cartpole", variant, settings, variants={"paper": CONSTANTS, "reference": CONSTANTS})
    velocity_cost, action_cost = constants["velocity_cost"], constants["action_cost"]

    def reward_rate(observation, action):
        x, v, cos, sin, omega = observation
        across = x**2 + sin**2 if variant == "paper" else (x + sin) ** 2
        distance = across + (cos - 1) ** 2
        return jnp.exp(-distance - velocity_cost * (v**2 + omega**2)) - action_cost * jnp.sum(action**2)

    return Environment(
        name="cartpole",
        variant=variant,
        state_names=("x", "v", "theta", "omega"),
        state_units=("m", "m/s", "rad", "rad/s"),
        action_names=("force",),
        action_units=("3 N",),
        action_low=(-FORCE,),
        action_high=(FORCE,),
        start_low=(-0.05, -0.05, np.pi - 0.05, -0.05),
        start_high=(0.05, 0.05, np.pi + 0.05, 0.05),
        angles=("theta",),
        velocities=("v", "omega"),
        rates_of=("x", "theta"),
        actuated=("v",),
        known_structure=("second-order", "affine"),
        field=field,
        reward_rate=reward_rate,
        energy=energy,
        energy_scale=2 * POLE * GRAVITY * HALF_LENGTH,
        draw=draw,
        initial_trajectories=5,
        exploring_trajectories=2,
        time_limit=24.0,
        rise_time=3.0,
    )


def field(state, action):
    _, v, theta, omega = state
    (force,) = action
    sin, cos, total = jnp.sin(theta), jnp.cos(theta), CART + POLE
    push = (NEWTONS * force + POLE * HALF_LENGTH * omega**2 * sin) / total  # the cart's, were the pole not to swing
    turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / total))
    return jnp.stack([v, push - POLE * HALF_LENGTH * turn * cos / total, omega, turn])


def energy(state):
    _, v, theta, omega = state
    cart = (CART + POLE) / 2 * v**2
    pole = POLE * HALF_LENGTH * omega * (v * jnp.cos(theta) + 2 / 3 * HALF_LENGTH * omega)
    return cart + pole + POLE * GRAVITY * HALF_LENGTH * jnp.cos(theta)


def draw(canvas: Canvas, state: np.ndarray, action: np.ndarray) -> None:
    x, _, theta, _ = state
    middle = np.sign(x) * max(abs(x) - 0.7, 0.0)  # the picture follows a cart that leaves the middle
    canvas.view(middle - 2.8, middle + 2.8, -2.35, 2.25)
    canvas.rail(-0.16)
    canvas.goal((0, HALF_LENGTH))
    canvas.polygon([(x - 0.32, -0.14), (x + 0.32, -0.14), (x + 0.32, 0.14), (x - 0.32, 0.14)], "second")
    along = np.array([np.sin(theta), np.cos(theta)])
    canvas.line([(x, 0), (x, 0) + 2 * HALF_LENGTH * along], "body", width=0.1)
    canvas.joint((x, 0))
    canvas.rewarded((x, 0) + HALF_LENGTH * along)
    side = 0.32 if action[0] > 0 else -0.32
    canvas.arrow((x + side, 0), (x + side + action[0] / FORCE, 0))
