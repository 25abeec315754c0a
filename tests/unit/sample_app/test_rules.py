"""Test the site's own rules: streaks, badges, exercises, and which names and texts it takes."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest

from sample_app import catalogue, streaks, validation
from sample_app.badges import BADGES, newly_earned
from sample_app.errors import BadInput, Unknown

MONDAY = datetime.date(2024, 2, 26)


def days(count: int) -> datetime.timedelta:
    return datetime.timedelta(days=count)


def test_a_streak_grows_by_days_and_begins_again_after_one_without_learning() -> None:
    streak, last = streaks.after_activity(0, None, MONDAY)
    assert (streak, last) == (1, MONDAY)
    for day in range(7):  # over the end of February; the first is a second time on one day
        streak, last = streaks.after_activity(streak, last, MONDAY + days(day))
    assert (streak, last) == (7, datetime.date(2024, 3, 3))
    for gap in (2, 400):
        assert streaks.after_activity(9, MONDAY, MONDAY + days(gap)) == (1, MONDAY + days(gap))
    # A clock that runs behind does not break it.
    assert streaks.after_activity(5, MONDAY, MONDAY - days(1)) == (5, MONDAY)


def test_a_streak_is_shown_until_a_whole_day_has_passed() -> None:
    for gap, shown in {-1: 5, 0: 5, 1: 5, 2: 0, 30: 0}.items():
        assert streaks.as_of(5, MONDAY, MONDAY + days(gap)) == shown
    assert streaks.as_of(0, None, MONDAY) == 0


@dataclass
class Progress:
    best_streak: int = 0
    exercises_done: int = 0
    seconds_watched: int = 0


@pytest.mark.parametrize(
    ("almost", "there", "badge"),
    [
        (Progress(), Progress(exercises_done=1), "first-step"),
        (Progress(best_streak=2), Progress(best_streak=3), "steady"),
        (Progress(best_streak=6), Progress(best_streak=7), "full-week"),
        (Progress(seconds_watched=179), Progress(seconds_watched=180), "film-buff"),
        (Progress(exercises_done=11), Progress(exercises_done=12), "dozen"),
    ],
)
def test_each_badge_has_its_threshold(almost: Progress, there: Progress, badge: str) -> None:
    assert badge not in newly_earned(almost, [])
    assert badge in newly_earned(there, [])


def test_a_badge_is_given_once() -> None:
    assert newly_earned(Progress(), []) == []
    everything = Progress(best_streak=99, exercises_done=99, seconds_watched=9999)
    first = newly_earned(everything, [])
    assert first == [badge.slug for badge in BADGES]
    assert newly_earned(everything, first) == []
    assert newly_earned(everything, first[1:]) == first[:1]


def test_each_question_can_be_answered() -> None:
    for exercise in catalogue.EXERCISES:
        for question in exercise.questions:
            assert 0 <= question.right < len(question.choices)
            assert len(set(question.choices)) == len(question.choices)
            assert question.why
        right = [question.right for question in exercise.questions]
        assert all(exercise.mark(right))
        assert not any(exercise.mark([None] * len(right)))
    with pytest.raises(Unknown, match="no video 'primes'"):
        catalogue.video("primes")


IDS = ["", " ", "Ada", "-a", "a-", "a b", "a/b", "ada\n", "é", "٣", "x" * 41, "__x__", None, 7]
NAMES = ["", "   ", None, 5, ["x"], "x" * 81, "a\x00b", "a\ud800"]
NUMBERS: list[object] = [
    *(0, -1, 181, 1.5, float("nan"), True, None, "", "ten", "1e2", "-3", "٣", "9" * 5000, [9], {}),
]


def test_names_and_numbers_that_are_refused() -> None:
    def refused(check: Any, message: str, *bad: object) -> None:
        for each in bad:
            with pytest.raises(BadInput, match=message):
                check(each)

    refused(validation.learner_id, "small letters", *IDS)
    refused(validation.name, "name", *NAMES)
    refused(
        lambda bad: validation.number("points", bad, least=1, most=180),
        "points: a whole number from 1 to 180",
        *NUMBERS,
    )
