"""Locks that were taken while the store did not answer: confirmed, in conflict, or continued."""

from __future__ import annotations

from typing import TypeVar

import pytest

import userlock
from tests.leases import dead_waiter, record_of
from tests.unit.lock.pulse import live
from userlock import HeldLock, LockService
from userlock.events import Confirmed, Conflict, Event, LeaseLost, Released
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

_E = TypeVar("_E", bound=Event)


@pytest.fixture
def tenure(scope: LockScope, store: MemoryStore) -> HeldLock:
    """Provide a lock that was taken while the store is down; it stays down."""
    store.go_down("connection refused", sent=False)
    tenure = scope.acquire("ann")
    assert tenure.degraded
    return tenure


def of(kind: type[_E], events: list[Event]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


class TestConfirmed:
    def test_when_the_store_answers_again_it_is_ours(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        events: list[Event],
    ) -> None:
        live(service, clock, 5)
        assert of(Confirmed, events) == []
        store.come_back()
        live(service, clock, 0.3)
        assert not tenure.degraded
        (event,) = of(Confirmed, events)
        assert event.lock_id == "ann"
        assert event.degraded_seconds == pytest.approx(5.1, abs=0.3)
        assert not record_of(store, "ann").free
        with pytest.raises(userlock.LockTimeout):
            service.acquire("ann", wait_timeout=0)
        tenure.release()
        assert store.read("ann") is None
        assert of(Released, events)[-1].outcome == "released"

    def test_without_the_renewal_thread_it_is_not(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        """The negative control: a site that asks only at the next acquire lets others in."""
        store.come_back()
        clock.advance(5)
        assert not service.acquire("ann", wait_timeout=0).degraded
        assert tenure.held

    def test_a_heartbeat_goes_on_after_it(
        self, service: LockService, clock: ManualClock, store: MemoryStore, scope: LockScope
    ) -> None:
        store.go_down()
        tenure = scope.acquire("ann", heartbeat=True)
        live(service, clock, 3)
        store.come_back()
        live(service, clock, 60)
        assert not tenure.degraded
        assert not tenure._ran_out
        assert not record_of(store, "ann").free

    def test_a_lock_without_one_is_not_renewed_by_it(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        store.come_back()
        live(service, clock, 1)
        assert not tenure.degraded
        live(service, clock, 60)
        assert tenure._ran_out
        assert len(service.renewals) == 0

    def test_a_create_of_the_outage_that_landed_after_all_is_ours(
        self, service: LockService, clock: ManualClock, store: MemoryStore, scope: LockScope
    ) -> None:
        """The holder counts from now, so the record's time to live must begin again."""
        store.delay("create")
        store.before("read", lambda: store.go_down(slow=True))
        tenure = scope.acquire("ann")
        store.come_back()
        store.arrive()
        clock.advance(50)
        service.renewals.run_due()
        assert not tenure.degraded
        clock.advance(50)
        assert not tenure._ran_out
        assert not record_of(store, "ann").lapsed

    def test_a_leftover_record_is_taken_over(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        store.come_back()
        lease = service.acquire("ann", lock_timeout=0.1)
        clock.advance(0.2)
        service.renewals.run_due()
        live(service, clock, 0.3)
        assert not tenure.degraded
        assert record_of(store, "ann").holder.token != lease.token


def test_a_store_that_refuses_every_change_does_not_block_the_renewal_thread(
    service: LockService,
    clock: ManualClock,
    store: MemoryStore,
    tenure: HeldLock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked again, as long as the lock is held; other locks are renewed in between."""
    changes = 0

    def refused(*_: object) -> None:
        nonlocal changes
        changes += 1
        if changes == 1000:  # past the renewal thread, which continues after errors
            pytest.fail("it goes on and on")

    monkeypatch.setattr(store, "swap", refused)
    store.come_back()
    run(service.protocol.take, make_claim("ann", ttl_seconds=0.1))
    live(service, clock, 1)
    assert changes > 0
    assert tenure.degraded
    monkeypatch.undo()
    live(service, clock, 1)
    assert not tenure.degraded


class TestConflict:
    def test_another_holder_is_named_and_left_alone(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        events: list[Event],
    ) -> None:
        store.come_back()
        other = service.acquire("ann", request="POST /theirs")
        live(service, clock, 1)
        assert tenure.degraded
        assert tenure._conflict.startswith("POST /theirs (interactive, lease of 60 s, on ")
        assert of(Conflict, events) == [Conflict("ann", tenure._conflict)]
        live(service, clock, 5)
        assert len(of(Conflict, events)) == 1
        tenure.release()
        assert of(Released, events)[-1].outcome == "released (degraded)"
        assert record_of(store, "ann").holder.token == other.token
        assert not record_of(store, "ann").free

    def test_waiters_go_first(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        store.come_back()
        other = service.acquire("ann")
        waiter = make_claim("ann", request="GET /next")
        run(service.protocol.join, waiter)
        service.release(other)
        live(service, clock, 0.3)
        assert (tenure.degraded, tenure._conflict) == (True, ""), "not decided yet"
        record = record_of(store, "ann")
        assert run(service.protocol.claim, waiter, record, passing=False) is not None
        live(service, clock, 0.3)
        assert tenure._conflict.startswith("GET /next")

    def test_dead_waiters_are_passed(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        events: list[Event],
    ) -> None:
        store.come_back()
        other = service.acquire("ann")
        dead_waiter(service, "ann")
        service.release(other)
        live(service, clock, 1.1)
        assert (tenure.degraded, tenure._conflict) == (False, "")
        assert len(of(Confirmed, events)) == 1

    def test_with_a_heartbeat_it_ends_with_the_lease_and_says_so(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        scope: LockScope,
        events: list[Event],
    ) -> None:
        store.go_down(sent=False)
        tenure = scope.acquire("ann", heartbeat=True)
        store.come_back()
        service.acquire("ann")
        live(service, clock, 9.9)
        assert tenure._conflict
        assert of(LeaseLost, events) == []
        live(service, clock, 0.2)
        assert tenure.lost == (
            "its lease of 10 s ran out; it was taken while the lease store did not answer, and "
            "was another's"
        )
        assert len(of(LeaseLost, events)) == 1


class TestStillDown:
    @pytest.mark.parametrize("entries", [[True], [False, True], [True, True]])
    def test_a_heartbeat_goes_on_as_the_lock_began(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        scope: LockScope,
        entries: list[bool],
    ) -> None:
        """Also one that only a later entry asks for."""
        store.go_down()
        for heartbeat in entries:
            tenure = scope.acquire("ann", lock_timeout=10, heartbeat=heartbeat)
        live(service, clock, 300)
        assert tenure.degraded
        assert not tenure._ran_out
        assert not tenure.lost

    def test_it_is_extended_by_hand_as_it_began(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        """Also between the store's recovery and the confirmation."""
        live(service, clock, 30)
        tenure.extend(100)
        assert tenure.expires_in == 100
        store.come_back()
        tenure.extend(50)
        assert tenure.expires_in == 50
        assert not tenure.lost
        live(service, clock, 1)
        assert not tenure.degraded
        tenure.extend(20)
        clock.advance(19)
        assert not record_of(store, "ann").lapsed


class TestNothingIsLeftBehind:
    """A release sends nothing to a store that was never asked, unless it was asked meanwhile."""

    @pytest.mark.parametrize("verb", ["create", "read", "swap"])
    def test_by_a_confirmation_that_is_on_its_way(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        events: list[Event],
        verb: str,
    ) -> None:
        store.come_back()
        if verb != "create":  # a record left by another client
            service.acquire("ann", lock_timeout=0.001)
            clock.advance(0.01)
        store.before(verb, lambda: tenure.release())  # type: ignore[arg-type]
        live(service, clock, 1)
        assert not tenure.held
        assert store.read("ann") is None
        assert of(Confirmed, events) == []

    @pytest.mark.parametrize(
        ("how", "release"),
        [
            ("lose_reply", "later"),
            ("lose_reply", "meanwhile"),
            ("delay", "later"),
            ("delay", "meanwhile"),
        ],
    )
    def test_by_one_with_an_unknown_outcome(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        how: str,
        release: str,
    ) -> None:
        store.come_back()
        getattr(store, how)("create")
        if release == "meanwhile":
            store.before("create", lambda: tenure.release())
        else:
            store.before("create", lambda: clock.after(0.01, store.go_down))
        live(service, clock, 1)
        if release == "later":
            tenure.release()
            store.come_back()
        store.arrive()
        for _ in range(3):
            service.release(service.acquire("bob"))  # the store answers this process
            clock.advance(1.1)
        assert store.read("ann") is None


def test_its_members_are_few(service: LockService) -> None:
    userlock.configure(service=service)
    with userlock.global_lock("ann") as lock:
        members = {name for name in dir(lock) if not name.startswith("_")}
    assert members == {
        *("lock_id", "held", "fence", "expires_in", "lost", "degraded"),
        *("extend", "yield_to_waiters", "release"),
    }
