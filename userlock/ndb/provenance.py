"""Read stamps, which say what an entity object stands for, and the ledger of a request's versions.

Each entity that comes out of Datastore gets a stamp with what its reader held when it asked. A
read is not checked. When a put has landed, its object gets a new stamp.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.callsite import CallSite, here
from userlock.lock.configuration import defaults
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import current_scope
from userlock.ndb.patches import is_complete, name_of
from userlock.settings import Settings

MOST_SEEN = 10_000  # the entities that a ledger knows; the oldest are forgotten

#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
orders = itertools.count(1)

NO_LOCKS: Mapping[str, HeldLock] = {}

#: Versions of objects: the entity was deleted, it was changed after this object's put had landed,
#: and the object is a part of it, from a projection query.
DELETED, OVERTAKEN, PARTIAL = -1, -2, -3


class Origin(NamedTuple):
    """Locks and transaction of a reader, and the order of the look-up or query."""

    held: Mapping[str, HeldLock]
    transaction: bytes | None
    order: int


#: The origin of an entity that did not come as Datastore's answer.
NOTHING_HELD = Origin(NO_LOCKS, None, 0)


class Stamp(NamedTuple):
    """The facts about an entity object since it was read or last put."""

    key: Any  # None until Datastore has allocated it
    version: int  # 0 if unknown, or `DELETED`, `OVERTAKEN` or `PARTIAL`
    place: CallSite | None  # None if places are not captured
    lock_id: object  # not checked; None if unknown, or in the key, or if no lock was held
    held: Mapping[str, HeldLock]
    transaction: bytes | None
    order: int  # the position in the process-wide order of reads and puts
    #: The keys of its claims in Datastore, at that version; None if they are not known.
    claims: tuple[Any, ...] | None = None

    def __deepcopy__(self, memo: Any) -> Stamp:
        return self

    def __reduce__(self) -> Any:
        """Keep the version in a pickle, without the locks of the read."""
        return _from_pickle, (self.key, self.version)


class Stamped:
    """Base of the models: an entity object with a stamp."""

    _userlock_stamp: Stamp | None = None
    _userlock_key: Any = ndb.Model.key  # the key, whatever properties an application has


def current_settings() -> Settings:
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def place_of_read() -> CallSite | None:
    """Return the application's call site, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


def _from_pickle(key: Any, version: int) -> Stamp:
    return Stamp(key, version, place_of_read(), None, NO_LOCKS, None, next(orders))


def origin(transaction: bytes | None) -> Origin:
    """Return what the running code holds now. `transaction` is the one that it reads in."""
    scope = current_scope()
    return Origin(NO_LOCKS if scope is None else scope.held, transaction or None, next(orders))


def stamp_read(entity: Any, key: Any, version: int, asked: Origin, place: CallSite | None) -> Stamp:
    """Stamp an entity object that has just been made: `asked` for at this `place`."""
    rule = entity._userlock_rule
    lock_id = None
    if rule is not None and asked.held and not rule.by_key:
        try:
            lock_id = rule.read(entity)
        except Exception:
            lock_id = None  # a projection without it, or a failing method: its put reports that
    rows = entity._userlock_rows
    claims = None if rows is None else rows.listed(entity)
    stamp = entity._userlock_stamp = Stamp(key, version, place, lock_id, *asked, claims)
    return stamp


def forget_claims(entity: Any) -> None:
    """Let the next put of an entity object look at its claims in Datastore, changed or not."""
    stamp = entity._userlock_stamp
    entity._userlock_stamp = None if stamp is None else stamp._replace(claims=None)


def stamp_of(entity: Any) -> Stamp | None:
    """Return the stamp of an entity object for its present key, or None."""
    stamp: Stamp | None = entity._userlock_stamp
    if stamp is None or stamp.key is entity._userlock_key:
        return stamp
    if stamp.key is None:
        if not is_complete(entity._userlock_key):
            return None
        stamp = entity._userlock_stamp = stamp._replace(key=entity._userlock_key)
        return stamp
    return stamp if stamp.key == entity._userlock_key else None


def version_of(entity: Any) -> int:
    """Return the version at which an entity object was read or put; 0 if it is not known."""
    stamp = stamp_of(entity)
    return 0 if stamp is None else max(stamp.version, 0)


class Ledger:
    """The versions that one request has seen, by the names of the entities.

    A delete has only a key. It builds on the version that its request has last seen of the entity,
    whatever has become of the object, and under any lock. Without one only the lock protects it.
    """

    def __init__(self) -> None:
        #: Stamps of the last versions, and of the last puts that have landed.
        self._seen: dict[Any, Stamp] = {}
        self._puts: dict[Any, Stamp] = {}
        #: When the last write failed, by `orders`; and the version that a delete has deleted.
        self._failed: dict[Any, int] = {}
        self.deletions: dict[Any, int] = {}
        #: New entities whose ids Datastore has allocated in transactions, which may be rolled back.
        self._allocated: dict[Any, int] = {}

    def saw(self, stamp: Stamp, *, put: bool = False) -> None:
        """Note the version of a read, or of a put that has landed."""
        name, mine, seen = name_of(stamp.key), Stamp(None, *stamp[1:7]), self._seen
        before = seen.pop(name, mine)
        # The answer to an earlier read may come after that to a put.
        seen[name] = before if before.version > stamp.version else mine
        if len(seen) > MOST_SEEN:
            _forget_oldest(seen)
        if put:
            _note(self._puts, name, mine)
            if self.deletions:
                self.deletions.pop(name, None)

    def last(self, ndb_key: Any) -> Stamp | None:
        """Return the stamp of the last version that the request has seen; None if it is unknown."""
        return self._seen.get(name_of(ndb_key)) if self._seen else None

    def later_put(self, stamp: Stamp) -> Stamp | None:
        """Return the put of a later version than that which an object stands for."""
        put = self._puts.get(name_of(stamp.key)) if self._puts else None
        if put is None or not 0 <= stamp.version <= put.version:
            return None
        # A server without versions says 0 of all.
        later = put.version > stamp.version or (put.version == 0 and put.order > stamp.order)
        return put if later else None

    def deleted(self, ndb_key: Any, version: int) -> None:
        """Note a delete that has landed, and the version that it built on; 0 for any."""
        name = name_of(ndb_key)
        self._seen.pop(name, None)
        self._puts.pop(name, None)
        if version:
            _note(self.deletions, name, max(version, self.deletions.get(name, 0)))

    def missing(self, name: Any) -> None:
        self._seen.pop(name, None)

    def has_deleted(self, stamp: Stamp) -> bool:
        """Return whether the request has deleted the very version that an object stands for."""
        return bool(self.deletions.get(name_of(stamp.key)) == stamp.version)

    def failed(self, ndb_key: Any) -> None:
        """Note that a write was refused, or is in doubt: objects from before it are outdated."""
        _note(self._failed, name_of(ndb_key), next(orders))

    def has_failed(self, ndb_key: Any) -> bool:
        return bool(self._failed) and name_of(ndb_key) in self._failed

    def is_outdated(self, stamp: Stamp) -> bool:
        """Return whether a write has failed since the object was read or put, or has deleted it."""
        failed = bool(self._failed) and stamp.order < self._failed.get(name_of(stamp.key), 0)
        return failed or (bool(self.deletions) and self.has_deleted(stamp))

    def allocated(self, ndb_key: Any) -> None:
        """Note an id that Datastore has allocated in a transaction."""
        _note(self._allocated, name_of(ndb_key), 1)

    def was_allocated(self, ndb_key: Any) -> bool:
        """Return whether the id was allocated in a transaction: nobody else knows it."""
        return bool(self._allocated) and name_of(ndb_key) in self._allocated


def _note(facts: dict[Any, Any], name: Any, fact: Any) -> None:
    facts.pop(name, None)
    facts[name] = fact
    if len(facts) > MOST_SEEN:
        _forget_oldest(facts)


def _forget_oldest(facts: dict[Any, Any]) -> None:
    with contextlib.suppress(KeyError, RuntimeError):  # another thread of the request does it
        del facts[next(iter(facts))]
