"""Administration of the memory store: enough to try the tools on it."""

from __future__ import annotations

from userlock.admin.health import WARNING, Finding, Findings, try_out
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.stores.memory import MemoryStore


def list_locks(store: MemoryStore, limit: int) -> Listing:
    found = [
        LockState(lock_id, Record(stored))
        for lock_id in store.lock_ids()[:limit]
        if (stored := store.read(lock_id)) is not None
    ]
    return Listing.within_room(found, shortest_first=False)


def examine(store: MemoryStore) -> list[Finding]:
    found = Findings("this process's memory")
    says = "locks in memory exclude within one process only, and end with it"
    advice = "For tests. Name a server: memcache://HOST:PORT."
    found.add("reach", WARNING, says, advice, processes=1)
    try_out(found, store, patience=1.0)
    return found
