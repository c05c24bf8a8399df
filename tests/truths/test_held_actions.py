"""Held actions: the Pendulum under random torques held for 0.1 s, against SciPy interval by interval (FACTS 4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ctrlax.ode.control import Held
from ctrlax.ode.solve import solve
from ctrlax.ode.solvers import named
from ctrlax.world.collect import simulate
from ctrlax.world.systems import pendulum

STEP, HORIZON, ALLOWED = 0.1, 2.0, 1e-6
KNOTS = np.arange(20) * STEP
TORQUES = np.random.default_rng(0).uniform(-2, 2, size=(20, 1))
START = np.array([np.pi - 0.3, 0.5])
TIMES = np.linspace(0.0, HORIZON, 58)  # neither the knots nor off them all


@pytest.fixture(scope="module")
def truth():
    state, states = START, {0.0: START}
    ends = np.append(KNOTS[1:], HORIZON)
    for left, right, torque in zip(KNOTS, ends, TORQUES[:, 0], strict=True):
        inside = TIMES[(left < TIMES) & (right >= TIMES)]

        def swing(time, state, torque=torque):
            return [state[1], 15 * np.sin(state[0]) + 3 * torque]

        path = solve_ivp(
            swing, (left, right), state, "DOP853", rtol=1e-12, atol=1e-13, t_eval=np.union1d(inside, [right])
        )
        states |= dict(zip(path.t, path.y.T, strict=True))
        state = path.y[:, -1]
    return np.array([states[time] for time in TIMES])


@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [("dopri8", None), ("dopri5", 1e-8), ("tsit5", 1e-8), ("bosh3", 1e-8), ("kvaerno5", 1e-8), ("rk4-10", None)],
)
def test_steps_end_where_the_action_jumps(truth, solver, tolerance):
    path = simulate(
        pendulum.make(),
        Held(KNOTS, TORQUES),
        TIMES,
        key=jax.random.key(0),
        starts=START[None],
        solver=solver,
        rtol=tolerance,
        atol=tolerance,
    )
    error = np.abs(path.states[0] - truth).max()
    print(f"{solver}: error {error:.1e} at {path.work[0]} evaluations")
    assert path.healthy.all()
    assert error <= ALLOWED


@pytest.mark.parametrize(
    ("solver", "times"), [("dopri5", TIMES), ("rk4", np.linspace(0, HORIZON, 41)), ("rk4-10", TIMES)]
)
def test_looking_the_action_up_in_one_solve_fails(truth, solver, times):
    """What everybody writes first: the field looks the held action up, and the solver does not know where it jumps."""
    env = pendulum.make()

    def field(time, state):
        held = jnp.searchsorted(jnp.asarray(KNOTS), time, side="right") - 1
        return env.field(state, jnp.asarray(TORQUES)[held])

    with jax.enable_x64(True):
        setting = named(solver)
        right = solve(field, jnp.asarray(START), jnp.asarray(times), named("dopri8"), breaks=jnp.asarray(KNOTS))
        setting = setting.at(1e-6, 1e-6) if solver == "dopri5" else setting
        wrong = solve(field, jnp.asarray(START), jnp.asarray(times), setting)
    np.testing.assert_allclose(right.states[-1], truth[-1], atol=ALLOWED)
    error = np.abs(np.asarray(wrong.states - right.states)).max()
    print(f"{solver}, one solve without breaks: error {error:.1e} at {int(wrong.work)} evaluations")
    assert error > ALLOWED
