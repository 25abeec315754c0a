"""One call of `acquire` that has to wait: its begin, and all its possible ends."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any
from unittest import mock

import pytest

from tests.leases import Leases, record_of, taken
from userlock import LockService, LockServiceUnavailable, LockTimeout
from userlock.events import Acquired, Contended, Event, TimedOut
from userlock.lock.lease import Lease
from userlock.lock.local_waiters import LocalWaiters
from userlock.lock.record import Record
from userlock.lock.store_client import StoreClient
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


@pytest.fixture
def others(store: MemoryStore, clock: ManualClock) -> Leases:
    """Provide another client's access to the store."""
    return Leases(store, clock)


def interrupt() -> None:
    raise KeyboardInterrupt


class TestExpectedQueue:
    """A process that has just released a lock to others does not try to create its record."""

    @pytest.fixture
    def released_to_another(
        self, service: LockService, others: Leases, store: MemoryStore
    ) -> Record:
        """Release a lock for which another process waits; return the record with its queue."""
        holder = service.acquire("ann")
        waiter = others.join(make_claim("ann"))
        service.release(holder)
        store.asked.clear()
        assert waiter is not None
        return waiter

    @pytest.mark.usefixtures("released_to_another")
    def test_it_queues_up_at_once(self, service: LockService, store: MemoryStore) -> None:
        service.acquire("ann")
        assert store.asked["create"] == 0
        assert store.asked["append"] == 1

    @pytest.mark.usefixtures("released_to_another")
    def test_among_a_limited_number_of_waiters_too(
        self, service: LockService, store: MemoryStore
    ) -> None:
        service.acquire("ann", max_waiting=1)
        assert store.asked["create"] == 0

    @pytest.mark.parametrize("options", [{"wait_timeout": 0}, {"max_waiting": 0}])
    @pytest.mark.usefixtures("released_to_another")
    def test_not_without_a_wait(
        self, service: LockService, store: MemoryStore, options: dict[str, Any]
    ) -> None:
        """A caller that may not wait takes a free lock."""
        with contextlib.suppress(LockTimeout):
            service.acquire("ann", **options)
        assert store.asked["create"] == 1

    @pytest.mark.usefixtures("released_to_another")
    def test_not_for_long(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        clock.advance(2.0)
        service.acquire("ann")
        assert store.asked["create"] == 1

    @pytest.mark.usefixtures("released_to_another")
    def test_they_have_gone(self, service: LockService, store: MemoryStore) -> None:
        """It is free, and costs one request more than without the expectation."""
        store.forget_everything()
        lease = service.acquire("ann", wait_timeout=1)
        assert store.asked == {"append": 1, "create": 1}
        store.asked.clear()
        service.release(lease)
        assert store.asked == {"remove": 1}
        service.release(service.acquire("ann"))

    def test_of_many_locks_the_old_ones_are_forgotten(self, clock: ManualClock) -> None:
        known = LocalWaiters(clock)
        for number in range(3000):
            known.expect_queue(f"learner-{number}")
            clock.advance(0.0005)
        assert known.expects_queue("learner-2999")
        assert not known.expects_queue("learner-0")
        assert not known.expects_queue("learner-3000")


class TestBatch:
    def test_it_does_not_wait_without_contention(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        for number in range(100):
            service.release(service.acquire(f"learner-{number}", priority="batch"))
        assert clock.sleeps == []
        assert store.asked == {"create": 100, "remove": 100}

    @pytest.mark.parametrize("queued", [True, False])
    def test_it_does_not_take_a_lock_with_an_interactive_waiter(
        self,
        service: LockService,
        elsewhere: LockService,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        queued: bool,
    ) -> None:
        """At the very moment when it is free. Without the queue, the control, it does."""
        if not queued:
            monkeypatch.setattr(Record, "empty", True)
        holder = service.acquire("ann")
        taken_by_batch: list[Lease] = []

        def batch_tries() -> None:
            elsewhere.release(holder)
            with contextlib.suppress(LockTimeout):
                taken_by_batch.append(service.acquire("ann", priority="batch", wait_timeout=0))

        clock.after(0.5, batch_tries)
        if queued:
            service.acquire("ann", wait_timeout=2, request="interactive")
            assert taken_by_batch == []
        else:
            with pytest.raises(LockTimeout):
                service.acquire("ann", wait_timeout=2, request="interactive")
            assert taken_by_batch != []


class TestBeginning:
    def test_its_wait_is_reported_once(
        self,
        service: LockService,
        elsewhere: LockService,
        clock: ManualClock,
        events: list[Event],
    ) -> None:
        holder = service.acquire("ann", request="POST /first")
        clock.after(1.0, lambda: elsewhere.release(holder))
        service.acquire("ann")
        (contended,) = (event for event in events if isinstance(event, Contended))
        assert "POST /first" in contended.blocked_by
        acquired = [event for event in events if isinstance(event, Acquired)][-1]
        assert acquired.attempts == len(clock.sleeps) + 2, "the first try, the line, the looks"

    def test_the_next_waiter_is_named_without_a_holder(
        self, service: LockService, store: MemoryStore, others: Leases, events: list[Event]
    ) -> None:
        lease = taken(others.take(make_claim("ann")))
        others.join(make_claim("ann", request="GET /second"))
        others.release(lease)
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=0.1)
        (contended,) = (event for event in events if isinstance(event, Contended))
        assert contended.blocked_by == "GET /second (next in the queue)"
        (timed_out,) = (event for event in events if isinstance(event, TimedOut))
        assert timed_out.blocked_by == "GET /second (next in the queue)"

    def test_later_waiters_do_not_poll_in_step(
        self, store: MemoryStore, clock: ManualClock, others: Leases
    ) -> None:
        taken(others.take(make_claim("ann")))
        others.join(make_claim("ann"))
        services = [LockService(store, clock=clock, random=Random(seed)) for seed in range(2)]
        sleeps: list[list[float]] = []
        for service in services:
            clock.sleeps.clear()
            with pytest.raises(LockTimeout):
                service.acquire("ann", wait_timeout=1)
            sleeps.append(clock.sleeps[:-1])
        assert not set(sleeps[0]) & set(sleeps[1])
        assert len(set(sleeps[0])) == len(sleeps[0])

    def test_trying_once_takes_a_free_lock_without_waiters(
        self, service: LockService, store: MemoryStore, others: Leases
    ) -> None:
        """Released, and all waiters have timed out: no reason to fail."""
        lease = taken(others.take(make_claim("ann")))
        waiter = make_claim("ann")
        others.join(waiter)
        others.release(lease)
        others.leave("ann", waiter.token)
        assert record_of(store, "ann").free
        mine = service.acquire("ann", wait_timeout=0)
        service.release(mine)
        assert store.read("ann") is None

    @pytest.mark.parametrize("wait", [0, 5])
    def test_a_lock_that_is_released_at_that_moment_is_taken(
        self,
        service: LockService,
        store: MemoryStore,
        clock: ManualClock,
        others: Leases,
        wait: int,
    ) -> None:
        """There was a record when it asked, and there is none when it reads."""
        lease = taken(others.take(make_claim("ann")))
        store.before("append" if wait else "read", lambda: others.release(lease))
        service.release(service.acquire("ann", wait_timeout=wait))
        assert clock.sleeps == []
        assert store.read("ann") is None


class TestStopped:
    """The thread is stopped in the middle: it leaves the queue, and keeps no lock."""

    def test_while_it_sleeps(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        holder = service.acquire("ann")
        clock.after(1.0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.acquire("ann")
        assert record_of(store, "ann").empty
        service.release(holder)
        assert store.read("ann") is None
        clock.sleeps.clear()
        service.acquire("ann", priority="batch")
        assert clock.sleeps == [], "the stopped waiter must no longer be queued"

    @pytest.mark.parametrize("verb", ["append", "read", "swap"])
    def test_during_a_command(
        self,
        service: LockService,
        elsewhere: LockService,
        store: MemoryStore,
        clock: ManualClock,
        verb: str,
    ) -> None:
        holder = service.acquire("ann")
        clock.after(0.1, lambda: elsewhere.release(holder))
        store.before(verb, interrupt)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            service.acquire("ann")
        if verb != "swap":
            service.release(holder)
        clock.sleeps.clear()
        service.acquire("ann", wait_timeout=0)

    def test_when_it_has_just_been_granted_the_lock(
        self,
        service: LockService,
        elsewhere: LockService,
        store: MemoryStore,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        holder = service.acquire("ann")
        clock.after(1.0, lambda: elsewhere.release(holder))
        swap = store.swap

        def then_interrupted(
            lock_id: str, version: object, record: bytes, ttl_seconds: float
        ) -> object:
            assert swap(lock_id, version, record, ttl_seconds) is not None
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store, "swap", then_interrupted)
            with pytest.raises(KeyboardInterrupt):
                service.acquire("ann")
        assert store.read("ann") is None

    def test_without_leaving_the_queue_others_would_wait_for_it(
        self,
        service: LockService,
        store: MemoryStore,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(StoreClient, "give_back", mock.AsyncMock())
        service.acquire("ann")
        clock.after(1.0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.acquire("ann")
        assert not record_of(store, "ann").empty


def test_a_store_that_refuses_every_change_leads_to_a_timeout(
    service: LockService, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each request went to another server: each read is outdated at once."""

    def refused(*_: object) -> None:
        clock.advance(0.01)
        assert clock.now() < started + 10, "it goes on and on"

    service.acquire("ann", lock_timeout=1)
    started = clock.now()
    monkeypatch.setattr(store, "swap", refused)
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=2)
    assert clock.now() == pytest.approx(started + 2, abs=0.1)


class TestOutages:
    def test_a_queue_position_from_before_an_outage_is_given_up(
        self, store: MemoryStore, clock: ManualClock, others: Leases
    ) -> None:
        service = LockService(store, clock=clock, outage="fail")
        taken(others.take(make_claim("ann")))
        clock.after(1.0, store.go_down)
        with pytest.raises(LockServiceUnavailable):
            service.acquire("ann")
        store.come_back()
        assert not record_of(store, "ann").empty
        service.release(service.acquire("bob"))
        assert record_of(store, "ann").empty

    def test_a_position_does_not_end_with_the_lease_that_was_asked_for(
        self, store: MemoryStore, clock: ManualClock, elsewhere: LockService
    ) -> None:
        service = LockService(store, clock=clock, outage="fail")
        elsewhere.acquire("ann")
        clock.after(0.5, lambda: store.go_down(slow=True))
        with pytest.raises(LockServiceUnavailable):
            service.acquire("ann", wait_timeout=5, lock_timeout=1)
        store.come_back()
        assert len(elsewhere.waiters("ann")) == 1
        clock.advance(2)
        service.release(service.acquire("another"))
        assert elsewhere.waiters("ann") == []

    def test_a_create_that_arrives_after_its_lease_would_have_ended_is_given_back(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        service = LockService(store, clock=clock, outage="fail")
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

    def test_a_command_that_is_late_does_not_keep_us_waiting(
        self, service: LockService, store: MemoryStore, clock: ManualClock, others: Leases
    ) -> None:
        """The first command was late, and arrives when the holder has gone, while we are queued.

        We are queued under another token, so the stored record is a pending release, which is
        checked once a second.
        """
        taken(others.take(make_claim("ann")))

        def evicted() -> None:
            store.evict("ann")
            store.arrive()

        store.delay("create")
        clock.after(3.0, evicted)
        started = clock.now()
        lease = service.acquire("ann", lock_timeout=5)
        assert 3 <= clock.now() - started <= 4.2
        assert record_of(store, "ann").holder.token == lease.token
        assert lease.deadline > clock.now() + 4.9
        service.release(lease)
        assert store.read("ann") is None
