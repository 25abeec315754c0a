"""Test the findings about servers, judged from their own statistics."""

from __future__ import annotations

import math

import pytest

from userlock.admin import memory
from userlock.admin.health import Finding, Findings, Verdict, kind_of
from userlock.admin.locks import Listing, LockState
from userlock.admin.memcache import Observed
from userlock.admin.memcache import judge as judge_memcached
from userlock.admin.redis import judge as judge_redis
from userlock.lock.store import StoreUnavailable
from userlock.stores.memory import MemoryStore

OK, WARNING, WRONG = Verdict.OK, Verdict.WARNING, Verdict.WRONG

_STATS = {"pid": "7", "time": "1763640000", "total_connections": "40", "evictions": "0"}
_HEALTHY = Observed(
    first_seconds=0.0003,
    version="1.6.18",
    meta=True,
    stats=_STATS,
    later=0,
    others=False,
    counts_us=True,
    life=0.7,
)


def judged(findings: Findings) -> dict[str, Finding]:
    assert all(finding.server == "h:1" for finding in findings)
    assert all(finding.advice for finding in findings if finding.verdict is not OK)
    return {finding.subject: finding for finding in findings}


def memcached(observed: Observed, *, via_proxy: bool = False) -> dict[str, Finding]:
    findings = Findings("h:1")
    judge_memcached(findings, observed, via_proxy=via_proxy)
    return judged(findings)


def stats(later: int, **changes: str) -> Observed:
    return _HEALTHY._replace(stats=_STATS | changes, later=later)


def without(name: str) -> dict[str, str]:
    return {each: value for each, value in _STATS.items() if each != name}


@pytest.mark.parametrize(
    ("observed", "subject", "verdict", "says"),
    [
        (_HEALTHY, "reachable", OK, "the first answer took 0.30 ms"),
        (_HEALTHY, "version", OK, "1.6.18"),
        (_HEALTHY._replace(meta=False, version="1.5.6"), "version", WARNING, "too old"),
        (_HEALTHY._replace(meta=False), "version", WARNING, "of which the URL asks"),
        (_HEALTHY, "evictions", OK, "none"),
        (stats(1200, evictions="1200"), "evictions", WARNING, "1,200 items evicted since"),
        (stats(1, evictions="1"), "evictions", WARNING, "1 item evicted since"),
        (stats(5, evictions="2"), "evictions", WARNING, "3 more while this ran"),
        (_HEALTHY, "clock", OK, "lived for 0.70 s"),
        (_HEALTHY._replace(life=math.inf), "clock", WARNING, "did not end"),
        (_HEALTHY._replace(life=2.9), "clock", WARNING, "2.90 s"),
        (_HEALTHY._replace(stats=without("time")), "clock", WARNING, "does not tell its time"),
        (_HEALTHY, "proxy", OK, "none is seen"),
        (_HEALTHY._replace(others=True), "proxy", WRONG, "different memcached"),
        (_HEALTHY._replace(version="mcrouter 37"), "proxy", WRONG, "mcrouter"),
        (stats(0, proxy_conn="1"), "proxy", WRONG, "a proxy stands in between"),
        (_HEALTHY._replace(counts_us=False), "proxy", WRONG, "a proxy stands in between"),
        (_HEALTHY._replace(stats={}, counts_us=None), "proxy", WARNING, "may be a proxy"),
    ],
)
def test_a_memcached(observed: Observed, subject: str, verdict: Verdict, says: str) -> None:
    finding = memcached(observed)[subject]
    assert (finding.verdict, says in finding.says) == (verdict, True)


@pytest.mark.parametrize(("counts_us", "says"), [(False, "as the URL says"), (True, "costs")])
def test_a_proxy_that_the_url_names_is_fine(counts_us: bool, says: str) -> None:
    finding = memcached(_HEALTHY._replace(counts_us=counts_us), via_proxy=True)["proxy"]
    assert (finding.verdict, says in finding.says) == (OK, True)


@pytest.mark.parametrize(
    "observed", [_HEALTHY._replace(stats={}, life=None), stats(0, evictions="many")]
)
def test_figures_that_are_missing_or_no_numbers_are_passed_over(observed: Observed) -> None:
    assert "evictions" not in memcached(observed)
    assert ("clock" in memcached(observed)) is (observed.life is not None)


_INFO = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "role": "master",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "evicted_keys": "0",
}
_LIMIT = {"maxmemory": "2000000"}


def redis(
    changes: dict[str, str], later: dict[str, str] | None = None, life: float = 0.101
) -> dict[str, Finding]:
    info, findings = _INFO | changes, Findings("h:1")
    judge_redis(findings, info, info | (later or {}), 0.001, life)
    return judged(findings)


def test_a_healthy_redis() -> None:
    found = redis({})
    assert {finding.verdict for finding in found.values()} == {OK}
    assert set(found) == {"reachable", "version", "evictions", "clock"}
    assert "lived for 101 ms" in found["clock"].says


@pytest.mark.parametrize(
    ("found", "subject", "verdict", "says"),
    [
        (redis({"redis_mode": "sentinel"}), "role", WRONG, "Sentinel"),
        (redis({"role": "slave"}), "role", WRONG, "replica"),
        (redis({"redis_mode": "cluster"}), "role", WRONG, "MOVED"),
        (redis({"maxmemory_policy": "volatile-ttl"} | _LIMIT), "evictions", WARNING, "live locks"),
        (redis({"maxmemory_policy": "allkeys-lru"}), "evictions", OK, "none"),
        (redis(_LIMIT), "evictions", OK, "none"),
        (redis({"evicted_keys": "5"}), "evictions", WARNING, "5 keys"),
        (redis({"evicted_keys": "5"}, {"evicted_keys": "9"}), "evictions", WRONG, "4 more while"),
        (redis({}, life=0.6), "clock", WARNING, "600 ms"),
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


def test_several_servers_are_listed_page_by_page() -> None:
    servers = {"b": "cde", "a": "ab", "d": "", "c": "f"}

    def list_one(name: str, limit: int, after: str) -> Listing:
        ids = servers[name]
        rest = ids[int(after or 0) :]
        if not ids:
            raise StoreUnavailable("d is down")
        more = f"{int(after or 0) + limit}" if len(rest) > limit else ""
        return Listing([LockState(each, None) for each in rest[:limit]], more=more)

    pages = [Listing.of_servers("kind", servers, list_one, 2, "")]
    while pages[-1].more:
        pages.append(Listing.of_servers("kind", servers, list_one, 2, pages[-1].more))
    assert ["".join(lock.name for lock in page.locks) for page in pages] == ["ab", "cd", "ef", ""]
    assert [page.note for page in pages] == ["", "", "", "d is down"]

    def one_is_down(name: str, limit: int, after: str) -> Listing:
        return Listing([]) if name == "e" else list_one(name, limit, after)

    for names in ["d"], ["d", "e"]:  # nothing was found
        with pytest.raises(StoreUnavailable):
            Listing.of_servers("kind", names, one_is_down, 2, "")
