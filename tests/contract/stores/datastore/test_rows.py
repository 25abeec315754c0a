"""Rows: their properties, their place, and how long they count."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.stores.datastore.conftest import SERVER_CLOCK, UserLockLease, read
from tests.contract.stores.datastore.faulty import FaultyClient
from tests.leases import existing
from userlock.clock import SystemClock
from userlock.lock.store import GRACE_SECONDS, RecordRefused, StoreUnavailable
from userlock.stores.datastore import DatastoreStore
from userlock.stores.urls import open_store


class SkewedClock(SystemClock):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wall(self) -> float:
        return time.time() + self._seconds


def _mutations(request: Any) -> Any:
    return request.mutations


def row_of(client: ndb.Client) -> Any:
    with client.context(cache_policy=False):
        return ndb.Key("UserLockLease", "userlock=ann").get()


class TestRows:
    def test_nothing_is_indexed(self, store: DatastoreStore, faulty: FaultyClient) -> None:
        watched = DatastoreStore(faulty)
        assert watched.create("ann", b"first", 60) is not None
        assert watched.append("ann", b"\nline") is not None
        assert watched.swap("ann", read(store).version, b"next", 60) is not None
        commits = [request for request in faulty.requests if hasattr(request, "mutations")]
        entities = [mutation.insert or mutation.update for (mutation,) in map(_mutations, commits)]
        assert len(entities) == 3
        for entity in entities:
            properties = dict(entity.properties)
            assert set(properties) - {"leased_at"} == {
                *("record", "ttl_microseconds", "expire_at", "write_id"),
            }
            assert all(value.exclude_from_indexes for value in properties.values())

    def test_it_may_be_swept_a_day_after_its_end(
        self, client: ndb.Client, store: DatastoreStore
    ) -> None:
        store.create("ann", b"first", 60)
        before = existing(row_of(client))
        age = before.expire_at.replace(tzinfo=datetime.UTC).timestamp() - time.time()
        assert 86_400 + 50 < age < 86_400 + 70
        store.append("ann", b"\nline")
        assert existing(row_of(client)).expire_at == before.expire_at

    def test_namespace_database_kind_and_prefix(self, client: ndb.Client) -> None:
        url = "datastore://other?database=db2&namespace=ns2&prefix=p2&kind=Lease"
        store = open_store(url)
        assert store.create("ann", b"first", 60) is not None
        assert read(store).record == b"first"
        other = ndb.Client(project="other", database="db2", namespace="ns2")
        with other.context():
            keys = [key.flat() for key in ndb.Query(kind="Lease").iter(keys_only=True)]
        assert keys == [("Lease", "p2=ann")]
        for elsewhere in (
            DatastoreStore(client),
            open_store("datastore://"),
            open_store("datastore://other?database=db2&namespace=ns2&prefix=p2"),
            open_store("datastore://other?database=db2&prefix=p2&kind=Lease"),
        ):
            assert elsewhere.read("ann") is None
        assert DatastoreStore(other, prefix="p2", kind="Lease").read("ann") is not None
        assert DatastoreStore(other, prefix="p2", kind="Lease", namespace="").read("ann") is None

    @pytest.mark.parametrize(
        "use",
        [
            pytest.param(lambda store: store.read("ann"), id="read"),
            pytest.param(lambda store: store.read("ann", hurry=True), id="hurried"),
            pytest.param(lambda store: store.append("ann", b"\nline"), id="append"),
        ],
    )
    def test_a_reader_deletes_a_dead_row(
        self,
        client: ndb.Client,
        store: DatastoreStore,
        use: Callable[[DatastoreStore], object],
    ) -> None:
        version = store.create("ann", b"first", 1)
        SERVER_CLOCK.ahead += 1 + GRACE_SECONDS + 0.1
        assert row_of(client) is not None
        assert use(store) is None
        assert row_of(client) is None
        assert store.swap("ann", version, b"next", 60) is None

    def test_a_dead_row_is_replaced_once(self, store: DatastoreStore) -> None:
        for _ in range(5):
            store.create("ann", b"first", 0.001)
            SERVER_CLOCK.ahead += 1 + GRACE_SECONDS
            with ThreadPoolExecutor(8) as pool:
                made = list(pool.map(lambda n: store.create("ann", b"%d" % n, 0.001), range(8)))
            assert len([version for version in made if version is not None]) == 1

    def test_extending_with_the_same_record_begins_a_new_life(self, store: DatastoreStore) -> None:
        """Datastore ignores a write that changes nothing."""
        version = store.create("ann", b"first", 10)
        for _ in range(3):
            SERVER_CLOCK.ahead += 8
            version = existing(store.swap("ann", version, b"first", 10))
        assert read(store).lapsed is False

    def test_another_programs_entity_is_refused(
        self, client: ndb.Client, store: DatastoreStore
    ) -> None:
        with client.context():
            UserLockLease(id="userlock=ann", points=1).put()
        with pytest.raises(StoreUnavailable, match="something else stores"):
            store.read("ann")
        with pytest.raises(RecordRefused, match="a row of kind UserLockLease"):
            store.create("ann", b"first", 60)

    @pytest.mark.parametrize("skew", [-40_000, 40_000])
    def test_clients_whose_clocks_are_wrong(self, client: ndb.Client, skew: float) -> None:
        right, wrong = DatastoreStore(client), DatastoreStore(client, clock=SkewedClock(skew))
        for holder, other in ((right, wrong), (wrong, right)):
            version = existing(holder.create("ann", b"first", 60))
            SERVER_CLOCK.ahead += 58
            assert other.create("ann", b"second", 5) is None
            assert read(other).lapsed is False
            SERVER_CLOCK.ahead += 2.2
            assert read(other).lapsed is True
            assert read(holder).lapsed is True
            assert other.create("ann", b"second", 5) is None, "waiters were passed"
            sweep = existing(row_of(client)).expire_at.replace(tzinfo=datetime.UTC).timestamp()
            assert sweep > SERVER_CLOCK() / 1_000_000, "it might be swept while it lives"
            assert other.remove("ann", version)

    @pytest.mark.parametrize("version", [None, 0, -1, "7", b"7"])
    def test_an_impossible_version_changes_nothing(
        self, store: DatastoreStore, version: object
    ) -> None:
        assert store.create("ann", b"first", 60) is not None
        assert store.swap("ann", version, b"next", 60) is None
        assert store.remove("ann", version) is False
        assert read(store).record == b"first"
