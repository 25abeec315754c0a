"""Read stamps: where an entity object comes from, and what its reader held.

Reading is free: every entity that comes out of Datastore gets a stamp that
says what its reader held when he asked for it, and nothing is checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from userlock.lock.scope import current_scope
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.enforcement import NO_LOCKS, current_settings
from userlock.ndb.places import Place, here

#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
sequence = itertools.count(1)


class Origin(NamedTuple):
    """What the reader held when he asked, and when that was."""

    held: Mapping[str, Tenure]
    transaction: bytes | None
    order: int


#: Of what was not asked of Datastore.
NOTHING_HELD = Origin(NO_LOCKS, None, 0)

#: The version of an entity that was deleted through an object that is still around.
DELETED = -1


class Stamp:
    """What is remembered about an entity object since it was read or last put.

    Attributes:
        key: the key it was read or put under; None for a key that Datastore allocated, until
            it is first seen.
        held: the locks its reader held, as the scope had them at that moment.
        lock_id: its lock id then, as the application has it; None when it is not known, or
            nothing was held, or the key says it.
        version: the entity's version in Datastore; 0 when it is not known, or `DELETED`.
        transaction: the transaction it was read in, if any.
        place: where in the code it was read, if that is captured.
        order: when it was asked for or put, in the process-wide order of reads and puts.
    """

    __slots__ = ("held", "key", "lock_id", "order", "place", "transaction", "version")

    def __init__(
        self,
        key: Any,
        held: Mapping[str, Tenure],
        version: int,
        transaction: bytes | None = None,
        place: Place | None = None,
        lock_id: object = None,
        order: int | None = None,
    ) -> None:
        self.key = key
        self.held = held
        self.lock_id = lock_id
        self.version = version
        self.transaction = transaction
        self.place = place
        self.order = next(sequence) if order is None else order

    def is_for(self, key: Any) -> bool:
        """Whether this is about the entity of that key: an object's key can be changed."""
        if self.key is None:
            if not hooks.is_complete(key):
                return False
            self.key = key
        return self.key is key or self.key == key


def origin() -> Origin:
    """What the running code holds, now."""
    scope = current_scope()
    held = NO_LOCKS if scope is None else scope.held
    return Origin(held, hooks.current_transaction(), next(sequence))


def place_of_read() -> Place | None:
    """Where the application's code is, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


def stamp_of_read(entity: Any, version: int, asked: Origin, place: Place | None) -> Stamp:
    """The stamp for an entity object that is being made.

    Args:
        entity: the entity object.
        version: its version, 0 when it is not known.
        asked: what was held when Datastore was asked for it.
        place: where it was asked for, if that is known.
    """
    held, transaction, order = asked
    lock_id = None
    rule = entity._userlock_rule
    if held and rule is not None and not rule.by_key:
        try:
            lock_id = rule.read(entity)
        except Exception:
            lock_id = None  # a projection without it, or a method that fails: its put reports that
    return Stamp(hooks.key_of(entity), held, version, transaction, place, lock_id, order)


def stamp_of(entity: Any) -> Stamp | None:
    """The stamp of an entity object, if it is still about the entity that its key names."""
    stamp: Stamp | None = entity._userlock_stamp
    if stamp is None or not stamp.is_for(hooks.key_of(entity)):
        return None
    return stamp
