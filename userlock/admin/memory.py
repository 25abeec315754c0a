"""Administration of the memory store: enough to try the tools on it."""

from __future__ import annotations

from userlock.admin.health import Finding, Findings, Listed, Listing, try_out
from userlock.stores.memory import MemoryStore

_PATIENCE = 1.0


def list_locks(store: MemoryStore, limit: int) -> Listing:
    """Return the locks of this process."""
    found = [
        Listed.of(lock_id, False, stored)
        for lock_id in store.lock_ids()[:limit]
        if (stored := store.read(lock_id)) is not None
    ]
    return Listing.within_room(sorted(found, key=lambda each: len(each.stored.record)))


def examine(store: MemoryStore) -> list[Finding]:
    """Return the findings about this process."""
    found = Findings("this process's memory")
    says = "locks in memory exclude within one process only, and end with it"
    found.warning("reach", says, "For tests. Name a server: memcache://HOST:PORT.", processes=1)
    try_out(found, store, patience=_PATIENCE)
    return found
