"""Demo learners and their coaches, so that a fresh site is not empty."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import userlock
from sample_app import catalogue
from sample_app.catalogue.things import POINTS_PER_PART
from sample_app.models import Coach, ExerciseLog, Learner, VideoLog, Viewing


@dataclass(frozen=True)
class _Demo:
    """A demo learner with a past: so many days in a row up to `days_ago`, one exercise a day."""

    id: str
    name: str
    streak: int
    days_ago: int
    watched: tuple[tuple[str, int], ...] = ()  # videos, and how many of their parts


_DEMOS = (
    _Demo("ada", "Ada Lindqvist", streak=6, days_ago=1, watched=(("tides", 4), ("seasons", 4))),
    _Demo("bruno", "Bruno Okafor", streak=2, days_ago=1, watched=(("sundials", 3),)),
    _Demo("chen", "Chen Mei", streak=9, days_ago=4, watched=(("calendars", 2),)),
    _Demo("dalia", "Dalia Haddad", streak=0, days_ago=0),
)

#: Two groups that share some learners.
_COACHES = {
    "coach:mira": ("Mira Solberg", ("ada", "bruno", "chen")),
    "coach:tomas": ("Tomás Rivera", ("dalia", "chen", "bruno")),
}
#: The points that each coach may give away.
BONUS = 500


def demo_learners(today: datetime.date) -> list[str]:
    """Add the missing demo learners, each under its lock, and return their ids.

    A repeated call, also from two processes at once, adds nothing twice.
    """
    created = []
    for demo in _DEMOS:
        with userlock.global_lock(demo.id, wait_timeout=5):
            if Learner.get_by_id(demo.id) is None:
                _add(demo, today)
                created.append(demo.id)
    return created


def demo_coaches() -> list[str]:
    """Add the missing demo coaches, each under its lock, and return their ids."""
    created = []
    for coach_id, (name, learner_ids) in _COACHES.items():
        with userlock.global_lock(coach_id, wait_timeout=5):
            if Coach.get_by_id(coach_id) is None:
                Coach(id=coach_id, name=name, bonus_left=BONUS, learner_ids=list(learner_ids)).put()
                created.append(coach_id)
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
    for index, (slug, parts_done) in enumerate(demo.watched):
        began = datetime.datetime.combine(last_day, datetime.time(17, 5 + 20 * index))
        learner.viewings.append(Viewing(video=slug, parts_done=parts_done, part_began=began))
        for number, part in enumerate(catalogue.video(slug).parts[:parts_done]):
            learner.seconds_watched += part.seconds
            learner.earn(POINTS_PER_PART, last_day)
            logs.append(
                VideoLog(
                    learner_id=demo.id,
                    video=slug,
                    seconds=part.seconds,
                    points=POINTS_PER_PART,
                    at=began + datetime.timedelta(minutes=number + 1),
                )
            )
    learner.put()
    for log in logs:
        log.put()
