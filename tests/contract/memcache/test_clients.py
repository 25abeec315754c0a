"""Clients work with the embedded memcached as with the real one: each test runs on both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud.ndb.global_cache import MemcacheCache
from pymemcache import Client, HashClient, PooledClient

_TIMEOUT_SECONDS = 5.0


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    made = HashClient(
        [address],
        use_pooling=True,
        timeout=_TIMEOUT_SECONDS,
        connect_timeout=_TIMEOUT_SECONDS,
    )
    made.flush_all(noreply=False)
    yield made
    made.close()


@pytest.fixture
def raw(address: str) -> Iterator[Client]:
    made = Client(address, timeout=_TIMEOUT_SECONDS)
    made.flush_all(noreply=False)
    yield made
    made.close()


def test_many_keys_and_quiet_stores(client: Any) -> None:
    keys = [f"key{number}" for number in range(40)]
    assert client.set_many(dict.fromkeys(keys, b"value")) == []
    found = client.get_many([*keys, "absent"])
    assert found == dict.fromkeys(keys, b"value")
    client.delete_many(keys[:20])
    assert sorted(client.get_many(keys)) == sorted(keys[20:])


def test_binary_values_of_every_size(client: Any) -> None:
    for size in (0, 1, 4095, 65536, 1_000_000):
        value = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 256 // 2)
        assert client.set("k", value, noreply=False)
        assert client.get("k") == value


def test_version_stats_and_verbosity(raw: Client) -> None:
    assert raw.version() == b"1.6.18"
    stats = raw.stats()
    assert stats[b"version"] == b"1.6.18"
    assert stats[b"limit_maxbytes"] == 64 * 1024 * 1024
    assert stats[b"curr_connections"] >= 1
    assert stats[b"cmd_get"] >= 0
    assert raw.stats("settings")[b"item_size_max"] == 1024 * 1024
    assert raw.raw_command(b"verbosity 1") == b"OK"
    assert raw.cache_memlimit(64) is True


def test_the_global_cache_of_ndb(address: str) -> None:
    client = PooledClient(address, timeout=_TIMEOUT_SECONDS, max_pool_size=2)
    cache = MemcacheCache(client)
    cache.clear()
    key, other = b"\x08\x01 a key \xff", b"x" * 400
    assert cache.get([key, other]) == [None, None]
    assert cache.set({key: b"1", other: b"2"}, expires=100) is None
    assert cache.get([key, other]) == [b"1", b"2"]
    assert cache.set_if_not_exists({key: b"3", b"new": b"4"}) == {key: False, b"new": True}
    cache.watch({key: b"1", other: b"2"})
    client.set(MemcacheCache._key(other), b"changed", noreply=False)
    assert cache.compare_and_swap({key: b"5", other: b"6"}) == {key: True, other: False}
    cache.delete([key])
    assert cache.get([key, other, b"new"]) == [None, b"changed", b"4"]
    client.close()
