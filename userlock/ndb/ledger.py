"""The version ledger: the entities that a request has read or written, and their versions.

A delete has only a key. It builds on the version that its request has last seen of the
entity, whatever has become of the object, and under any lock. Without an entry only
the lock protects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from userlock.callsite import CallSite
from userlock.lock.held_lock import HeldLock
from userlock.ndb.patches import name_of

Stamp = Any  #: A `provenance.Stamp`, without an import of what keeps ledgers.

#: The entities of a request; the oldest are forgotten.
MOST = 10_000


class LandedPut(NamedTuple):
    """The last put of an entity that has landed."""

    version: int
    order: int
    at: CallSite | None
    held: Mapping[str, HeldLock]


class Ledger:
    """The versions that one request has seen, by the names of the entities."""

    def __init__(self) -> None:
        self._seen: dict[Any, Stamp] = {}
        #: The puts that have landed.
        self._puts: dict[Any, LandedPut] = {}
        #: The versions that a refused write has built on, or one that a delete has deleted.
        self._refused: dict[Any, int] = {}
        self.deletions: dict[Any, int] = {}
        #: New entities whose ids Datastore has allocated in transactions, which may be rolled back.
        self._allocated: dict[Any, int] = {}

    def saw(self, stamp: Stamp, *, put: bool = False) -> None:
        """Note the version of a read, or of a put that has landed."""
        name = name_of(stamp.key)
        seen = self._seen
        before = seen.pop(name, None)
        # The answer to an earlier read may come after that to a put.
        if before is not None and before.version > stamp.version:
            seen[name] = before
        else:
            seen[name] = type(stamp)(None, *stamp[1:7])  # without the key, which is large
        if before is None and len(seen) > MOST:
            del seen[next(iter(seen))]
        if put:
            _put(self._puts, name, LandedPut(stamp.version, stamp.order, stamp.place, stamp.held))

    def last(self, ndb_key: Any) -> Stamp | None:
        """Return the stamp of the last version that the request has seen; None if it is unknown."""
        return self._seen.get(name_of(ndb_key)) if self._seen else None

    def later_put(self, stamp: Stamp) -> LandedPut | None:
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
            _put(self.deletions, name, max(version, self.deletions.get(name, 0)))

    def missing(self, name: Any) -> None:
        """Note that an entity was looked up, and is not there."""
        self._seen.pop(name, None)

    def has_deleted(self, stamp: Stamp) -> bool:
        """Return whether the request has deleted the very version that an object stands for."""
        return bool(self.deletions.get(name_of(stamp.key)) == stamp.version)

    def refused(self, ndb_key: Any, version: int) -> None:
        """Note that a write was refused, or is in doubt: objects of that version are outdated."""
        name = name_of(ndb_key)
        _put(self._refused, name, max(version, self._refused.get(name, 0)))

    def is_outdated(self, stamp: Stamp) -> bool:
        """Return whether a write was refused that built on this version, or a later one."""
        refused = self._refused.get(name_of(stamp.key)) if self._refused else None
        return refused is not None and stamp.version <= refused

    def allocated(self, ndb_key: Any) -> None:
        """Note an id that Datastore has allocated in a transaction."""
        _put(self._allocated, name_of(ndb_key), 1)

    def was_allocated(self, ndb_key: Any) -> bool:
        """Return whether the id was allocated in a transaction: nobody else knows it."""
        return bool(self._allocated) and name_of(ndb_key) in self._allocated


def _put(facts: dict[Any, Any], name: Any, fact: Any) -> None:
    facts.pop(name, None)
    facts[name] = fact
    if len(facts) > MOST:
        del facts[next(iter(facts))]
