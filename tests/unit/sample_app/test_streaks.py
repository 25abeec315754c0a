"""Test streaks, by date."""

from __future__ import annotations

import datetime

import pytest

from sample_app import streaks

MONDAY = datetime.date(2024, 2, 26)


def days(count: int) -> datetime.timedelta:
    return datetime.timedelta(days=count)


def test_the_first_day_is_a_streak_of_one() -> None:
    assert streaks.after_activity(0, None, MONDAY) == (1, MONDAY)


def test_a_second_time_on_one_day_changes_nothing() -> None:
    assert streaks.after_activity(4, MONDAY, MONDAY) == (4, MONDAY)


def test_the_next_day_adds_one_also_over_the_end_of_february() -> None:
    streak, last = 0, None
    for day in range(7):
        streak, last = streaks.after_activity(streak, last, MONDAY + days(day))
    assert (streak, last) == (7, datetime.date(2024, 3, 3))


@pytest.mark.parametrize("gap", [2, 3, 400])
def test_a_day_without_learning_starts_again(gap: int) -> None:
    assert streaks.after_activity(9, MONDAY, MONDAY + days(gap)) == (1, MONDAY + days(gap))


def test_a_clock_that_runs_behind_does_not_break_the_streak() -> None:
    assert streaks.after_activity(5, MONDAY, MONDAY - days(1)) == (5, MONDAY)


@pytest.mark.parametrize(("gap", "shown"), [(-1, 5), (0, 5), (1, 5), (2, 0), (30, 0)])
def test_a_streak_is_shown_until_a_whole_day_has_passed(gap: int, shown: int) -> None:
    assert streaks.as_of(5, MONDAY, MONDAY + days(gap)) == shown


def test_a_new_learner_has_no_streak() -> None:
    assert streaks.as_of(0, None, MONDAY) == 0
