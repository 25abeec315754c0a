"""Evictions, restarts and one hanging server of several, during a hold: reported with the true
reason.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

import userlock
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import Memcached
from tests.waiting import assert_within, wait_until
from userlock.events import LeaseLost
from userlock.stores import ShardedMemcacheStore

FORGOTTEN = "its record is gone from the store (evicted, flushed, restarted or broken)"
#: Short, so that a third of it soon passes.
LEASE = 1.5


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """Provide a memcached of two megabytes."""
    server = Memcached(tmp_path_factory.mktemp("small"), "-m", "2")
    yield server
    server.stop()


def fill(server: Memcached, lease: userlock.Lease) -> int:
    """Store items of the lock's own size until it is evicted; return their number."""
    size, digits = len(lease.record), len(lease.lock_id)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for batch in range(20):
            connection.sendall(
                b"".join(
                    b"set rest:lock=%0*d 0 0 %d noreply\r\n%b\r\n"
                    % (digits, batch * 10_000 + number, size, b"x" * size)
                    for number in range(10_000)
                )
                # This request does not count as a use of the item.
                + b"me test:lock=%b\r\n" % lease.lock_id.encode()
            )
            if connection.recv(1000).startswith(b"EN"):
                return (batch + 1) * 10_000
    raise AssertionError("nothing was evicted")


class TestEviction:
    def test_it_is_noticed_at_the_next_renewal(self, small: Memcached) -> None:
        watched = Watched(small.address)
        with userlock.scope(watched.service) as scope:
            tenure = scope.acquire("learner-1", heartbeat=True, lock_timeout=LEASE)
            seen: list[str] = []
            tenure.on_lost(lambda tenure: seen.append(tenure.lost))
            count = fill(small, tenure.lease)
            took = wait_until(lambda: seen)
            print(f"\nevicted by {count} others; noticed {took:.2f} s later")
            assert took <= LEASE / 3 + 0.5
            assert seen == [FORGOTTEN]
        assert [event.how for event in watched.of(LeaseLost)] == [FORGOTTEN]

    def test_without_a_heartbeat_at_the_release(self, small: Memcached) -> None:
        watched = Watched(small.address)
        other = Watched(small.address)
        with userlock.scope(watched.service) as scope:
            tenure = scope.acquire("learner-1")
            fill(small, tenure.lease)
            theirs = other.service.acquire("learner-1", request="POST /theirs", wait_timeout=0)
            assert not tenure.lost
        (event,) = watched.of(LeaseLost)
        assert event.how.startswith(f"{FORGOTTEN}; it is now held by POST /theirs")
        other.service.release(theirs)
        assert other.of(LeaseLost) == []

    def test_a_lock_that_was_not_evicted_is_not_reported(self, small: Memcached) -> None:
        """The negative control."""
        watched = Watched(small.address)
        with userlock.scope(watched.service) as scope:
            scope.acquire("learner-1")
        assert watched.of(LeaseLost) == []


class TestRestart:
    @pytest.mark.parametrize("taken", [True, False])
    def test_it_is_noticed_at_the_next_renewal(self, own_memcached: Memcached, taken: bool) -> None:
        """Also if the next owner's record has the same number as ours had."""
        watched, other = Watched(own_memcached.address), Watched(own_memcached.address)
        with userlock.scope(watched.service) as scope:
            tenure = scope.acquire("learner-1", heartbeat=True, lock_timeout=LEASE)
            own_memcached.restart()
            if taken:
                theirs = other.service.acquire("learner-1", request="POST /theirs", wait_timeout=0)
            wait_until(lambda: tenure.lost)
        expected = f"{FORGOTTEN}; it is now held by POST /theirs" if taken else FORGOTTEN
        assert tenure.lost.startswith(expected)
        assert [event.how for event in watched.of(LeaseLost)] == [tenure.lost]
        if taken:
            record = record_of(other.service.store, "learner-1")
            assert (record.holder.token, record.free) == (theirs.token, False)

    def test_or_at_the_release(self, own_memcached: Memcached) -> None:
        watched = Watched(own_memcached.address)
        with userlock.scope(watched.service) as scope:
            scope.acquire("learner-1")
            own_memcached.restart()
        assert [event.how for event in watched.of(LeaseLost)] == [FORGOTTEN]

    @pytest.mark.slow
    def test_an_outage_shorter_than_the_lease_without_a_restart_is_survived(
        self, own_memcached: Memcached
    ) -> None:
        """It hangs for two renewals."""
        watched = Watched(own_memcached.address)
        with userlock.scope(watched.service) as scope:
            tenure = scope.acquire("learner-1", heartbeat=True, lock_timeout=6)
            with own_memcached.paused():
                deadline = tenure.lease.deadline
                until = time.monotonic() + 3.5
                wait_until(lambda: time.monotonic() > until)
                assert tenure.lease.deadline == deadline
            wait_until(lambda: tenure.lease.deadline > deadline)
            assert not tenure.lost
        assert watched.of(LeaseLost) == []


class TestSeveralServers:
    """One of them hangs."""

    @pytest.fixture
    def watched(self, own_memcached: Memcached, memcached: Memcached, prefix: str) -> Watched:
        return Watched(own_memcached.address, memcached.address, prefix=prefix)

    @staticmethod
    def locks_of(watched: Watched, shard: int) -> list[str]:
        store = watched.service.store
        assert isinstance(store, ShardedMemcacheStore)
        learners = [f"learner-{number}" for number in range(100)]
        return [each for each in learners if store.shard_of(each) == shard][:20]

    @pytest.mark.slow
    def test_the_locks_of_the_others_are_as_ever(
        self, own_memcached: Memcached, watched: Watched
    ) -> None:
        """Also while releases to the hanging server are pending."""
        service = watched.service
        hung, well = self.locks_of(watched, 0), self.locks_of(watched, 1)
        leases = [service.acquire(lock_id) for lock_id in hung]

        def slowest() -> float:
            """Return the slowest time of locks that are taken and released for some seconds on the
            other server."""
            slowest = 0.0
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                for lock_id in well:
                    started = time.monotonic()
                    lease = service.acquire(lock_id)
                    assert not lease.degraded
                    service.release(lease)
                    slowest = max(slowest, time.monotonic() - started)
            return slowest

        with own_memcached.paused():
            for lease in leases:
                service.release(lease)
            # A timeout of the hanging server takes 0.3 s.
            assert_within(0.25, slowest)

        def all_free() -> bool:
            service.release(service.acquire(hung[0]))
            return all(service.store.read(lock_id) is None for lock_id in hung)

        wait_until(all_free)

    @pytest.mark.slow
    def test_heartbeats_go_on_for_the_others(
        self, own_memcached: Memcached, watched: Watched
    ) -> None:
        hung, well = self.locks_of(watched, 0), self.locks_of(watched, 1)
        with userlock.scope(watched.service) as scope:
            of_hung = [scope.acquire(each, heartbeat=True, lock_timeout=3) for each in hung]
            of_well = [scope.acquire(each, heartbeat=True, lock_timeout=3) for each in well]
            with own_memcached.paused():
                wait_until(lambda: all(tenure.lost for tenure in of_hung))
                assert not any(tenure.lost or tenure.ran_out for tenure in of_well)
            assert all("did not answer (memcached at" in tenure.lost for tenure in of_hung)
