"""Letting people pass: a lock that batch work holds, handed over at a checkpoint and taken back.

    batch     ▐▀▀ step 1 ▀▀▌           ▐▀▀ step 2 ▀▀▀▀▀▀▌
    a person        comes ▐▀▀ served ▀▀▌

Locks that were taken after the one that is yielded, and stand after it in
canonical order, are given up with it and taken back with it. Kept, they would
turn the order round:

    batch     has a and b, yields a ──────── waits for a, has b ┄┄┄┄ for ever
    a person                       takes a ── waits for b ┄┄┄┄┄┄┄┄┄┄ for ever
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from userlock.errors import LockNotHeld
from userlock.lock.held_lock import HeldLock, participants
from userlock.lock.store import StoreUnavailable

if TYPE_CHECKING:
    from userlock.lock.scope import LockScope


def let_people_pass(
    tenure: HeldLock, innermost: LockScope | None, *, wait_timeout: float | None
) -> HeldLock:
    """See `HeldLock.yield_to_waiters`.

    Args:
        tenure: one of a scope's, or one that it has succeeded.
        innermost: the scope that the running code is in.
        wait_timeout: longest wait for each lock that is taken back.
    """
    while tenure._successor is not None:
        tenure = tenure._successor
    if tenure._released:
        raise LockNotHeld(
            f"lock {tenure.lock_id!r} cannot be yielded: it has been released",
            lock_id=tenure.lock_id,
        )
    if tenure.scope._in_a_fork:
        raise LockNotHeld(
            f"lock {tenure.lock_id!r} cannot be yielded: it belongs to the process that forked "
            f"this one",
            lock_id=tenure.lock_id,
        )
    if _has_to_stay(tenure) or not _people_wait_for(tenure):
        return tenure
    later = [each for each in _taken_after(tenure, innermost) if each.lock_id > tenure.lock_id]
    if any(_has_to_stay(each) for each in later):
        return tenure
    return _pass([tenure, *sorted(later, key=lambda each: each.lock_id)], wait_timeout=wait_timeout)


def _people_wait_for(tenure: HeldLock) -> bool:
    """Return whether an interactive request waits for the lock; False if the store is silent."""
    service, lock_id = tenure.scope.service, tenure.lock_id
    try:
        record = service.ask(lock_id, service.leases.look, lock_id)
    except StoreUnavailable:
        return False
    return record is not None and record.waits_for_a_person


def _has_to_stay(tenure: HeldLock) -> bool:
    return any(participant.holds(tenure) for participant in participants)


def _taken_after(tenure: HeldLock, innermost: LockScope | None) -> Iterator[HeldLock]:
    """Return the locks that the holder has taken since."""
    scope = tenure.scope
    later = list(scope.held.values())
    yield from _like(tenure, later[later.index(tenure) + 1 :])
    inner = []
    while innermost is not None and innermost is not scope:
        inner.append(innermost)
        innermost = innermost.outer
    if innermost is scope:
        for each in inner:
            yield from _like(tenure, list(each.held.values()))


def _like(tenure: HeldLock, others: list[HeldLock]) -> Iterator[HeldLock]:
    """Return those of the same thread, from the same service."""
    for other in others:
        same_service = other.scope.service is tenure.scope.service
        if same_service and other.owner[0] == tenure.owner[0]:
            yield other


def _pass(tenures: list[HeldLock], *, wait_timeout: float | None) -> HeldLock:
    """Release them, the last first, and take them back; the first one's successor."""
    for tenure in tenures:
        tenure.scope._finish_writes(tenure, failing=False)
    for tenure in reversed(tenures):
        tenure.scope._release_now(tenure, ending=False)
    new: list[HeldLock] = []
    try:
        for tenure in tenures:
            new.append(_take_back(tenure, wait_timeout))
    except BaseException:
        for tenure in reversed(new):  # all, or none
            tenure.scope._release_now(tenure, ending=False)
        raise
    return new[0]


def _take_back(tenure: HeldLock, wait_timeout: float | None) -> HeldLock:
    lease, keeping = tenure.lease, tenure._keeping
    heartbeat = keeping is not None and keeping.heartbeat
    new = tenure.scope.acquire(
        tenure.lock_id,
        wait_timeout=wait_timeout,
        lock_timeout=keeping._ttl_seconds if keeping is not None else lease.ttl_seconds,
        priority=lease.priority,
        heartbeat=heartbeat,
    )
    # Whoever is inside leaves it as often as before, and is told what it asked to be told.
    new._depth, new.owner = tenure._depth, tenure.owner
    for callback in tenure._callbacks:
        new.on_lost(callback)
    tenure._successor = new
    return new
