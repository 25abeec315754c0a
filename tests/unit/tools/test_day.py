"""All users' days: the counts, and their estimates from a sample."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import pytest

from tools.traffic.day import Result, plan, play
from tools.traffic.lock import Served
from tools.traffic.profile import Profile
from tools.traffic.sizing import needs
from tools.traffic.tally import PARTS, Tally

USERS = 20_000

#: The figures that a sample must estimate: ratios, so that parts of a sample can be compared.
FIGURES: dict[str, Callable[[Tally], float]] = {
    "locks a user": lambda tally: tally.locks / tally.users,
    "requests a user": lambda tally: tally.requests / tally.users,
    "operations a user": lambda tally: sum(tally.operations) / tally.users,
    "share that waits": lambda tally: tally.waiting_share,
    "p90 of the waits": lambda tally: tally.wait_quantile(0.9),
    "seconds of records": lambda tally: tally.record_seconds / tally.users,
}


@cache
def whole(users: int = USERS) -> Result:
    return play(Profile(), users, seed=1, sample=None)


@cache
def estimate(users: int = USERS) -> Result:
    return play(Profile(), users, seed=2, sample=400)


@cache
def busier() -> Result:
    """Provide a sample of another site, with more activity and longer sections."""
    profile = Profile()
    actions = dataclasses.replace(profile.actions, median=profile.actions.median * 1.5)
    section = dataclasses.replace(profile.section, median=profile.section.median * 2)
    profile = dataclasses.replace(profile, actions=actions, section=section)
    return play(profile, USERS, seed=2, sample=400)


def agree(one: Result, other: Result, figure: Callable[[Tally], float]) -> bool:
    """Return whether the difference of two results is within chance."""
    error = math.hypot(one.error(figure), other.error(figure))
    return abs(figure(one.tally) - figure(other.tally)) <= 4 * error


def test_every_user_is_counted_once() -> None:
    result = whole()
    assert (result.drawn, result.sampled) == (round(USERS * Profile().active_share), False)
    assert result.tally.users == pytest.approx(USERS)
    assert result.tally.visits == pytest.approx(USERS)
    # Counts by parts of the day agree with the totals.
    assert sum(result.tally.locks_by_part) == pytest.approx(result.tally.locks)
    assert sum(weight for _, weight in result.tally.waits) == pytest.approx(result.tally.waited)


def test_a_sample_represents_all_users() -> None:
    result = estimate()
    assert result.sampled
    assert result.drawn < whole().drawn / 4
    assert result.tally.users == pytest.approx(USERS)
    assert result.tally.visits == pytest.approx(USERS)


@pytest.mark.parametrize("name", FIGURES)
def test_a_sample_agrees_with_the_full_count(name: str) -> None:
    assert agree(whole(), estimate(), FIGURES[name])


@pytest.mark.parametrize("name", ["locks a user", "share that waits", "operations a user"])
def test_a_sample_of_another_site_differs(name: str) -> None:
    """The negative control: the comparison distinguishes sites."""
    assert not agree(whole(), busier(), FIGURES[name])


def test_a_thousand_times_the_users_are_a_thousand_times_the_traffic() -> None:
    large = play(Profile(), 1000 * USERS, seed=3, sample=400)
    assert large.drawn == estimate().drawn
    for name in ("locks a user", "share that waits"):
        assert agree(estimate(), large, FIGURES[name])
    assert needs(large).connections > 500


def test_the_same_seed_gives_the_same_result() -> None:
    one, same, other = (play(Profile(), 2_000, seed=seed, sample=100) for seed in (4, 4, 5))
    assert one == same
    assert one != other


def test_the_sweep_has_enough_workers() -> None:
    profile = Profile()
    assert plan(profile, 10_000).workers == 1
    large = plan(profile, 10_000_000)
    assert large.seconds <= profile.sweep_hours * 3600
    assert large.seconds * (large.workers / (large.workers - 1)) > profile.sweep_hours * 3600


def test_without_contention_the_sweep_takes_the_planned_time() -> None:
    assert whole().sweep_seconds == pytest.approx(whole().sweep.seconds, rel=0.01)


def test_the_expected_waits_of_the_sweep_are_the_counted_ones() -> None:
    """With users so active, and a sweep so slow, that they meet often enough to be counted."""
    profile = dataclasses.replace(
        Profile(),
        active_share=1.0,
        actions=dataclasses.replace(Profile().actions, median=40.0, sigma=0.3),
        hours=(0.0,) * 15 + (1.0,) + (0.0,) * 8,
        section=dataclasses.replace(Profile().section, median=2.0),
        sweep_section=dataclasses.replace(Profile().sweep_section, median=15.0),
        sweep_starts=15 * 3600.0,
    )
    tally = play(profile, 900, seed=1, sample=None).tally
    assert tally.yields > 15
    assert tally.expected_yields == pytest.approx(tally.yields, rel=0.4)
    assert tally.visits_waited > 2
    assert abs(tally.visits_waited - tally.expected_waits) < 3 * tally.expected_waits**0.5


def test_quantiles_count_each_wait_with_its_weight() -> None:
    tally = Tally()
    tally.count([_waited(0.1), _waited(0.3)], 1.0)
    tally.count([_waited(0.2)], 8.0)
    assert [tally.wait_quantile(share) for share in (0.1, 0.5, 0.9, 1.0)] == [0.1, 0.2, 0.2, 0.3]
    assert (tally.longest_wait, tally.waiting_share) == (0.3, 1.0)


def test_an_arrival_after_midnight_counts_as_one_of_the_morning() -> None:
    tally = Tally()
    tally.count([_waited(0.1)._replace(at=86_400.0 + 5)], 1.0)
    assert tally.locks_by_part[0] == 1.0
    assert len(tally.locks_by_part) == PARTS


def _waited(seconds: float) -> Served:
    return Served(1.0, False, seconds, True, True, seconds, 9)
