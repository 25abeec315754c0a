"""Another store replaces the main one during an outage."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import userlock
from tests.leases import dead_waiter, existing, record_of
from tests.unit.lock.pulse import Here
from userlock import HeldLock, LockService, LockServiceUnavailable
from userlock.events import (
    Acquired,
    Broken,
    Confirmed,
    Contended,
    Degraded,
    Event,
    LeaseLost,
    Listeners,
    Released,
    TimedOut,
    Unavailable,
    log_event,
)
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


@pytest.fixture
def tenure(scope: LockScope, store: MemoryStore) -> HeldLock:
    """Provide a lock that was taken while the store is down; it stays down."""
    store.go_down("connection refused", sent=False)
    tenure = scope.acquire("ann")
    assert tenure.degraded
    return tenure


@pytest.fixture
def other(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


either_policy = pytest.mark.parametrize("service", ["optimistic", "fail"], indirect=True)


@pytest.fixture
def service(
    request: pytest.FixtureRequest,
    store: MemoryStore,
    other: MemoryStore,
    clock: ManualClock,
    events: list[Event],
) -> LockService:
    listeners = Listeners([events.append, log_event])
    fallback = LockService(other, clock=clock, outage="fail", listeners=listeners)
    return LockService(
        store,
        clock=clock,
        outage=getattr(request, "param", "fail"),
        fallback=fallback,
        listeners=listeners,
    )


@pytest.fixture
def beating(store: MemoryStore, scope: LockScope) -> HeldLock:
    store.go_down("connection refused", sent=False)
    return scope.acquire("ann", heartbeat=True)


def test_an_address_is_no_service(store: MemoryStore) -> None:
    """The error comes at once, not in the first outage."""
    with pytest.raises(TypeError, match=r"fallback must be a LockService.*not str"):
        LockService(store, fallback="datastore://")  # type: ignore[arg-type]


def test_its_lease_is_released_too(
    store: MemoryStore, other: MemoryStore, tenure: HeldLock
) -> None:
    assert not record_of(other, "ann").free
    tenure.release()
    assert other.read("ann") is None


def test_when_the_store_answers_again_the_lock_is_held_in_both(
    here: Here, other: MemoryStore, tenure: HeldLock
) -> None:
    here.live(5)
    here.store.come_back()
    here.live(1)
    assert not tenure.degraded
    assert kinds(here.events).count(Confirmed) == 1
    assert not record_of(here.store, "ann").free
    assert not record_of(other, "ann").free
    tenure.release()
    assert here.store.read("ann") is None
    assert other.read("ann") is None


def test_a_heartbeat_renews_its_lease(here: Here, other: MemoryStore, beating: HeldLock) -> None:
    here.live(100)
    assert not beating._ran_out
    assert not record_of(other, "ann").free
    beating.release()
    assert other.read("ann") is None


def test_an_extension_by_hand_too(here: Here, other: MemoryStore, tenure: HeldLock) -> None:
    tenure.extend(200)
    here.clock.advance(199)
    assert tenure.expires_in == 1
    assert not record_of(other, "ann").free


def test_a_lease_that_is_lost_there_is_lost(
    here: Here, other: MemoryStore, beating: HeldLock
) -> None:
    assert here.service.fallback is not None
    other.evict("ann")
    here.service.fallback.acquire("ann", request="POST /theirs")
    here.live(5)
    assert "it is now held by POST /theirs" in beating.lost
    assert kinds(here.events).count(LeaseLost) == 1


@either_policy
def test_when_it_does_not_answer_either_the_policy_decides(
    here: Here, other: MemoryStore, beating: HeldLock
) -> None:
    other.go_down("down as well")
    if here.service.outage is userlock.OutagePolicy.FAIL:
        with pytest.raises(LockServiceUnavailable, match="down as well"):
            beating.extend(5)
        here.live(10)
        assert "ran out" in beating.lost
        assert "down as well" in beating.lost
    else:
        beating.extend(5)
        here.live(100)
        assert not beating.lost


@pytest.mark.parametrize("service", ["optimistic"], indirect=True)
def test_a_lease_of_neither_store_is_extended(
    store: MemoryStore, other: MemoryStore, scope: LockScope
) -> None:
    store.go_down("connection refused", sent=False)
    other.go_down("down as well", sent=False)
    tenure = scope.acquire("ann")
    tenure.extend(200)
    assert tenure.expires_in == 200


@pytest.mark.parametrize("moment", ["create", "remove", "granted there"])
def test_an_interrupt_leaves_nothing_there(
    store: MemoryStore, other: MemoryStore, scope: LockScope, moment: Any
) -> None:
    def interrupt(event: Event | None = None) -> None:
        if event is None or isinstance(event, Acquired):
            raise KeyboardInterrupt

    def interrupted() -> None:
        scope.acquire("ann")
        scope.release("ann")

    if moment == "granted there":
        store.go_down("connection refused", sent=False)
        scope.service.listeners.add(interrupt)
    else:
        store.before(moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert other.read("ann") is None


class TestReports:
    @pytest.fixture(autouse=True)
    def _lines(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "userlock")

    def test_a_lock_that_is_free_there(
        self, scope: LockScope, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        here.store.go_down("connection refused", sent=False)
        scope.acquire("ann")
        scope.release("ann")
        degraded, acquired, _ = here.events
        assert degraded == Degraded("ann", "connection refused", fallback=True)
        assert isinstance(acquired, Acquired)
        assert (acquired.lock_id, acquired.degraded, acquired.blocked_by) == ("ann", True, "")
        assert kinds(here.events) == [Degraded, Acquired, Released]
        assert caplog.messages[0] == (
            "lock 'ann' degraded: taken in the fallback store, the lease store does not answer "
            "(connection refused); stale writes are still refused at the commit"
        )

    def test_a_lock_that_is_waited_for_there(
        self, here: Here, scope: LockScope, caplog: pytest.LogCaptureFixture
    ) -> None:
        fallback = here.service.fallback
        assert fallback is not None
        theirs = fallback.acquire("ann", request="POST /theirs")
        here.clock.after(2, lambda: fallback.release(theirs))
        here.store.go_down("connection refused", sent=False)
        here.events.clear()
        caplog.clear()
        scope.acquire("ann")
        assert kinds(here.events) == [Contended, Released, Degraded, Acquired]
        acquired = here.events[-1]
        assert isinstance(acquired, Acquired)
        assert acquired.blocked_by.startswith("POST /theirs")
        assert acquired.waited_seconds == pytest.approx(2, abs=0.1)
        assert acquired.attempts > 2
        assert "lock 'ann' acquired after 20" in caplog.messages[-1]
        assert "blocked by: POST /theirs" in caplog.messages[-1]

    def test_a_lock_that_does_not_become_free_there(self, here: Here) -> None:
        assert here.service.fallback is not None
        here.service.fallback.acquire("ann", request="POST /theirs")
        here.store.go_down("connection refused", sent=False)
        here.events.clear()
        began = here.clock.now()
        with pytest.raises(userlock.LockTimeout):
            here.service.acquire("ann", wait_timeout=0.5)
        assert kinds(here.events) == [Contended, TimedOut]
        assert here.clock.now() - began == pytest.approx(0.5, abs=0.1)

    @either_policy
    @pytest.mark.parametrize("whose", ["optimistic", "fail"])
    def test_a_fallback_that_does_not_answer_either(
        self, here: Here, other: MemoryStore, caplog: pytest.LogCaptureFixture, whose: str
    ) -> None:
        """Whatever its own policy is: a degraded lease there would not be a lock."""
        assert here.service.fallback is not None
        here.service.fallback.outage = userlock.OutagePolicy.of(whose)
        here.store.go_down("connection refused", sent=False)
        other.go_down("down as well", slow=True)
        reason = "connection refused; in the fallback store: down as well"
        if here.service.outage is userlock.OutagePolicy.FAIL:
            with pytest.raises(LockServiceUnavailable, match=reason):
                here.service.acquire("ann")
            assert here.events == [Unavailable("ann", "interactive", 0.0, "", reason)]
            assert caplog.messages == [
                f"lock 'ann' not acquired: the lease store does not answer ({reason})"
            ]
        else:
            lease = here.service.acquire("ann")
            assert lease.fallback is None
            assert here.events[0] == Degraded("ann", reason, fallback=False)
            assert kinds(here.events) == [Degraded, Acquired]
            assert "carrying on without it" in caplog.messages[0]
            assert "fallback store: down as well" in caplog.messages[0]


class TestHolder:
    def test_inside_a_block_that_it_granted(self, tenure: HeldLock) -> None:
        assert existing(userlock.holder("ann")).request == "POST /mine"
        assert userlock.waiters("ann") == []

    def test_waiters_there(self, service: LockService, tenure: HeldLock) -> None:
        assert service.fallback is not None
        token = dead_waiter(service.fallback, "ann")
        assert [waiter.token for waiter in userlock.waiters("ann")] == [token]

    def test_a_free_lock_there_says_nothing_about_earlier_holders(
        self, here: Here, scope: LockScope
    ) -> None:
        here.service.acquire("ann")
        here.store.go_down("connection refused")
        for ask in (userlock.holder, userlock.waiters, userlock.break_lock):
            with pytest.raises(LockServiceUnavailable, match="connection refused"):
                ask("ann")

    def test_a_fallback_outage_says_nothing_about_earlier_holders(
        self, tenure: HeldLock, other: MemoryStore
    ) -> None:
        other.go_down("down as well")
        with pytest.raises(LockServiceUnavailable, match="connection refused"):
            userlock.holder("ann")


class TestBreaking:
    def test_the_holder_there(self, here: Here, beating: HeldLock) -> None:
        here.events.clear()
        broken = existing(here.service.break_lock("ann", by="Jo"))
        assert broken.request == "POST /mine"
        assert here.events == [Broken("ann", broken.describe(), "Jo")]
        assert here.service.acquire("ann", wait_timeout=0).fallback is not None
        here.live(5)
        assert beating.lost.startswith("it was broken by Jo")

    def test_a_store_that_answers_is_asked_alone(self, here: Here, other: MemoryStore) -> None:
        assert here.service.fallback is not None
        here.service.fallback.acquire("ann")
        assert here.service.break_lock("ann") is None
        assert not record_of(other, "ann").free
