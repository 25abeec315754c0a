"""The entities of the trial: counters that say which write was their last, and single entries."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

import userlock
from tests.trial.record import Stored


class Counter(userlock.UserModel):
    """Below its user. Each write says which it is."""

    _lock_id_from_key = userlock.root_id

    count = ndb.IntegerProperty(default=0)
    last = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialCounter"


class MarkedCounter(Counter):
    """The same, and its writes are recognised after a lost reply."""

    write_id = userlock.WriteIdProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialMarkedCounter"


class Entry(userlock.UserModel):
    """Created under an automatic id, and never changed."""

    _lock_id_from_key = userlock.root_id

    write = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialEntry"


def user_key(user: str) -> Any:
    """The key that all of a user's entities are below."""
    return ndb.Key("TrialUser", user)


def model_of(entity: str) -> type[Counter]:
    """The class of "user/counter"."""
    return MarkedCounter if entity.partition("/")[2].startswith("m") else Counter


def key_of(entity: str) -> Any:
    """The key of "user/counter"."""
    user, _, name = entity.partition("/")
    return ndb.Key(model_of(entity), name, parent=user_key(user))


def stored_counters() -> dict[str, Stored]:
    """All counters as they are in Datastore now, by name."""
    found: dict[str, Stored] = {}
    for model in (Counter, MarkedCounter):
        for each in model.query().fetch():
            name = f"{each.key.root().id()}/{each.key.id()}"
            found[name] = Stored(last=each.last, count=each.count)
    return found


def stored_entries() -> list[str]:
    """The writes of all entries as they are in Datastore now."""
    return [each.write for each in Entry.query().fetch()]
