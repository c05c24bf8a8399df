import jax
import numpy as np
import pytest

from ctrlax.errors import UserError
from ctrlax.world.grids import GRIDS, draw_steps, draw_times, fixed_times, grid_named

STEPS = (0.025, 0.05, 0.1, 0.2)  # the text's


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("horizon", [0.5, 1.0, 2.0, 5.0, 30.0])
def test_fixed_grid_over_a_horizon(step, horizon):
    # 0.5 s is two and a half steps of 0.2 s: the one horizon of these that the grid cannot end at.
    if (step, horizon) == (0.2, 0.5):
        with pytest.raises(UserError, match="whole number of steps"):
            fixed_times(step, horizon)
        return
    times = fixed_times(step, horizon)
    assert len(times) == round(horizon / step) + 1
    assert (times[0], times[-1]) == (0.0, horizon)
    np.testing.assert_allclose(np.diff(times), step, rtol=1e-9)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("points", [2, 50, 401])
def test_points_asked_for(grid, step, points):
    times = draw_times(grid, step, points, key=jax.random.key(0), trajectories=3)
    assert times.shape == (3, points)
    assert times.dtype == np.float64
    assert (times[:, 0] == 0).all()
    assert (np.diff(times, axis=1) > 0).all()


def test_distributions():
    fixed, uniform, exponential = (draw_steps(grid, 0.1, 40_000, key=jax.random.key(1)) for grid in GRIDS)
    assert (fixed == 0.1).all()
    assert uniform.max() <= 0.2
    assert uniform.min() > 0
    assert uniform.mean() == pytest.approx(0.1, rel=0.02)
    assert uniform.std() == pytest.approx(0.2 / np.sqrt(12), rel=0.02)
    assert exponential.mean() == pytest.approx(0.1, rel=0.02)
    assert exponential.std() == pytest.approx(0.1, rel=0.03)


def test_fixed_grid_does_not_drift():
    times = draw_times("fixed", 0.1, 301, key=jax.random.key(0))
    np.testing.assert_array_equal(times[0], np.arange(301) * 0.1)


def test_mistakes_are_told():
    assert grid_named("exp") == "exponential"
    with pytest.raises(UserError, match="did you mean 'uniform'"):
        grid_named("uniforn")
    for step in (0.0, -0.1, np.nan, np.inf):
        with pytest.raises(UserError, match="mean step"):
            draw_times("fixed", step, 5, key=jax.random.key(0))
    with pytest.raises(UserError, match="at least 2 points"):
        draw_times("fixed", 0.1, 1, key=jax.random.key(0))
