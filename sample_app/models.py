"""The entities. All entities of one learner are under one lock: the learner's id.

A coach's entities are under the coach's id. The nightly job's record has its own lock.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

import userlock
from sample_app import streaks
from userlock.constraints import Unique, caseless, image_name


class Viewing(userlock.Model):
    """A learner's progress in a video, stored within the learner: both change in one put."""

    _write_policy = userlock.WritePolicy.STRUCTURED_ONLY

    video = ndb.StringProperty(required=True)
    parts_done = ndb.IntegerProperty(default=0)
    part_began = ndb.DateTimeProperty(required=True)


class Learner(userlock.UserModel):
    """One person. The key's name is the learner's id and the lock id."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty(required=True)
    points = ndb.IntegerProperty(default=0)
    streak = ndb.IntegerProperty(default=0)
    best_streak = ndb.IntegerProperty(default=0)
    last_active = ndb.DateProperty()
    exercises_done = ndb.IntegerProperty(default=0)
    done_on = ndb.DateProperty()
    done_that_day = ndb.StringProperty(repeated=True)
    seconds_watched = ndb.IntegerProperty(default=0)
    viewings = ndb.LocalStructuredProperty(Viewing, repeated=True)
    badges = ndb.StringProperty(repeated=True)
    courses = ndb.StringProperty(repeated=True)
    plan = ndb.StringProperty(choices=["free", "plus"], default="free")
    created = ndb.DateTimeProperty(auto_now_add=True)

    @property
    def id(self) -> str:
        """Return the learner's id."""
        return str(self.key.id())

    def earn(self, points: int, today: datetime.date) -> None:
        """Add points for an activity today and extend the streak."""
        self.points += points
        self.streak, self.last_active = streaks.after_activity(self.streak, self.last_active, today)
        self.best_streak = max(self.best_streak, self.streak)

    def has_done(self, exercise: str, today: datetime.date) -> bool:
        """Return whether this exercise was finished today."""
        return self.done_on == today and exercise in self.done_that_day

    def note_done(self, exercise: str, today: datetime.date) -> None:
        """Record that this exercise is finished for today."""
        if self.done_on != today:
            self.done_on, self.done_that_day = today, []
        self.done_that_day.append(exercise)

    def viewing(self, video: str) -> Viewing | None:
        """Return this learner's progress in a video; None: not begun."""
        for viewing in self.viewings:
            if viewing.video == video:
                found: Viewing = viewing
                return found
        return None

    def as_json(self, today: datetime.date) -> dict[str, Any]:
        """Return a learner as the API shows it."""
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
    """A finished exercise."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    exercise = ndb.StringProperty(required=True)
    points = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)


class VideoLog(userlock.UserModel):
    """A watched part of a video."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    video = ndb.StringProperty(required=True)
    seconds = ndb.IntegerProperty(required=True)
    points = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)


class Certificate(userlock.UserModel):
    """A certificate, paid for with points; at most one per learner and course.

    Its key consists of both ids, so that a second payment finds the first.
    """

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    course = ndb.StringProperty(required=True)
    price = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)

    @classmethod
    def key_of(cls, learner_id: str, course: str) -> ndb.Key:
        """Return the key of this learner's certificate of this course."""
        return ndb.Key(cls, f"{learner_id}:{course}")


class CourseOrder(userlock.UserModel):
    """An order of a paid course. Its key is below the learner's.

    `request` is the key of the request that made it: sent again, it completes the order.
    """

    _lock_id_from_key = userlock.root_id

    course = ndb.StringProperty(required=True)
    cents = ndb.IntegerProperty(required=True)
    request = ndb.TextProperty(required=True)
    state = ndb.StringProperty(choices=["open", "paid", "declined"], default="open")
    charge = ndb.TextProperty()
    at = ndb.DateTimeProperty(auto_now_add=True)


class Project(userlock.UserModel):
    """A learner's project. Its key is below the learner's, which determines the lock id.

    A project can therefore be deleted by its key alone, and a query for a learner's projects sees
    the latest state. A learner has one active project of a title, and any number in the archive.
    """

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", fold=caseless, unless=lambda project: not project.active),)

    title = ndb.StringProperty(required=True)
    active = ndb.BooleanProperty(default=True)
    #: Above the limit of the learner's plan: a job finds that out, soon after a change.
    over_quota = ndb.BooleanProperty(default=False)
    created = ndb.DateTimeProperty(auto_now_add=True)

    @property
    def id(self) -> int:
        """Return the project's number, unique among its learner's."""
        return int(self.key.id())


class Screen(userlock.UserModel):
    """A picture of a project, in its latest version. Its key is below the project's.

    `home.png`, `home.jpg` and `home@2x.png` are one screen, `home`: a project has it once, and any
    number of it in the archive.
    """

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("base", per="parent", unless="archived"),)

    file_name = ndb.StringProperty(required=True)
    base = ndb.ComputedProperty(lambda screen: image_name(screen.file_name))
    archived = ndb.BooleanProperty(default=False)
    latest = ndb.IntegerProperty(default=0)
    changed = ndb.DateTimeProperty(auto_now=True)

    @property
    def id(self) -> int:
        """Return the screen's number, unique within its project."""
        return int(self.key.id())


class ScreenVersion(userlock.UserModel):
    """One upload of a screen. Never changed; its file in the storage has a name of its own."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    screen = ndb.KeyProperty(required=True)
    number = ndb.IntegerProperty(required=True)
    file = ndb.StringProperty(required=True)
    file_name = ndb.StringProperty(required=True)
    content_type = ndb.StringProperty(required=True)
    width = ndb.IntegerProperty(required=True)
    height = ndb.IntegerProperty(required=True)
    size = ndb.IntegerProperty(required=True)
    at = ndb.DateTimeProperty(auto_now_add=True)


class Coach(userlock.UserModel):
    """A coach of a group of learners, with points to give away."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty(required=True)
    bonus_left = ndb.IntegerProperty(default=0)
    learner_ids = ndb.StringProperty(repeated=True)

    @property
    def id(self) -> str:
        """Return the coach's id: `coach:` and a name, so that it differs from any learner's."""
        return str(self.key.id())


class Bonus(userlock.UserModel):
    """Points that a coach gave a learner."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    coach = ndb.StringProperty(required=True)
    points = ndb.IntegerProperty(required=True)
    word = ndb.StringProperty(default="")
    at = ndb.DateTimeProperty(auto_now_add=True)


class Mail(userlock.UserModel):
    """A mail that has arrived."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    subject = ndb.TextProperty(required=True)
    text = ndb.TextProperty(default="")
    at = ndb.DateTimeProperty(auto_now_add=True)


class PostOffice(userlock.UserModel):
    """The site's post office. There is one entity."""

    _lock_id_from_key = userlock.key_id

    is_open = ndb.BooleanProperty(default=True, indexed=False)


class NightlyRun(userlock.UserModel):
    """The current or last run of the nightly job. There is one entity."""

    _lock_id_from_key = userlock.key_id

    began = ndb.DateTimeProperty(required=True)
    over = ndb.BooleanProperty(default=False)
    after = ndb.TextProperty(default="")
    learners = ndb.IntegerProperty(default=0, indexed=False)
    done = ndb.IntegerProperty(default=0, indexed=False)
    badges_awarded = ndb.IntegerProperty(default=0, indexed=False)
    skipped = ndb.IntegerProperty(default=0, indexed=False)
    longest_wait_ms = ndb.FloatProperty(default=0.0, indexed=False)
    mean_wait_ms = ndb.FloatProperty(default=0.0, indexed=False)
    longest_hold_ms = ndb.FloatProperty(default=0.0, indexed=False)
    seconds = ndb.FloatProperty(default=0.0, indexed=False)
