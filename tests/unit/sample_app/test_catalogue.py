"""Test the catalogue."""

from __future__ import annotations

import pytest

from sample_app import catalogue
from sample_app.errors import Unknown


def test_things_are_found_by_their_names() -> None:
    assert catalogue.exercise("primes").points == 15
    assert catalogue.course("sky").price == 90
    with pytest.raises(Unknown, match="no video 'primes'"):
        catalogue.video("primes")


@pytest.mark.parametrize("exercise", catalogue.EXERCISES, ids=lambda each: str(each.slug))
def test_each_question_can_be_answered(exercise: catalogue.Exercise) -> None:
    for question in exercise.questions:
        assert 0 <= question.right < len(question.choices)
        assert len(set(question.choices)) == len(question.choices)
        assert question.why
    right = [question.right for question in exercise.questions]
    assert all(exercise.mark(right))
    assert not any(exercise.mark([None] * len(right)))
