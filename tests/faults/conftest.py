"""A memcached that is reached through a proxy that misbehaves on demand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.faults.proxy import FaultProxy
from tests.servers import Memcached
from userlock.stores import MemcacheStore


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(memcached: Memcached) -> Iterator[FaultProxy]:
    with FaultProxy(memcached.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, prefix: str) -> Iterator[MemcacheStore]:
    """Through the proxy, with a connection that stands already."""
    store = MemcacheStore(proxy.address, prefix=prefix)
    store.read("warm-up")
    yield store
    store.close()


@pytest.fixture
def direct(memcached: Memcached, prefix: str) -> Iterator[MemcacheStore]:
    """The same keys, past the proxy."""
    store = MemcacheStore(memcached.address, prefix=prefix)
    yield store
    store.close()
