"""Held-out numbers against closed forms: a field whose paths and probabilities are known on paper."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ctrlax.lab.forecast import (
    SECTION,
    Stretches,
    forecast,
    mixture_quantile,
    score,
    stretches,
    write_forecasts,
)
from ctrlax.model.dataset import Dataset, Log
from ctrlax.model.dynamics import AbstractField
from ctrlax.model.fit import Learned

SIGMA = 0.1


class Drift(AbstractField):
    """``ds/dt = c a`` with one ``c`` per member: a path is its start plus c times the action's integral."""

    speeds: jax.Array

    def draw(self, *, key):
        return self.speeds

    def rate(self, member, observation, action):
        return member * action[:1] * jnp.ones_like(observation)

    def divergence(self):
        return jnp.zeros(())

    def member_count(self):
        return self.speeds.shape[0]

    def length_scales(self):
        return jnp.ones(1)


def drifting(*speeds: float) -> Learned:
    return Learned(Drift(jnp.asarray(speeds)), jnp.log(jnp.full(1, SIGMA)))


def line(slope: float, times: np.ndarray, noise: np.ndarray | float = 0.0) -> Log:
    return Log(times, (slope * (times - times[0]) + noise)[:, None], np.ones((len(times), 1)))


def dataset(*logs: Log) -> Dataset:
    return Dataset(logs, ("x",), ("u",), hold="hold")


def scored(learned: Learned, data: Dataset, **changes):
    pieces = stretches(data, 2.0, least=0.5)
    return score(learned, pieces, unit=np.array([2.0]), solver="rk4", key=jax.random.key(0), **changes)


@pytest.fixture(params=["regular", "irregular"])
def times(request):
    if request.param == "regular":
        return np.linspace(5.0, 9.0, 41)
    return 5.0 + np.concatenate([[0.0], np.cumsum(np.random.default_rng(0).exponential(0.05, 80))])


def test_the_error_at_a_horizon_is_what_a_wrong_slope_makes_of_it(times):
    found = scored(drifting(1.0, 2.0), dataset(line(1.0, times)))
    assert found.diverged == 0
    for horizon, error in found.error.items():
        # The members' mean has slope 1.5: half a unit of error per second, in units of 2.
        assert error == pytest.approx(0.25 * float(horizon), rel=0.1)
    assert (scored(drifting(1.0, 1.0), dataset(line(1.0, times))).error["2"] or 0) < 1e-5


def test_a_start_too_near_the_end_does_not_count():
    data = dataset(line(1.0, np.linspace(0, 1, 11)))
    found = scored(drifting(1.0), data)
    assert found.error["2"] is None
    assert found.error["1"] is not None
    assert found.starts == 6  # from 0.0 to 0.5 s
    nothing = scored(drifting(1.0), dataset(line(1.0, np.linspace(0, 0.3, 4))))
    assert nothing.starts == 0
    assert nothing.nll is None


def test_likelihood_and_coverage_are_those_of_the_mixture():
    times = np.linspace(0, 2, 21)
    seen = line(1.0, times, np.random.default_rng(1).normal(0, 0.3, 21))
    speeds = (0.5, 1.0, 1.4)
    found = scored(drifting(*speeds), dataset(seen))
    densities, levels = [], []
    for first, last in itertools.combinations(range(21), 2):
        if times[-1] - times[first] < 0.45:
            continue
        middles = seen.observations[first, 0] + np.array(speeds) * (times[last] - times[first])
        densities.append(stats.norm.pdf(seen.observations[last, 0], middles, SIGMA).mean() * 2.0)
        levels.append(stats.norm.cdf(seen.observations[last, 0], middles, SIGMA).mean())
    assert found.nll == pytest.approx(-np.mean(np.log(densities)), rel=1e-3)
    levels = np.array(levels)
    assert found.coverage90 == pytest.approx(np.mean((levels > 0.05) & (levels < 0.95)), abs=1e-6)
    # The wrong variant: one Gaussian of the members' mean and variance is another distribution.
    assert found.coverage90 != pytest.approx(0.9, abs=1e-3)


def test_a_well_calibrated_model_covers_nine_of_ten():
    draws = np.random.default_rng(2)
    times = np.linspace(0, 2, 21)
    logs = []
    for _ in range(200):
        noise = draws.normal(0, SIGMA, 21)
        noise[0] = 0.0  # the forecast starts at the point that was seen
        logs.append(line(1.0, times, noise))
    pieces = stretches(dataset(*logs), 2.0, overlapping=False)
    found = score(drifting(1.0), pieces, unit=np.ones(1), solver="rk4", key=jax.random.key(0))
    assert found.coverage90 == pytest.approx(0.9, abs=0.01)
    assert found.nll == pytest.approx(0.5 + np.log(SIGMA) + 0.5 * np.log(2 * np.pi), abs=0.02)


def test_quantiles_of_a_mixture():
    middles = jnp.array([[-1.0], [0.3], [5.0]])
    for level in (0.05, 0.5, 0.95):
        place = float(mixture_quantile(middles, jnp.array([0.4]), level)[0])
        assert stats.norm.cdf(place, np.array([-1.0, 0.3, 5.0]), 0.4).mean() == pytest.approx(level, abs=1e-4)


def test_a_forecast_follows_its_own_clock_and_restarts_where_asked(times):
    short = line(1.0, times[: len(times) // 2])
    data = dataset(line(1.0, times), short)
    told = forecast(drifting(2.0, 2.0), data, solver="rk4", key=jax.random.key(0))
    for log, each in zip(data.logs, told, strict=True):
        np.testing.assert_allclose(each.mean[:, 0], 2 * (log.times - log.times[0]), atol=1e-4)
        band = stats.norm.ppf(0.95) * SIGMA
        np.testing.assert_allclose(each.high[1:] - each.mean[1:], band, rtol=1e-2)
        assert each.healthy
    again = forecast(drifting(2.0, 2.0), data, solver="rk4", key=jax.random.key(0), restart=1.0)
    wrong = again[0].mean[:, 0] - data.logs[0].observations[:, 0]
    assert np.abs(wrong).max() <= 1.0 + 1e-4  # never more than a second of a slope too steep by one
    assert (np.abs(wrong) < 1e-6).sum() == 1  # only the first point is the data's own


def test_a_member_that_runs_away_is_counted_and_its_error_is_finite():
    class Explosion(Drift):
        def rate(self, member, observation, action):
            return member * observation**3

    times = np.linspace(0, 2, 21)
    data = dataset(Log(times, np.ones((21, 1)), np.ones((21, 1))))
    learned = Learned(Explosion(jnp.array([5.0, 0.0])), jnp.zeros(1))
    found = scored(learned, data)
    assert found.diverged > 0
    assert 1 < (found.error["2"] or 0) < 1e4
    assert not forecast(learned, data, solver="rk4", key=jax.random.key(0))[0].healthy


def test_padding_moves_nothing():
    data = dataset(line(1.0, np.linspace(0, 2, 21)))
    pieces = stretches(data, 2.0, least=0.5)
    more = [np.pad(leaf, [(0, 0), (0, SECTION)] + [(0, 0)] * (leaf.ndim - 2)) for leaf in jax.tree.leaves(pieces)[1:]]
    more[-1][:, -SECTION:] = np.nan
    longer = Stretches(pieces.starts, *more)
    near = [
        score(drifting(1.0, 1.5), each, unit=np.ones(1), solver="rk4", key=jax.random.key(0))
        for each in (pieces, longer)
    ]
    assert near[0].nll == pytest.approx(near[1].nll, rel=1e-5)
    assert near[0].error == pytest.approx(near[1].error, rel=1e-5)


def test_forecasts_are_written_point_by_point(tmp_path):
    data = dataset(line(1.0, np.linspace(0, 1, 11)), line(1.0, np.linspace(0, 2, 5)))
    told = forecast(drifting(1.0), data, solver="rk4", key=jax.random.key(0))
    write_forecasts(data, told, tmp_path / "told.csv")
    lines = (tmp_path / "told.csv").read_text().splitlines()
    assert lines[1] == "episode,time,mean.x,low.x,high.x"
    assert len(lines) == 2 + 16
    assert dataclasses.asdict(told[0]).keys() >= {"mean", "low", "high"}
