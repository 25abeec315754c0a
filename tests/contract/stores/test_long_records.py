"""Long records that somebody else wrote do not hide the locks of others from an operator."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from google.cloud import ndb
from pymemcache.client.base import Client

import userlock_emulator
from tests.leases import existing
from tests.servers import Memcached, RedisServer
from userlock.admin import health, locks
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore
from userlock.stores.datastore import DatastoreStore
from userlock.stores.redis import RedisStore

NORMAL = {"ann", "bob", "zoe"}


@pytest.fixture(params=["memcached", "redis", "datastore"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseStore]:
    prefix = uuid.uuid4().hex
    made: LeaseStore
    if request.param == "memcached":
        made = MemcacheStore(
            request.getfixturevalue("memcached").address, prefix=prefix, timeout=10
        )
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        made = RedisStore(redis.Redis(port=server.port), prefix=prefix, timeout=10)
    else:
        with userlock_emulator.start() as running:
            for name, value in running.env.items():
                monkeypatch.setenv(name, value)
            yield DatastoreStore(ndb.Client(), prefix=prefix, timeout=10)
        return
    yield made
    made.close()


def names_and_note(store: LeaseStore) -> tuple[set[str], str]:
    listing = existing(health.kind_of(store)).list_locks(store, 1000)
    return {each.name for each in listing.locks}, listing.note


def test_they_are_left_out_of_a_listing(store: LeaseStore) -> None:
    """The names of the long ones sort before and after those of the others."""
    for number in range(25):
        store.create(f"{'az'[number % 2]}-{number}", b"x" * 1_000_000, 60)
    for name in NORMAL:
        store.create(name, b"short", 60)
    names, note = names_and_note(store)
    if isinstance(store, DatastoreStore):  # a query cannot sort by length
        assert names
    else:
        assert names > NORMAL
    assert note.endswith(locks.NO_ROOM)  # after the name of a Redis


def test_a_record_that_memcached_alone_takes_is_listed_unread(tmp_path: Path) -> None:
    server = Memcached(tmp_path, "-I", "8m", "-m", "128")
    try:
        store = MemcacheStore(server.address)
        store.create("ann", b"short", 60)
        client = Client(server.address)
        client.set(store.keys.lock("long"), b"x" * (3 << 20), noreply=False)
        client.close()
        assert names_and_note(store) == ({"ann", "long"}, "")
        store.close()
    finally:
        server.stop()
