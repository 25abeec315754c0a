"""Whether an entity object may be put now, and a key be deleted.

The stamp of the read is held against what is held at the put. What does not
fit was read too early, too late, or from somewhere else. This is for what is
under the user's lock; `policy_checks` has the other write policies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from userlock.errors import (
    CreatedWithoutLock,
    DeletedWithoutLock,
    LeaseRanOut,
    LeaseWasLost,
    LockIdChanged,
    LockIdError,
    LockIdMissing,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
)
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.enforcement import Moment, report
from userlock.ndb.lockids import lock_id_for_put, lock_id_of_key
from userlock.ndb.places import Place
from userlock.ndb.policies import WritePolicy, policy_for_message
from userlock.ndb.policy_checks import Finding, finding_of_delete, finding_of_put, stomp
from userlock.ndb.stamps import Stamp


def check_put(
    entity: Any, stamp: Stamp | None, put_at: Place | None, now: Moment
) -> tuple[str | None, tuple[Tenure, ...]]:
    """Check a put of an entity under the user's lock, before it begins.

    Args:
        entity: the entity object.
        stamp: where the object comes from; None for a new one.
        put_at: where it is being put.
        now: what holds now.

    Returns:
        The lock that guards it; None when it cannot be locked yet because Datastore is still
        to allocate the id that names the lock, so that nobody else can know it. And the
        tenures under which the put runs: of its lock, and of the lock that it was under when
        it was read, if that was another one. None where it runs under none, and that is
        allowed.

    Raises:
        WriteViolation: the put must not be, and enforcement is on.
    """
    try:
        lock_id = lock_id_for_put(entity)
    except LockIdError as error:
        lock_id = None
        if now.checked and not hooks.projection_of(entity):  # of which that has been told
            _report_put(entity, (LockIdMissing, error.reason), None, stamp, put_at)
    if lock_id is None:
        return None, ()
    held = now.held
    tenure = held.get(lock_id)
    before = None
    if stamp is not None and stamp.lock_id is not None and stamp.lock_id != lock_id:
        before = _lock_id_before(stamp.lock_id, lock_id)
    if now.checked:
        if before is None:
            finding = _finding(entity, lock_id, stamp, tenure)
        else:
            finding = _finding_of_move(entity, lock_id, before, stamp, held)
        if finding is not None:
            _report_put(entity, finding, lock_id, stamp, put_at)
    if before is None:
        return lock_id, () if tenure is None else (tenure,)
    return lock_id, tuple(held[each] for each in (lock_id, before) if each in held)


def _finding(
    entity: Any, lock_id: str, stamp: Stamp | None, tenure: Tenure | None
) -> Finding | None:
    if stamp is None:
        if tenure is None:
            return CreatedWithoutLock, ""
        return _ran_out(tenure) or stomp(entity, None, tenure)
    read_under = stamp.held.get(lock_id)
    if tenure is None:
        if read_under is None:
            return PutWithoutLock, ""
        if read_under.held:
            return PutWithoutLock, "its lock is held elsewhere, by another thread or scope"
        return PutAfterRelease, ""
    if read_under is None:
        return ReadWithoutLock, ""
    if read_under is not tenure:
        return ReadUnderEarlierTenure, ""
    return _ran_out(tenure) or stomp(entity, stamp, tenure)


def _lock_id_before(value: object, lock_id: str) -> str | None:
    """The lock id that an entity had when it was read, if that was another one."""
    before = _as_lock_id(value)
    return before if before != lock_id else None


def _as_lock_id(value: object) -> str | None:
    """A lock id as a stamp has it."""
    return str(value) or None if isinstance(value, str | int) else None


def _finding_of_move(
    entity: Any, lock_id: str, before: str, stamp: Any, held: Any
) -> Finding | None:
    """An entity changes hands: both locks must be held, from the read to the put."""
    for each in (before, lock_id):
        tenure = held.get(each)
        if tenure is None or stamp.held.get(each) is not tenure:
            when = "it is put" if tenure is None else "it was read"
            return LockIdChanged, (
                f"its lock was {before!r} when it was read and is {lock_id!r} now; "
                f"{each!r} was not held when {when}"
            )
        finding = _ran_out(tenure) or stomp(entity, stamp, tenure)
        if finding is not None:
            return finding
    return None


def _ran_out(tenure: Tenure) -> Finding | None:
    if tenure.lost:
        return LeaseWasLost, tenure.lost
    if not tenure.ran_out:
        return None
    lease = tenure.lease
    return LeaseRanOut, (
        f"a lease of {lease.ttl_seconds:g} s, taken {tenure.held_seconds:.3g} s ago"
    )


def check_put_of_policy(
    entity: Any, policy: WritePolicy, stamp: Stamp | None, put_at: Place | None, now: Moment
) -> None:
    """Check a put of an entity that has another policy than the user's lock.

    Raises:
        WriteViolation: the put must not be, and enforcement is on.
    """
    if now.checked:
        finding = finding_of_put(entity, policy, stamp)
        if finding is not None:
            _report_put(entity, finding, None, stamp, put_at)


def check_whole(entity: Any, stamp: Stamp | None, put_at: Place | None, now: Moment) -> None:
    """Check that an entity that is to be put does not come from a projection query.

    Raises:
        PartialEntityPut: it does, and enforcement is on.
    """
    policy = type(entity)._write_policy
    if not hooks.projection_of(entity) or policy.is_unsafe or not now.checked:
        return
    lock_id = None
    if policy is WritePolicy.USER_LOCK:
        with contextlib.suppress(Exception):  # the projection may lack it
            lock_id = lock_id_for_put(entity)
    finding = PartialEntityPut, f"it has only {', '.join(hooks.projection_of(entity))}"
    _report_put(entity, finding, lock_id, stamp, put_at)


def _report_put(
    entity: Any,
    finding: Finding,
    lock_id: str | None,
    stamp: Stamp | None,
    put_at: Place | None,
) -> None:
    kind, detail = finding
    report(
        kind(
            key=entity._key,
            kind=type(entity)._get_kind(),
            lock_id=lock_id,
            policy=policy_for_message(type(entity)),
            read_at=None if stamp is None else stamp.place,
            put_at=put_at,
            detail=detail,
        )
    )


def check_delete(
    cls: Any, ndb_key: Any, stamp: Stamp | None, deleted_at: Place | None, now: Moment
) -> tuple[str | None, Tenure | None]:
    """Check a delete that is about to begin.

    Args:
        cls: the model class of the key's kind.
        ndb_key: what is being deleted.
        stamp: of the object that the context cache has of it, if any.
        deleted_at: where it is being deleted.
        now: what holds now.

    Returns:
        The lock that guards it; None when neither the key nor the object tells. Then any lock
        will do. And the tenure under which the delete runs, if any.

    Raises:
        WriteViolation: it must not be, and enforcement is on.
    """
    if cls._write_policy is WritePolicy.USER_LOCK:
        lock_id, tenure, finding = _finding_of_delete(cls, ndb_key, stamp, now)
    else:
        lock_id, tenure, finding = None, None, finding_of_delete(cls._write_policy)
    if finding is not None and now.checked:
        kind, detail = finding
        report(
            kind(
                key=ndb_key,
                kind=ndb_key.kind(),
                lock_id=lock_id,
                policy=policy_for_message(cls),
                read_at=None,
                put_at=deleted_at,
                detail=detail,
                deleting=True,
            )
        )
    return lock_id, tenure


def _finding_of_delete(
    cls: Any, ndb_key: Any, stamp: Stamp | None, now: Moment
) -> tuple[str | None, Tenure | None, Finding | None]:
    """The lock of what is being deleted, its tenure, and what is wrong."""
    try:
        lock_id = lock_id_of_key(cls, ndb_key) or _lock_id_as_read(stamp, now.held)
    except LockIdError as error:
        return None, None, (LockIdMissing, error.reason)
    any_of_them = next(iter(now.held.values()), None)
    tenure = any_of_them if lock_id is None else now.held.get(lock_id)
    return lock_id, tenure, (DeletedWithoutLock, "") if tenure is None else _ran_out(tenure)


def _lock_id_as_read(stamp: Stamp | None, held: Mapping[str, Tenure]) -> str | None:
    """The lock id that an entity had when it was read (or put) under what is held still."""
    if stamp is None or not any(held.get(each) is tenure for each, tenure in stamp.held.items()):
        return None
    return _as_lock_id(stamp.lock_id)
