"""Values of other programs under our keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.appengine.api import memcache

from tests.contract.stores.appengine.service import KEY, Service
from tests.leases import existing
from userlock.lock.service import LockService
from userlock.stores.appengine import AppEngineStore
from userlock.testing import ManualClock

SPRUNG: list[str] = []


def spring() -> str:
    SPRUNG.append("sprung")
    return "sprung"


class Trap:
    """A value that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (spring, ())


class TestForeignValues:
    @pytest.fixture(autouse=True)
    def _untouched(self) -> Iterator[None]:
        SPRUNG.clear()
        yield
        SPRUNG.clear()

    FOREIGN: dict[str, object] = {  # noqa: RUF012
        "bytes": b"mine",
        "text": "mine",
        "a number": 5,
        "text that looks like ours": f"userlock/1 {'a' * 16} 1\nrecord",
        "a header that is no header": b"userlock/1 x 1\nrecord",
        "another version": b"userlock/2 " + b"a" * 16 + b" 1\nrecord",
        "a trap": Trap(),
    }

    @pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
    def test_they_are_held_until_they_go(
        self, service: Service, store: AppEngineStore, clock: ManualClock, value: object
    ) -> None:
        memcache.Client().set(KEY, value, time=3600)
        before = service._the_cache[""][KEY].value
        assert store.create("ann", b"first", 60) is None
        stored = existing(store.read("ann"))
        assert stored.lapsed is False
        assert store.swap("ann", b"a" * 16, b"ours", 60) is None
        assert existing(store.append("ann", b"\nline")) == stored
        assert service._the_cache[""][KEY].value == before, "it was written over"
        clock.advance(3600)
        existing(store.create("ann", b"first", 60))
        assert SPRUNG == []

    def test_they_can_be_removed(self, service: Service, store: AppEngineStore) -> None:
        memcache.Client().set(KEY, b"mine")
        version = existing(store.read("ann")).version
        memcache.Client().set(KEY, b"another")
        assert store.remove("ann", version) is False
        assert store.remove("ann", existing(store.read("ann")).version)
        existing(store.create("ann", b"first", 60))

    def test_nothing_is_unpickled(self, service: Service, store: AppEngineStore) -> None:
        """The control of the trap above: the SDK's client does unpickle it."""
        memcache.Client().set(KEY, Trap())
        memcache.Client().get(KEY)
        assert SPRUNG == ["sprung"]

    def test_a_lock_on_them_waits_without_a_holders_name(self, service: Service) -> None:
        memcache.Client().set(KEY, b"mine", time=3600)
        locks = LockService.from_url("appengine://")
        assert "did not write" in existing(locks.holder("ann")).describe()
