"""Heartbeats over the memory store, with time driven by hand: renewals, failures and losses."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import pytest

import userlock
from tests.leases import record_of
from tests.unit.lock.pulse import LEASE, live, losses
from tests.unit.lock.writes import Writes
from userlock import HeldLock, LockService
from userlock.events import Event, Extended, Released
from userlock.lock.held_lock import notes_of
from userlock.lock.scope import LockScope, current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def is_held(service: LockService) -> bool:
    return service.holder("ann") is not None


class TestRenewal:
    def test_the_lock_is_held_for_as_long_as_it_takes(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
    ) -> None:
        live(service, clock, LEASE / 3 - 0.01)
        assert store.asked["swap"] == 0
        live(service, clock, LEASE * 2 / 3 + 0.11)
        assert events[-3:] == [Extended("ann", LEASE)] * 3
        for _ in range(30):
            live(service, clock, LEASE)
            assert not tenure._ran_out
            assert not record_of(store, "ann").free
        assert not tenure.lost
        scope.release("ann")
        assert store.read("ann") is None
        assert losses(events) == []

    @pytest.mark.parametrize("heartbeat", [True, False])
    def test_it_is_held_until_the_writes_under_it_have_landed(
        self,
        service: LockService,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        heartbeat: bool,
    ) -> None:
        """Without a heartbeat it ends before: the negative control."""
        userlock.configure(service=service)
        seen = []

        def land(tenure: HeldLock) -> None:
            live(service, clock, 2 * LEASE)
            seen.append((tenure.expires_in > 0, current_scope() is tenure._scope))

        monkeypatch.setattr("userlock.lock.scope.participants", [Writes(land)])
        with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=heartbeat) as lock:
            notes_of(lock)["write"] = 1
        assert seen == [(heartbeat, True)]
        assert current_scope() is None
        assert not is_held(service)

    def test_without_a_heartbeat_it_is_not(
        self, service: LockService, clock: ManualClock, scope: LockScope, events: list[Event]
    ) -> None:
        """The negative control."""
        tenure = scope.acquire("ann", lock_timeout=LEASE)
        live(service, clock, LEASE)
        assert tenure._ran_out
        service.acquire("ann", wait_timeout=5, request="POST /next")
        scope.release("ann")
        (lost,) = losses(events)
        assert "lease of 10 s ran out; it is now held by POST /next" in lost.how

    def test_a_released_lock_is_not_renewed(
        self, service: LockService, clock: ManualClock, store: MemoryStore, scope: LockScope
    ) -> None:
        with userlock.global_lock("ann", heartbeat=True):
            pass
        live(service, clock, 5 * LEASE)
        assert store.asked["swap"] == 0
        assert len(service.renewals) == 0

    def test_a_scope_that_is_dropped_is_renewed_no_longer(
        self, service: LockService, clock: ManualClock, store: MemoryStore
    ) -> None:
        """A thread or greenlet that was killed: no code runs under its lock."""
        dropped = LockScope(service, userlock.Settings())
        dropped.acquire("ann", heartbeat=True)
        live(service, clock, LEASE)
        assert is_held(service)
        del dropped
        gc.collect()
        live(service, clock, LEASE)
        assert not is_held(service)

    def test_a_policy_can_ask_for_it(self, store: MemoryStore, clock: ManualClock) -> None:
        policy = userlock.LockPolicy(
            interactive=userlock.PriorityPolicy(heartbeat=True), heartbeat_lock_timeout=6
        )
        service = LockService(store, clock=clock, policy=policy)
        with userlock.scope(service) as scope:
            tenure = scope.acquire("ann")
            live(service, clock, 20)
            assert 4 <= tenure.expires_in <= 6
            assert scope.acquire("bob", heartbeat=False).expires_in == 60


class TestFailures:
    @pytest.mark.parametrize("trouble", ["go_down", "lose_reply", "lose_command", "delay"])
    def test_two_failed_renewals_are_survived(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
        trouble: str,
    ) -> None:
        if trouble == "go_down":
            store.go_down("connection refused")
            live(service, clock, LEASE * 2 / 3 + 0.1)
            assert store.asked["swap"] >= 2
            store.come_back()
        for _ in range(2 * (trouble != "go_down")):
            getattr(store, trouble)("swap")
        live(service, clock, 3 * LEASE)
        store.arrive()
        assert not tenure.lost
        scope.release("ann")
        assert store.read("ann") is None
        assert losses(events) == []

    @pytest.mark.parametrize("slow", [True, False])
    def test_a_store_that_stays_away_for_longer_costs_the_lease(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
        slow: bool,
    ) -> None:
        """With a timeout per command (the breaker opens), or with immediate failures."""
        if slow:
            for verb in ("swap", "read"):
                for _ in range(50):
                    store.before(verb, lambda: clock.advance(0.3))
        store.go_down("connection refused", slow=slow)
        live(service, clock, LEASE - 1)
        assert not tenure.lost
        live(service, clock, 2)
        expected = (
            "its lease of 10 s ran out; it could not be renewed, because the lease store did "
            "not answer (connection refused)"
        )
        assert tenure.lost == expected
        live(service, clock, LEASE)
        store.come_back()
        scope.release("ann")
        (event,) = losses(events)
        assert (event.lock_id, event.how) == ("ann", expected)
        assert not any(isinstance(event, Released) for event in events)

    def test_a_lease_is_not_revived(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        """The process was stopped; the record still exists for a moment."""
        clock.advance(LEASE + 0.1)
        assert store.read("ann") is not None
        service.renewals.run_due()
        assert tenure.lost == "its lease of 10 s ran out"
        assert store.asked["swap"] == 0
        service.acquire("ann", wait_timeout=1)

    def test_a_loss_by_the_clock_is_no_answer_of_the_store(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        """A lease that has ended by now must not make the breaker think that the store works."""
        clock.advance(LEASE - 0.1)
        store.before("create", lambda: clock.advance(0.3))
        store.go_down("timed out", slow=True)
        service.acquire("bob")
        service.renewals.run_due()
        assert tenure.lost
        asked = store.asked.total()
        assert service.acquire("bob").degraded
        assert store.asked.total() == asked


def test_a_store_for_requests_only_can_have_no_heartbeat(
    service: LockService, scope: LockScope
) -> None:
    service.requests_only = True
    with pytest.raises(userlock.ConfigurationError, match="longer lease"):
        scope.acquire("ann", heartbeat=True)


def evict(store: MemoryStore, service: LockService) -> None:
    store.evict("ann")


def take(store: MemoryStore, service: LockService) -> None:
    store.evict("ann")
    service.acquire("ann", request="GET /theirs")


def break_(store: MemoryStore, service: LockService) -> None:
    service.break_lock("ann", by="Jo")


def break_and_take(store: MemoryStore, service: LockService) -> None:
    service.break_lock("ann", by="Jo")
    service.acquire("ann", request="GET /theirs", wait_timeout=1)


FORGOTTEN = "its record is gone from the store (evicted, flushed, restarted or broken)"
Accident = Callable[[MemoryStore, LockService], None]


class TestLoss:
    """The reason of a loss is reported at the next renewal."""

    @pytest.mark.parametrize(
        ("accident", "how"),
        [
            (evict, FORGOTTEN),
            (take, f"{FORGOTTEN}; it is now held by GET /theirs (interactive, lease of 60 s"),
            (break_, "it was broken by Jo"),
            (break_and_take, "it was broken by Jo; it is now held by GET /theirs"),
        ],
    )
    def test_by_the_heartbeat_once(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
        caplog: pytest.LogCaptureFixture,
        accident: Accident,
        how: str,
    ) -> None:
        live(service, clock, LEASE)
        accident(store, service)
        others = service.holder("ann")
        live(service, clock, LEASE / 3)
        assert tenure.lost.startswith(how)
        assert repr(tenure) == "<HeldLock of 'ann': lost>"
        with caplog.at_level(logging.WARNING):
            live(service, clock, 2 * LEASE)
            scope.release("ann")
        assert [event.how for event in losses(events)] == [tenure.lost]
        assert service.holder("ann") == others, "what is another's is left alone"

    def test_by_an_extension(
        self,
        service: LockService,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
    ) -> None:
        service.break_lock("ann", by="Jo")
        for _ in range(2):
            with pytest.raises(userlock.LockNotHeld, match="it is lost: it was broken by Jo"):
                tenure.extend(5)
        scope.release("ann")
        assert [event.how for event in losses(events)] == [tenure.lost]
