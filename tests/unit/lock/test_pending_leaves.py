"""A position in the queue that could not be given up is given up later."""

from __future__ import annotations

import pytest

from userlock import LockService, LockServiceUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def new_service(store: MemoryStore, clock: ManualClock) -> LockService:
    return LockService(store, clock=clock, outage="fail")


def test_a_place_in_line_does_not_end_with_the_lease_that_was_asked_for(
    store: MemoryStore, clock: ManualClock
) -> None:
    holder, service = new_service(store, clock), new_service(store, clock)
    holder.acquire("ann")
    clock.after(0.5, lambda: store.go_down(slow=True))
    with pytest.raises(LockServiceUnavailable):
        service.acquire("ann", wait_timeout=5, lock_timeout=1)
    store.come_back()
    assert len(holder.waiters("ann")) == 1
    clock.advance(2)
    service.release(service.acquire("another"))
    assert holder.waiters("ann") == []


def test_a_create_that_arrives_after_its_lease_would_have_ended_is_given_back(
    store: MemoryStore, clock: ManualClock
) -> None:
    service = new_service(store, clock)
    store.delay("create")
    store.lose_command("read")
    with pytest.raises(LockServiceUnavailable):
        service.acquire("ann", lock_timeout=1)
    clock.advance(2)
    store.arrive()
    assert service.holder("ann") is not None
    clock.advance(0.5)
    service.release(service.acquire("another"))
    assert service.holder("ann") is None
