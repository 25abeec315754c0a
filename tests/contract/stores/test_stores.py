"""The store contract, on each store against its real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from emulator import memcache as embedded_memcached
from tests.servers import Memcached
from userlock.stores import MemcacheStore
from userlock.testing import LeaseStoreContract


class TestMemcached(LeaseStoreContract):
    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        store = MemcacheStore(memcached.address, prefix=uuid.uuid4().hex)
        yield store
        store.close()


class TestEmbeddedMemcached(LeaseStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[MemcacheStore]:
        with embedded_memcached.start() as server:
            store = MemcacheStore(server.address)
            yield store
            store.close()
