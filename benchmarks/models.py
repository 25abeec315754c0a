"""The same ten-property model twice: one of ndb alone, one of userlock."""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model as ndb_model

import userlock

LOCK_ID = "learner-1"


class _Learner:
    """A typical mix of property types."""

    name = ndb.StringProperty()
    user_id = ndb.StringProperty()
    points = ndb.IntegerProperty()
    streak = ndb.IntegerProperty()
    seconds_watched = ndb.FloatProperty()
    joined = ndb.DateTimeProperty()
    active = ndb.BooleanProperty()
    about = ndb.TextProperty()
    badges = ndb.StringProperty(repeated=True)
    level = ndb.IntegerProperty(indexed=False)


class PlainLearner(_Learner, ndb.Model):
    """The model on plain ndb."""


class LockedLearner(_Learner, userlock.UserModel):
    """The model on userlock."""

    _lock_id = "user_id"


def message(model: Any, key_id: str) -> bytes:
    """Return an entity of `model` as it comes over the wire. Needs an ndb context."""
    entity = model(
        id=key_id,
        name="Ada Lovelace",
        user_id=LOCK_ID,
        points=1815,
        streak=12,
        seconds_watched=36_000.5,
        joined=datetime.datetime(2016, 12, 10, 9, 30),  # noqa: DTZ001 (ndb wants it naive)
        active=True,
        about="Wrote the first program, for a machine that was never built. " * 4,
        badges=["early bird", "night owl", "polyglot"],
        level=7,
    )
    protobuf: bytes = ndb_model._entity_to_protobuf(entity)._pb.SerializeToString()
    return protobuf
