"""Times to live, by clocks that do not agree."""

from __future__ import annotations

import pytest
from google.appengine.api import memcache

from tests.contract.stores.appengine.service import KEY, Service, WallClock
from tests.leases import existing
from userlock.lock.store import GRACE_SECONDS
from userlock.stores.appengine import SKEW_SECONDS, AppEngineStore
from userlock.testing import ManualClock

#: A reader's and the service's, against the writer's; and against each other.
OFF_BY = [
    (reader, service)
    for reader in (-SKEW_SECONDS, 0.0, SKEW_SECONDS)
    for service in (-SKEW_SECONDS, 0.0, SKEW_SECONDS)
    if abs(reader - service) <= SKEW_SECONDS
]


class TestTime:
    def life(
        self, store: AppEngineStore, reader: AppEngineStore, clock: ManualClock, ttl: float
    ) -> list[str]:
        """Return the record as the reader sees it, every tenth of a second from the write on."""
        began = clock.now()
        existing(store.create("ann", b"first", ttl))
        seen = []
        while clock.now() < began + ttl + 10:
            stored = reader.read("ann")
            seen.append("gone" if stored is None else "lapsed" if stored.lapsed else "live")
            clock.advance(0.1)
        return seen

    @pytest.mark.parametrize(("reader_off_by", "service_off_by"), OFF_BY)
    def test_nothing_lapses_or_goes_early(
        self,
        service: Service,
        store: AppEngineStore,
        clock: ManualClock,
        reader_off_by: float,
        service_off_by: float,
    ) -> None:
        ttl = 2.7
        service._gettime = WallClock(clock, service_off_by).wall
        reader = AppEngineStore(clock=WallClock(clock, reader_off_by))
        seen = self.life(store, reader, clock, ttl)
        live, lapsed = seen.count("live") / 10, seen.count("lapsed") / 10
        assert seen == sorted(seen, key=["live", "lapsed", "gone"].index)
        assert ttl <= live <= ttl + 2 * SKEW_SECONDS + 0.2
        assert live + lapsed <= ttl + 3 * SKEW_SECONDS + GRACE_SECONDS + 1
        assert lapsed >= GRACE_SECONDS - 0.2, "the time of grace is cut short"

    def test_a_clock_that_is_further_off_ends_a_lease_early(
        self, service: Service, store: AppEngineStore, clock: ManualClock
    ) -> None:
        """The control of the bound in the test above."""
        reader = AppEngineStore(clock=WallClock(clock, 2 * SKEW_SECONDS))
        assert self.life(store, reader, clock, ttl=2.0).count("live") / 10 < 2.0

    def test_appending_leaves_the_end_where_it_was(
        self, service: Service, store: AppEngineStore, clock: ManualClock
    ) -> None:
        existing(store.create("ann", b"first", 2.0))
        end = service._the_cache[""][KEY].expiration_time
        slow = AppEngineStore(clock=WallClock(clock, -SKEW_SECONDS))
        for _ in range(15):
            clock.advance(0.1)
            existing(slow.append("ann", b"\nline"))
            assert service._the_cache[""][KEY].expiration_time == end
        clock.advance(2 * SKEW_SECONDS)
        assert existing(store.append("ann", b"\nlate")).lapsed
        clock.advance(GRACE_SECONDS + 2 * SKEW_SECONDS)
        assert store.append("ann", b"\ntoo late") is None

    def test_a_removed_record_leaves_nothing_behind(
        self, service: Service, store: AppEngineStore, clock: ManualClock
    ) -> None:
        assert store.remove("ann", existing(store.create("ann", b"first", 60)))
        assert service._the_cache[""][KEY].value, "the tombstone"
        clock.advance(1)
        assert memcache.Client().get(KEY) is None
