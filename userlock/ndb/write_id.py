"""A mark by which a write is recognised when the reply to its commit was lost."""

from __future__ import annotations

import secrets
from typing import Any

from google.cloud import ndb

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

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name, indexed=False)

    def __set_name__(self, owner: Any, name: str) -> None:
        owner._userlock_mark = self.new_mark
        self._attribute = name

    def new_mark(self, entity: Any) -> tuple[str, int]:
        """Return the name and the value that the put of an entity carries, and set the value."""
        value = secrets.randbits(_BITS)
        setattr(entity, self._attribute, value)
        return self._name, value
