"""Administration of App Engine's memcache. The service does not list its keys."""

from __future__ import annotations

import time

from userlock.admin.health import Finding, Findings, new_lock_id, try_out
from userlock.admin.locks import Listing
from userlock.lock.store import StoreUnavailable
from userlock.stores.appengine import REPLY_SECONDS, AppEngineStore


def list_locks(store: AppEngineStore, limit: int) -> Listing:
    return Listing([], "App Engine's memcache does not list its keys")


def examine(store: AppEngineStore) -> list[Finding]:
    found = Findings("App Engine memcache")
    began = time.monotonic()
    try:
        store.read(new_lock_id())
        took = time.monotonic() - began
        age = store.oldest_item_age()
    except StoreUnavailable as trouble:
        advice = "It answers only within a request of an App Engine app: call this there."
        return found.unreachable(trouble.reason, advice)
    found.reachable(took)
    if age is not None:
        says = f"the oldest item was last asked for {age:,} s ago"
        advice = "Either the cache is new, or it drops items that nobody asks for within a lease. "
        advice += "If it stays so, dedicated memcache gives it room of your own."
        # Leases are of a minute as a rule; an item dropped at such an age may be a live lock.
        found.check("evictions", age >= 120, says, advice, oldest_item_age=age)
    try_out(found, store, patience=REPLY_SECONDS)
    return found
