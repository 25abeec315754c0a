"""Functions for operators of the store in App Engine's memcache.

The service does not list its keys.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from userlock.lock.store import Finding, StoreUnavailable, Verdict
from userlock.stores.trial import milliseconds, new_lock_id, try_out, unreachable

if TYPE_CHECKING:
    from userlock.stores.appengine import AppEngineStore

_SERVER = "App Engine memcache"
#: LeaseProtocol are of a minute as a rule; what goes at such an age may be a live lock.
_LEASE_SECONDS = 120


class ForOperators:
    """Looks at the service by calls of its own."""

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`, by the clock of this machine."""
        from userlock.stores import appengine

        store = cast("AppEngineStore", self)
        found = appengine._find(store._keys.lock(lock_id), appengine.REPLY_SECONDS)
        if found is None or found.ends_ms is None:
            return None
        ends = found.ends_ms / 1000 + appengine.SKEW_SECONDS
        return max(ends - store._clock.wall(), 0.0)

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`."""
        from userlock.stores import appengine

        store = cast("AppEngineStore", self)
        began = time.monotonic()
        try:
            store.read(new_lock_id())
            took = time.monotonic() - began
            age = _oldest_item_age()
        except StoreUnavailable as trouble:
            return [
                unreachable(
                    _SERVER,
                    trouble.reason,
                    "It answers only within a request of an App Engine app, not from a shell: "
                    "call this there.",
                )
            ]
        says = f"it answers; the first call took {milliseconds(took)}"
        findings = [Finding(_SERVER, "reachable", Verdict.OK, says, facts={"up": True})]
        if age is not None:
            findings.append(_judge_age(age))
        return findings + try_out(store, _SERVER, patience=appengine.REPLY_SECONDS)


def _oldest_item_age() -> int | None:
    """Return the age of the service's oldest item, in seconds; None if it has none."""
    from userlock.stores import appengine

    sdk: Any = appengine.__dict__["memcache"]
    response, request = sdk.MemcacheStatsResponse(), sdk.MemcacheStatsRequest()
    appengine._call("Stats", request, response, appengine.REPLY_SECONDS)
    if not response.HasField("stats") or not response.stats.items:
        return None
    return int(response.stats.oldest_item_age)


def _judge_age(age: int) -> Finding:
    says = f"the oldest item was last asked for {age:,} s ago"
    facts = {"oldest_item_age": age}
    if age >= _LEASE_SECONDS:
        return Finding(_SERVER, "evictions", Verdict.OK, says, facts=facts)
    return Finding(
        _SERVER,
        "evictions",
        Verdict.WARNING,
        f"{says}: either the cache is new, or it drops what nobody asks for within a lease",
        "If it stays so, dedicated memcache gives it room of your own.",
        facts,
    )
