"""A real memcached without room for another line: waiters are next, and nothing else is lost."""

from __future__ import annotations

import contextlib
import itertools
import socket
from pathlib import Path

import pytest
from pymemcache.client.base import Client

from tests.leases import Leases, record_of, taken
from tests.servers import Memcached
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Released
from userlock.stores import MemcacheStore
from userlock.testing import make_claim

LOCK = "learner-1"


@pytest.fixture(params=["meta", "text"])
def store(memcached: Memcached, prefix: str, request: pytest.FixtureRequest) -> MemcacheStore:
    return MemcacheStore(memcached.address, prefix=prefix, protocol=request.param)


@pytest.fixture
def leases(store: MemcacheStore) -> Leases:
    return Leases(store, SYSTEM_CLOCK)


def fill(memcached: Memcached, prefix: str) -> None:
    """Add meaningless lines, up to memcached's limit."""
    with contextlib.closing(Client(memcached.address)) as client:
        for size in (100_000, 1_000, 20, 2):
            while client.append(f"{prefix}:lock={LOCK}", b"\n" + b"x" * (size - 1), noreply=False):
                pass


def test_waiters_are_next(memcached: Memcached, prefix: str, leases: Leases) -> None:
    lease = taken(leases.take(make_claim(LOCK)))
    waiter = make_claim(LOCK)
    leases.join(waiter)
    fill(memcached, prefix)
    late = leases.join(make_claim(LOCK))
    assert late is not None
    assert len(late.waiters()) == 1, "there was room after all"
    leases.leave(LOCK, make_claim(LOCK).token)  # it could not report that either
    assert leases.release(lease) == Released()
    record = record_of(leases.store, LOCK)
    assert len(record.stored.record) < 1000
    assert record.is_turn_of(waiter.token)
    mine = taken(leases.claim(waiter, record, passing=False))
    assert leases.release(mine) == Released()
    assert leases.look(LOCK) is None


def test_a_memcached_out_of_memory(tmp_path: Path) -> None:
    """It evicts nothing. By the text protocol the line is dropped, and all else is as it was.

    By the meta protocol it drops the record: a loss like any other. The next reply is correct.
    """
    server = Memcached(tmp_path, "-M", "-m", "2")
    text, meta = (
        MemcacheStore(server.address, prefix="test", protocol=protocol)
        for protocol in ("text", "meta")
    )
    for lock_id in (LOCK, "another"):
        assert text.create(lock_id, b"first", 3600) is not None
    use_up(server)
    line = b"\n" + b"y" * 100
    for stored in (text.append(LOCK, line), text.append(LOCK, line), text.read(LOCK)):
        assert stored is not None
        assert stored.record == b"first"
    assert meta.append("another", line) is None
    stored = meta.read(LOCK)
    assert stored is not None
    assert stored.record == b"first"
    server.stop()


def use_up(server: Memcached) -> None:
    """Use up all memory, including the rest of each size class."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for size in (50_000, 5_000, *range(600, 0, -8)):
            for number in itertools.count():
                items = [
                    b"set %d-%d-%d 0 0 %d%b\r\n%b\r\n"
                    % (size, number, each, size, b" noreply" * (each > 0), b"x" * size)
                    for each in range(100, -1, -1)
                ]
                connection.sendall(b"".join(items))
                if not connection.recv(100).startswith(b"STORED"):
                    break
