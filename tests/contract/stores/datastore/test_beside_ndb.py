"""The store shares a client with the app, and nothing else."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from tests.contract.stores.datastore.conftest import read
from userlock.stores.datastore import DatastoreStore


class Savings(ndb.Model):
    points = ndb.IntegerProperty()


class TestBesideNdb:
    def test_it_never_joins_a_transaction(self, client: ndb.Client, store: DatastoreStore) -> None:
        committed: list[str] = []

        def fail() -> None:
            ndb.get_context().call_on_commit(lambda: committed.append("a hook"))
            Savings(id="ann", points=1).put()
            assert store.create("ann", b"first", 60) is not None
            assert store.append("ann", b"\nline") is not None
            assert read(store).record == b"first\nline", "not the transaction's snapshot"
            raise ZeroDivisionError

        with client.context():
            with pytest.raises(ZeroDivisionError):
                ndb.transaction(fail)
            # The control: what ndb wrote in it has been rolled back.
            assert ndb.Key(Savings, "ann").get() is None
        assert committed == []
        assert read(store).record == b"first\nline"

    def test_its_row_is_not_among_a_transactions_reads(
        self, client: ndb.Client, store: DatastoreStore
    ) -> None:
        """So a lock taken, contended and released aborts no transaction."""
        attempts = 0

        def work() -> None:
            nonlocal attempts
            attempts += 1
            account = Savings.get_or_insert("ann", points=0)
            version = store.create("ann", b"first", 60)
            assert store.append("ann", b"\nline") is not None
            assert store.remove("ann", version) is False
            assert store.remove("ann", read(store).version)
            account.points += 1
            account.put()

        with client.context():
            Savings(id="ann", points=0).put()
            ndb.transaction(work)
            assert ndb.Key(Savings, "ann").get().points == 1
        assert attempts == 1

    def test_it_needs_no_context(self, store: DatastoreStore) -> None:
        assert ndb.context.get_context(False) is None
        version = store.create("ann", b"first", 60)
        assert store.remove("ann", version)
        assert ndb.context.get_context(False) is None

    def test_it_leaves_caches_and_event_loop_alone(
        self, client: ndb.Client, store: DatastoreStore
    ) -> None:
        cache = ndb.global_cache._InProcessGlobalCache()
        ndb.global_cache._InProcessGlobalCache.cache.clear()
        with client.context(global_cache=cache) as context:
            version = store.create("ann", b"first", 60)
            store.append("ann", b"\nline")
            assert read(store).record == b"first\nline"
            assert store.remove("ann", version) is False
            assert dict(context.cache) == {}
            assert not context.eventloop.run0()
            assert context.eventloop.rpcs == {}
            assert ndb.global_cache._InProcessGlobalCache.cache == {}
            # The control: ndb's own look at that row goes through both caches.
            assert ndb.Key("UserLockLease", "userlock=ann").get() is not None
            assert list(context.cache)
            assert ndb.global_cache._InProcessGlobalCache.cache != {}
            # And what ndb has cached does not come between the store and the row.
            assert store.remove("ann", read(store).version)
            assert store.read("ann") is None
