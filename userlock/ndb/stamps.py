"""Read stamps: where an entity object comes from, and what its reader held.

Reading is free: every entity that comes out of Datastore gets a stamp that
says what its reader held at that moment, and nothing is checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from userlock.lock.scope import current_scope, defaults
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.places import Place, here

_NOTHING: Mapping[str, Tenure] = {}
#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
sequence = itertools.count(1)


class Origin(NamedTuple):
    """What the reader of an answer held when it arrived."""

    held: Mapping[str, Tenure]
    transaction: bytes | None


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
        order: when, in the process-wide order of reads and puts.
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
    ) -> None:
        self.key = key
        self.held = held
        self.lock_id = lock_id
        self.version = version
        self.transaction = transaction
        self.place = place
        self.order = next(sequence)

    def is_for(self, key: Any) -> bool:
        """Whether this is about the entity of that key: an object's key can be changed."""
        if self.key is None:
            self.key = key
        return self.key is key or self.key == key


def origin() -> Origin:
    """What the running code holds."""
    scope = current_scope()
    return Origin(_NOTHING if scope is None else scope.held, hooks.current_transaction())


def stamp_of_read(entity: Any, version: int, seen: Origin | None) -> Stamp:
    """The stamp for an entity object that is being made.

    Args:
        entity: the entity object.
        version: its version, 0 when it is not known.
        seen: what was held when the answer arrived, if that was before now.
    """
    scope = current_scope()
    settings = defaults.settings if scope is None else scope.settings
    place = here() if settings.capture_places else None
    if seen is not None:
        held, transaction = seen
    else:
        held = _NOTHING if scope is None else scope.held
        transaction = hooks.current_transaction()
    return Stamp(entity._key, held, version, transaction, place, _lock_id_of(entity, held))


def _lock_id_of(entity: Any, held: Mapping[str, Tenure]) -> object:
    """The lock id of an entity that was just read: to see at its put that it has changed."""
    rule = entity._userlock_rule
    if not held or rule is None or rule.by_key:
        return None
    try:
        found: object = rule.read(entity)
    except Exception:
        return None  # a projection without it, or a method that fails: for the put to report
    return found


def stamp_of(entity: Any) -> Stamp | None:
    """The stamp of an entity object, if it is still about the entity that its key names."""
    stamp: Stamp | None = entity._userlock_stamp
    if stamp is None or not stamp.is_for(entity._key):
        return None
    return stamp
