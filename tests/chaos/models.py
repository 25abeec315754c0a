"""The entities of the trial: counters that say which write was their last, and single entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from google.cloud import ndb

import userlock
from tests.chaos.record import Stored


class Counter(userlock.UserModel):
    """Below its user. Each write says which it is."""

    _lock_id_from_key = userlock.root_id
    _before_put: Callable[[], None] | None = None

    count = ndb.IntegerProperty(default=0)
    last = ndb.StringProperty()

    def before_next_put(self, action: Callable[[], None]) -> None:
        """Do it in the hook of the next put, and only of that one."""
        self._before_put = action

    def _pre_put_hook(self) -> None:
        action, self._before_put = self._before_put, None
        if action is not None:
            action()

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
    """The key of "user/counter", or of a child of one, "user/counter.child"."""
    user, _, names = entity.partition("/")
    key = user_key(user)
    for name in names.split("."):
        key = ndb.Key(model_of(entity), name, parent=key)
    return key


def name_of(key: Any) -> str:
    """The name that has this key."""
    return f"{key.root().id()}/{'.'.join(key.flat()[3::2])}"


def child_of(entity: str) -> str:
    """The child that a counter may have."""
    return f"{entity}.child"


def other_name_of(entity: str) -> str:
    """Return the name that a counter may be renamed to."""
    return f"{entity}-other"


def stored_counters() -> dict[str, Stored]:
    """All counters as they are in Datastore now, by name."""
    return {
        name_of(each.key): Stored(last=each.last, count=each.count)
        for each in itertools.chain(Counter.query(), MarkedCounter.query())
    }


def stored_entries() -> list[str]:
    """The writes of all entries as they are in Datastore now."""
    return [each.write for each in Entry.query().fetch()]
