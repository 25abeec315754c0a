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
from userlock.ndb.lockids import LockRule
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


class Stamp(NamedTuple):
    """What is remembered about an entity object since it was read or last put.

    Attributes:
        key: the key it was read or put under.
        version: the entity's version in Datastore; 0 when it is not known, or `DELETED`.
        place: where in the code it was read, if that is captured.
        lock_id: its lock id then, as the application has it; None when it is not known, or
            nothing was held, or the key says it.
        held: the locks its reader held, as the scope had them at that moment.
        transaction: the transaction it was read in, if any.
        order: when it was asked for or put, in the process-wide order of reads and puts.
    """

    key: Any
    version: int
    place: Place | None
    lock_id: object
    held: Mapping[str, Tenure]
    transaction: bytes | None
    order: int


#: What an entity object has its stamp in. Attributes of its own: one object more for each of ten
#: thousand entities would make garbage collections that much longer.
ATTRIBUTES = (
    "_userlock_key",
    "_userlock_lock_id",
    "_userlock_origin",
    "_userlock_place",
    "_userlock_version",
)


def origin() -> Origin:
    """What the running code holds, now."""
    scope = current_scope()
    held = NO_LOCKS if scope is None else scope.held
    return Origin(held, hooks.current_transaction(), next(sequence))


def place_of_read() -> Place | None:
    """Where the application's code is, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


def stamp_read(entity: Any, version: int, asked: Origin, place: Place | None) -> None:
    """Stamp an entity object that has just been made.

    Args:
        entity: the entity object.
        version: its version, 0 when it is not known.
        asked: what was held when Datastore was asked for it.
        place: where it was asked for, if that is known.
    """
    rule = entity._userlock_rule
    asks = rule is not None and asked.held and not rule.by_key
    lock_id = _lock_id_of(entity, rule) if asks else None
    _write(entity, hooks.key_of(entity), version, place, lock_id, asked)


def _lock_id_of(entity: Any, rule: LockRule) -> object:
    try:
        return rule.read(entity)
    except Exception:
        return None  # a projection without it, or a method that fails: its put reports that


def restamp(
    entity: Any,
    key: Any,
    version: int,
    place: Place | None = None,
    *,
    held: Mapping[str, Tenure] = NO_LOCKS,
    lock_id: object = None,
) -> None:
    """Stamp an entity object that stands for another version from now on: put, deleted, unpickled.

    Args:
        entity: the entity object.
        key: what it is stored under; None for a key that Datastore allocated, until it is seen.
        version: its version, or `DELETED`.
        place: where that was, if places are captured.
        held: what was held then.
        lock_id: its lock id then.
    """
    _write(entity, key, version, place, lock_id, Origin(held, None, next(sequence)))


def _write(
    entity: Any, key: Any, version: int, place: Place | None, lock_id: object, asked: Origin
) -> None:
    entity._userlock_key = key
    entity._userlock_version = version
    entity._userlock_place = place
    entity._userlock_lock_id = lock_id
    entity._userlock_origin = asked


def stamp_of(entity: Any) -> Stamp | None:
    """The stamp of an entity object, if it is still about the entity that its key names.

    An object's key can be changed.
    """
    asked: Origin | None = entity._userlock_origin
    if asked is None:
        return None
    key = hooks.key_of(entity)
    stamped = entity._userlock_key
    if stamped is None and hooks.is_complete(key):
        stamped = entity._userlock_key = key
    if stamped is None or (stamped is not key and stamped != key):
        return None
    version, place = entity._userlock_version, entity._userlock_place
    return Stamp(stamped, version, place, entity._userlock_lock_id, *asked)
