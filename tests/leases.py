"""Helpers of the tests of leases, for any store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from userlock import LockService
from userlock.clock import Clock
from userlock.lock.lease import Claim, Holder, Lease, Priority
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.lock.store import LeaseStore
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

_P = ParamSpec("_P")
_R = TypeVar("_R")


def blocking(function: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, _R]:
    """Return a function that may wait in the form that blocks its thread."""
    return partial(run, function)


class Leases:
    """The leases in a store (`LeaseProtocol`), in the form that blocks a thread."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        release_later: Callable[[Lease], object] = lambda _: None,
    ) -> None:
        self.protocol = protocol = LeaseProtocol(store, clock, release_later)
        self.store = store
        self.clock = clock
        self.take = blocking(protocol.take)
        self.claim = blocking(protocol.claim)
        self.begin = blocking(protocol.begin)
        self.look = blocking(protocol.look)
        self.join = blocking(protocol.join)
        self.leave = blocking(protocol.leave)
        self.append = blocking(protocol.append)
        self.reserve = blocking(protocol.reserve)
        self.release = blocking(protocol.release)
        self.break_ = blocking(protocol.break_)
        self.extend = blocking(protocol.extend)
        self.fence = blocking(protocol.fence)
        self.confirm = blocking(protocol.confirm)


class MemoryLeases(Leases):
    """The leases in a memory store, its time driven by hand."""

    store: MemoryStore
    clock: ManualClock


def existing(it: _R | None) -> _R:
    """Return it; it must be there."""
    assert it is not None
    return it


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
    assert run(service.protocol.join, claim) is not None
    return claim.token


def as_stored(holder: Holder) -> bytes:
    """Return the first line of a holder's record."""
    token, priority, since, lock_timeout, process, request = holder
    return Claim("", token, Priority(priority), since, lock_timeout, process, request).record
