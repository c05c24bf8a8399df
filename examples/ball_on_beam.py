"""A ball on a beam: a servo tilts the beam, the ball rolls, and it is to come to rest in the middle.

A user's own system, complete: ``ctrlax simulate examples/ball_on_beam.py``. The position along the beam (m, to the
right) and its rate, and the tilt (rad, right end up where positive); the action is the tilt asked of the servo, which
follows with a lag. A solid ball that rolls without slipping is as heavy as 7/5 of itself, and friction slows it:

    dposition/dt = velocity
    dvelocity/dt = -5/7 g sin(tilt) - friction * velocity
    dtilt/dt     = (asked - tilt) / lag
"""

import jax.numpy as jnp
import numpy as np

GRAVITY, FRICTION, LAG = 9.81, 0.1, 0.15  # m/s^2, 1/s, s

state_names = ("position", "velocity", "tilt")
action_names = ("asked",)
action_high = 0.25
start_low, start_high = (-0.8, -0.2, -0.05), (0.8, 0.2, 0.05)
units = {"position": "m", "velocity": "m/s", "tilt": "rad", "asked": "rad"}
velocities, rates_of = ("velocity",), ("position",)
initial_trajectories, exploring_trajectories = 3, 1


def field(state, action):
    _, velocity, tilt = state
    rolling = -5 / 7 * GRAVITY * jnp.sin(tilt) - FRICTION * velocity
    return jnp.stack([velocity, rolling, (action[0] - tilt) / LAG])


def reward_rate(observation, action):
    position, velocity, _ = observation
    return jnp.exp(-(2 * position**2) - 0.1 * velocity**2) - 0.01 * action[0] ** 2


def draw(canvas, state, action):
    # Optional, for pictures; a system without `draw` is shown as bars.
    canvas.view(-1.3, 1.3, -0.8, 0.8)
    along, across = np.array([np.cos(state[2]), np.sin(state[2])]), np.array([-np.sin(state[2]), np.cos(state[2])])
    canvas.line([-1.2 * along, 1.2 * along], "second", 0.03)
    canvas.polygon([(0, 0), (-0.1, -0.2), (0.1, -0.2)], "ink")
    canvas.goal(0.095 * across)
    canvas.circle(state[0] * along + 0.095 * across, 0.08, "body")
