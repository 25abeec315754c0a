"""Where an entity object comes from, and whether it may be put now.

Reading is free: every entity that comes out of Datastore gets a stamp that
says what its reader held at that moment, and nothing is checked. At the put
the stamp is held against what is held now. What does not fit was read too
early, too late, or from somewhere else.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from userlock.errors import (
    CreatedWithoutLock,
    DeletedWithoutLock,
    InternalStomp,
    LeaseRanOut,
    LeaseWasLost,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    WriteViolation,
)
from userlock.lock.scope import LockScope, current_scope, defaults
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.places import Place, here
from userlock.reports import REPORTS
from userlock.settings import Enforcement, Settings

_NOTHING: Mapping[str, Tenure] = {}
#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
_sequence = itertools.count(1)


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
        version: the entity's version in Datastore; 0 when it is not known, or `DELETED`.
        transaction: the transaction it was read in, if any.
        place: where in the code it was read, if that is captured.
        order: when, in the process-wide order of reads and puts.
    """

    __slots__ = ("held", "key", "order", "place", "transaction", "version")

    def __init__(
        self,
        key: Any,
        held: Mapping[str, Tenure],
        version: int,
        transaction: bytes | None = None,
        place: Place | None = None,
    ) -> None:
        self.key = key
        self.held = held
        self.version = version
        self.transaction = transaction
        self.place = place
        self.order = next(_sequence)

    def is_for(self, key: Any) -> bool:
        """Whether this is about the entity of that key: an object's key can be changed."""
        if self.key is None:
            self.key = key
        return self.key is key or self.key == key


def origin() -> Origin:
    """What the running code holds."""
    scope = current_scope()
    return Origin(_NOTHING if scope is None else scope.held, hooks.current_transaction())


def stamp_of_read(key: Any, version: int, seen: Origin | None) -> Stamp:
    """The stamp for an entity object that is being made.

    Args:
        key: the entity's key.
        version: its version, 0 when it is not known.
        seen: what was held when the answer arrived, if that was before now.
    """
    scope = current_scope()
    settings = defaults.settings if scope is None else scope.settings
    place = here() if settings.capture_places else None
    if seen is not None:
        return Stamp(key, seen.held, version, seen.transaction, place)
    held = _NOTHING if scope is None else scope.held
    return Stamp(key, held, version, hooks.current_transaction(), place)


def stamp_of(entity: Any) -> Stamp | None:
    """The stamp of an entity object, if it is still about the entity that its key names."""
    stamp: Stamp | None = entity._userlock_stamp
    if stamp is None or not stamp.is_for(entity._key):
        return None
    return stamp


# --- suppressing ----------------------------------------------------------------------------

_suppressed: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "userlock_suppressed", default=None
)


@contextlib.contextmanager
def suppress(reason: str) -> Iterator[None]:
    """Check nothing inside the block. Writes are still fenced.

    Args:
        reason: why this is right here, for whoever reads the code next.

    Raises:
        ValueError: no reason is given.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("suppress() needs a reason: say why writing without the lock is right")
    token = _suppressed.set(reason)
    try:
        yield
    finally:
        _suppressed.reset(token)


def current_settings() -> Settings:
    """The settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def checking(at: Place | None) -> bool:
    """Whether a write at that place is checked now."""
    return (
        current_settings().enforcement is not Enforcement.OFF
        and _suppressed.get() is None
        and not REPORTS.arranges(at)
    )


def fencing(at: Place | None) -> bool:
    """Whether a write at that place is fenced."""
    return current_settings().fencing and not REPORTS.arranges(at)


def report(violation: WriteViolation) -> None:
    """Raise the violation, or tell of it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation


# --- the checks -----------------------------------------------------------------------------


def check_put(
    entity: Any, lock_id: str | None, stamp: Stamp | None, put_at: Place | None
) -> Tenure | None:
    """Check a put that is about to begin.

    Args:
        entity: the entity object.
        lock_id: the lock that guards it; None when it cannot be locked yet because Datastore
            is still to allocate the id that names the lock, so that nobody else can know it.
        stamp: where the object comes from; None for a new one.
        put_at: where it is being put.

    Returns:
        The tenure under which the put runs, or None where it runs under none (and that is
        allowed).

    Raises:
        WriteViolation: the put must not be, and enforcement is on.
    """
    if lock_id is None:
        return None
    scope = current_scope()
    tenure = None if scope is None else scope.held.get(lock_id)
    if checking(put_at):
        violation = _violation_of_put(entity, lock_id, stamp, tenure)
        if violation is not None:
            kind, detail = violation
            report(
                kind(
                    key=entity._key,
                    kind=type(entity)._get_kind(),
                    lock_id=lock_id,
                    read_at=None if stamp is None else stamp.place,
                    put_at=put_at,
                    detail=detail,
                )
            )
    return tenure


def _violation_of_put(
    entity: Any, lock_id: str, stamp: Stamp | None, tenure: Tenure | None
) -> tuple[type[WriteViolation], str] | None:
    if entity._projection:
        return PartialEntityPut, f"it has only {', '.join(entity._projection)}"
    if stamp is None:
        if tenure is None:
            return CreatedWithoutLock, ""
        return _ran_out(tenure) or _stomp(entity, None, tenure)
    read_under = stamp.held.get(lock_id)
    if tenure is None:
        return (PutWithoutLock if read_under is None else PutAfterRelease), ""
    if read_under is None:
        return ReadWithoutLock, ""
    if read_under is not tenure:
        return ReadUnderEarlierTenure, ""
    return _ran_out(tenure) or _stomp(entity, stamp, tenure)


def _ran_out(tenure: Tenure) -> tuple[type[WriteViolation], str] | None:
    if tenure.lost:
        return LeaseWasLost, tenure.lost
    if not tenure.ran_out:
        return None
    lease = tenure.lease
    return LeaseRanOut, (
        f"a lease of {lease.ttl_seconds:g} s, taken {tenure.held_seconds:.3g} s ago"
    )


class LastPut:
    """The latest put of one entity under one tenure.

    Attributes:
        place: where it was put.
        future: its outcome to be, once it is on its way.
        version: the version it landed as; 0 until then.
    """

    __slots__ = ("by", "future", "order", "place", "transaction", "version")

    def __init__(self, by: int, place: Place | None, transaction: bytes | None) -> None:
        self.by = by
        self.place = place
        self.transaction = transaction
        self.future: Any = None
        self.version = 0
        self.order = next(_sequence)

    @property
    def counts(self) -> bool:
        """Whether it has changed the entity, or may yet: not after a failure or a rollback."""
        if self.version:
            return True
        if self.transaction is not None:
            return self.transaction == hooks.current_transaction()
        return self.future is not None and not self.future.done()


def last_puts(tenure: Tenure) -> dict[Any, LastPut]:
    """The latest put of each entity under a tenure, by key."""
    puts: dict[Any, LastPut] = tenure.notes.setdefault("last puts", {})  # type: ignore[assignment]
    return puts


def _stomp(
    entity: Any, stamp: Stamp | None, tenure: Tenure
) -> tuple[type[WriteViolation], str] | None:
    last = last_puts(tenure).get(entity._key)
    if last is None or last.by == _identity(entity) or not last.counts:
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
    return InternalStomp, f"the newer object was put at {last.place or 'a place not captured'}"


def note_put(entity: Any, tenure: Tenure, put_at: Place | None) -> LastPut:
    """Remember that this object is now the newest of its entity."""
    last = LastPut(_identity(entity), put_at, hooks.current_transaction())
    if hooks.is_complete(entity._key):
        last_puts(tenure)[entity._key] = last
    return last


def _identity(entity: Any) -> int:
    """A number for the object that no later object gets, unlike `id`."""
    number: int | None = entity.__dict__.get("_userlock_identity")
    if number is None:
        number = entity.__dict__["_userlock_identity"] = next(_sequence)
    return number


def check_delete(ndb_key: Any, lock_id: str | None, deleted_at: Place | None) -> Tenure | None:
    """Check a delete that is about to begin.

    Args:
        ndb_key: what is being deleted.
        lock_id: the lock that guards it; None when the key alone does not tell. Then any
            lock will do.
        deleted_at: where it is being deleted.

    Returns:
        The tenure under which the delete runs, if any.

    Raises:
        DeletedWithoutLock, LeaseRanOut, LeaseWasLost: it must not be, and enforcement is on.
    """
    tenure = _tenure_for(current_scope(), lock_id)
    if not checking(deleted_at):
        return tenure
    if tenure is None:
        kind, detail = DeletedWithoutLock, ""
    elif (ran_out := _ran_out(tenure)) is not None:
        kind, detail = ran_out  # type: ignore[assignment]
    else:
        return tenure
    report(
        kind(
            key=ndb_key,
            kind=ndb_key.kind(),
            lock_id=lock_id,
            read_at=None,
            put_at=deleted_at,
            detail=detail,
            deleting=True,
        )
    )
    return tenure


def _tenure_for(scope: LockScope | None, lock_id: str | None) -> Tenure | None:
    if scope is None:
        return None
    if lock_id is not None:
        return scope.held.get(lock_id)
    return next(iter(scope.held.values()), None)
