"""Each verb once: for a store that differs from another in its way to the server alone."""

from __future__ import annotations

from userlock.lock.store import LeaseStore

#: Longer than any buffer on the way.
LONG = b"x" * 100_000


def use(store: LeaseStore) -> None:
    """Call each verb, with a long record too, on a connection that is used again."""
    version = store.create("ann", b"first", 60)
    assert version is not None
    assert store.create("ann", b"second", 60) is None
    appended = store.append("ann", b"\n" + LONG)
    assert appended is not None
    assert appended.record == b"first\n" + LONG
    assert store.swap("ann", version, b"refused", 60) is None
    version = store.swap("ann", appended.version, LONG, 60)
    stored = store.read("ann")
    assert stored is not None
    assert stored.record == LONG
    assert store.remove("ann", version)
    assert store.read("ann") is None
