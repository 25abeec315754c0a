"""Administration of the memory store: enough to try the tools on it."""

from __future__ import annotations

from userlock.admin.diagnostics import Listed, Listing, Room
from userlock.admin.findings import Finding, Findings
from userlock.admin.selftest import try_out
from userlock.stores.memory import MemoryStore

_PATIENCE = 1.0


def list_locks(store: MemoryStore, limit: int) -> Listing:
    """Return the locks of this process."""
    found = ((lock_id, store.read(lock_id)) for lock_id in store.lock_ids()[:limit])
    present = [(lock_id, stored) for lock_id, stored in found if stored is not None]
    room, locks, note = Room(), list[Listed](), ""
    for lock_id, stored in sorted(present, key=lambda each: len(each[1].record)):
        if room.takes(stored.record):
            locks.append(Listed.of(lock_id, False, stored))
        else:
            note = room.NOTE
    return Listing(locks, note)


def examine(store: MemoryStore) -> list[Finding]:
    """Return the findings about this process."""
    found = Findings("this process's memory")
    says = "locks in memory exclude within one process only, and end with it"
    found.warning("reach", says, "For tests. Name a server: memcache://HOST:PORT.", processes=1)
    try_out(found, store, patience=_PATIENCE)
    return found
