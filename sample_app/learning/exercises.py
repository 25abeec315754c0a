"""Exercises, answered here or done elsewhere."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import userlock
from sample_app import catalogue, demonstration
from sample_app.learning.learners import find_learner
from sample_app.models import ExerciseLog, Learner


@dataclass(frozen=True)
class Marked:
    """The right answers, and the points for them: none the second time on a day."""

    right: tuple[bool, ...]
    points: int = 0

    @property
    def all_right(self) -> bool:
        """Return whether the exercise is finished."""
        return all(self.right)


def answer_exercise(
    learner_id: str,
    exercise: catalogue.Exercise,
    answers: Sequence[int | None],
    today: datetime.date,
) -> Marked:
    """Award points, the streak and a log entry, once a day, if all answers are right."""
    marked = Marked(exercise.mark(answers))
    if not marked.all_right:  # Nothing is written, so nothing is locked.
        return marked
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        demonstration.think()
        if learner.has_done(exercise.slug, today):
            return marked
        learner.note_done(exercise.slug, today)
        _count(learner, exercise, today)
    return Marked(marked.right, exercise.points)


def finish_exercise(
    learner_id: str, exercise: catalogue.Exercise, today: datetime.date
) -> tuple[Learner, int]:
    """Count a round that was done elsewhere, for example on paper; each one counts.

    Returns the learner and the points earned.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        demonstration.think()
        _count(learner, exercise, today)
    return learner, exercise.points


def _count(learner: Learner, exercise: catalogue.Exercise, today: datetime.date) -> None:
    """Add the points, under the learner's lock, to the learner as read under it."""
    learner.exercises_done += 1
    learner.earn(exercise.points, today)
    learner.put()
    ExerciseLog(learner_id=learner.id, exercise=exercise.slug, points=exercise.points).put()
