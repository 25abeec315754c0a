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
from typing import Any

from userlock.errors import (
    CreatedWithoutLock,
    DeletedWithoutLock,
    InternalStomp,
    LeaseRanOut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    WriteViolation,
)
from userlock.events import LISTENERS, Violation
from userlock.lock.scope import LockScope, current_scope, defaults
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.places import Place, here
from userlock.settings import Enforcement, Settings

_NOTHING: Mapping[str, Tenure] = {}
#: Orders reads and puts within the process. `next` on a count is atomic in CPython.
_sequence = itertools.count(1)


class Stamp:
    """What is remembered about an entity object since it was read or last put.

    Attributes:
        held: the locks its reader held, as the scope had them at that moment.
        version: the entity's version in Datastore; 0 when it is not known.
        transaction: the transaction it was read in, if any.
        place: where in the code it was read, if that is captured.
        order: when, in the process-wide order of reads and puts.
    """

    __slots__ = ("held", "order", "place", "transaction", "version")

    def __init__(
        self,
        held: Mapping[str, Tenure],
        version: int,
        transaction: bytes | None,
        place: Place | None,
    ) -> None:
        self.held = held
        self.version = version
        self.transaction = transaction
        self.place = place
        self.order = next(_sequence)


def stamp_of_read(version: int) -> Stamp:
    """The stamp for an entity that comes out of Datastore now."""
    scope = current_scope()
    if scope is None:
        held, settings = _NOTHING, defaults.settings
    else:
        held, settings = scope.held, scope.settings
    place = here() if settings.capture_places else None
    return Stamp(held, version, hooks.current_transaction(), place)


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


def _checking() -> bool:
    return current_settings().enforcement is not Enforcement.OFF and _suppressed.get() is None


def report(violation: WriteViolation) -> None:
    """Raise the violation, or tell of it, as the settings say."""
    enforced = current_settings().enforcement is Enforcement.RAISE
    LISTENERS.emit(Violation(violation.lock_id, violation, enforced))
    if enforced:
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
    if _checking():
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
    if stamp is None:
        if tenure is None:
            return CreatedWithoutLock, ""
        return _ran_out(tenure)
    read_under = stamp.held.get(lock_id)
    if tenure is None:
        return (PutWithoutLock if read_under is None else PutAfterRelease), ""
    if read_under is None:
        return ReadWithoutLock, ""
    if read_under is not tenure:
        return ReadUnderEarlierTenure, ""
    return _ran_out(tenure) or _stomp(entity, stamp, tenure)


def _ran_out(tenure: Tenure) -> tuple[type[WriteViolation], str] | None:
    if not tenure.ran_out:
        return None
    lease = tenure.lease
    return LeaseRanOut, (
        f"a lease of {lease.ttl_seconds:g} s, taken {tenure.held_seconds:.3g} s ago"
    )


class _LastPut:
    """The latest put of one entity under one tenure."""

    __slots__ = ("by", "order", "place", "transaction")

    def __init__(self, by: int, place: Place | None, transaction: bytes | None) -> None:
        self.by = by
        self.place = place
        self.transaction = transaction
        self.order = next(_sequence)


def _last_puts(tenure: Tenure) -> dict[Any, _LastPut]:
    puts: dict[Any, _LastPut] = tenure.notes.setdefault("last puts", {})  # type: ignore[assignment]
    return puts


def _stomp(entity: Any, stamp: Stamp, tenure: Tenure) -> tuple[type[WriteViolation], str] | None:
    last = _last_puts(tenure).get(entity._key)
    if last is None or last.by == _identity(entity):
        return None
    # A transaction reads the state at its beginning, never its own writes: an
    # object read in it after a put in it is the older one all the same.
    same_transaction = last.transaction is not None and last.transaction == stamp.transaction
    if stamp.order > last.order and not same_transaction:
        return None
    return InternalStomp, f"the newer object was put at {last.place or 'a place not captured'}"


def note_put(entity: Any, tenure: Tenure, put_at: Place | None) -> None:
    """Remember that this object is now the newest of its entity."""
    if entity._key is not None:
        _last_puts(tenure)[entity._key] = _LastPut(
            _identity(entity), put_at, hooks.current_transaction()
        )


def _identity(entity: Any) -> int:
    """A number for the object that no later object gets, unlike `id`."""
    number: int | None = entity.__dict__.get("_userlock_identity")
    if number is None:
        number = entity.__dict__["_userlock_identity"] = next(_sequence)
    return number


def check_delete(ndb_key: Any, lock_id: str | None, deleted_at: Place | None) -> None:
    """Check a delete that is about to begin.

    Args:
        ndb_key: what is being deleted.
        lock_id: the lock that guards it; None when the key alone does not tell. Then any
            lock will do.
        deleted_at: where it is being deleted.

    Raises:
        DeletedWithoutLock, LeaseRanOut: it must not be, and enforcement is on.
    """
    if not _checking():
        return
    tenure = _tenure_for(current_scope(), lock_id)
    if tenure is None:
        kind, detail = DeletedWithoutLock, ""
    elif (ran_out := _ran_out(tenure)) is not None:
        kind, detail = ran_out  # type: ignore[assignment]
    else:
        return
    report(
        kind(
            key=ndb_key,
            kind=ndb_key.kind(),
            lock_id=lock_id,
            read_at=None,
            put_at=deleted_at,
            detail=detail,
        )
    )


def _tenure_for(scope: LockScope | None, lock_id: str | None) -> Tenure | None:
    if scope is None:
        return None
    if lock_id is not None:
        return scope.held.get(lock_id)
    return next(iter(scope.held.values()), None)
