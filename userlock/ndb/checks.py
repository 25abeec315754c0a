"""Checks of puts and deletes: the stamp of the read against the locks that are held now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from userlock import errors
from userlock.ids import quoted, show_request
from userlock.lock.held_lock import HeldLock, held_seconds_of, lease_seconds_of
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope
from userlock.ndb.context import current_attempt, current_transaction, in_transaction, request_notes
from userlock.ndb.lock_ids import lock_id_for_put, lock_id_of_key
from userlock.ndb.patches import is_complete
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import OVERTAKEN, Stamp, stamp_of

#: The class of a violation, and the details of this case.
Finding = tuple[type[errors.WriteViolation], str]


def check_put(write: Any) -> tuple[str | None, tuple[HeldLock, ...]]:
    """Check a `writes.Put` before it begins. Returns its lock, and the tenures that it runs under:
    of that lock, and of the entity's lock at its read, if that was another one.

    No lock while Datastore is still to allocate the id that names it: nobody else can know it.
    """
    entity, stamp, held = write.entity, write.stamp, write.held
    if entity._userlock_rule is None:
        finding = _finding_of_policy(entity, stamp) if write.enforced else None
        if finding is not None:
            write.report(*finding)
        return None, ()
    try:
        lock_id = lock_id_for_put(entity)
    except errors.LockIdError as error:
        if write.enforced:
            # The cause is an error of the application's rule.
            write.report(errors.LockIdMissing, error.reason, cause=error.__cause__)
        return None, ()
    if lock_id is None:
        return None, ()
    before = None
    if stamp is not None and stamp.lock_id is not None and stamp.lock_id != lock_id:
        before = _as_lock_id(stamp.lock_id)
        if before == lock_id:  # a number and its string are one id
            before = None
    if write.enforced:
        if before is None:
            finding = _finding(entity, lock_id, stamp, held)
        else:
            finding = _finding_of_move(entity, lock_id, before, stamp, held)
        if finding is not None:
            write.report(*finding, lock_id=lock_id)
    owners = (lock_id,) if before is None else (lock_id, before)
    return lock_id, tuple(filter(None, map(held.get, owners)))


def _finding(
    entity: Any, lock_id: str, stamp: Stamp | None, held: Mapping[str, HeldLock]
) -> Finding | None:
    tenure = held.get(lock_id)
    if stamp is None:
        if tenure is None:
            key = entity._userlock_key
            if in_transaction() and is_complete(key) and request_notes().ledger.was_allocated(key):
                return None  # this attempt or an earlier one got its id: nobody else knows it
            return errors.CreatedWithoutLock, _others(held)
        return _ran_out(tenure) or _outdated(entity, None, tenure)
    read_under = stamp.held.get(lock_id)
    if tenure is None:
        if read_under is None:
            return errors.PutWithoutLock, _others(held)
        if read_under.held:
            return errors.PutWithoutLock, "its lock is held elsewhere, by another thread or scope"
        return errors.PutAfterRelease, _others(held)
    if read_under is None:
        return errors.ReadWithoutLock, ""
    if read_under is not tenure:
        return errors.ReadUnderEarlierTenure, ""
    if tenure.lost or not tenure.expires_in:
        return _ran_out(tenure)
    return _outdated(entity, stamp, tenure)


def _others(held: Mapping[str, HeldLock]) -> str:
    """Name the locks that are held instead: often the code has taken the wrong one."""
    if not held:
        return ""
    names = [quoted(lock_id) for lock_id in held]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the locks held here are for {', '.join(names[:5])}{more}"


def _as_lock_id(value: object) -> str | None:
    """Return the lock id in a stamp, which is not checked."""
    return str(value) or None if isinstance(value, str | int) else None


def _finding_of_move(
    entity: Any, lock_id: str, before: str, stamp: Any, held: Mapping[str, HeldLock]
) -> Finding | None:
    """Check an entity that changes its owner: its lock must be held from the read to the put, and
    that of the new owner at the put."""
    for each in (before, lock_id):
        tenure = held.get(each)
        if tenure is None or (each == before and stamp.held.get(each) is not tenure):
            gap = "is not held" if tenure is None else "was not held when it was read"
            return errors.LockIdChanged, (
                f"its lock was {quoted(before)} when it was read and is {quoted(lock_id)} now; "
                f"{quoted(each)} {gap}"
            )
        finding = _ran_out(tenure) or _outdated(entity, stamp, tenure)
        if finding is not None:
            return finding
    return None


def _ran_out(tenure: HeldLock) -> Finding | None:
    if tenure.lost:
        return errors.LeaseWasLost, tenure.lost
    if tenure.expires_in > 0:
        return None
    return errors.LeaseRanOut, (
        f"a lease of {lease_seconds_of(tenure):g} s, taken {held_seconds_of(tenure):.3g} s ago"
    )


def _outdated(entity: Any, stamp: Stamp | None, tenure: HeldLock | None) -> Finding | None:
    """Return the violation of a put after that of a newer object of the same entity: under the
    tenure; without one, in the running transaction."""
    transaction, key = current_transaction(), entity._userlock_key
    put = current_attempt().latest.get(key) if transaction is not None else None
    # A transaction reads the state at its beginning, never its own writes: an object that is
    # read after a put in the same transaction is outdated all the same.
    if put is not None and put.entity is entity:
        return None
    if put is None or put.deleting:
        # The insert refuses a new object for an existing entity, and the commit of a transaction
        # is refused that has read an older state.
        if tenure is None or stamp is None or stamp.transaction == transaction is not None:
            return None
        notes = request_notes()
        put = notes.flying.get(key)
        if put is None or put.deleting or put.entity is entity:
            put = notes.ledger.later_put(stamp)
    if put is None or (tenure is not None and put.held.get(tenure.lock_id) is not tenure):
        return None
    place = put.place or "a place not captured"
    return errors.StaleObjectPut, f"the newer object was put at {place}"


def check_delete(
    write: Any, cls: Any, ndb_key: Any, seen: Stamp | None
) -> tuple[str | None, tuple[HeldLock, ...]]:
    """Check a `writes.Delete`. Returns the lock of the entity, and the tenures that it runs under.

    If neither the key tells the lock, nor the version `seen` last, any lock is enough. It may be
    each of those held: the delete relies on all of them.
    """
    if cls._write_policy is WritePolicy.USER_LOCK:
        lock_id, tenures, finding = _finding_of_delete(cls, ndb_key, seen, write.held)
    else:
        lock_id, tenures, finding = None, (), _finding_of_any_write(cls._write_policy)
    if finding is not None and write.enforced:
        write.report(*finding, lock_id=lock_id)
    return lock_id, tenures


def _finding_of_delete(
    cls: Any, ndb_key: Any, stamp: Stamp | None, held: Mapping[str, HeldLock]
) -> tuple[str | None, tuple[HeldLock, ...], Finding | None]:
    try:
        lock_id = lock_id_of_key(cls, ndb_key)
    except errors.LockIdError as error:
        return None, (), (errors.LockIdMissing, error.reason)
    if lock_id is None and stamp is not None:
        still_held = any(held.get(each) is tenure for each, tenure in stamp.held.items())
        lock_id = _as_lock_id(stamp.lock_id) if still_held else None
    if lock_id is None:
        tenures = tuple(held.values())
    else:
        tenures = (held[lock_id],) if lock_id in held else ()
    if not tenures:
        return lock_id, (), (errors.DeletedWithoutLock, _others(held))
    return lock_id, tenures, next(filter(None, map(_ran_out, tenures)), None)


# --- the other write policies ---------------------------------------------------------------

_NEVER_ALLOWED: Mapping[WritePolicy, type[errors.WriteViolation]] = {
    WritePolicy.NEVER_WRITTEN: errors.ReadOnlyModelWritten,
    WritePolicy.ABSTRACT: errors.AbstractModelWritten,
    WritePolicy.STRUCTURED_ONLY: errors.StructuredModelWritten,
}


def _finding_of_policy(entity: Any, stamp: Stamp | None) -> Finding | None:
    policy, transaction = type(entity)._write_policy, current_transaction()
    in_one = policy == WritePolicy.IN_TRANSACTION
    # Nobody else can know the id that Datastore is about to allocate.
    new_id = stamp is None and not is_complete(entity._userlock_key)
    if policy.is_unsafe or (in_one and new_id):
        return None
    found = _finding_of_any_write(policy)
    if found is not None:
        return found
    if in_one and stamp is not None and stamp.transaction != transaction:
        return errors.WrongTransaction, "it was read, or last put, outside of it"
    written = stamp is not None or put_in_running_transaction(entity)
    if policy == WritePolicy.WRITE_ONCE and written:
        return errors.ImmutableEntityRewritten, ""
    return None if transaction is None else _outdated(entity, stamp, None)


def _finding_of_any_write(policy: WritePolicy) -> Finding | None:
    if policy == WritePolicy.IN_TRANSACTION:
        return None if in_transaction() else (errors.NotInTransaction, "")
    if policy == WritePolicy.BATCH_ONLY:
        return _not_from_batch()
    violation = _NEVER_ALLOWED.get(policy)
    return None if violation is None else (violation, "")


def _not_from_batch() -> Finding | None:
    scope = current_scope()
    if scope is None:
        return errors.BatchOnlyModelWritten, "there is no scope here"
    if scope.batch_work:
        return None
    name = show_request(scope.request) or "this scope"
    if scope.priority is Priority.BATCH:
        return errors.BatchOnlyModelWritten, (
            f"{name} is batch by a header that anybody can send: name its path in batch_prefixes, "
            f"or the header in trusted_headers if nobody but the queue can send it"
        )
    return errors.BatchOnlyModelWritten, f"{name} is interactive"


# --- caches ---------------------------------------------------------------------------------


def cached_is_good(entity: Any) -> bool:
    """Return whether the context cache may answer with an entity: under a lock, with one that was
    read or put under the same tenure."""
    stamp, ledger = stamp_of(entity), request_notes().ledger
    if stamp is None:  # it was never stored: its put has failed, or the application has cached it
        outdated = ledger.has_failed(entity._userlock_key)
    else:
        outdated = stamp.version == OVERTAKEN or ledger.is_outdated(stamp)
    if outdated:
        return put_in_running_transaction(entity)
    if entity._write_policy is WritePolicy.IN_TRANSACTION:
        # An independent transaction leaves its reads in the cache of the transaction around it.
        transaction, read_in = current_transaction(), stamp and stamp.transaction
        return transaction in (None, read_in) or put_in_running_transaction(entity)
    scope = current_scope()
    if scope is None or not scope.held or entity._userlock_rule is None:
        return True
    try:
        lock_id = lock_id_for_put(entity)
    except Exception:
        return False  # its put reports the missing lock id; a read is simply made afresh
    if lock_id is None or lock_id not in scope.held:
        # It may have been given to an owner whose lock is held, unless its key names the owner.
        return entity._userlock_rule.by_key or (
            stamp is not None
            and all(stamp.held.get(each) is tenure for each, tenure in scope.held.items())
        )
    if put_in_running_transaction(entity):
        return True  # the transaction cannot read its own write back
    return (
        stamp is not None
        and stamp.held.get(lock_id) is scope.held[lock_id]
        # Otherwise it may have a change that its transaction has rolled back.
        and stamp.transaction in (None, current_transaction())
        # A newer object may have been put past the cache.
        and _outdated(entity, stamp, scope.held[lock_id]) is None
    )


def is_latest(entity: Any, stamp: Stamp, tenure: HeldLock) -> bool:
    """Return whether an object was read under a tenure, and no newer version of it is known."""
    return (
        stamp.version >= 0
        and stamp.held.get(tenure.lock_id) is tenure
        and not request_notes().ledger.is_outdated(stamp)
        and _outdated(entity, stamp, tenure) is None
    )


def put_in_running_transaction(entity: Any) -> bool:
    """Return whether this very object was put in the transaction that the code is in."""
    if not in_transaction():
        return False
    last = current_attempt().latest.get(entity._userlock_key)
    return last is not None and last.entity is entity


def cached_miss_is_good(cls: Any, ndb_key: Any) -> bool:
    """Return whether the context cache may answer that there is no such entity: not under its lock,
    as it may exist by now, nor if a delete of it has failed."""
    if in_transaction() and ndb_key in current_attempt().latest:
        return True  # a transaction would still find what it has deleted
    if request_notes().ledger.has_failed(ndb_key):
        return False
    scope = current_scope()
    if scope is None or not scope.held or cls._write_policy is not WritePolicy.USER_LOCK:
        return True
    try:
        lock_id = lock_id_of_key(cls, ndb_key)
    except Exception:
        return False  # as above
    return lock_id is not None and lock_id not in scope.held
