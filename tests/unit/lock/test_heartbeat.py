"""Heartbeats over the memory store, with time driven by hand: renewals, failures and losses."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable

import pytest

import userlock
from tests.leases import record_of
from tests.unit.lock.pulse import LEASE, Here, live
from tests.unit.lock.writes import Writes
from userlock import HeldLock, LockService
from userlock.events import Extended, Released
from userlock.lock.held_lock import notes_of
from userlock.lock.scope import LockScope, current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def is_held(service: LockService) -> bool:
    return service.holder("ann") is not None


class TestRenewal:
    def test_the_lock_is_held_for_as_long_as_it_takes(
        self, here: Here, tenure: HeldLock, scope: LockScope
    ) -> None:
        here.live(LEASE / 3 - 0.01)
        assert here.store.asked["swap"] == 0
        here.live(LEASE * 2 / 3 + 0.11)
        assert here.events[-3:] == [Extended("ann", LEASE)] * 3
        for _ in range(30):
            here.live(LEASE)
            assert not tenure._ran_out
            assert not record_of(here.store, "ann").free
        assert not tenure.lost
        scope.release("ann")
        assert here.store.read("ann") is None
        assert here.losses == []

    @pytest.mark.parametrize("heartbeat", [True, False])
    def test_it_is_held_until_the_writes_under_it_have_landed(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, heartbeat: bool
    ) -> None:
        """Without a heartbeat it ends before: the negative control."""
        userlock.configure(service=here.service)
        seen = []

        def land(tenure: HeldLock) -> None:
            here.live(2 * LEASE)
            seen.append((tenure.expires_in > 0, current_scope() is tenure._scope))

        monkeypatch.setattr("userlock.lock.scope.participants", [Writes(land)])
        with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=heartbeat) as lock:
            notes_of(lock)["write"] = 1
        assert seen == [(heartbeat, True)]
        assert current_scope() is None
        assert not is_held(here.service)

    def test_without_a_heartbeat_it_is_not(self, here: Here, scope: LockScope) -> None:
        """The negative control."""
        tenure = scope.acquire("ann", lock_timeout=LEASE)
        here.live(LEASE)
        assert tenure._ran_out
        here.service.acquire("ann", wait_timeout=5, request="POST /next")
        scope.release("ann")
        (lost,) = here.losses
        assert "lease of 10 s ran out; it is now held by POST /next" in lost.how

    def test_a_released_lock_is_not_renewed(self, here: Here, scope: LockScope) -> None:
        with userlock.global_lock("ann", heartbeat=True):
            pass
        here.live(5 * LEASE)
        assert here.store.asked["swap"] == 0
        assert len(here.service.renewals) == 0

    def test_a_scope_that_is_dropped_is_renewed_no_longer(self, here: Here) -> None:
        """A thread or greenlet that was killed: no code runs under its lock."""
        dropped = LockScope(here.service, userlock.Settings())
        dropped.acquire("ann", heartbeat=True)
        here.live(LEASE)
        assert is_held(here.service)
        del dropped
        gc.collect()
        here.live(LEASE)
        assert not is_held(here.service)

    def test_a_lock_that_is_kept_is_renewed_while_its_keeper_lives(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A transaction was interrupted where it would have released the lock."""
        transactions = [writes := Writes()]
        writes.keeps = ["ann"]
        monkeypatch.setattr(writes, "postpone", lambda *_: weakref.ref(transactions[0]))
        monkeypatch.setattr("userlock.lock.scope.participants", [writes])
        with userlock.scope(here.service), userlock.global_lock("ann", heartbeat=True):
            pass
        here.live(3 * LEASE)
        assert is_held(here.service)
        monkeypatch.undo()
        del writes, transactions[:]
        gc.collect()
        here.live(LEASE)
        assert not is_held(here.service)

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
        self, here: Here, tenure: HeldLock, scope: LockScope, trouble: str
    ) -> None:
        if trouble == "go_down":
            here.store.go_down("connection refused")
            here.live(LEASE * 2 / 3 + 0.1)
            assert here.store.asked["swap"] >= 2
            here.store.come_back()
        for _ in range(2 * (trouble != "go_down")):
            getattr(here.store, trouble)("swap")
        here.live(3 * LEASE)
        here.store.arrive()
        assert not tenure.lost
        scope.release("ann")
        assert here.store.read("ann") is None
        assert here.losses == []

    @pytest.mark.parametrize("slow", [True, False])
    def test_a_store_that_stays_away_for_longer_costs_the_lease(
        self, here: Here, tenure: HeldLock, scope: LockScope, slow: bool
    ) -> None:
        """With a timeout per command (the breaker opens), or with immediate failures."""
        if slow:
            for verb in ("swap", "read"):
                for _ in range(50):
                    here.store.before(verb, lambda: here.clock.advance(0.3))
        here.store.go_down("connection refused", slow=slow)
        here.live(LEASE - 1)
        assert not tenure.lost
        here.live(2)
        expected = (
            "its lease of 10 s ran out; it could not be renewed, because the lease store did "
            "not answer (connection refused)"
        )
        assert tenure.lost == expected
        here.live(LEASE)
        here.store.come_back()
        scope.release("ann")
        (event,) = here.losses
        assert (event.lock_id, event.how) == ("ann", expected)
        assert not any(isinstance(event, Released) for event in here.events)

    def test_a_lease_is_not_revived(self, here: Here, tenure: HeldLock) -> None:
        """The process was stopped, or had others to renew; the record still exists for a moment."""
        here.clock.advance(LEASE + 0.1)
        assert here.store.read("ann") is not None
        here.service.renewals.run_due()
        assert tenure.lost == (
            "its lease of 10 s ran out; it could not be renewed, because its turn came 6.8 s late: "
            "the process was paused, or renews more leases than there is time for"
        )
        assert here.store.asked["swap"] == 0
        here.service.acquire("ann", wait_timeout=1)

    def test_a_lost_lease_is_given_back(
        self, here: Here, tenure: HeldLock, scope: LockScope
    ) -> None:
        """Its last renewal has landed, without an answer: others would wait for another lease."""
        here.live(LEASE / 3 - 0.1)
        here.store.lose_reply("swap")
        here.store.before("read", here.store.go_down)
        here.live(LEASE)
        assert tenure.lost
        here.store.come_back()
        scope.release("ann")
        assert here.store.read("ann") is None

    def test_a_loss_by_the_clock_is_no_answer_of_the_store(
        self, here: Here, tenure: HeldLock
    ) -> None:
        """A lease that has ended by now must not make the breaker think that the store works."""
        here.clock.advance(LEASE - 0.1)
        here.store.before("create", lambda: here.clock.advance(0.3))
        here.store.go_down("timed out", slow=True)
        here.service.acquire("bob")
        here.service.renewals.run_due()
        assert tenure.lost
        asked = here.store.asked.total()
        assert here.service.acquire("bob").degraded
        assert here.store.asked.total() == asked


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
        here: Here,
        tenure: HeldLock,
        scope: LockScope,
        caplog: pytest.LogCaptureFixture,
        accident: Accident,
        how: str,
    ) -> None:
        here.live(LEASE)
        accident(here.store, here.service)
        others = here.service.holder("ann")
        here.live(LEASE / 3)
        assert tenure.lost.startswith(how)
        assert repr(tenure) == "<HeldLock of 'ann': lost>"
        with caplog.at_level(logging.WARNING):
            here.live(2 * LEASE)
            scope.release("ann")
        assert [event.how for event in here.losses] == [tenure.lost]
        assert here.service.holder("ann") == others, "what is another's is left alone"

    def test_by_an_extension(self, here: Here, tenure: HeldLock, scope: LockScope) -> None:
        here.service.break_lock("ann", by="Jo")
        for _ in range(2):
            with pytest.raises(userlock.LockNotHeld, match="it is lost: it was broken by Jo"):
                tenure.extend(5)
        scope.release("ann")
        assert [event.how for event in here.losses] == [tenure.lost]
