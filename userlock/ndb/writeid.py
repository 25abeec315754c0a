"""A mark by which a write is recognised when the reply to its commit was lost."""

from __future__ import annotations

import secrets
from typing import Any

from google.cloud import ndb

from userlock.ndb import hooks

_BITS = 62  # an integer in Datastore has 63, and a sign


class WriteIdProperty(ndb.IntegerProperty):
    """A number that each put of an entity makes anew, and that no other put makes.

        class Learner(userlock.UserModel):
            _lock_id_from_key = userlock.key_id
            write_id = userlock.WriteIdProperty()

    When the reply to a commit is lost, nobody can tell from the content alone
    whether what is found is this write or that of somebody who wrote the same:
    two requests that each add five points to what both have read. With a mark
    it is certain: a put that has landed is then reported as landed, and a
    transaction that was applied is not run again. Not so for a new entity that
    is put under an automatic id outside of transactions: nobody knows the key
    by which to look, so that is `CommitInDoubt`.

    Not indexed. Costs its name and eight bytes in each entity. Its value is
    set by the put; do not set it yourself.
    """

    _indexed = False

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def _prepare_for_put(self, entity: Any) -> None:
        self._store_value(entity, secrets.randbits(_BITS))


def mark_of(cls: type[ndb.Model]) -> str | None:
    """The name under which entities of a model store their mark, if they have one."""
    try:
        found: str | None = cls.__dict__["_userlock_mark"]
    except KeyError:
        properties = hooks.properties_of(cls)
        marks = [each._name for each in properties if isinstance(each, WriteIdProperty)]
        found = cls._userlock_mark = marks[0] if marks else None
    return found
