"""Each verb once: for a store that differs from another in its way to the server alone."""

from __future__ import annotations

from tests.leases import existing
from userlock.lock.store import LeaseStore

#: Longer than any buffer on the way.
LONG = b"x" * 100_000


def use(store: LeaseStore) -> None:
    """Call each verb, with a long record too, on a connection that is used again."""
    version = existing(store.create("ann", b"first", 60))
    assert store.create("ann", b"second", 60) is None
    appended = existing(store.append("ann", b"\n" + LONG))
    assert appended.record == b"first\n" + LONG
    assert store.swap("ann", version, b"refused", 60) is None
    version = store.swap("ann", appended.version, LONG, 60)
    assert existing(store.read("ann")).record == LONG
    assert store.remove("ann", version)
    assert store.read("ann") is None
