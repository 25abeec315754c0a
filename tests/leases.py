"""Helpers of the tests of leases, for any store."""

from __future__ import annotations

from userlock import LockService
from userlock.lock.lease import Lease
from userlock.lock.record import Record
from userlock.lock.store import LeaseStore
from userlock.testing import make_claim


def taken(lease: Lease | None) -> Lease:
    """Return the lease, which must have been granted."""
    assert lease is not None, "the lock is held"
    return lease


def record_of(store: LeaseStore, lock_id: str) -> Record:
    """Return the lock's record, which must exist."""
    stored = store.read(lock_id)
    assert stored is not None, f"{lock_id!r} has no record"
    return Record(stored)


def dead_waiter(service: LockService, lock_id: str) -> str:
    """Queue an interactive waiter that will never take its turn. Return its token."""
    claim = make_claim(lock_id)
    assert service.protocol.join(claim) is not None
    return claim.token
