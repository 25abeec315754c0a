"""The server of a lock among several memcached servers. Nothing is sent here."""

from __future__ import annotations

import collections

import pytest

from userlock import LockService
from userlock.stores import MemcacheStore, ShardedMemcacheStore

LOCK_IDS = [f"learner-{number}" for number in range(3000)]


def sharded(*addresses: str) -> ShardedMemcacheStore:
    return ShardedMemcacheStore([MemcacheStore(address) for address in addresses])


def homes(store: ShardedMemcacheStore) -> dict[str, str]:
    return {each: store.servers[store.shard_of(each)].address for each in LOCK_IDS}


def test_locks_are_spread_evenly() -> None:
    counts = collections.Counter(homes(sharded("m1:11211", "m2:11211", "m3:11211")).values())
    assert len(counts) == 3
    assert all(900 <= count <= 1100 for count in counts.values()), counts


def test_the_order_of_the_list_does_not_matter() -> None:
    """Otherwise two processes that name the same servers would not exclude each other."""
    assert homes(sharded("m1", "m2", "m3")) == homes(sharded("m3", "m1", "m2"))


def test_localhost_is_its_address() -> None:
    """Otherwise two processes look for a third of the locks on different servers, silently."""
    by_name, by_number = sharded("localhost", "m2", "m3."), sharded("127.0.0.1:11211", "m2", "m3")
    assert list(map(by_name.shard_of, LOCK_IDS)) == list(map(by_number.shard_of, LOCK_IDS))
    with pytest.raises(ValueError, match="named once each"):
        sharded("localhost", "127.0.0.1:11211")


def test_the_usual_port_may_be_left_out() -> None:
    """Also where only one of two processes names it."""
    assert homes(sharded("m1", "[::1]", "m3")) == homes(sharded("m1:11211", "[::1]:11211", "m3"))


def test_a_new_server_takes_its_share_and_no_other_lock_moves() -> None:
    before = homes(sharded("m1", "m2", "m3"))
    after = homes(sharded("m1", "m2", "m3", "m4"))
    moved = {each for each in LOCK_IDS if before[each] != after[each]}
    assert {after[each] for each in moved} == {"m4:11211"}
    assert 600 <= len(moved) <= 900


@pytest.mark.parametrize("lock_id", ["\ud800", "a\r\nb", "x" * 1_500])
def test_any_lock_has_a_server(lock_id: str) -> None:
    assert sharded("m1", "m2").shard_of(lock_id) in (0, 1)


@pytest.mark.parametrize("addresses", [(), ("m1", "m1"), ("m1", "m2", "m1:11211")])
def test_a_malformed_list_is_refused(addresses: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="named once each"):
        sharded(*addresses)


def test_addresses_may_name_several() -> None:
    service = LockService.from_url("memcache://m1:11211,[::1]:11212,m3?prefix=app1&via_proxy=yes")
    store = service.store
    assert isinstance(store, ShardedMemcacheStore)
    assert [server.address for server in store.servers] == ["m1:11211", "[::1]:11212", "m3:11211"]


def test_one_address_needs_no_sharding() -> None:
    store = LockService.from_url("memcache://m1?protocol=text").store
    assert isinstance(store, MemcacheStore)
    assert store.address == "m1:11211"
