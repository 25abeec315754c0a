"""Administration of the memory store: enough to try the tools on it."""

from __future__ import annotations

from userlock.admin.health import WARNING, Finding, examine_server
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.stores.memory import MemoryStore


def list_locks(store: MemoryStore, limit: int) -> Listing:
    found = [
        LockState(lock_id, Record(stored))
        for lock_id in store.lock_ids()[:limit]
        if (stored := store.read(lock_id)) is not None
    ]
    return Listing(found)


def examine(store: MemoryStore) -> list[Finding]:
    says = "locks in memory exclude within one process only, and end with it"
    check = ("reach", WARNING, says, "For tests. Name a server: memcache://HOST:PORT.")
    return examine_server("this process's memory", store, lambda: [check])
