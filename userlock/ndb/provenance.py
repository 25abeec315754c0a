"""Read stamps and the history of puts: what an entity object stands for.

Each entity that comes out of Datastore gets a stamp with what its reader held
when it asked. A read is not checked. When a put has landed, its object gets a
new stamp.

The history tells which of two objects of one entity was put last. It belongs to
a tenure of a lock, or to an attempt of a transaction.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from userlock.callsite import CallSite
from userlock.lock.held_lock import HeldLock, notes_of
from userlock.lock.scope import current_scope
from userlock.ndb.claim_rows import LIST
from userlock.ndb.context import RequestNotes, current_attempt, current_transaction
from userlock.ndb.patches import is_complete, same_key

#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
_orders = itertools.count(1)

NO_LOCKS: Mapping[str, HeldLock] = {}

#: The version of an entity that was deleted while an object of it remains.
DELETED = -1

#: The version of an object whose put has landed, and whose entity has been changed since.
OVERTAKEN = -2


class Origin(NamedTuple):
    """Locks and transaction of a reader, and the order of the look-up or query."""

    held: Mapping[str, HeldLock]
    transaction: bytes | None
    order: int


#: The origin of an entity that did not come as Datastore's answer.
NOTHING_HELD = Origin(NO_LOCKS, None, 0)


class Stamp(NamedTuple):
    """The facts about an entity object since it was read or last put."""

    key: Any
    version: int  # 0 if unknown, or `DELETED` or `OVERTAKEN`
    place: CallSite | None  # None if places are not captured
    lock_id: object  # not checked; None if unknown, or in the key, or if no lock was held
    held: Mapping[str, HeldLock]
    transaction: bytes | None
    order: int  # the position in the process-wide order of reads and puts

    def is_of(self, transaction: bytes | None) -> bool:
        """Return whether it is of a read in this transaction, which guards the entity itself."""
        return transaction is not None and self.transaction == transaction


class Stamped:
    """Base of the models: an entity object with a stamp.

    The stamp is in attributes of the entity. One more object for each of ten thousand entities
    would make garbage collections that much longer.
    """

    _userlock_key: Any = None
    _userlock_lock_id: object = None
    _userlock_origin: Origin | None = None
    _userlock_place: CallSite | None = None
    _userlock_version: int = 0
    #: The keys of its claims in Datastore, at that version; None if they are not known.
    _userlock_claims: tuple[Any, ...] | None = None


#: The names of those attributes.
ATTRIBUTES = tuple(Stamped.__annotations__)


def origin(transaction: bytes | None) -> Origin:
    """Return what the running code holds now. `transaction` is the one that it reads in."""
    scope = current_scope()
    return Origin(NO_LOCKS if scope is None else scope.held, transaction or None, next(_orders))


def stamp_read(entity: Any, key: Any, version: int, asked: Origin, place: CallSite | None) -> None:
    """Stamp an entity object that has just been made: `asked` for at this `place`."""
    rule = entity._userlock_rule
    lock_id = None
    if rule is not None and asked.held and not rule.by_key:
        try:
            lock_id = rule.read(entity)
        except Exception:
            lock_id = None  # a projection without it, or a failing method: its put reports that
    _write(entity, key, version, place, lock_id, asked)
    if entity._userlock_constraints:
        note_claims(entity)


def note_claims(entity: Any) -> None:
    """Note the claims that an entity object lists as those in Datastore."""
    entity._userlock_claims = None
    with contextlib.suppress(Exception):  # a projection; or malformed: they are looked up
        entity._userlock_claims = tuple(getattr(entity, LIST))


def forget_claims(entity: Any) -> None:
    """Let the next put of an entity object look at its claims in Datastore, changed or not."""
    entity._userlock_claims = None


def restamp(
    entity: Any,
    key: Any,
    version: int,
    place: CallSite | None = None,
    *,
    held: Mapping[str, HeldLock] = NO_LOCKS,
    lock_id: object = None,
) -> None:
    """Stamp an entity object that was put or unpickled, or whose entity was deleted.

    The key is None if Datastore has allocated it and the object does not have it yet.
    """
    _write(entity, key, version, place, lock_id, Origin(held, None, next(_orders)))


def stamp_of_put(
    key: Any, version: int, place: CallSite | None, *, held: Mapping[str, HeldLock], lock_id: object
) -> Stamp:
    """Return the stamp of a put, whatever its object stands for by now."""
    return Stamp(key, version, place, lock_id, held, None, next(_orders))


def _write(
    entity: Any, key: Any, version: int, place: CallSite | None, lock_id: object, asked: Origin
) -> None:
    entity._userlock_key = key
    entity._userlock_version = version
    entity._userlock_place = place
    entity._userlock_lock_id = lock_id
    entity._userlock_origin = asked


def last_stamp(entity: Any) -> Stamp | None:
    """Return the stamp of an entity object, even if it has been given another key since."""
    asked: Origin | None = entity._userlock_origin
    if asked is None:
        return None
    if entity._userlock_key is None and is_complete(entity._key):
        entity._userlock_key = entity._key
    if entity._userlock_key is None:
        return None
    version, place = entity._userlock_version, entity._userlock_place
    return Stamp(entity._userlock_key, version, place, entity._userlock_lock_id, *asked)


def stamp_of(entity: Any) -> Stamp | None:
    """Return the stamp of an entity object for its present key, or None."""
    stamp = last_stamp(entity)
    return stamp if stamp is not None and same_key(stamp.key, entity._key) else None


def version_of(entity: Any) -> int:
    """Return the version at which an entity object was read or put; 0 if it is not known."""
    stamp = stamp_of(entity)
    return 0 if stamp is None else max(stamp.version, 0)


# --- stamps without an object ---------------------------------------------------------------


def keep(notes: RequestNotes, stamp: Stamp | None) -> None:
    """Keep the stamp of an object that a delete will not find in the context caches.

    The object was given another key, or has left the cache: a delete still builds on its read. Keep
    one stamp per set of held tenures, and one for all reads without a held tenure: the latest.
    """
    if stamp is None or stamp.version in (DELETED, 0):
        return
    latest: dict[frozenset[HeldLock], Stamp] = {}
    for each in sorted((*notes.kept.get(stamp.key, ()), stamp), key=_position):
        tenures = _tenures(each)
        latest[tenures] = each if tenures else each._replace(held=NO_LOCKS)  # whose notes are large
    notes.kept[stamp.key] = tuple(latest.values())


def drop_older(notes: RequestNotes, stamp: Stamp) -> None:
    """Drop the kept stamps that a delete will not build on, as it finds this one in a cache."""
    kept = [each for each in notes.kept.pop(stamp.key, ()) if not _supersedes(stamp, each)]
    for each in kept:
        keep(notes, each)


def _supersedes(stamp: Stamp, older: Stamp) -> bool:
    """Return whether a delete builds on the first of two stamps, under whichever locks."""
    return _position(stamp) >= _position(older) and _tenures(older) <= _tenures(stamp)


def _tenures(stamp: Stamp) -> frozenset[HeldLock]:
    """Return the tenures of a read that are still held."""
    return frozenset(tenure for tenure in stamp.held.values() if tenure.held)


def latest_of(
    stamps: Iterable[Stamp], held: Mapping[str, HeldLock], transaction: bytes | None
) -> Stamp | None:
    """Return the latest of these stamps, preferably of a read under a lock that is held now."""

    def rank(stamp: Stamp) -> tuple[bool, int, int]:
        under = any(held.get(lock_id) is tenure for lock_id, tenure in stamp.held.items())
        return under or stamp.is_of(transaction), *_position(stamp)

    return max(stamps, key=rank, default=None)


def _position(stamp: Stamp) -> tuple[int, int]:
    """Return the position among reads and puts. A put past the cache moves the version."""
    return stamp.order, stamp.version


# --- the history of puts --------------------------------------------------------------------


class LastPut:
    """The latest put of one entity under one tenure, or in one transaction.

    Attributes:
        under_way: whether its outcome is still open.
        version: the version it landed as, or `OVERTAKEN`; 0 until then.
        order: the position in the order of stamps.
    """

    __slots__ = ("_entity", "order", "place", "transaction", "under_way", "version")

    def __init__(self, entity: Any, place: CallSite | None, transaction: bytes | None) -> None:
        self._entity = weakref.ref(entity)
        self.place = place
        self.transaction = transaction
        self.under_way = True
        self.version = 0
        self.order = next(_orders)

    def is_by(self, entity: Any) -> bool:
        """Return whether that object was put."""
        return self._entity() is entity

    @property
    def counts(self) -> bool:
        """Return whether it has changed the entity, or still may. A failed put does not."""
        if self.version:
            return True
        if self.transaction is not None:
            return self.transaction == current_transaction()
        return self.under_way


def last_puts(tenure: HeldLock | None) -> dict[Any, LastPut]:
    """Return the latest put of each entity, by key: of a tenure, or of the running transaction."""
    if tenure is None:
        return current_attempt().puts
    return notes_of(tenure).setdefault("last puts", {})  # type: ignore[return-value]


def newer_put(entity: Any, stamp: Stamp | None, tenure: HeldLock | None) -> LastPut | None:
    """Return the put of another object that makes this object outdated, if there is one."""
    last = last_puts(tenure).get(entity._key)
    if last is None or last.is_by(entity) or not last.counts:
        return None
    if stamp is None:
        # Outside of a transaction, the insert refuses a new object for an existing entity.
        return None if last.transaction is None else last
    # A transaction reads the state at its beginning, never its own writes: an object that
    # is read after a put in the same transaction is outdated all the same.
    if stamp.order > last.order and (
        last.transaction is None or last.transaction != stamp.transaction
    ):
        return None
    return last


def put_in_running_transaction(entity: Any) -> bool:
    """Return whether this very object was put in the transaction that the code is in."""
    if current_transaction() is None:
        return False
    last = current_attempt().puts.get(entity._key)
    return last is not None and last.is_by(entity)
