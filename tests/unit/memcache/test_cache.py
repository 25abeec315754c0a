"""The store: expiry on a manual clock, CAS numbers, the memory limit."""

from __future__ import annotations

import pytest

from tests.leases import existing
from tests.unit.memcache.support import START, ManualClock
from userlock_emulator.memcache.cache import Cache, Mode, Refused, Stored, steady_clock
from userlock_emulator.memcache.item import Item
from userlock_emulator.memcache.slabs import slab_class

DAY = 24 * 60 * 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> Cache:
    return Cache(clock=clock)


def put(cache: Cache, key: bytes, value: bytes = b"v", exptime: int = 0) -> Item:
    item = Item(key, value, expires_at=cache.expiry(exptime))
    assert cache.store(Mode.SET, item) is Stored.STORED
    return item


def test_a_relative_expiry(cache: Cache, clock: ManualClock) -> None:
    put(cache, b"k", exptime=10)
    clock.advance(9.9)
    assert cache.seconds_left(existing(cache.find(b"k"))) == 1
    clock.advance(0.1)
    assert cache.find(b"k") is None
    assert len(cache) == 0
    assert cache.counters.get_expired == 1


def test_seconds_are_coarse_as_in_memcached(cache: Cache, clock: ManualClock) -> None:
    clock.advance(0.9)
    put(cache, b"k", exptime=1)
    clock.advance(0.1)
    assert cache.find(b"k") is None


def test_thirty_days_are_relative_and_a_second_more_is_a_date(
    cache: Cache, clock: ManualClock
) -> None:
    put(cache, b"month", exptime=30 * DAY)
    put(cache, b"past", exptime=30 * DAY + 1)
    put(cache, b"date", exptime=START + 100)
    assert cache.find(b"past") is None
    clock.advance(99)
    assert cache.find(b"date") is not None
    clock.advance(1)
    assert cache.find(b"date") is None
    clock.advance(30 * DAY - 101)
    assert cache.find(b"month") is not None
    clock.advance(1)
    assert cache.find(b"month") is None


def test_zero_is_never(cache: Cache, clock: ManualClock) -> None:
    item = put(cache, b"k", exptime=0)
    clock.advance(10_000 * DAY)
    assert cache.find(b"k") is item
    assert cache.seconds_left(item) == -1


def test_a_value_of_a_million_digits_is_no_number(cache: Cache) -> None:
    put(cache, b"n", b"9" * 1_000_000)
    assert cache.add_delta(b"n", 1, increment=True) is Refused.NON_NUMERIC


def test_flush_later_spares_what_is_written_afterwards(cache: Cache, clock: ManualClock) -> None:
    put(cache, b"old")
    cache.flush(5)
    clock.advance(3)
    put(cache, b"touched")
    clock.advance(1)
    assert cache.find(b"old") is None
    assert cache.find(b"touched") is None
    put(cache, b"new")
    clock.advance(1)
    put(cache, b"newer")
    assert cache.find(b"newer") is not None


def test_the_least_recently_used_items_go_when_memory_is_full(clock: ManualClock) -> None:
    one = Item(b"key0", b"x" * 100).cost_bytes
    cache = Cache(clock=clock, memory_limit_bytes=10 * one)
    for number in range(10):
        put(cache, b"key%d" % number, b"x" * 100)
    assert len(cache) == 10
    used = existing(cache.find(b"key0"))
    cache.bump(used)
    for number in range(10, 15):
        put(cache, b"k%d" % number, b"x" * 101)
    assert cache.find(b"key0") is used
    assert cache.find(b"key1") is None
    assert cache.find(b"key9") is not None
    assert cache.used_bytes <= 10 * one
    assert cache.counters.evictions == 5


def test_memory_stays_bounded_under_churn(clock: ManualClock) -> None:
    limit = 100_000
    cache = Cache(clock=clock, memory_limit_bytes=limit)
    for number in range(5_000):
        put(cache, b"key%d" % (number % 997), b"x" * (number % 300))
        if number % 7 == 0:
            cache.add_delta(b"key%d" % (number % 997), 1, increment=True)
    assert cache.used_bytes <= limit
    assert cache.used_bytes == sum(
        item.cost_bytes
        for item in (cache.find(b"key%d" % number) for number in range(997))
        if item is not None
    )
    cache.set_memory_limit(1_000)
    assert cache.used_bytes <= 1_000


@pytest.mark.parametrize(
    ("size", "number"),
    [(1, 1), (96, 1), (97, 2), (120, 2), (121, 3), (153, 4), (192, 4), (2**19, 39), (2**20, 39)],
)
def test_size_classes(size: int, number: int) -> None:
    assert slab_class(size) == number


def test_the_steady_clock_does_not_go_back() -> None:
    clock = steady_clock()
    readings = [clock() for _ in range(1000)]
    assert readings == sorted(readings)
