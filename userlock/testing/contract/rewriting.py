"""The contract of `LeaseStore.rewrite`: a record replaced for the time that it has left.

Not part of the whole, because a store need not be able to. That times to live
stay as they are is seen by `TimeContract`, wherever a store can.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from userlock.lock.store import LeaseStore
from userlock.testing.contract.base import StoreContract, created, found
from userlock.testing.contract.verbs import CHANGES, VERSIONS


class RewriteContract(StoreContract):
    """The promises of `rewrite`."""

    def test_rewrite_replaces_the_record(self, store: LeaseStore) -> None:
        version = created(store.create("ann", b"first", 60))
        version = store.rewrite("ann", version, b"next, and longer")
        assert version is not None, "rewrite refused the version that create gave"
        stored = found(store.append("ann", b"\nline"))
        assert (stored.record, stored.lapsed) == (b"next, and longer\nline", False)
        version = store.rewrite("ann", stored.version, b"last")
        assert version is not None, "rewrite refused the version that append gave"
        assert found(store.read("ann")).record == b"last"
        assert store.swap("ann", version, b"swapped", 60) is not None

    def test_rewrite_creates_nothing(self, store: LeaseStore) -> None:
        version = created(store.create("ann", b"first", 60))
        assert store.remove("ann", version)
        assert store.rewrite("ann", version, b"next") is None
        assert store.read("ann") is None

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    def test_rewrite_takes_no_spent_version(
        self, store: LeaseStore, change: Callable[[LeaseStore, object], object]
    ) -> None:
        for name, way in VERSIONS.items():
            version = way(store)
            change(store, version)
            before = found(store.read("ann"))
            assert store.rewrite("ann", version, b"next") is None, f"rewrite took one of {name}"
            assert found(store.read("ann")).record == before.record
            assert store.remove("ann", before.version), "a refused rewrite spent the version"
