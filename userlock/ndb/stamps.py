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


#: What an entity object has its stamp in. Attributes of its own, and `__slots__`: one object more
#: for each of ten thousand entities makes garbage collections that much longer.
SLOTS = (
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
    lock_id = None
    rule = entity._userlock_rule
    if rule is not None and asked.held and not rule.by_key:
        try:
            lock_id = rule.read(entity)
        except Exception:
            lock_id = None  # a projection without it, or a method that fails: its put reports that
    _write(entity, hooks.key_of(entity), version, place, lock_id, asked)


def stamp_put(
    entity: Any,
    key: Any,
    version: int,
    place: Place | None = None,
    *,
    held: Mapping[str, Tenure] = NO_LOCKS,
    lock_id: object = None,
) -> None:
    """Stamp an entity object anew, which from now on stands for that version.

    Args:
        entity: the entity object.
        key: what it is stored under; None for a key that Datastore allocated, until it is seen.
        version: its version, or `DELETED`.
        place: where it was put, if that is captured.
        held: what was held at that.
        lock_id: its lock id then.
    """
    _write(entity, key, version, place, lock_id, Origin(held, None, next(sequence)))


def _write(
    entity: Any, key: Any, version: int, place: Place | None, lock_id: object, origin: Origin
) -> None:
    entity._userlock_key = key
    entity._userlock_version = version
    entity._userlock_place = place
    entity._userlock_lock_id = lock_id
    entity._userlock_origin = origin


def stamp_of(entity: Any) -> Stamp | None:
    """The stamp of an entity object, if it is still about the entity that its key names.

    An object's key can be changed.
    """
    origin: Origin | None = getattr(entity, "_userlock_origin", None)
    if origin is None:
        return None
    key = hooks.key_of(entity)
    if entity._userlock_key is None and hooks.is_complete(key):
        entity._userlock_key = key
    stamped = entity._userlock_key
    if stamped is None or (stamped is not key and stamped != key):
        return None
    return Stamp(
        stamped,
        entity._userlock_version,
        entity._userlock_place,
        entity._userlock_lock_id,
        *origin,
    )


def copy_stamp(entity: Any, copy: Any) -> None:
    """Stamp a copy of an entity object as that one is."""
    for name in SLOTS:
        if hasattr(entity, name):
            setattr(copy, name, getattr(entity, name))
