"""A user's random day."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from tools.traffic.profile import Lognormal, Profile
from tools.traffic.users import Users


def draws(profile: Profile | None = None, seed: int = 1) -> Users:
    return Users(profile or Profile(), Random(seed))


def test_the_same_seed_gives_the_same_day() -> None:
    assert draws().day(0.9) == draws().day(0.9)
    assert draws().day(0.9) != draws(seed=2).day(0.9)


def test_arrivals_are_in_order_and_fewer_than_requests() -> None:
    day = draws().day(0.99)
    assert day.arrivals == sorted(day.arrivals)
    assert 0 < len(day.arrivals) < day.requests
    assert all(arrival.seconds > 0 for arrival in day.arrivals)


def test_the_tail_is_heavy() -> None:
    drawn = draws()
    requests = [drawn.day((number + 0.5) / 2_000).requests for number in range(2_000)]
    assert sum(requests[-200:]) > 0.4 * sum(requests), "a tenth of them sends nearly half"
    # The control: without a tail all users are much the same.
    even = dataclasses.replace(Profile(), actions=Lognormal(median=20.0, sigma=0.1))
    drawn = draws(even)
    requests = [drawn.day((number + 0.5) / 2_000).requests for number in range(2_000)]
    assert sum(requests[-200:]) < 0.15 * sum(requests)


def test_the_share_of_locking_requests_is_the_profiles() -> None:
    profile = Profile()
    drawn = draws(profile)
    days = [drawn.day(0.9) for _ in range(500)]
    locks = sum(len(day.arrivals) for day in days)
    actions = len(days) * round(profile.actions.quantile(1.2816))
    doubled = profile.locking_share * profile.double_click_share
    expected = profile.locking_share + doubled
    expected += profile.extra_requests * profile.extra_locking_share
    assert locks / actions == pytest.approx(expected, rel=0.04)


def test_sessions_follow_the_hours() -> None:
    hours = (0.0,) * 12 + (1.0, 3.0) + (0.0,) * 10
    quick = Lognormal(median=0.001, sigma=0.1)
    drawn = draws(dataclasses.replace(Profile(), hours=hours, thinking=quick))
    times = [arrival.at / 3600 for _ in range(400) for arrival in drawn.day(0.5).arrivals]
    assert all(12 <= time < 14.01 for time in times)
    assert sum(time >= 13 for time in times) / len(times) == pytest.approx(0.75, abs=0.06)


def test_a_visit_of_the_sweep_can_be_interrupted() -> None:
    visit = draws().visit(7200.0)
    assert (visit.at, visit.batch, visit.steps) == (7200.0, True, Profile().sweep_steps)
