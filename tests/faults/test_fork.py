"""A process that forks while it holds locks and connections."""

from __future__ import annotations

import pytest

from tests.connections import take
from tests.forks import in_child
from tests.servers import Memcached
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore


def test_a_forked_child_may_have_as_many_connections_as_its_parent(
    memcached: Memcached, prefix: str
) -> None:
    """Connections in use by other threads at the fork do not count in the child."""
    store = MemcacheStore(memcached.address, prefix=prefix)
    held = [take(store.connections) for _ in range(32)]
    assert in_child(lambda: store.create("child", b"first", 60) is not None)
    with pytest.raises(StoreUnavailable, match="all 32 connections are in use"):
        store.create("parent", b"first", 60)
    for connection in held:
        connection.close()
