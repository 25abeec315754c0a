"""One call of `acquire` that has to wait: its begin, and all its possible ends."""

from __future__ import annotations

import contextlib
import functools
from random import Random
from typing import Any
from unittest import mock

import pytest

from tests.leases import Leases, existing, record_of, taken
from tests.unit.lock.pulse import Here, interrupt
from userlock import LockService, LockServiceUnavailable, LockTimeout
from userlock.events import Contended, TimedOut
from userlock.lock.lease import Claim
from userlock.lock.record import Record, done
from userlock.lock.store import waiting_attempt
from userlock.lock.store_client import StoreClient
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run


@pytest.fixture
def others(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


def test_a_connection_is_waited_for_as_long_as_the_lock(
    service: LockService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But to leave the queue, however long that takes."""
    asked = []

    async def append(lock_id: str, line: bytes) -> Any:
        attempt = waiting_attempt.get()()
        asked.append((line[1:2], attempt and attempt.left))
        return store.append(lock_id, line)

    service.acquire("ann")
    monkeypatch.setattr(store, "aappend", append)
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=3)
    assert asked == [(b"+", 3), (b"=", None)]
    assert waiting_attempt.get()() is None


class TestExpectedQueue:
    """A process that has just released a lock to others does not try to create its record."""

    @pytest.fixture
    def released_to_another(
        self, service: LockService, others: Leases, store: MemoryStore
    ) -> Record:
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

    @pytest.mark.parametrize("options", [{"wait_timeout": 0}, {"max_waiting": 0}])
    @pytest.mark.usefixtures("released_to_another")
    def test_not_without_a_wait(self, here: Here, options: dict[str, Any]) -> None:
        """A caller that may not wait takes a free lock."""
        with contextlib.suppress(LockTimeout):
            here.service.acquire("ann", **options)
        assert here.store.asked["create"] == 1

    @pytest.mark.usefixtures("released_to_another")
    def test_not_for_long(self, here: Here) -> None:
        here.clock.advance(2.0)
        here.service.acquire("ann")
        assert here.store.asked["create"] == 1

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


class TestBatch:
    def test_it_does_not_wait_without_contention(self, here: Here) -> None:
        for number in range(100):
            here.service.release(here.service.acquire(f"learner-{number}", priority="batch"))
        assert here.clock.sleeps == []
        assert here.store.asked == {"create": 100, "remove": 100}


class TestBeginning:
    def test_the_next_waiter_is_named_without_a_holder(self, here: Here, others: Leases) -> None:
        lease = taken(others.take(make_claim("ann")))
        others.join(make_claim("ann", request="GET /second"))
        others.release(lease)
        with pytest.raises(LockTimeout):
            here.service.acquire("ann", wait_timeout=0.1)
        (contended,) = (event for event in here.events if isinstance(event, Contended))
        assert contended.blocked_by == "GET /second (next in the queue)"
        (timed_out,) = (event for event in here.events if isinstance(event, TimedOut))
        assert timed_out.blocked_by == "GET /second (next in the queue)"

    def test_later_waiters_do_not_poll_in_step(self, here: Here, others: Leases) -> None:
        taken(others.take(make_claim("ann")))
        others.join(make_claim("ann"))
        services = [
            LockService(here.store, clock=here.clock, random=Random(seed)) for seed in range(2)
        ]
        sleeps: list[list[float]] = []
        for service in services:
            here.clock.sleeps.clear()
            with pytest.raises(LockTimeout):
                service.acquire("ann", wait_timeout=1)
            sleeps.append(here.clock.sleeps[:-1])
        assert not set(sleeps[0]) & set(sleeps[1])
        assert len(set(sleeps[0])) == len(sleeps[0])

    def test_who_comes_after_the_next_holder_polls_as_the_first(
        self, here: Here, others: Leases
    ) -> None:
        """However long other locks are held."""
        here.service.release(here.service.acquire("bob"), held_seconds=10)
        lease = taken(others.take(make_claim("ann")))
        others.join(make_claim("ann"))
        others.release(lease)
        here.clock.sleeps.clear()
        here.service.acquire("ann")
        assert max(here.clock.sleeps) <= here.service.policy.interactive.polling.most_seconds

    def test_trying_once_takes_a_free_lock_without_waiters(
        self, here: Here, others: Leases
    ) -> None:
        """Released, and all waiters have timed out: no reason to fail."""
        lease = taken(others.take(make_claim("ann")))
        waiter = make_claim("ann")
        others.join(waiter)
        others.release(lease)
        others.append("ann", done(waiter.token))
        assert record_of(here.store, "ann").free
        mine = here.service.acquire("ann", wait_timeout=0)
        here.service.release(mine)
        assert here.store.read("ann") is None

    @pytest.mark.parametrize("wait", [0, 5])
    def test_a_lock_that_is_released_at_that_moment_is_taken(
        self, here: Here, others: Leases, wait: int
    ) -> None:
        """There was a record when it asked, and there is none when it reads."""
        lease = taken(others.take(make_claim("ann")))
        here.store.before("append" if wait else "read", lambda: others.release(lease))
        here.service.release(here.service.acquire("ann", wait_timeout=wait))
        assert here.clock.sleeps == []
        assert here.store.read("ann") is None


class TestStopped:
    """The thread is stopped in the middle: it leaves the queue, and keeps no lock."""

    @pytest.mark.parametrize("verb", ["append", "read", "swap"])
    def test_during_a_command(self, here: Here, elsewhere: LockService, verb: str) -> None:
        holder = here.service.acquire("ann")
        here.clock.after(0.1, lambda: elsewhere.release(holder))
        here.store.before(verb, interrupt)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            here.service.acquire("ann")
        if verb != "swap":
            here.service.release(holder)
        here.clock.sleeps.clear()
        here.service.acquire("ann", wait_timeout=0)

    def test_without_leaving_the_queue_others_would_wait_for_it(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(StoreClient, "give_back", mock.AsyncMock())
        here.service.acquire("ann")
        here.clock.after(1.0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            here.service.acquire("ann")
        assert not record_of(here.store, "ann").empty


def test_a_store_that_refuses_every_change_leads_to_a_timeout(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each request went to another server: each read is outdated at once."""

    def refused(*_: object) -> None:
        here.clock.advance(0.01)
        assert here.clock.now() < started + 10, "it goes on and on"

    here.service.acquire("ann", lock_timeout=1)
    started = here.clock.now()
    monkeypatch.setattr(here.store, "swap", refused)
    with pytest.raises(LockTimeout):
        here.service.acquire("ann", wait_timeout=2)
    assert here.clock.now() == pytest.approx(started + 2, abs=0.1)


class TestOutages:
    def test_a_queue_position_from_before_an_outage_is_given_up(
        self, here: Here, others: Leases
    ) -> None:
        service = LockService(here.store, clock=here.clock, outage="fail")
        taken(others.take(make_claim("ann")))
        here.clock.after(1.0, here.store.go_down)
        with pytest.raises(LockServiceUnavailable):
            service.acquire("ann")
        here.store.come_back()
        assert not record_of(here.store, "ann").empty
        service.release(service.acquire("bob"))
        assert record_of(here.store, "ann").empty

    def test_a_position_does_not_end_with_the_lease_that_was_asked_for(
        self, here: Here, elsewhere: LockService
    ) -> None:
        service = LockService(here.store, clock=here.clock, outage="fail")
        elsewhere.acquire("ann")
        here.clock.after(0.5, lambda: here.store.go_down(slow=True))
        with pytest.raises(LockServiceUnavailable):
            service.acquire("ann", wait_timeout=5, lock_timeout=1)
        here.store.come_back()
        assert len(elsewhere.waiters("ann")) == 1
        here.clock.advance(2)
        service.release(service.acquire("another"))
        assert elsewhere.waiters("ann") == []

    def test_a_create_that_arrives_after_its_lease_would_have_ended_is_given_back(
        self, here: Here
    ) -> None:
        service = LockService(here.store, clock=here.clock, outage="fail")
        here.store.delay("create")
        here.store.lose_command("read")
        with pytest.raises(LockServiceUnavailable):
            service.acquire("ann", lock_timeout=1)
        here.clock.advance(2)
        here.store.arrive()
        assert service.holder("ann") is not None
        here.clock.advance(0.5)
        service.release(service.acquire("another"))
        assert service.holder("ann") is None

    def test_a_command_that_is_late_does_not_keep_us_waiting(
        self, here: Here, others: Leases
    ) -> None:
        """Queued under another token: the record is a pending release, checked every second."""
        taken(others.take(make_claim("ann")))

        def evicted() -> None:
            here.store.evict("ann")
            here.store.arrive()

        here.store.delay("create")
        here.clock.after(3.0, evicted)
        started = here.clock.now()
        lease = here.service.acquire("ann", lock_timeout=5)
        assert 3 <= here.clock.now() - started <= 4.2
        assert record_of(here.store, "ann").holder.token == lease.token
        assert lease.deadline > here.clock.now() + 4.9
        here.service.release(lease)
        assert here.store.read("ann") is None


@pytest.mark.parametrize("hold", [0.05, 6.0])
def test_a_long_hold_does_not_make_the_next_short_one_longer(
    clock: ManualClock, hold: float
) -> None:
    """While the lock is free for the first, the second waits for the next hold, not the last."""
    store = MemoryStore(clock=clock, wakes=False)
    here, elsewhere = (LockService(store, clock=clock, random=Random(each)) for each in (1, 2))
    late = []
    for _ in range(10):
        lease, first = elsewhere.acquire("ann"), make_claim("ann")
        run(elsewhere.protocol.join, first)
        begin = clock.now()

        def take(first: Claim = first) -> None:
            record = record_of(store, "ann")
            second = existing(run(elsewhere.protocol.claim, first, record, passing=False))
            elsewhere.release(second, held_seconds=0.001)

        clock.after(hold, functools.partial(elsewhere.release, lease))
        clock.after(hold + 0.15, take)
        lease = here.acquire("ann", wait_timeout=hold + 5)
        late.append(clock.now() - begin - hold - 0.15)
        here.release(lease, held_seconds=0.001)
    assert 0 <= min(late) <= max(late) <= 0.02
