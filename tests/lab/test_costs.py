"""Costs are sums over measured updates, and say what they rest on."""

import pytest

from ctrlax.lab.costs import of_figure, of_job
from ctrlax.lab.jobs import Job
from ctrlax.lab.scales import Wanted

RECORD = {"dynamics dopri5": {"median_ms": 2.0}, "agent all members, dopri5": {"median_ms": 8.0}}


def job(**settings):
    shared = {"schedule.rounds": 10, "fit.windows_per_trajectory": None, "fit.windows": 25}
    return Job.of("cartpole", preset="paper", seeds=range(4), **{**shared, **settings})


def test_rounds_times_updates_times_seeds():
    # 1350 updates of the dynamics and 250 of the agent, ten rounds, four seeds.
    hours = 4 * 10 * (1350 * 2.0 + 250 * 8.0) / 3.6e6
    assert of_job(job(), RECORD).hours == pytest.approx(hours)
    longer = 4 * 10 * (1350 * 2.0 + 250 * 8.0 * 1.5) / 3.6e6
    assert of_job(job(**{"agent.horizon": 3.0}), RECORD).hours == pytest.approx(longer)
    assert of_job(job(**{"model.members": 5}), RECORD).hours == pytest.approx(hours / 2)
    only_acting = 4 * 10 * 250 * 8.0 / 3.6e6
    assert of_job(job(**{"model.family": "true"}), RECORD).hours == pytest.approx(only_acting)


def test_what_is_shared_is_done_once_and_what_is_missing_is_said():
    twice = [Wanted({"place": place}, job()) for place in (1, 2)]
    assert of_figure(twice, RECORD).hours == of_job(job(), RECORD).hours
    absent = Wanted({"model": "nothing"}, None, "not here")
    assert "1 runs of models that are not here" in of_figure([*twice, absent], RECORD).basis
    assert of_figure(twice, {}).hours is None
    assert "no record of dopri5 and dopri5 updates" in of_figure(twice, {}).told()
    assert "benode counted as ENODE" in of_job(job(**{"model.family": "benode"}), RECORD).basis
    assert of_figure([], RECORD).hours == 0.0
