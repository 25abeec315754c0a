"""Models for the tests of the model layer.

ndb knows one class per kind in a process, and the sample app has a `Learner`
of its own, so these have kinds of their own.
"""

from __future__ import annotations

from google.cloud import ndb

import userlock


class Learner(userlock.UserModel):
    """Locked by its own key's name."""

    _lock_id_from_key = userlock.key_id

    points = ndb.IntegerProperty(default=0)
    name = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedLearner"


class Marked(Learner):
    """A model whose writes are recognised by their write ids."""

    write_id = userlock.WriteIdProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedMarked"


class VideoLog(userlock.UserModel):
    """Locked by the value of a property."""

    _lock_id = "learner_id"

    learner_id = ndb.StringProperty(required=True)
    seconds = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedVideoLog"


class Note(userlock.UserModel):
    """Below the learner; locked by the result of a method, and by the root of a bare key."""

    _lock_id_from_key = userlock.root_id

    text = ndb.StringProperty()

    def _lock_id(self) -> str:
        return str(self.key.root().id())


class Plain(ndb.Model):
    """Not a model of the library: nothing is checked."""

    number = ndb.IntegerProperty(default=0)
