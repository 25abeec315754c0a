"""Names of servers that are looked up: unknown ones, and look-ups that hang."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from tests.forks import in_child
from tests.servers import Memcached, RedisServer
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores.urls import open_store

#: Far more than the time that the store waits for a look-up, and less than one may take.
BOUND_SECONDS = 5.0


def store_at(scheme: str, host: str, port: int = 1) -> LeaseStore:
    service = "/app" if scheme == "redis+sentinel" else ""
    return open_store(f"{scheme}://{host}:{port}{service}?prefix=names")


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64, "."])
def test_an_unknown_name_is_an_outage(name: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot find") as caught:
        store_at("redis", name).create("ann", b"first", 60)
    assert not caught.value.sent


@pytest.mark.parametrize("scheme", ["memcache", "redis", "rediss", "redis+sentinel"])
def test_a_look_up_that_hangs_is_not_waited_for(
    scheme: str, memcached: Memcached, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here nor, after its end, in a forked child: the thread is not there."""
    answer = threading.Event()
    look_up = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        answer.wait(2 * BOUND_SECONDS)
        return look_up(*args, **kwargs)

    monkeypatch.setattr("userlock.stores.address.socket.getaddrinfo", slow)
    port = memcached.port if scheme == "memcache" else redis_server.port
    store = store_at(scheme, "localhost", port)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="look-up") as caught:
        store.read("ann")
    assert time.monotonic() - started < BOUND_SECONDS
    assert not caught.value.sent

    def free() -> bool:
        monkeypatch.undo()
        return scheme not in ("memcache", "redis") or store.read("ann") is None

    try:
        assert in_child(free)
    finally:
        answer.set()
    store.close()
