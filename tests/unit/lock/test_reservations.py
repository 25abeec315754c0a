"""Callers that change a record of others: they reserve a free lock, or compact a long record."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from unittest import mock

import pytest

from tests.leases import Leases, record_of, taken
from tests.unit.lock.crowd import LOCK, Crowd, gathering
from userlock import LockService, LockTimeout
from userlock.events import Degraded, Event
from userlock.lock import record as record_module
from userlock.lock.lease import Granted, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import PATIENCE_SECONDS, Record
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


@pytest.fixture
def crowd(clock: ManualClock) -> Iterator[Crowd]:
    with gathering(clock) as crowd:
        yield crowd


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


def the_first_in_line_dies(crowd: Crowd, *, waits: float = 0.0) -> list[str]:
    """Start a caller every tenth of a second after the lock is free; return those that got it."""
    crowd.comes("holder", hold=1.0)
    dead = crowd.comes("dead", after=0.1)
    crowd.passes(0.5)
    crowd.world.kill(dead)
    names = [f"caller-{number}" for number in range(10)]
    for number, name in enumerate(names):
        crowd.comes(name, after=0.51 + 0.1 * number, wait_timeout=waits)
    crowd.ends()
    return [name for name in crowd.order if name in names]


class TestReservations:
    """A caller that does not wait gets a free lock although dead waiters are queued."""

    @pytest.mark.parametrize("waits", [0.0, 0.15])
    def test_the_dead_have_their_time_and_no_more(self, crowd: Crowd, waits: float) -> None:
        served = the_first_in_line_dies(crowd, waits=waits)
        first = crowd.when(served[0])
        # The first one reserves it for the dead waiter, and for one that has arrived since.
        assert 1.0 + PATIENCE_SECONDS <= first <= 1.0 + waits + 3 * PATIENCE_SECONDS + 0.1
        assert crowd.violations == []
        assert crowd.store.read(LOCK) is None

    def test_without_reservations_no_caller_would_get_it(
        self, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(LeaseProtocol, "reserve", mock.AsyncMock(return_value=False))
        assert the_first_in_line_dies(crowd) == []

    def test_each_queued_process_has_its_time(self, crowd: Crowd) -> None:
        processes = 3
        dead = [crowd.world.process(f"web-{number}") for number in range(processes)]
        crowd.comes("holder", hold=1.0)
        for number in range(6):
            crowd.comes(f"dead-{number}", after=0.1, process=dead[number % processes])
        crowd.passes(0.5)
        for process in dead:
            crowd.world.kill(process)
        for number in range(100):
            crowd.comes(f"caller-{number}", after=0.5 + 0.02 * number, wait_timeout=0)
        crowd.ends()
        ends = 1.0 + (processes + 1) * PATIENCE_SECONDS
        assert ends <= crowd.when(crowd.order[1]) <= ends + 0.03
        assert crowd.violations == []

    def test_the_first_waiter_takes_it_despite_other_tries(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=1.0)
        crowd.comes("a", after=0.1)
        crowd.comes("b", after=0.2)
        for number in range(100):
            crowd.comes(f"caller-{number}", after=0.95 + 0.001 * number, wait_timeout=0)
        crowd.ends()
        assert crowd.order[:3] == ["holder", "a", "b"]
        assert crowd.when("a") < 1.01
        assert crowd.violations == []

    def test_a_holder_with_a_slow_read_learns_that_it_has_released(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        """Between its line and its read, a caller reserves the lock and a waiter takes it."""
        lease = taken(leases.take(make_claim()))
        waiter = make_claim()
        leases.join(waiter)
        store.lose_reply("append")

        def offered_and_taken() -> None:
            seen = record_of(store, lease.lock_id)
            assert leases.reserve(make_claim(), seen, leaving=False)
            seen = record_of(store, lease.lock_id)
            taken(leases.claim(waiter, seen, passing=False))

        store.before("read", offered_and_taken)
        assert leases.release(lease._replace(contended=True)) == Released()


class Plain(MemoryStore):
    """A store that can do no more than it must."""

    rewrite = LeaseStore.rewrite  # type: ignore[assignment]


def many_give_up(service: LockService, store: MemoryStore, *, callers: int = 100) -> int:
    """Return the longest length of the record, in bytes."""
    longest = 0
    for _ in range(callers):
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=0.01)
        longest = max(longest, len(record_of(store, "ann").stored.record))
    return longest


class TestLongRecords:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Call a record long that is a tenth of the usual length."""
        monkeypatch.setattr(record_module, "_LONG_BYTES", 3_200)

    def test_timed_out_waiters_do_not_fill_it(
        self, service: LockService, store: MemoryStore, leases: Leases, clock: ManualClock
    ) -> None:
        lease = taken(leases.take(make_claim("ann", ttl_seconds=600)))
        waiter = make_claim("ann")
        leases.join(waiter)
        assert many_give_up(service, store) < 3_500
        assert store.asked["rewrite"] >= 1
        left = record_of(store, "ann").stored.seconds_left
        assert left == pytest.approx(lease.deadline - clock.now())
        assert record_of(store, "ann").position_of(waiter.token) == 0
        extended = leases.extend(lease, 60)
        assert isinstance(extended, Granted)
        assert leases.release(extended.lease) == Released()
        assert record_of(store, "ann").is_turn_of(waiter.token)

    def test_without_that_they_would(
        self, service: LockService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(Record, "worth_compacting", False)
        service.acquire("ann", lock_timeout=600)
        assert many_give_up(service, store) > 8_000

    def test_where_the_store_cannot_do_it_nothing_else_is_tried(self, clock: ManualClock) -> None:
        """A swap would begin a new time to live."""
        store = Plain(clock=clock)
        service = LockService(store, clock=clock, random=Random(1))
        service.acquire("ann", lock_timeout=600)
        assert many_give_up(service, store) > 8_000
        assert store.asked["swap"] == 0

    def test_live_waiters_are_not_rewritten_repeatedly(
        self,
        leases: Leases,
        store: MemoryStore,
        service: LockService,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(record_module, "_LONG_BYTES", 0)
        taken(leases.take(make_claim("ann")))
        for _ in range(150):
            leases.join(make_claim("ann"))
        many_give_up(service, store, callers=20)
        assert len(record_of(store, "ann").waiters()) == 150
        assert store.asked["rewrite"] == 0

    def test_a_line_that_comes_meanwhile_is_not_lost(
        self, leases: Leases, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record_module, "_LONG_BYTES", 0)
        lease = taken(leases.take(make_claim("ann")))
        late, gone = make_claim("ann"), make_claim("ann")
        leases.join(gone)
        leases.leave("ann", gone.token)
        seen = record_of(store, "ann")
        assert seen.worth_compacting
        store.before("rewrite", lambda: leases.join(late))
        leases.compact("ann", seen)
        assert record_of(store, "ann").position_of(late.token) == 0
        assert leases.release(lease) == Released()

    def test_a_break_in_the_middle_does_not_affect_waiters(
        self,
        service: LockService,
        store: MemoryStore,
        clock: ManualClock,
        events: list[Event],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        holder = service.acquire("ann")
        many_give_up(service, store, callers=10)
        monkeypatch.setattr(record_module, "_LONG_BYTES", 0)
        store.lose_command("rewrite")
        clock.after(3.0, lambda: service.release(holder))
        assert not service.acquire("ann").degraded
        assert not [event for event in events if isinstance(event, Degraded)]

    def test_a_free_record_is_left_to_the_next_waiter(
        self, leases: Leases, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record_module, "_LONG_BYTES", 0)
        lease = taken(leases.take(make_claim("ann")))
        leases.join(make_claim("ann"))
        leases.release(lease)
        assert not record_of(store, "ann").worth_compacting


class TestNoRoom:
    """The store refuses lines beyond a length: a memcached item holds a megabyte."""

    @pytest.fixture
    def holder(self, service: LockService, store: MemoryStore) -> Lease:
        """Provide the holder of a lock whose record is full, without waiters."""
        lease = service.acquire("ann", lock_timeout=600)
        many_give_up(service, store, callers=1)
        store.room = 0
        return lease

    def test_a_waiter_gets_the_lock_nevertheless(
        self, service: LockService, clock: ManualClock, holder: Lease, events: list[Event]
    ) -> None:
        clock.after(3.0, lambda: service.release(holder))
        began = clock.now()
        lease = service.acquire("ann", request="patient")
        assert not lease.degraded
        assert 3.0 <= clock.now() - began < 3.1
        assert not [event for event in events if isinstance(event, Degraded)]

    def test_or_a_timeout_with_the_holder(
        self, service: LockService, holder: Lease, events: list[Event]
    ) -> None:
        with pytest.raises(LockTimeout) as caught:
            service.acquire("ann", wait_timeout=1)
        assert caught.value.holder is not None
        assert caught.value.holder.token == holder.token
        assert not [event for event in events if isinstance(event, Degraded)]

    def test_when_there_is_room_again_it_is_queued(
        self, service: LockService, store: MemoryStore, clock: ManualClock, holder: Lease
    ) -> None:
        def room() -> None:
            store.room = 10_000

        def look() -> None:
            queues.append([waiter.request for waiter in service.waiters("ann")])

        queues: list[list[str]] = []
        clock.after(1.0, look)
        clock.after(1.5, room)
        clock.after(2.0, look)
        clock.after(3.0, lambda: service.release(holder))
        service.acquire("ann", request="patient")
        assert queues == [[], ["patient"]]

    def test_a_queued_waiter_is_next(
        self, service: LockService, store: MemoryStore, leases: Leases, clock: ManualClock
    ) -> None:
        lease = taken(leases.take(make_claim("ann")))
        waiter = make_claim("ann")
        leases.join(waiter)
        store.room = 0
        clock.after(1.0, lambda: leases.release(lease))

        def next_one() -> None:
            taken(leases.claim(waiter, record_of(store, "ann"), passing=False))

        clock.after(1.02, next_one)
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=1.2)
        assert record_of(store, "ann").holder.token == waiter.token

    def test_dead_queued_waiters_are_passed_by_unqueued_ones(
        self, service: LockService, store: MemoryStore, leases: Leases, clock: ManualClock
    ) -> None:
        lease = taken(leases.take(make_claim("ann")))
        leases.join(make_claim("ann"))
        store.room = 0
        leases.release(lease)
        began = clock.now()
        assert not service.acquire("ann", wait_timeout=10).degraded
        assert clock.now() - began < 2 * PATIENCE_SECONDS + 0.1

    def test_a_lock_can_be_broken(
        self, service: LockService, store: MemoryStore, holder: Lease
    ) -> None:
        assert service.break_lock("ann", by="ops") is not None
        assert record_of(store, "ann").broken_by == "ops"
        assert not service.acquire("ann", wait_timeout=0).degraded

    def test_a_release_that_could_not_be_written_is_reported(
        self, leases: Leases, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other clients change the record each time: that is an end, too."""
        lease = taken(leases.take(make_claim("ann")))
        leases.join(make_claim("ann"))
        store.room = 0
        monkeypatch.setattr(store, "swap", lambda *_: None)
        with pytest.raises(StoreUnavailable, match="all the time"):
            leases.release(lease)
