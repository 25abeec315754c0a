"""What is kept of a learner. Everything of one learner is under one lock: the learner's id."""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

import userlock
from sample_app import streaks


class Learner(userlock.UserModel):
    """One person. The key's name is the learner's id, and the lock id with it."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty(required=True)
    points = ndb.IntegerProperty(default=0)
    streak = ndb.IntegerProperty(default=0)
    best_streak = ndb.IntegerProperty(default=0)
    last_active = ndb.DateProperty()
    exercises_done = ndb.IntegerProperty(default=0)
    seconds_watched = ndb.IntegerProperty(default=0)
    badges = ndb.StringProperty(repeated=True)
    created = ndb.DateTimeProperty(auto_now_add=True)

    @property
    def id(self) -> str:
        """The learner's id."""
        return str(self.key.id())

    def earn(self, points: int, today: datetime.date) -> None:
        """Add points for something learned today; keeps the streak going."""
        self.points += points
        self.streak, self.last_active = streaks.after_activity(self.streak, self.last_active, today)
        self.best_streak = max(self.best_streak, self.streak)

    def as_json(self, today: datetime.date) -> dict[str, Any]:
        """What the API tells about a learner."""
        return {
            "id": self.id,
            "name": self.name,
            "points": self.points,
            "streak": streaks.as_of(self.streak, self.last_active, today),
            "best_streak": self.best_streak,
            "last_active": self.last_active.isoformat() if self.last_active else None,
            "exercises_done": self.exercises_done,
            "seconds_watched": self.seconds_watched,
            "badges": list(self.badges),
        }


class ExerciseLog(userlock.UserModel):
    """An exercise that somebody finished."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    exercise = ndb.StringProperty(required=True)
    points = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)


class VideoLog(userlock.UserModel):
    """A stretch of a video that somebody watched."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    video = ndb.StringProperty(required=True)
    seconds = ndb.IntegerProperty(required=True)
    points = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)


class Certificate(userlock.UserModel):
    """A certificate that was paid for with points; at most one per learner and course.

    Its key is made of both ids, so that paying twice finds the first.
    """

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    course = ndb.StringProperty(required=True)
    price = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)

    @classmethod
    def key_of(cls, learner_id: str, course: str) -> ndb.Key:
        """The key of this learner's certificate of this course."""
        return ndb.Key(cls, f"{learner_id}:{course}")
