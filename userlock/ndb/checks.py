"""The checks of puts and deletes: the stamp of the read against the locks that are held now.

What does not fit was read too early, too late, or from somewhere else. The
first half is for what is under the user's lock, the second for the other write
policies. At the end: what the caches may answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from userlock.callsite import CallSite
from userlock.errors import (
    AbstractModelWritten,
    BatchOnlyModelWritten,
    CreatedWithoutLock,
    DeletedWithoutLock,
    ImmutableEntityRewritten,
    LeaseRanOut,
    LeaseWasLost,
    LockIdChanged,
    LockIdError,
    LockIdMissing,
    NotInTransaction,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadOnlyModelWritten,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    StaleObjectPut,
    StructuredModelWritten,
    WriteViolation,
    WrongTransaction,
)
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope
from userlock.ndb.context import current_attempt, current_transaction, in_transaction
from userlock.ndb.enforcement import Moment, report
from userlock.ndb.lock_ids import lock_id_for_put, lock_id_of_key
from userlock.ndb.patches import is_complete, kind_of, projection_of
from userlock.ndb.policies import WritePolicy, policy_for_message
from userlock.ndb.provenance import Stamp, newer_put, put_in_running_transaction, stamp_of

#: A violation to be: its class, and what is special about this case.
Finding = tuple[type[WriteViolation], str]


def check_put(
    entity: Any, stamp: Stamp | None, put_at: CallSite | None, now: Moment
) -> tuple[str | None, tuple[HeldLock, ...]]:
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
        if now.checked and not projection_of(entity):  # of which that has been told
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
            finding = _finding(entity, lock_id, stamp, held)
        else:
            finding = _finding_of_move(entity, lock_id, before, stamp, held)
        if finding is not None:
            _report_put(entity, finding, lock_id, stamp, put_at)
    if before is None:
        return lock_id, () if tenure is None else (tenure,)
    return lock_id, tuple(held[each] for each in (lock_id, before) if each in held)


def _finding(
    entity: Any, lock_id: str, stamp: Stamp | None, held: Mapping[str, HeldLock]
) -> Finding | None:
    tenure = held.get(lock_id)
    if stamp is None:
        if tenure is None:
            if entity._userlock_allocated is entity._key and in_transaction():
                return None  # by another attempt, or put in this one: nobody else can know it
            return CreatedWithoutLock, _others(held)
        return _ran_out(tenure) or stomp(entity, None, tenure)
    read_under = stamp.held.get(lock_id)
    if tenure is None:
        if read_under is None:
            return PutWithoutLock, _others(held)
        if read_under.held:
            return PutWithoutLock, "its lock is held elsewhere, by another thread or scope"
        return PutAfterRelease, _others(held)
    if read_under is None:
        return ReadWithoutLock, ""
    if read_under is not tenure:
        return ReadUnderEarlierTenure, ""
    return _ran_out(tenure) or stomp(entity, stamp, tenure)


_MOST_NAMED = 5


def _others(held: Mapping[str, HeldLock]) -> str:
    """Name the locks that are held instead: often the mistake is the wrong one."""
    if not held:
        return ""
    names = [repr(lock_id) for lock_id in held]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"the locks held here are for {', '.join(names[:_MOST_NAMED])}{more}"


def _lock_id_before(value: object, lock_id: str) -> str | None:
    """Return the lock id that an entity had when it was read, if that was another one."""
    before = _as_lock_id(value)
    return before if before != lock_id else None


def _as_lock_id(value: object) -> str | None:
    """Return a lock id as a stamp has it."""
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


def _ran_out(tenure: HeldLock) -> Finding | None:
    if tenure.lost:
        return LeaseWasLost, tenure.lost
    if not tenure.ran_out:
        return None
    lease = tenure.lease
    return LeaseRanOut, (
        f"a lease of {lease.ttl_seconds:g} s, taken {tenure.held_seconds:.3g} s ago"
    )


def check_put_of_policy(
    entity: Any, policy: WritePolicy, stamp: Stamp | None, put_at: CallSite | None, now: Moment
) -> None:
    """Check a put of an entity that has another policy than the user's lock.

    Raises:
        WriteViolation: the put must not be, and enforcement is on.
    """
    if now.checked:
        finding = finding_of_put(entity, policy, stamp)
        if finding is not None:
            _report_put(entity, finding, None, stamp, put_at)


def check_whole(entity: Any, stamp: Stamp | None, put_at: CallSite | None, now: Moment) -> None:
    """Check that an entity that is to be put does not come from a projection query.

    Raises:
        PartialEntityPut: it does, and enforcement is on.
    """
    policy = type(entity)._write_policy
    if not projection_of(entity) or policy.is_unsafe or not now.checked:
        return
    lock_id = None
    if policy is WritePolicy.USER_LOCK:
        with contextlib.suppress(Exception):  # the projection may lack it
            lock_id = lock_id_for_put(entity)
    finding = PartialEntityPut, f"it has only {', '.join(projection_of(entity))}"
    _report_put(entity, finding, lock_id, stamp, put_at)


def _report_put(
    entity: Any,
    finding: Finding,
    lock_id: str | None,
    stamp: Stamp | None,
    put_at: CallSite | None,
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
    cls: Any, ndb_key: Any, stamp: Stamp | None, deleted_at: CallSite | None, now: Moment
) -> tuple[str | None, HeldLock | None]:
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
                kind=kind_of(ndb_key),
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
) -> tuple[str | None, HeldLock | None, Finding | None]:
    """Return the lock of what is being deleted, its tenure, and what is wrong."""
    try:
        lock_id = lock_id_of_key(cls, ndb_key) or _lock_id_as_read(stamp, now.held)
    except LockIdError as error:
        return None, None, (LockIdMissing, error.reason)
    any_of_them = next(iter(now.held.values()), None)
    tenure = any_of_them if lock_id is None else now.held.get(lock_id)
    return (
        lock_id,
        tenure,
        (DeletedWithoutLock, _others(now.held)) if tenure is None else _ran_out(tenure),
    )


def _lock_id_as_read(stamp: Stamp | None, held: Mapping[str, HeldLock]) -> str | None:
    """Return the lock id that an entity had when it was read (or put) under what is held still."""
    if stamp is None or not any(held.get(each) is tenure for each, tenure in stamp.held.items()):
        return None
    return _as_lock_id(stamp.lock_id)


# --- the other write policies ---------------------------------------------------------------


def finding_of_put(entity: Any, policy: WritePolicy, stamp: Stamp | None) -> Finding | None:
    """Return the violation of a put of an entity of that policy; None for `unsafe`."""
    find = _OF_PUT.get(policy)
    if find is None:
        return None
    found = find(entity, stamp)
    return stomp(entity, stamp, None) if found is None and in_transaction() else found


def finding_of_delete(policy: WritePolicy) -> Finding | None:
    """Return the violation of a delete of an entity of that policy."""
    find = _OF_DELETE.get(policy)
    return None if find is None else find()


def stomp(entity: Any, stamp: Stamp | None, tenure: HeldLock | None) -> Finding | None:
    """Return the violation of putting an older object after a newer one of the same entity.

    Under a tenure, else in the running transaction.
    """
    newer = newer_put(entity, stamp, tenure)
    if newer is None:
        return None
    return StaleObjectPut, f"the newer object was put at {newer.place or 'a place not captured'}"


def _not_in_its_transaction(entity: Any, stamp: Stamp | None) -> Finding | None:
    transaction = current_transaction()
    if transaction is None:
        # Nobody else can know the id that Datastore is about to allocate.
        new = stamp is None and not is_complete(entity._key)
        return None if new else (NotInTransaction, "")
    if stamp is not None and stamp.transaction != transaction:
        where = "outside of any" if stamp.transaction is None else "in another one"
        return WrongTransaction, f"it was read, or last put, {where}"
    return None


def _written_again(entity: Any, stamp: Stamp | None) -> Finding | None:
    again = stamp is not None or put_in_running_transaction(entity)
    return (ImmutableEntityRewritten, "") if again else None


def _not_from_batch() -> Finding | None:
    scope = current_scope()
    if scope is None:
        return BatchOnlyModelWritten, "there is no scope here"
    if scope.batch_work:
        return None
    name = scope.request or "this scope"
    if scope.priority is Priority.BATCH:
        return BatchOnlyModelWritten, (
            f"{name} is batch by a header that anybody can send: name its path in batch_prefixes, "
            f"or the header in trusted_headers if nobody but the queue can send it"
        )
    return BatchOnlyModelWritten, f"{name} is interactive"


_OF_PUT: Mapping[WritePolicy, Callable[[Any, Stamp | None], Finding | None]] = {
    WritePolicy.IN_TRANSACTION: _not_in_its_transaction,
    WritePolicy.WRITE_ONCE: _written_again,
    WritePolicy.NEVER_WRITTEN: lambda entity, stamp: (ReadOnlyModelWritten, ""),
    WritePolicy.BATCH_ONLY: lambda entity, stamp: _not_from_batch(),
    WritePolicy.ABSTRACT: lambda entity, stamp: (AbstractModelWritten, ""),
    WritePolicy.STRUCTURED_ONLY: lambda entity, stamp: (StructuredModelWritten, ""),
}

_OF_DELETE: Mapping[WritePolicy, Callable[[], Finding | None]] = {
    WritePolicy.IN_TRANSACTION: lambda: None if in_transaction() else (NotInTransaction, ""),
    WritePolicy.NEVER_WRITTEN: lambda: (ReadOnlyModelWritten, ""),
    WritePolicy.BATCH_ONLY: _not_from_batch,
    WritePolicy.ABSTRACT: lambda: (AbstractModelWritten, ""),
    WritePolicy.STRUCTURED_ONLY: lambda: (StructuredModelWritten, ""),
}


# --- caches lie -----------------------------------------------------------------------------


def cached_is_good(entity: Any) -> bool:
    """Return whether the context cache may answer with an entity.

    Under a lock, only what was read (or put) under the same tenure is fresh.
    """
    if entity._write_policy is WritePolicy.IN_TRANSACTION:
        return _is_of_running_transaction(entity)
    scope = current_scope()
    if scope is None or not scope.held or entity._userlock_rule is None:
        return True
    try:
        lock_id = lock_id_for_put(entity)
    except Exception:
        # It does not say which lock guards it. That is for its put to report; a
        # read is simply made afresh.
        return False
    if lock_id is None or lock_id not in scope.held:
        return True
    if put_in_running_transaction(entity):
        return True  # the transaction cannot read its own write back
    stamp = stamp_of(entity)
    return (
        stamp is not None
        and stamp.held.get(lock_id) is scope.held[lock_id]
        # Otherwise a change that its transaction rolled back may be in it.
        and stamp.transaction in (None, current_transaction())
        # A newer object may have been put past the cache.
        and newer_put(entity, stamp, scope.held[lock_id]) is None
    )


def _is_of_running_transaction(entity: Any) -> bool:
    """Return whether it was read or put in the running transaction, if there is one.

    An independent transaction leaves what it has read in the cache of the one around it.
    """
    transaction = current_transaction()
    if transaction is None or put_in_running_transaction(entity):
        return True
    stamp = stamp_of(entity)
    return stamp is not None and stamp.transaction == transaction


def cached_miss_is_good(cls: Any, ndb_key: Any) -> bool:
    """Return whether the context cache may answer that there is no such entity.

    Under its lock a missing entity is looked for again: it may exist by now.
    """
    scope = current_scope()
    if scope is None or not scope.held or cls._write_policy is not WritePolicy.USER_LOCK:
        return True
    if in_transaction() and ndb_key in current_attempt().deleted:
        return True  # the transaction would find it still
    try:
        lock_id = lock_id_of_key(cls, ndb_key)
    except Exception:
        return False  # as above
    return lock_id is not None and lock_id not in scope.held


def bypass_global_cache() -> bool:
    """Return whether look-ups must go to Datastore itself now."""
    scope = current_scope()
    return scope is not None and bool(scope.held)
