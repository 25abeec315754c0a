"""Other callers between two calls of the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.appengine.api import memcache

from tests.contract.stores.appengine.service import KEY, Service
from tests.leases import existing
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.store import StoreUnavailable
from userlock.stores import appengine
from userlock.stores.appengine import APPEND_SECONDS, AppEngineStore
from userlock.testing import ManualClock

SET = memcache.MemcacheSetResponse
POLICY = memcache.MemcacheSetRequest


class TestRaces:
    def between(self, service: Service, act: Callable[[], object]) -> None:
        def before(method: str, request: Any) -> None:
            if method == "Set" and request.item[0].set_policy == POLICY.CAS:
                service.before = lambda method, request: None
                act()

        service.before = before

    def test_a_swap_that_comes_second_does_nothing(
        self, service: Service, store: AppEngineStore
    ) -> None:
        version = existing(store.create("ann", b"first", 60))
        self.between(service, lambda: store.swap("ann", version, b"theirs", 60))
        assert store.swap("ann", version, b"ours", 60) is None
        assert existing(store.read("ann")).record == b"theirs"

    def test_a_remove_that_comes_second_does_nothing(
        self, service: Service, store: AppEngineStore
    ) -> None:
        version = existing(store.create("ann", b"first", 60))
        self.between(service, lambda: store.append("ann", b"\nwaits"))
        assert store.remove("ann", version) is False
        assert existing(store.read("ann")).record == b"first\nwaits"

    def test_a_line_is_added_to_the_current_record(
        self, service: Service, store: AppEngineStore
    ) -> None:
        existing(store.create("ann", b"first", 60))
        self.between(service, lambda: store.append("ann", b"\ntheirs"))
        assert existing(store.append("ann", b"\nours")).record == b"first\ntheirs\nours"

    def test_a_service_that_does_not_compare_loses_it(
        self, service: Service, store: AppEngineStore
    ) -> None:
        """The control: the tests above pass because of the numbers."""
        existing(store.create("ann", b"first", 60))

        def before(method: str, request: Any) -> None:
            if method == "Set" and request.item[0].set_policy == POLICY.CAS:
                service.before = lambda method, request: None
                store.append("ann", b"\ntheirs")
                request.item[0].set_policy = POLICY.SET

        service.before = before
        store.append("ann", b"\nours")
        assert existing(store.read("ann")).record == b"first\nours"

    def test_a_line_finds_the_record_removed(self, service: Service, store: AppEngineStore) -> None:
        version = existing(store.create("ann", b"first", 60))
        self.between(service, lambda: store.remove("ann", version))
        assert store.append("ann", b"\nours") is None
        assert store.read("ann") is None

    def test_one_of_two_creates_replaces_a_tombstone(
        self, service: Service, store: AppEngineStore
    ) -> None:
        assert store.remove("ann", existing(store.create("ann", b"old", 60)))
        self.between(service, lambda: existing(store.create("ann", b"theirs", 60)))
        assert store.create("ann", b"ours", 60) is None
        assert existing(store.read("ann")).record == b"theirs"

    def test_a_tombstone_that_ends_while_it_is_read(
        self, service: Service, store: AppEngineStore, clock: ManualClock
    ) -> None:
        assert store.remove("ann", existing(store.create("ann", b"old", 60)))
        self.between(service, lambda: clock.advance(2))
        existing(store.create("ann", b"new", 60))
        assert existing(store.read("ann")).record == b"new"

    def test_appends_do_not_try_for_ever(
        self, service: Service, store: AppEngineStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(appengine, "APPEND_SECONDS", APPEND_SECONDS)
        existing(store.create("ann", b"first", 60))

        def after(method: str, request: Any, response: Any) -> None:
            if method == "Set":
                response.set_status[0] = SET.EXISTS

        service.after = after
        began = SYSTEM_CLOCK.now()
        with pytest.raises(StoreUnavailable, match="others changed"):
            store.append("ann", b"\nours")
        assert SYSTEM_CLOCK.now() - began < APPEND_SECONDS + 5

    def test_a_version_means_nothing_after_a_restart(
        self, service: Service, store: AppEngineStore
    ) -> None:
        version = existing(store.create("ann", b"first", 60))
        number = service.number_of(KEY)
        service.restart()
        existing(store.create("ann", b"theirs", 60))
        assert service.number_of(KEY) == number, "the control: by its number it is the same"
        assert store.swap("ann", version, b"ours", 60) is None
        assert store.remove("ann", version) is False
        assert existing(store.read("ann")).record == b"theirs"
