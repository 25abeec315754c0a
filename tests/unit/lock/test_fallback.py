"""Another store stands in for the time of an outage."""

from __future__ import annotations

import pytest

import userlock
from tests.leases import record_of
from tests.unit.lock.pulse import live
from userlock import LockService, LockServiceUnavailable, Tenure
from userlock.events import Confirmed, Event, LeaseLost, Listeners
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


@pytest.fixture
def tenure(scope: LockScope, store: MemoryStore) -> Tenure:
    """Taken while the store is down; it stays down."""
    store.go_down("connection refused", sent=False)
    tenure = scope.acquire("ann")
    assert tenure.degraded
    return tenure


@pytest.fixture
def other(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture(params=["optimistic", "fail"])
def service(
    request: pytest.FixtureRequest,
    store: MemoryStore,
    other: MemoryStore,
    clock: ManualClock,
    events: list[Event],
) -> LockService:
    fallback = LockService(other, clock=clock, outage="fail")
    return LockService(
        store,
        clock=clock,
        outage=request.param,
        fallback=fallback,
        listeners=Listeners([events.append]),
    )


@pytest.fixture
def beating(store: MemoryStore, scope: LockScope) -> Tenure:
    store.go_down("connection refused", sent=False)
    return scope.acquire("ann", heartbeat=True)


def test_its_lease_is_given_back_too(
    store: MemoryStore, other: MemoryStore, tenure: Tenure
) -> None:
    assert not record_of(other, "ann").free
    tenure.scope.release("ann")
    assert other.read("ann") is None


def test_its_lease_excludes(service: LockService, tenure: Tenure) -> None:
    with pytest.raises(userlock.LockTimeout):
        service.acquire("ann", wait_timeout=1)


def test_when_the_store_answers_again_the_lock_is_held_in_both(
    service: LockService,
    clock: ManualClock,
    store: MemoryStore,
    other: MemoryStore,
    tenure: Tenure,
    events: list[Event],
) -> None:
    live(service, clock, 5)
    store.come_back()
    live(service, clock, 1)
    assert not tenure.degraded
    assert kinds(events).count(Confirmed) == 1
    assert not record_of(store, "ann").free
    assert not record_of(other, "ann").free
    tenure.scope.release("ann")
    assert store.read("ann") is None
    assert other.read("ann") is None


def test_a_heartbeat_renews_its_lease(
    service: LockService, clock: ManualClock, other: MemoryStore, beating: Tenure
) -> None:
    live(service, clock, 100)
    assert not beating.ran_out
    assert not record_of(other, "ann").free
    beating.scope.release("ann")
    assert other.read("ann") is None


def test_an_extension_by_hand_too(
    service: LockService, clock: ManualClock, other: MemoryStore, tenure: Tenure
) -> None:
    tenure.extend(200)
    clock.advance(199)
    assert tenure.remaining_seconds == 1
    assert not record_of(other, "ann").free


def test_a_lease_that_is_lost_there_is_lost(
    service: LockService,
    clock: ManualClock,
    other: MemoryStore,
    beating: Tenure,
    events: list[Event],
) -> None:
    assert service.fallback is not None
    other.evict("ann")
    service.fallback.acquire("ann", request="POST /theirs")
    live(service, clock, 5)
    assert "it is now held by POST /theirs" in beating.lost
    assert kinds(events).count(LeaseLost) == 1


def test_when_it_does_not_answer_either_the_policy_decides(
    service: LockService, clock: ManualClock, other: MemoryStore, beating: Tenure
) -> None:
    other.go_down("down as well")
    if service.outage is userlock.OutagePolicy.FAIL:
        with pytest.raises(LockServiceUnavailable, match="down as well"):
            beating.extend(5)
        live(service, clock, 10)
        assert "ran out" in beating.lost
        assert "down as well" in beating.lost
    else:
        beating.extend(5)
        live(service, clock, 100)
        assert not beating.lost
