"""Test the findings about servers, judged from their own statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from userlock.admin import memory
from userlock.admin.health import Check, Finding, Verdict, findings, kind_of
from userlock.admin.locks import Listing, LockState
from userlock.admin.memcache import judge as judge_memcached
from userlock.admin.redis import judge as judge_redis
from userlock.lock.store import StoreUnavailable
from userlock.stores.memory import MemoryStore

OK, WARNING, WRONG = Verdict.OK, Verdict.WARNING, Verdict.WRONG

_STATS = {"pid": "7", "total_connections": "40", "evictions": "0"}


def judged(checks: Iterable[Check]) -> dict[str, Finding]:
    found = findings("h:1", checks)
    assert all(bool(each.advice) is (each.verdict is not OK) for each in found)
    return {each.subject: each for each in found}


def memcached(
    version: str = "1.6.18",
    *,
    meta: bool = True,
    via_proxy: bool = False,
    last: dict[str, str] | None = None,
    **changes: str,
) -> dict[str, Finding]:
    """Return the findings; `changes` of the statistics, and the last ones, if they differ more."""
    first = _STATS | changes
    last = first | {"total_connections": "42"} if last is None else first | last
    return judged(judge_memcached(version, [first, last, last], meta=meta, via_proxy=via_proxy))


@pytest.mark.parametrize(
    ("found", "subject", "verdict", "says"),
    [
        (memcached(), "version", OK, "1.6.18"),
        (memcached("1.5.6", meta=False), "version", WARNING, "too old"),
        (memcached(meta=False), "version", WARNING, "of which the URL asks"),
        (memcached(), "evictions", OK, "none"),
        (memcached(evictions="many"), "evictions", WARNING, "does not say"),
        (memcached(evictions="1200"), "evictions", WARNING, "1,200 items evicted since"),
        (memcached(evictions="1"), "evictions", WARNING, "1 item evicted since"),
        (memcached(), "proxy", OK, "none is seen"),
        (memcached(last={"pid": "8"}), "proxy", WRONG, "different memcached"),
        (memcached(last={"pid": "8"}, via_proxy=True), "proxy", WRONG, "different memcached"),
        (memcached("mcrouter 37"), "proxy", WRONG, "mcrouter"),
        (memcached("mcrouter 37", via_proxy=True), "proxy", OK, "as the URL says"),
        (memcached(proxy_conn="1"), "proxy", WRONG, "a proxy stands in between"),
        (memcached(last={"total_connections": "41"}), "proxy", WRONG, "a proxy stands in between"),
        (memcached(total_connections="?", last={}), "proxy", WARNING, "may be a proxy"),
    ],
)
def test_a_memcached(found: dict[str, Finding], subject: str, verdict: Verdict, says: str) -> None:
    assert (found[subject].verdict, says in found[subject].says) == (verdict, True)


def redis(*, clustered: bool = False, **changes: Any) -> dict[str, Finding]:
    info = {"redis_version": "7.0.15", "redis_mode": "standalone", "maxmemory": "0"}
    return judged(judge_redis({**info, "evicted_keys": "0", **changes}, clustered=clustered))


_LIMIT: dict[str, Any] = {"maxmemory": "2000000"}


@pytest.mark.parametrize(
    ("found", "subject", "verdict", "says"),
    [
        (redis(), "version", OK, "7.0.15"),
        (redis(redis_mode="sentinel"), "role", WRONG, "Sentinel"),
        (redis(role="slave"), "role", WRONG, "a replica"),
        (redis(redis_mode="cluster"), "role", WRONG, "one node of a cluster"),
        (redis(clustered=True, connected_slaves="0"), "role", WARNING, "without replicas"),
        (redis(**_LIMIT, maxmemory_policy="volatile-ttl"), "evictions", WARNING, "live locks"),
        (redis(maxmemory_policy="allkeys-lru"), "evictions", OK, "none"),
        (redis(**_LIMIT, maxmemory_policy="noeviction"), "evictions", OK, "none"),
        (redis(evicted_keys="5"), "evictions", WARNING, "5 keys"),
    ],
)
def test_a_redis(found: dict[str, Finding], subject: str, verdict: Verdict, says: str) -> None:
    assert (found[subject].verdict, says in found[subject].says) == (verdict, True)


def test_a_store_and_its_subclasses_are_examined_by_their_own_module() -> None:
    class Mine(MemoryStore):
        pass

    class Theirs(MemoryStore):
        pass

    Theirs.__module__ = "their_app.userlock.stores.etcd"
    for store in MemoryStore(), Mine(), Theirs():
        assert kind_of(store) is memory


def test_several_servers_are_listed_without_those_that_are_down() -> None:
    servers = {"a": "ab", "b": "cde", "c": "", "d": "f"}

    def list_one(ids: str, limit: int) -> Listing:
        if not ids:
            raise StoreUnavailable("c is down")
        return Listing([LockState(each, None) for each in ids[:limit]], f"up to {limit}")

    found = Listing.of_servers(servers, list_one, 10)
    assert "".join(lock.name for lock in found.locks) == "abcdef"
    assert found.note == "a: up to 10; b: up to 8; c is down; d: up to 5"
    found = Listing.of_servers(servers, list_one, 3)
    assert "".join(lock.name for lock in found.locks) == "abc"
    with pytest.raises(StoreUnavailable):
        Listing.of_servers({"c": ""}, list_one, 3)
