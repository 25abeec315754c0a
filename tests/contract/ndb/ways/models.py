"""Models of every shape that an entity's class can have. All are locked by the key's name."""

from __future__ import annotations

from google.cloud import ndb
from google.cloud.ndb import polymodel

import userlock


class Person(userlock.UserModel):
    """The model that most ways read and write."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "WaysPerson"


class Being(userlock.UserModel, polymodel.PolyModel):
    """The root of a hierarchy: all of one kind."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)


class Pupil(Being):
    """Stored as a `Being`, and comes back as a `Pupil`."""


class Open(userlock.UserModel, ndb.Expando):
    """Properties as they come, beside those that it declares."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)


class _WithSlots:
    __slots__ = ("note",)


class Slotted(_WithSlots, userlock.UserModel):
    """Has a slot, too."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)


class Answering(userlock.UserModel):
    """Looks missing attributes up somewhere else."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)

    def __getattr__(self, name: str) -> int:
        return {"score": int(self.points)}[name]


class Home(ndb.Model):
    """A value within other entities."""

    street = ndb.StringProperty()
    town = ndb.StringProperty()


class Household(userlock.UserModel):
    """Entities within an entity, and a key."""

    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty()
    points = ndb.IntegerProperty(default=0)
    homes = ndb.StructuredProperty(Home, repeated=True)
    head = ndb.StructuredProperty(Person)
    guest = ndb.LocalStructuredProperty(Person)
    kept = ndb.LocalStructuredProperty(Person, keep_keys=True)
    friend = ndb.KeyProperty(kind=Person)
