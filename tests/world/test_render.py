"""What can be asserted of a picture; what cannot is in docs/environments.md, with the pictures."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from ctrlax.errors import UserError
from ctrlax.world.render import COLORS, SIZE, frame, write_gif
from ctrlax.world.systems import acrobot, cartpole, pendulum

SYSTEMS = {"pendulum": pendulum, "cartpole": cartpole, "acrobot": acrobot}
SMALL = (200, 180)


def upright(env):
    return np.array([np.pi if env.name == "acrobot" and name == "theta1" else 0.0 for name in env.state_names])


def picture(env, state, action=None, time=0.0, **options):
    return frame(env, state, np.zeros(env.action_size) if action is None else action, time, **options)


def places(pixels, color):
    """Rows and columns of the pixels near a colour."""
    return np.argwhere(np.abs(pixels.astype(int) - COLORS[color]).sum(axis=-1) < 30)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("drawn", [True, False])
def test_frame_is_an_image_that_follows_state_action_and_time(name, drawn):
    env = SYSTEMS[name].make()
    if not drawn:
        env = dataclasses.replace(env, draw=None)
    state = upright(env)
    first = picture(env, state)
    assert first.shape == (SIZE[1], SIZE[0], 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, picture(env, state))
    for other in (
        picture(env, state + 0.4),
        picture(env, state, np.array(env.action_high)),
        picture(env, state, time=3.0),
    ):
        assert np.abs(first.astype(int) - other).max() > 100
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 20, "edges are smooth"


@pytest.mark.parametrize("name", SYSTEMS)
def test_rewarded_point_sits_in_the_goal_when_upright(name):
    env = SYSTEMS[name].make()
    green = places(picture(env, upright(env)), "goal")
    assert np.ptp(green, axis=0).max() <= 34, "the mark in the ring, at one place"


@pytest.mark.parametrize(("name", "turn"), [("pendulum", 1), ("cartpole", 1)])
def test_signs_on_the_screen(name, turn):
    env = SYSTEMS[name].make()
    state = upright(env)
    state[env.state_names.index("theta")] = 0.8  # leans right
    body = places(picture(env, state)[: SIZE[1] - 40], "body")
    highest, lowest = body[body[:, 0].argmin()], body[body[:, 0].argmax()]
    assert highest[1] > lowest[1]
    right = places(picture(env, state, np.array(env.action_high))[SIZE[1] - 36 :], "action")
    left = places(picture(env, state, np.array(env.action_low))[SIZE[1] - 36 :], "action")
    assert left[:, 1].max() <= right[:, 1].min() + 4, "the bar grows to either side of zero"


def test_force_arrow_points_where_the_force_does():
    env = cartpole.make()
    scene = [picture(env, upright(env), np.array([force]))[: SIZE[1] - 40] for force in (-3.0, 3.0)]
    left, right = (places(pixels, "action")[:, 1].mean() for pixels in scene)
    assert left < SIZE[0] / 2 < right


def test_a_goal_beside_the_picture_is_pointed_to():
    env = cartpole.make()
    far = np.array([30.0, 0.0, np.pi, 0.0])
    columns = places(picture(env, far), "goal")[:, 1]
    assert columns.min() < 25


def test_state_that_is_not_finite_still_gives_a_picture():
    env = acrobot.make()
    pixels = picture(env, np.array([np.nan, 0.0, np.inf, 0.0]), np.array([np.nan, 1.0]))
    assert len(places(pixels, "body")) == 0
    assert len(places(pixels, "action")) > 10


def read(path):
    with Image.open(path) as gif:
        frames, durations = [], []
        for place in range(getattr(gif, "n_frames", 1)):
            gif.seek(place)
            frames.append(np.asarray(gif.convert("RGB")))
            durations.append(gif.info["duration"])
        return frames, durations, gif.info.get("loop")


def test_gif_plays_at_the_speed_of_the_world(tmp_path):
    env = pendulum.make()
    times = np.array([10.0, 10.13, 10.5, 11.1, 12.0])  # irregular, and not from zero
    states = np.stack([3.0 * times, np.full(5, 3.0)], axis=1)
    actions = np.linspace(-2, 2, 5)[:, None]
    write_gif(env, times, states, actions, tmp_path / "turn.gif", size=SMALL)
    frames, durations, loop = read(tmp_path / "turn.gif")
    assert loop == 0
    assert sum(durations) == 41 * 50  # both ends are shown
    assert len(frames) == 41
    wanted = picture(
        env, np.array([3.0 * 11.0, 3.0]), np.array([np.interp(11.0, times, actions[:, 0])]), 11.0, size=SMALL
    )
    assert np.abs(frames[20].astype(int) - wanted).mean() < 3.0


def test_gif_turns_angles_the_short_way(tmp_path):
    env = pendulum.make()
    states = np.array([[np.pi - 0.2, 1.0], [-np.pi + 0.2, 1.0]])  # through hanging, not through upright
    write_gif(env, np.array([0.0, 0.1]), states, np.zeros((2, 1)), tmp_path / "short.gif", size=SMALL)
    frames, _, _ = read(tmp_path / "short.gif")
    hanging = picture(env, np.array([np.pi, 0.0]), time=0.05, size=SMALL)
    assert np.abs(frames[1].astype(int) - hanging).mean() < 3.0


def test_gif_of_a_system_without_a_drawing(tmp_path):
    env = dataclasses.replace(cartpole.make(), draw=None)
    times = np.linspace(0, 0.5, 6)
    write_gif(env, times, np.outer(times, np.ones(4)), np.zeros((6, 1)), tmp_path / "plain.gif", size=SMALL)
    assert len(read(tmp_path / "plain.gif")[0]) == 11


def test_mistakes_are_told(tmp_path):
    env = pendulum.make()
    two, action = np.zeros((2, 2)), np.zeros((2, 1))
    with pytest.raises(UserError, match="increasing"):
        write_gif(env, np.array([1.0, 0.0]), two, action, tmp_path / "a.gif")
    with pytest.raises(UserError, match="states of shape"):
        write_gif(env, np.array([0.0, 1.0]), np.zeros((2, 3)), action, tmp_path / "a.gif")
    with pytest.raises(UserError, match="cannot write"):
        write_gif(env, np.array([0.0, 0.1]), two, action, tmp_path / "no" / "a.gif", size=SMALL)
