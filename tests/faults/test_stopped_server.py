"""A memcached, or a Redis, that is stopped for a while and continues: no two leases overlap.

Requests to a stopped server wait in its sockets, and are executed as soon as it continues: by
memcached, usually before its clock is set.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import userlock
from tests.leases import Leases, taken
from tests.servers import Memcached, RedisServer, redis_store
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Granted, Lease
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore
from userlock.testing import make_claim

#: Longer than the lease and the additional time of a record, so that it would end at once.
STOPPED_SECONDS = 4.0
LEASE_SECONDS = 1.0
#: Longer than the server is stopped. Longer than usual, so that a test does not depend on the load
#: of the machine.
REPLY_SECONDS = 20.0
#: Locks for each kind of request.
LOCKS = 4
PROTOCOLS = ("meta", "text")
CONNECTED = ("lately", "long ago", "not yet")
VERBS = ("take", "extend")


class Asking(NamedTuple):
    """A process that requests a lease while the server is stopped, and other clients of the lock.

    Attributes:
        lock_id: the lock.
        ask: requests it.
        store: the process's store.
        others: the other clients' store.
    """

    lock_id: str
    ask: Callable[[], Lease]
    store: LeaseStore
    others: LeaseStore


def asking(store: LeaseStore, others: LeaseStore, lock_id: str, verb: str) -> Asking:
    """Return a process that requests a new lease ("take") or extends one ("extend")."""
    leases = Leases(store, SYSTEM_CLOCK)
    claim = make_claim(lock_id, ttl_seconds=LEASE_SECONDS)
    if verb == "take":
        return Asking(lock_id, lambda: taken(leases.take(claim)), store, others)
    held = taken(leases.take(dataclasses.replace(claim, ttl_seconds=60)))

    def extend() -> Lease:
        extended = leases.extend(held, LEASE_SECONDS)
        assert isinstance(extended, Granted)
        return extended.lease

    return Asking(lock_id, extend, store, others)


def asking_memcached(
    server: Memcached, protocol: str, connected: str, verb: str, number: int, *, tells_time: bool
) -> Asking:
    """Return a process of its own.

    Args:
        server: the server.
        protocol: one of `PROTOCOLS`.
        connected: one of `CONNECTED`: whether it knows the server's time, has to ask for it
            again, or has no connection.
        verb: one of `VERBS`.
        number: the number of the lock.
        tells_time: False: the protection is disabled.
    """
    store, others = (
        MemcacheStore(server.address, prefix="test", protocol=protocol, timeout=REPLY_SECONDS)
        for _ in range(2)
    )
    store.connections.tells_time = tells_time
    store.read("warm-up")
    process = asking(store, others, f"{protocol}-{connected}-{verb}-{number}", verb)
    if connected == "long ago":
        (connection,) = store.connections.idle
        connection.good_until = 0.0
    elif connected == "not yet":
        store.close()
    return process


def asked_while_stopped(
    server: Memcached | RedisServer, processes: Sequence[Asking]
) -> dict[str, Lease]:
    """Return the leases of all of them, each requested during a long stop of the server."""
    with ThreadPoolExecutor(len(processes)) as threads:
        with server.paused():
            time.sleep(STOPPED_SECONDS)  # the only condition is a long stop
            asked = {process.lock_id: threads.submit(process.ask) for process in processes}
            deadline = time.monotonic() + 10
            while questions_waiting(server.port) < len(processes):
                assert time.monotonic() < deadline, "not all have sent their request"
        return {lock_id: lease.result() for lock_id, lease in asked.items()}


def questions_waiting(port: int) -> int:
    """Return the number of connections to the port with unread data."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, _, state, queues, *_ = line.split()
        established = state == "01"
        if established and int(here.split(":")[1], 16) == port and int(queues.split(":")[1], 16):
            count += 1
    return count


def overlaps(processes: Sequence[Asking], leases: dict[str, Lease]) -> dict[str, float]:
    """Let others take each lock as soon as they can; return by how much they were too early.

    By the machine's clock, which all of them share here.
    """

    def early(process: Asking) -> float:
        service = userlock.LockService(process.others)
        lease = service.acquire(process.lock_id, wait_timeout=20)
        granted_at = SYSTEM_CLOCK.now()
        assert not lease.degraded
        service.release(lease)
        process.others.close()
        process.store.close()
        return leases[process.lock_id].deadline - granted_at

    with ThreadPoolExecutor(len(processes)) as threads:
        found = dict(zip(leases, threads.map(early, processes), strict=True))
    return {lock_id: seconds for lock_id, seconds in found.items() if seconds > 0}


def test_leases_that_were_asked_for_while_it_was_stopped_overlap_with_no_others(
    own_memcached: Memcached,
) -> None:
    processes = [
        asking_memcached(own_memcached, *way, number, tells_time=True)
        for way in itertools.product(PROTOCOLS, CONNECTED, VERBS)
        for number in range(LOCKS)
    ]
    with own_memcached.clock_comes_last():
        leases = asked_while_stopped(own_memcached, processes)
    assert overlaps(processes, leases) == {}


def test_without_the_servers_time_they_do(own_memcached: Memcached) -> None:
    """The negative control."""
    processes = [
        asking_memcached(own_memcached, protocol, "lately", verb, number, tells_time=False)
        for protocol, verb in itertools.product(PROTOCOLS, VERBS)
        for number in range(LOCKS)
    ]
    with own_memcached.clock_comes_last():
        leases = asked_while_stopped(own_memcached, processes)
    found = overlaps(processes, leases)
    assert len(found) > len(leases) / 2


@pytest.mark.slow
def test_redis_counts_from_when_it_carries_a_command_out(own_redis: RedisServer) -> None:
    """It reads its clock for every command: nothing is necessary there."""
    processes = []
    for verb, number in itertools.product(VERBS, range(2 * LOCKS)):
        store, others = (
            redis_store(f"{own_redis.url}?socket_timeout={REPLY_SECONDS}") for _ in range(2)
        )
        store.read("warm-up")
        processes.append(asking(store, others, f"{verb}-{number}", verb))
    leases = asked_while_stopped(own_redis, processes)
    assert overlaps(processes, leases) == {}
