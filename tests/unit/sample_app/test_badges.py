"""Test the rules of badges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sample_app.badges import BADGES, newly_earned


@dataclass
class Progress:
    best_streak: int = 0
    exercises_done: int = 0
    seconds_watched: int = 0


def test_a_beginner_has_earned_nothing() -> None:
    assert newly_earned(Progress(), []) == []


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
    everything = Progress(best_streak=99, exercises_done=99, seconds_watched=9999)
    first = newly_earned(everything, [])
    assert first == [badge.slug for badge in BADGES]
    assert newly_earned(everything, first) == []
    assert newly_earned(everything, first[1:]) == first[:1]
