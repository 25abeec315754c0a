"""Demo learners, so that a fresh site is not empty."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import userlock
from sample_app import catalogue
from sample_app.models import ExerciseLog, Learner, VideoLog


@dataclass(frozen=True)
class _Demo:
    """Somebody with a past: so many days in a row up to `days_ago`, one exercise a day."""

    id: str
    name: str
    streak: int
    days_ago: int
    watched: tuple[tuple[str, int], ...] = ()


_DEMOS = (
    _Demo("ada", "Ada Lindqvist", streak=6, days_ago=1, watched=(("tides", 245), ("seasons", 420))),
    _Demo("bruno", "Bruno Okafor", streak=2, days_ago=0, watched=(("sundials", 180),)),
    _Demo("chen", "Chen Mei", streak=9, days_ago=4, watched=(("calendars", 360),)),
    _Demo("dalia", "Dalia Haddad", streak=0, days_ago=0),
)


def demo_learners(today: datetime.date) -> list[str]:
    """Add the demo learners that are missing, each under its lock; returns their ids.

    Calling it again, also from two processes at once, adds nothing twice.
    """
    created = []
    for demo in _DEMOS:
        with userlock.global_lock(demo.id, wait_timeout=5):
            if Learner.get_by_id(demo.id) is None:
                _add(demo, today)
                created.append(demo.id)
    return created


def _add(demo: _Demo, today: datetime.date) -> None:
    learner = Learner(id=demo.id, name=demo.name)
    logs: list[ExerciseLog | VideoLog] = []
    last_day = today - datetime.timedelta(days=demo.days_ago)
    for index in range(demo.streak):
        day = last_day - datetime.timedelta(days=demo.streak - 1 - index)
        exercise = catalogue.EXERCISES[index % len(catalogue.EXERCISES)]
        learner.exercises_done += 1
        learner.earn(exercise.points, day)
        logs.append(
            ExerciseLog(
                learner_id=demo.id,
                exercise=exercise.slug,
                points=exercise.points,
                at=datetime.datetime.combine(day, datetime.time(16, 10 + index)),
            )
        )
    for index, (slug, seconds) in enumerate(demo.watched):
        points = catalogue.video(slug).points_for(seconds)
        learner.seconds_watched += seconds
        learner.earn(points, last_day)
        logs.append(
            VideoLog(
                learner_id=demo.id,
                video=slug,
                seconds=seconds,
                points=points,
                at=datetime.datetime.combine(last_day, datetime.time(17, 5 + 20 * index)),
            )
        )
    learner.put()
    for log in logs:
        log.put()
