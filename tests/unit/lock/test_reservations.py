"""Callers that change a record of others: they reserve a free lock. Records without room."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.leases import MemoryLeases, record_of, taken
from tests.unit.lock.crowd import LOCK, Crowd
from tests.unit.lock.pulse import Here
from userlock import LockService, LockTimeout
from userlock.events import Degraded
from userlock.lock.lease import Granted, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import PATIENCE_SECONDS
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import make_claim


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
        self, leases: MemoryLeases
    ) -> None:
        """Between its line and its read, a caller reserves the lock and a waiter takes it."""
        lease = taken(leases.take(make_claim()))
        waiter = make_claim()
        leases.join(waiter)
        leases.store.lose_reply("append")

        def offered_and_taken() -> None:
            seen = record_of(leases.store, lease.lock_id)
            assert leases.reserve(make_claim(), seen, leaving=False)
            seen = record_of(leases.store, lease.lock_id)
            taken(leases.claim(waiter, seen, passing=False))

        leases.store.before("read", offered_and_taken)
        assert leases.release(lease._replace(contended=True)) == Released()


def gives_up(service: LockService) -> None:
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=0.01)


def test_an_extension_drops_the_waiters_that_gave_up(here: Here, leases: MemoryLeases) -> None:
    """The others keep their places, and the lease the length that it was extended by."""
    lease = taken(leases.take(make_claim("ann", ttl_seconds=600)))
    waiter = make_claim("ann")
    leases.join(waiter)
    for _ in range(100):
        gives_up(here.service)
    assert len(record_of(here.store, "ann").stored.record) > 8_000
    extended = leases.extend(lease, 60)
    assert isinstance(extended, Granted)
    record = record_of(here.store, "ann")
    assert len(record.stored.record) < 400
    assert record.position_of(waiter.token) == 0
    assert record.stored.seconds_left == pytest.approx(60)
    assert leases.release(extended.lease) == Released()
    assert record_of(here.store, "ann").is_turn_of(waiter.token)


class TestNoRoom:
    """The store refuses lines beyond a length: a memcached item holds a megabyte."""

    @pytest.fixture
    def holder(self, service: LockService, store: MemoryStore) -> Lease:
        """Provide the holder of a lock whose record is full, without waiters."""
        lease = service.acquire("ann", lock_timeout=600)
        gives_up(service)
        store.room = 0
        return lease

    def test_a_waiter_gets_the_lock_nevertheless(self, here: Here, holder: Lease) -> None:
        here.clock.after(3.0, lambda: here.service.release(holder))
        began = here.clock.now()
        lease = here.service.acquire("ann", request="patient")
        assert not lease.degraded
        assert 3.0 <= here.clock.now() - began < 3.1
        assert not [event for event in here.events if isinstance(event, Degraded)]

    def test_when_there_is_room_again_it_is_queued(self, here: Here, holder: Lease) -> None:
        def room() -> None:
            here.store.room = 10_000

        def look() -> None:
            queues.append([waiter.request for waiter in here.service.waiters("ann")])

        queues: list[list[str]] = []
        here.clock.after(1.0, look)
        here.clock.after(1.5, room)
        here.clock.after(2.0, look)
        here.clock.after(3.0, lambda: here.service.release(holder))
        here.service.acquire("ann", request="patient")
        assert queues == [[], ["patient"]]

    def test_dead_queued_waiters_are_passed_by_unqueued_ones(
        self, here: Here, leases: MemoryLeases
    ) -> None:
        lease = taken(leases.take(make_claim("ann")))
        leases.join(make_claim("ann"))
        here.store.room = 0
        leases.release(lease)
        began = here.clock.now()
        assert not here.service.acquire("ann", wait_timeout=10).degraded
        assert here.clock.now() - began < 2 * PATIENCE_SECONDS + 0.1

    def test_a_lock_can_be_broken(self, here: Here, holder: Lease) -> None:
        assert here.service.break_lock("ann", by="ops") is not None
        assert record_of(here.store, "ann").broken_by == "ops"
        assert not here.service.acquire("ann", wait_timeout=0).degraded

    def test_a_release_that_could_not_be_written_is_reported(
        self, leases: MemoryLeases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other clients change the record each time: that is an end, too."""
        lease = taken(leases.take(make_claim("ann")))
        leases.join(make_claim("ann"))
        leases.store.room = 0
        monkeypatch.setattr(leases.store, "swap", lambda *_: None)
        with pytest.raises(StoreUnavailable, match="all the time"):
            leases.release(lease)
