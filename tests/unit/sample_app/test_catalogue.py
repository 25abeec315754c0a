"""Test the catalogue."""

from __future__ import annotations

import pytest

from sample_app import catalogue
from sample_app.catalogue.things import WORDS_PER_MINUTE
from sample_app.errors import Unknown


def test_things_are_found_by_their_names() -> None:
    assert catalogue.exercise("primes").points == 15
    assert catalogue.course("sky").price == 90
    with pytest.raises(Unknown, match="no video 'primes'"):
        catalogue.video("primes")


@pytest.mark.parametrize("video", catalogue.VIDEOS, ids=lambda each: str(each.slug))
def test_the_reading_time_is_measured_by_the_words(video: catalogue.Video) -> None:
    for part in video.parts:
        words = len(part.text.split())
        assert part.seconds * WORDS_PER_MINUTE / 60 == pytest.approx(words, abs=4)
        assert 0 < part.least_seconds < part.seconds
    assert video.seconds == sum(part.seconds for part in video.parts)


@pytest.mark.parametrize("exercise", catalogue.EXERCISES, ids=lambda each: str(each.slug))
def test_each_question_can_be_answered(exercise: catalogue.Exercise) -> None:
    for question in exercise.questions:
        assert 0 <= question.right < len(question.choices)
        assert len(set(question.choices)) == len(question.choices)
        assert question.why
    right = [question.right for question in exercise.questions]
    assert all(exercise.mark(right))
    assert not any(exercise.mark([None] * len(right)))


def test_all_videos_together_earn_the_badge() -> None:
    assert sum(video.seconds for video in catalogue.VIDEOS) >= 180
