"""Evictions and restarts of a real memcached during a hold: reported with the true reason."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import userlock
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import Memcached
from tests.waiting import wait_until
from userlock.events import LeaseLost
from userlock.stores import MemcacheStore

FORGOTTEN = "its record is gone from the store (evicted, flushed, restarted or broken)"
#: Short, so that a third of it soon passes.
LEASE = 1.5


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """Provide a memcached of two megabytes."""
    server = Memcached(tmp_path_factory.mktemp("small"), "-m", "2")
    yield server
    server.stop()


def watched_on(server: Memcached) -> Watched:
    return Watched(MemcacheStore(server.address, prefix="test"))


def fill(server: Memcached, lease: userlock.Lease) -> None:
    """Store items of the lock's own size until it is evicted."""
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
                return
    raise AssertionError("nothing was evicted")


class TestEviction:
    def test_it_is_noticed_at_the_next_renewal(self, small: Memcached) -> None:
        watched = watched_on(small)
        with userlock.scope(watched.service) as scope:
            tenure = scope.acquire("learner-1", heartbeat=True, lock_timeout=LEASE)
            fill(small, tenure._lease)
            wait_until(lambda: tenure.lost)
            assert tenure.lost == FORGOTTEN
        assert [event.how for event in watched.of(LeaseLost)] == [FORGOTTEN]

    def test_a_lock_that_was_not_evicted_is_not_reported(self, small: Memcached) -> None:
        """The negative control."""
        watched = watched_on(small)
        with userlock.scope(watched.service) as scope:
            scope.acquire("learner-1")
        assert watched.of(LeaseLost) == []


class TestRestart:
    @pytest.mark.parametrize("taken", [True, False])
    def test_it_is_noticed_at_the_next_renewal(self, own_memcached: Memcached, taken: bool) -> None:
        """Also if the next owner's record has the same number as ours had."""
        watched, other = watched_on(own_memcached), watched_on(own_memcached)
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
