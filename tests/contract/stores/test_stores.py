"""The store contract, on each store against its real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import userlock
from emulator import memcache as embedded_memcached
from tests.servers import Memcached, RedisServer
from userlock.lock.lease import Held, LeaseStore
from userlock.stores import MemcacheStore, MemoryStore
from userlock.stores.redis import RedisStore
from userlock.testing import LeaseStoreContract, ManualClock, granted, make_claim


class TestMemory(LeaseStoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock=clock)

    def wait_for_expiry(self, store: LeaseStore, lock_id: str) -> None:
        assert isinstance(store, MemoryStore)
        assert isinstance(store.clock, ManualClock)
        store.clock.advance(1)


class TestMemcached(LeaseStoreContract):
    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        store = MemcacheStore(memcached.address, prefix=uuid.uuid4().hex)
        yield store
        store.close()


class TestRedis(LeaseStoreContract):
    @pytest.fixture
    def store(self, redis_server: RedisServer) -> Iterator[RedisStore]:
        store = RedisStore.from_url(f"{redis_server.url}?prefix={uuid.uuid4().hex}")
        yield store
        store.close()

    def test_a_claim_that_is_sent_again_is_granted(self, store: RedisStore) -> None:
        """As redis-py does after a lost reply: its own record is nobody else's."""
        claim = make_claim()
        granted(store.add(claim))
        granted(store.add(claim))

    def test_a_service_over_it(self, redis_server: RedisServer) -> None:
        service = userlock.LockService.from_url(f"{redis_server.url}?prefix=app1")
        lease = service.acquire("ann")
        with pytest.raises(userlock.LockTimeout):
            service.acquire("ann", wait_timeout=0.05)
        service.release(lease)
        assert service.holder("ann") is None
        service.close()

    def test_a_server_that_is_not_there_is_an_outage(self) -> None:
        service = userlock.LockService.from_url("redis://127.0.0.1:1")
        assert service.acquire("ann").degraded

    def test_what_others_store_under_our_key_grants_nothing(
        self, redis_server: RedisServer
    ) -> None:
        store = RedisStore.from_url(f"{redis_server.url}?prefix=foreign")
        store._client.set("foreign:lock=ann", b"\xff[]")
        outcome = store.add(make_claim("ann"))
        assert isinstance(outcome, Held)
        assert outcome.holder is not None
        assert "did not write" in outcome.holder.describe()
        store.close()


class TestEmbeddedMemcached(LeaseStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[MemcacheStore]:
        with embedded_memcached.start() as server:
            store = MemcacheStore(server.address)
            yield store
            store.close()
