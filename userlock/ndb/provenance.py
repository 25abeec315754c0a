"""Read stamps: what an entity object stands for.

Each entity that comes out of Datastore gets a stamp with what its reader held
when it asked. A read is not checked. When a put has landed, its object gets a
new stamp.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.callsite import CallSite, here
from userlock.lock.configuration import defaults
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import current_scope
from userlock.ndb.patches import is_complete
from userlock.settings import Settings

#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
orders = itertools.count(1)

NO_LOCKS: Mapping[str, HeldLock] = {}

#: The version of an entity that was deleted while an object of it remains.
DELETED = -1

#: The version of an object whose put has landed, and whose entity has been changed since.
OVERTAKEN = -2

#: The version of a part of an entity, from a projection query.
PARTIAL = -3


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


class Stamped:
    """Base of the models: an entity object with a stamp."""

    _userlock_stamp: Stamp | None = None
    #: The key, whatever properties an application has.
    _userlock_key: Any = ndb.Model.key


def current_settings() -> Settings:
    """Return the settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def place_of_read() -> CallSite | None:
    """Return the application's call site, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


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
