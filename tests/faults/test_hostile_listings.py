"""Slow, endless and malformed replies to a listing of locks, and before there is a connection.

The listing ends in time, with an outage or a note; so does a TLS handshake.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.faults.hostile import HostileServer, Reply, real_server
from tests.servers import Memcached
from userlock.admin import health
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.stores.redis import RedisStore
from userlock.stores.stream import MOST_BYTES

#: Of the listing. Writing down keys may take two seconds, by the server's own fault three.
LIST_SECONDS = 6.0
QUESTIONS = {"memcached": [b"lru_crawler", b"mg "], "redis": [b"SCAN", b"EVAL"]}
#: One of each sort.
FEW = (
    *("a slow line", "an endless line", "binary", "closed at once"),
    *("slow statistics", "endless statistics", "5,000 digits, time"),
    *("an endless list", "5,000 digits, :", "another reply: b':7\\r\\n'"),
)


@pytest.fixture(params=list(QUESTIONS))
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Iterator[HostileServer]:
    with HostileServer(real_server(request, kind).port) as server:
        yield server


@pytest.fixture
def store(kind: str, server: HostileServer, prefix: str) -> Iterator[LeaseStore]:
    store: LeaseStore = (
        RedisStore(redis.Redis(port=server.port), prefix=prefix)
        if kind == "redis"
        else MemcacheStore(server.address, prefix=prefix)
    )
    with contextlib.closing(store):
        store.create("ann", b"first", 60)
        yield store


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_list_of_locks_ends_in_time(
    kind: str, server: HostileServer, store: LeaseStore, whole: bool
) -> None:
    module = health.kind_of(store)
    assert module is not None
    wrong: dict[tuple[bytes, str], object] = {}
    for command in QUESTIONS[kind]:
        for reply in Reply.to(kind):
            if not whole and reply.name not in FEW:
                continue
            started = time.monotonic()
            with server.answering(reply, command):
                try:
                    module.list_locks(store, 100)
                except StoreUnavailable:
                    pass
                except Exception as error:
                    wrong[command, reply.name] = error
            if time.monotonic() - started > LIST_SECONDS or not server.answered:
                wrong[command, reply.name] = time.monotonic() - started, server.answered
    assert wrong == {}


# --- TLS ----------------------------------------------------------------------------------------


def _redis_over_tls(server: HostileServer) -> LeaseStore:
    return RedisStore(redis.Redis(port=server.port, ssl=True, ssl_cert_reqs="none"))


def _memcached_over_tls(server: HostileServer) -> LeaseStore:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return MemcacheStore(server.address, tls=context)


@pytest.mark.parametrize("open_store", [_redis_over_tls, _memcached_over_tls])
def test_a_slow_handshake_of_tls_ends_in_time(
    memcached: Memcached, open_store: Callable[[HostileServer], LeaseStore]
) -> None:
    """A record of 16,384 bytes is announced, and one byte comes after the other."""
    reply = Reply("a slow record", b"\x16\x03\x03\x40\x00\x02", b"\x00", slow=True)
    with HostileServer(memcached.port) as server, server.answering(reply):
        started = time.monotonic()
        with contextlib.closing(open_store(server)) as store, pytest.raises(StoreUnavailable):
            store.create("ann", b"first", 60)
        assert time.monotonic() - started < 2
        assert server.answered
        assert server.sent < MOST_BYTES
