"""The store contract in App Engine's memcache; keys, and addresses."""

from __future__ import annotations

import pytest
from google.appengine.api import memcache, namespace_manager

from tests.contract.stores.appengine.service import (
    KEY,
    Service,
)
from tests.leases import existing
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore
from userlock.stores.appengine import AppEngineStore
from userlock.testing import LeaseStoreContract, ManualClock


class TestAppEngine(LeaseStoreContract):
    """Without forks: the SDK's own threads do not survive one."""

    @pytest.fixture(autouse=True)
    def _time(self, clock: ManualClock) -> None:
        self.clock = clock

    def now(self, store: LeaseStore) -> float:
        return self.clock.now()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        self.clock.advance(seconds)


class TestKeys:
    def test_every_key_is_one_that_memcache_carries(
        self, store: AppEngineStore, service: Service
    ) -> None:
        long_prefix = AppEngineStore(prefix="p" * 80)
        for lock_id in ("ann", "x" * 150, "x" * 1_500, "漢" * 1_500, "a\r\nb", "\ud800"):
            existing(store.create(lock_id, b"first", 60))
            existing(long_prefix.create(lock_id, b"first", 60))
        keys = [item.key for method, request in service.requests for item in request.item]
        assert len(set(keys)) == 12
        assert all(len(key) <= memcache.MAX_KEY_SIZE for key in keys)
        assert KEY in keys

    def test_the_namespace_of_the_caller_is_not_part_of_the_key(
        self, store: AppEngineStore, service: Service
    ) -> None:
        version = existing(store.create("ann", b"first", 60))
        namespace_manager.set_namespace("tenant-1")
        try:
            assert memcache.Client().get(KEY) is None, "the control: it changes others' keys"
            assert store.create("ann", b"second", 60) is None
            assert existing(store.append("ann", b"\nline")).record == b"first\nline"
            assert store.remove("ann", version) is False
            assert store.remove("ann", existing(store.read("ann")).version)
        finally:
            namespace_manager.set_namespace("")
        assert store.read("ann") is None


class TestUrl:
    @pytest.mark.parametrize("url", ["appengine:", "appengine://?prefix=app1"])
    def test_a_service_over_it(self, service: Service, url: str) -> None:
        locks = LockService.from_url(url)
        lease = locks.acquire("ann")
        assert not lease.degraded
        locks.release(lease)
        assert locks.holder("ann") is None
