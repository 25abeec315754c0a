"""What learners do. Each action is get, modify, put, under the learner's lock.

This is the part to copy into an application. What each function promises:

* Two requests that change one learner run one after the other, however many
  processes serve them, and a batch job waits behind a person.
* If the lock fails (memcached restarted, a lease ran out), a write that would
  undo somebody else's is refused by Datastore and raises
  `userlock.StaleWriteError`. The learner is put before the log for that reason:
  a refused action leaves no trace.
* `finish_exercise` and `watch_video` are not transactions: a process that dies
  between the two puts leaves points without a log line. `award_certificate`
  must not take points without giving the certificate, so it is one.
"""

from __future__ import annotations

import datetime

from google.cloud import ndb

import userlock
from sample_app import catalogue
from sample_app.demonstration import think
from sample_app.errors import LearnerExists, NotEnoughPoints, Unknown
from sample_app.models import Certificate, ExerciseLog, Learner, VideoLog


def find_learner(learner_id: str) -> Learner:
    """The learner with this id, or `Unknown`. Reading needs no lock."""
    learner: Learner | None = Learner.get_by_id(learner_id)
    if learner is None:
        raise Unknown("learner", learner_id)
    return learner


def create_learner(learner_id: str, name: str) -> Learner:
    """Add a learner; an id that is taken raises `LearnerExists`."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        if Learner.get_by_id(learner_id):
            raise LearnerExists(learner_id)
        learner = Learner(id=learner_id, name=name)
        learner.put()
    return learner


def finish_exercise(
    learner_id: str, exercise: catalogue.Exercise, today: datetime.date
) -> tuple[Learner, int]:
    """Points, the streak and a line in the log. Returns the learner and the points earned."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        think()
        learner.exercises_done += 1
        learner.earn(exercise.points, today)
        learner.put()
        ExerciseLog(learner_id=learner_id, exercise=exercise.slug, points=exercise.points).put()
    return learner, exercise.points


def watch_video(
    learner_id: str, video: catalogue.Video, seconds: int, today: datetime.date
) -> tuple[Learner, int]:
    """Seconds, points, the streak and a line in the log. Returns the learner and the points."""
    points = video.points_for(seconds)
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        think()
        learner.seconds_watched += seconds
        learner.earn(points, today)
        learner.put()
        VideoLog(learner_id=learner_id, video=video.slug, seconds=seconds, points=points).put()
    return learner, points


def award_certificate(learner_id: str, course: catalogue.Course) -> tuple[Learner, bool]:
    """Spend points on a certificate: both happen or neither.

    Takes the lock and is a transaction, in this order. The other way round
    works too, but a transaction may read the state of its beginning, and what
    it waits for the lock then makes its read stale and its commit fail.

    Asking again gives the certificate that is there and costs nothing: the
    second value says whether it is new.
    """

    def spend() -> tuple[Learner, bool]:
        learner = find_learner(learner_id)
        key = Certificate.key_of(learner_id, course.slug)
        if key.get():
            return learner, False
        think()
        if learner.points < course.price:
            raise NotEnoughPoints(price=course.price, points=learner.points)
        learner.points -= course.price
        certificate = Certificate(
            key=key, learner_id=learner_id, course=course.slug, price=course.price
        )
        ndb.put_multi([learner, certificate])
        return learner, True

    with userlock.global_lock(learner_id, wait_timeout=5):
        awarded: tuple[Learner, bool] = ndb.transaction(spend)
        return awarded
