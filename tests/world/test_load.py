"""A user's own system: what works, and that every mistake is told before any work."""

import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ctrlax
from ctrlax.errors import UserError
from ctrlax.world.load import names

GOOD = """
import jax.numpy as jnp
state_names = ("position", "velocity")
action_names = ("push",)
action_high = (2.0,)
start_low, start_high = (-1.0, -0.5), (1.0, 0.5)

def field(state, action):
    return jnp.stack([state[1], action[0] - state[1]])

def reward_rate(observation, action):
    return jnp.exp(-observation[0] ** 2) - 0.01 * action[0] ** 2
"""
FIELD = "    return jnp.stack([state[1], action[0] - state[1]])"
REWARD = "    return jnp.exp(-observation[0] ** 2) - 0.01 * action[0] ** 2"

MAKE = """
from ctrlax import Environment
def make(stiffness=1.0):
    return Environment(
        name="spring", state_names=("x",), action_names=("u",), action_low=(-1.0,), action_high=(1.0,),
        start_low=(-1.0,), start_high=(1.0,),
        field=lambda s, a: a - stiffness * s, reward_rate=lambda o, a: 1 - o[0] ** 2,
    )
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="my_cart.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def message(path, **settings):
    with pytest.raises(UserError) as caught:
        ctrlax.make(path, **settings)
    return str(caught.value)


def test_names_are_the_files_of_the_folder():
    assert {"pendulum", "cartpole", "acrobot"} <= set(names())


def test_an_unknown_name_is_answered_with_the_known_ones():
    said = message("cart-pole")
    assert "'cartpole'" in said
    assert "pendulum" in said
    assert ".py" in said


def test_an_unknown_setting_of_a_built_in_is_told():
    assert "colour" in message("pendulum", colour="red")


def test_twenty_lines_are_a_system(written):
    path = written(GOOD)
    environment = ctrlax.make(path)
    assert environment.name == "my-cart"
    assert environment.source == str(path)
    assert environment.action_low == (-2.0,)
    assert (environment.initial_trajectories, environment.exploring_trajectories, environment.time_limit) == (
        5,
        2,
        24.0,
    )
    assert environment.observation_names == environment.state_names
    assert jnp.ones(1).dtype == jnp.float32


def test_the_optional_names_are_read(written):
    more = """
angles, velocities, rates_of, actuated = ("position",), ("velocity",), ("position",), ("velocity",)
action_low = -1
units = {"position": "rad", "push": "N m"}
initial_trajectories, exploring_trajectories, time_limit, rise_time = 3, 0, 12, 2.5

def energy(state):
    return state[1] ** 2 / 2

def draw(canvas, state, action):
    pass
"""
    environment = ctrlax.make(written(GOOD + more))
    assert environment.observation_names == ("cos_position", "sin_position", "velocity")
    assert environment.action_low == (-1.0,)
    assert environment.state_units == ("rad", "")
    assert environment.action_units == ("N m",)
    assert (environment.initial_trajectories, environment.exploring_trajectories) == (3, 0)
    assert (environment.time_limit, environment.rise_time) == (12.0, 2.5)
    assert environment.energy is not None
    assert environment.draw is not None


def test_an_own_observation_is_used(written):
    own = """
observation_names = ("double", "velocity")
def observe(state):
    return jnp.stack([2 * state[0], state[1]])
def restore(observation):
    return jnp.stack([observation[0] / 2, observation[1]])
"""
    environment = ctrlax.make(written(GOOD + own))
    np.testing.assert_allclose(environment.observe(jnp.array([1.0, 2.0])), [2.0, 2.0])
    np.testing.assert_allclose(environment.restore(jnp.array([2.0, 2.0])), [1.0, 2.0])
    assert "differs" in message(written(GOOD + own.replace("/ 2", "/ 3")))
    without = ctrlax.make(written(GOOD + own[: own.index("def restore")]))
    with pytest.raises(UserError, match="no `restore"):
        without.restore(jnp.array([2.0, 2.0]))


def test_settings_of_a_file(written):
    path = written(GOOD)
    environment = ctrlax.make(path, rise_time=2.0, variant="paper")
    assert environment.rise_time == 2.0
    assert environment.settings == (("rise_time", "2.0"),)
    assert "rise_time" in message(path, rise_tiem=2.0)
    assert "one variant" in message(path, variant="reference")


def test_settings_recorded_as_text_make_the_same_environment(written):
    names_file, make_file = written(GOOD), written(MAKE, "own.py")
    for path, settings in (
        (names_file, {"rise_time": 2.0, "start_low": (-0.5, -0.5)}),
        (make_file, {"stiffness": 2.0}),
    ):
        first = ctrlax.make(path, **settings)
        again = ctrlax.make(first.source, variant=first.variant, **dict(first.settings))
        assert (again.rise_time, again.start_low, again.settings) == (first.rise_time, first.start_low, first.settings)
        state, action = jnp.ones(first.state_size), jnp.ones(first.action_size)
        np.testing.assert_array_equal(again.field(state, action), first.field(state, action))


def test_the_system_of_the_page_works(written):
    page = (Path(__file__).parents[2] / "docs" / "your-own-system.md").read_text()
    environment = ctrlax.make(written(page.split("```python\n")[1].split("```")[0]))
    assert environment.action_low == (-2.0,)


def test_a_file_may_make_its_environment(written):
    path = written(MAKE)
    assert ctrlax.make(path, stiffness=2.0).field(jnp.array([1.0]), jnp.array([0.0])) == -2.0
    assert ctrlax.make(path, variant="paper").name == "spring"
    assert "stiffness" in message(path, stifness=2.0)
    assert "expected a ctrlax.Environment" in message(written("def make():\n    return 3\n"))
    assert "line 3: ZeroDivisionError" in message(written("def make():\n    x = 0\n    return 1 / x\n"))


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


BRANCH = "    if state[0] > 0:\n        return state\n" + FIELD
MISTAKES = {
    "syntax": (changed("action_high = (2.0,)", "action_high = (2.0,"), ["line 5"]),
    "not python": ("\0", ["no Python text"]),
    "does not run": (GOOD + "undefined_name\n", ["line 13", "NameError"]),
    "exits": (GOOD + "raise SystemExit(1)\n", ["SystemExit"]),
    "missing": (changed("action_high", "action_hihg"), ["missing action_high", "action_hihg"]),
    "no field": (changed("def field", "def other"), ["missing field"]),
    "a name as text": (changed('("push",)', '("push")'), ["('push',)"]),
    "a name with a space": (changed('"push"', '"push it"'), ["push it", "letters"]),
    "a name twice": (changed('"push"', '"velocity"'), ["more than once"]),
    "bounds too long": (changed("(2.0,)", "(2.0, 3.0)"), ["has 2 entries, expected 1"]),
    "starts too short": (changed("(-1.0, -0.5)", "(-1.0,)"), ["`start_low` has 1 entries, expected 2"]),
    "bounds no numbers": (changed("(2.0,)", '("two",)'), ["expected one number per action"]),
    "bounds not finite": (changed("(2.0,)", '(float("inf"),)'), ["finite"]),
    "bounds negative": (changed("(2.0,)", "(-2.0,)"), ["below high", "unless defined"]),
    "starts swapped": (changed("(1.0, 0.5)", "(-2.0, 0.5)"), ["position is -1", "not above"]),
    "angle unknown": (GOOD + "angles = ('positon',)\n", ["'positon'", "'position'"]),
    "rates of another length": (
        GOOD + "velocities = ('velocity',)\nrates_of = ('position', 'velocity')\n",
        ["as many"],
    ),
    "actuated of another length": (GOOD + "actuated = ('position', 'velocity')\n", ["push"]),
    "units unknown": (GOOD + "units = {'mass': 'kg'}\n", ["'mass'"]),
    "rise time": (GOOD + "rise_time = -1\n", ["positive number of seconds"]),
    "trajectories": (GOOD + "initial_trajectories = 2.5\n", ["whole number"]),
    "energy": (GOOD + "energy = 3\n", ["energy(state)"]),
    "restore alone": (GOOD + "def restore(observation):\n    return observation\n", ["without `observe"]),
    "observe without names": (GOOD + "def observe(state):\n    return state\n", ["observation_names"]),
    "observe of another size": (
        GOOD + "observation_names = ('a', 'b', 'c')\ndef observe(state):\n    return state\n",
        ["shape (2,)", "shape (3,)"],
    ),
    "field takes more": (changed("field(state, action)", "field(state, action, time)"), ["field(state, action)"]),
    "field's shape": (changed(FIELD, "    return state[:1]"), ["(1,)", "(2,)", "position, velocity"]),
    "field's list": (changed(FIELD, "    return [state[1], action[0]]"), ["list", "jnp.stack"]),
    "field indexes past the end": (
        changed(FIELD, "    a, b, c = state\n    return state"),
        ["line 9", "ValueError", "(2,)"],
    ),
    "reward's shape": (changed(REWARD, "    return observation"), ["reward_rate", "(2,)", "one number"]),
    "branch": (changed(FIELD, BRANCH), ["line 9", "jnp.where"]),
    "numpy": (changed(FIELD, "    import numpy as np\n    return np.sin(state)"), ["line 10", "jnp.sin"]),
    "math": (changed(FIELD, "    import math\n    return state * math.sin(state[0])"), ["line 10", "jnp.sin"]),
    "float32": (changed(FIELD, "    return state.astype(jnp.float32)"), ["float32", "float64"]),
    "integers": (changed(REWARD, "    return 1"), ["expected float64"]),
    "field not finite": (changed(FIELD, "    return state / (state[0] * 0)"), ["`field` of position", "finite"]),
    "reward NaN": (
        changed(REWARD, "    return jnp.log(-1 - observation[0] ** 2)"),
        ["`reward_rate` is nan", "position="],
    ),
    "field's gradient": (
        changed(FIELD, "    return -state * jnp.sqrt(state[0] ** 2)"),
        ["gradient of `field` of position with respect to position", "root"],
    ),
    "reward's gradient": (
        changed(REWARD, "    return -jnp.linalg.norm(observation)"),
        ["gradient of `reward_rate` with respect to position", "position=0"],
    ),
    "reward of the action alone": (changed(REWARD, "    return -action[0] ** 2"), ["does not depend on the state"]),
    "reward by a step": (
        changed(REWARD, "    return jnp.where(observation[0] > 0, 1.0, 0.0)"),
        ["does not depend", "smoothly"],
    ),
    "two answers": (
        "import random\n" + changed(FIELD, "    return state * random.random()"),
        ["two answers", "`field`"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_before_any_work(mistake, written):
    text, expected = MISTAKES[mistake]
    path = written(text)
    said = message(path)
    assert str(path) in said
    for part in expected:
        assert part in said, said


def test_a_missing_file_is_told(written):
    path = written(GOOD)
    said = message(path.with_name("my_crat.py"))
    assert "No file" in said
    assert "my_cart.py" in said
    assert "pendulum" in said


def test_a_folder_is_told(tmp_path):
    (tmp_path / "my_cart.py").mkdir()
    assert "is a folder" in message(tmp_path / "my_cart.py")


def test_rounded_constants_are_noted(written):
    with pytest.warns(UserWarning, match="rounded to float32"):
        ctrlax.make(written(GOOD + "GAIN = jnp.array([0.1])\n"))


def test_a_reward_flat_in_the_start_box_is_noted(written):
    with pytest.warns(UserWarning, match="no gradient"):
        ctrlax.make(written(changed(REWARD, "    return jnp.maximum(observation[0] - 1.5, 0.0)")))


def test_constants_in_numpy_and_modules_beside_the_file_are_fine(written):
    written("GAIN = 3.0\n", "beside_my_cart.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctrlax.make(written("import numpy as np\nfrom beside_my_cart import GAIN\nK = np.array([GAIN])\n" + GOOD))
