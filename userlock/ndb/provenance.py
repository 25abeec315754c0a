"""Read stamps and the history of puts: what an entity object stands for.

Reading is free: every entity that comes out of Datastore gets a stamp that
says what its reader held when it was asked for, and nothing is checked. A put
that has landed stamps its object anew.

The history tells of two objects of one entity which one was put last. It is
kept for each tenure of a lock and each attempt of a transaction, and goes with it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from userlock.callsite import CallSite
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import current_scope
from userlock.ndb.context import current_attempt, current_transaction
from userlock.ndb.patches import is_complete, same_key

#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
sequence = itertools.count(1)

NO_LOCKS: Mapping[str, HeldLock] = {}

#: The version of an entity that was deleted through an object that is still around.
DELETED = -1


class Origin(NamedTuple):
    """The locks and transaction of a reader, and the time of the look-up or query."""

    held: Mapping[str, HeldLock]
    transaction: bytes | None
    order: int


#: Of what did not come as Datastore's answer.
NOTHING_HELD = Origin(NO_LOCKS, None, 0)


class Stamp(NamedTuple):
    """The facts about an entity object since it was read or last put.

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
    place: CallSite | None
    lock_id: object
    held: Mapping[str, HeldLock]
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


def origin(transaction: bytes | None) -> Origin:
    """Return what the running code holds, now.

    Args:
        transaction: the one that it reads in, if any.
    """
    scope = current_scope()
    held = NO_LOCKS if scope is None else scope.held
    return Origin(held, transaction or None, next(sequence))


def stamp_read(entity: Any, key: Any, version: int, asked: Origin, place: CallSite | None) -> None:
    """Stamp an entity object that has just been made.

    Args:
        entity: the entity object.
        key: its key.
        version: its version, 0 when it is not known.
        asked: what was held when Datastore was asked for it.
        place: where it was asked for, if that is known.
    """
    rule = entity._userlock_rule
    asks = rule is not None and asked.held and not rule.by_key
    lock_id = _lock_id_of(entity, rule) if asks else None
    _write(entity, key, version, place, lock_id, asked)


def _lock_id_of(entity: Any, rule: Any) -> object:
    try:
        found: object = rule.read(entity)
        return found
    except Exception:
        return None  # a projection without it, or a method that fails: its put reports that


def restamp(
    entity: Any,
    key: Any,
    version: int,
    place: CallSite | None = None,
    *,
    held: Mapping[str, HeldLock] = NO_LOCKS,
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
    entity: Any, key: Any, version: int, place: CallSite | None, lock_id: object, asked: Origin
) -> None:
    entity._userlock_key = key
    entity._userlock_version = version
    entity._userlock_place = place
    entity._userlock_lock_id = lock_id
    entity._userlock_origin = asked


def last_stamp(entity: Any) -> Stamp | None:
    """Return the stamp of an entity object, also if it has been given another key since."""
    asked: Origin | None = entity._userlock_origin
    if asked is None:
        return None
    stamped = entity._userlock_key
    if stamped is None and is_complete(entity._key):
        stamped = entity._userlock_key = entity._key
    if stamped is None:
        return None
    version, place = entity._userlock_version, entity._userlock_place
    return Stamp(stamped, version, place, entity._userlock_lock_id, *asked)


def stamp_of(entity: Any) -> Stamp | None:
    """Return the stamp of an entity object, if it is still about the entity that its key names."""
    stamp = last_stamp(entity)
    if stamp is None or not same_key(stamp.key, entity._key):
        return None
    return stamp


# --- the history of puts --------------------------------------------------------------------


class LastPut:
    """The latest put of one entity under one tenure, or in one transaction.

    Attributes:
        place: where it was put.
        transaction: the transaction that it is part of, if any.
        under_way: whether its outcome is still open.
        version: the version it landed as; 0 until then.
        order: when, in the order of stamps.
    """

    __slots__ = ("_entity", "order", "place", "transaction", "under_way", "version")

    def __init__(self, entity: Any, place: CallSite | None, transaction: bytes | None) -> None:
        self._entity = weakref.ref(entity)
        self.place = place
        self.transaction = transaction
        self.under_way = True
        self.version = 0
        self.order = next(sequence)

    def is_by(self, entity: Any) -> bool:
        """Return whether that object was put."""
        return self._entity() is entity

    @property
    def counts(self) -> bool:
        """Return whether it has changed the entity, or may yet. A failed put does not."""
        if self.version:
            return True
        if self.transaction is not None:
            return self.transaction == current_transaction()
        return self.under_way


def last_puts(tenure: HeldLock | None) -> dict[Any, LastPut]:
    """Return the latest put of each entity, by key: of a tenure, or of the running transaction."""
    if tenure is None:
        return current_attempt().puts
    puts = tenure.notes.get("last puts")
    if puts is None:
        puts = tenure.notes["last puts"] = {}
    return puts  # type: ignore[return-value]


def newer_put(entity: Any, stamp: Stamp | None, tenure: HeldLock | None) -> LastPut | None:
    """Return the put of another object that makes this one the older one, if there is one."""
    last = last_puts(tenure).get(entity._key)
    if last is None or last.is_by(entity) or not last.counts:
        return None
    if stamp is None and last.transaction is None:
        return None  # a new object for an entity that exists: the insert says so
    # A transaction reads the state at its beginning, never its own writes: an
    # object read in it after a put in it is the older one all the same.
    if (
        stamp is not None
        and stamp.order > last.order
        and (last.transaction is None or last.transaction != stamp.transaction)
    ):
        return None
    return last


def put_in_running_transaction(entity: Any) -> bool:
    """Return whether this very object has been put in the transaction that the code is in."""
    if current_transaction() is None:
        return False
    last = current_attempt().puts.get(entity._key)
    return last is not None and last.is_by(entity)
