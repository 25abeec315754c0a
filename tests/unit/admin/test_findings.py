"""Findings about servers, judged from their own statistics."""

from __future__ import annotations

import math

import pytest

from userlock.admin.findings import Finding, Findings, Verdict
from userlock.admin.memcache_findings import Observed
from userlock.admin.memcache_findings import judge as judge_memcached
from userlock.admin.redis import judge as judge_redis

OK, WARNING, WRONG = Verdict.OK, Verdict.WARNING, Verdict.WRONG

_STATS = {
    "pid": "7",
    "uptime": "900000",
    "time": "1763640000",
    "curr_connections": "10",
    "max_connections": "1024",
    "total_connections": "40",
    "evictions": "0",
    "bytes": "1000000",
    "limit_maxbytes": "67108864",
}
_NO_TIME = {name: value for name, value in _STATS.items() if name != "time"}
_SETTINGS = {"cas_enabled": "yes", "evictions": "on", "item_size_max": "1048576"}
_HEALTHY = Observed(
    connect_seconds=0.0003,
    version="1.6.18",
    meta=True,
    stats=_STATS,
    settings=_SETTINGS,
    later=_STATS,
    elapsed=1.0,
    other_pids=frozenset(),
    counts_us=True,
    among_locks={},
    life=0.7,
    lists="",
)


def memcached(observed: Observed, *, via_proxy: bool = False) -> dict[str, Finding]:
    findings = Findings("h:1")
    judge_memcached(findings, observed, via_proxy=via_proxy)
    assert all(finding.server == "h:1" for finding in findings)
    assert all(finding.advice for finding in findings if finding.verdict is not OK)
    return {finding.subject: finding for finding in findings}


def stats(**changes: str) -> Observed:
    return _HEALTHY._replace(stats=_STATS | changes, later=_STATS | changes)


def test_a_healthy_memcached() -> None:
    found = memcached(_HEALTHY)
    assert {finding.verdict for finding in found.values()} == {OK}
    assert set(found) == {
        *("reachable", "version", "protocol", "proxy", "cas", "uptime", "evictions", "memory"),
        *("item size", "connections", "clock", "listing"),
    }


@pytest.mark.parametrize(
    ("observed", "subject", "verdict", "says"),
    [
        (_HEALTHY._replace(meta=False, version="1.5.6"), "protocol", WARNING, "too old"),
        (_HEALTHY._replace(meta=False), "protocol", WARNING, "because the URL says so"),
        (_HEALTHY._replace(settings=_SETTINGS | {"cas_enabled": "no"}), "cas", WRONG, "-C"),
        (_HEALTHY._replace(settings=_SETTINGS | {"evictions": "off"}), "evictions", OK, "-M"),
        (stats(uptime="30"), "uptime", WARNING, "started 30 s ago"),
        (stats(evictions="1200"), "evictions", WARNING, "1,200 items evicted in 10 days"),
        (stats(evictions="1"), "evictions", WARNING, "1 item evicted in 10 days"),
        (stats(bytes="66000000"), "memory", WARNING, "98%"),
        (stats(store_no_memory="3"), "memory", WARNING, "3 writes refused"),
        (stats(curr_connections="1000"), "connections", WARNING, "1,000 of at most 1,024"),
        (stats(listen_disabled_num="2"), "connections", WARNING, "met 2 times"),
        (
            _HEALTHY._replace(settings=_SETTINGS | {"item_size_max": "65536"}),
            "item size",
            WARNING,
            "65,536",
        ),
        (_HEALTHY._replace(life=math.inf), "clock", WARNING, "did not end"),
        (_HEALTHY._replace(life=2.9), "clock", WARNING, "2.90 s"),
        (_HEALTHY._replace(stats=_NO_TIME), "clock", WARNING, "does not tell its time"),
        (_HEALTHY._replace(lists="started with -X"), "listing", WARNING, "-X"),
        (_HEALTHY._replace(other_pids=frozenset({"8"})), "proxy", WRONG, "different memcached"),
        (_HEALTHY._replace(version="mcrouter 37"), "proxy", WRONG, "mcrouter"),
        (_HEALTHY._replace(counts_us=False), "proxy", WRONG, "a proxy stands in between"),
        (_HEALTHY._replace(stats={}, counts_us=None), "proxy", WARNING, "may be a proxy"),
    ],
)
def test_faults_of_a_memcached(
    observed: Observed, subject: str, verdict: Verdict, says: str
) -> None:
    finding = memcached(observed)[subject]
    assert finding.verdict is verdict
    assert says in finding.says


def test_a_proxy_that_the_url_names_is_fine() -> None:
    assert memcached(_HEALTHY._replace(counts_us=False), via_proxy=True)["proxy"].verdict is OK
    none = memcached(_HEALTHY, via_proxy=True)["proxy"]
    assert none.verdict is OK
    assert "costs a round trip more" in none.says


def test_live_locks_are_being_evicted() -> None:
    observed = stats(evictions="5000")._replace(
        later=_STATS | {"evictions": "5200"}, among_locks={"evicted": 900, "evicted_time": 12}
    )
    finding = memcached(observed)["evictions"]
    assert finding.verdict is WRONG
    assert "200 of them while this ran" in finding.says
    assert "for 12 s" in finding.says
    assert finding.facts["evictions_per_second"] == 200


def test_evictions_of_other_sizes_are_a_warning() -> None:
    observed = stats(evictions="5000")._replace(among_locks={"evicted": 0})
    finding = memcached(observed)["evictions"]
    assert finding.verdict is WARNING
    assert "none of a lock record's size" in finding.says


def test_a_server_without_statistics_is_not_judged_by_them() -> None:
    found = memcached(_HEALTHY._replace(stats={}, settings={}, later={}, counts_us=None))
    assert set(found) == {"reachable", "version", "protocol", "proxy", "clock", "listing"}


def test_figures_that_are_no_numbers_are_passed_over() -> None:
    found = memcached(stats(evictions="many", bytes="?", uptime=""))
    assert "evictions" not in found
    assert "memory" not in found


# --- Redis --------------------------------------------------------------------------------------

_INFO = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "role": "master",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "evicted_keys": "0",
    "aof_enabled": "1",
    "connected_clients": "3",
    "maxclients": "10000",
}


def redis(later: dict[str, str] | None = None, **changes: str) -> dict[str, Finding]:
    info = _INFO | changes
    findings = Findings("h:1")
    judge_redis(findings, info, later or info, 0.001, 0.101)
    assert all(finding.server == "h:1" for finding in findings)
    return {finding.subject: finding for finding in findings}


def test_a_healthy_redis() -> None:
    found = redis()
    assert {finding.verdict for finding in found.values()} == {OK}
    assert "lived for 101 ms" in found["clock"].says


@pytest.mark.parametrize(
    ("changes", "subject", "verdict", "says"),
    [
        ({"redis_mode": "sentinel"}, "role", WRONG, "Sentinel"),
        ({"role": "slave"}, "role", WRONG, "replica"),
        ({"redis_mode": "cluster"}, "role", WRONG, "MOVED"),
        (
            {"maxmemory_policy": "volatile-ttl", "maxmemory": "2000000"},
            "maxmemory",
            WARNING,
            "those that end soonest first",
        ),
        (
            {"maxmemory_policy": "allkeys-lru", "maxmemory": "2000000"},
            "maxmemory",
            WARNING,
            "it evicts live locks too",
        ),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory", OK, "no limit is set"),
        ({"maxmemory": "1100000"}, "maxmemory", WARNING, "noeviction"),
        ({"maxmemory_policy": ""}, "maxmemory", WARNING, "does not say"),
        ({"evicted_keys": "5"}, "evictions", WARNING, "5 keys"),
        ({"evicted_keys": "1"}, "evictions", WARNING, "1 key evicted since"),
        ({"aof_enabled": "0"}, "persistence", OK, "a restart forgets locks"),
        ({"loading": "1"}, "persistence", WRONG, "loading"),
        ({"connected_slaves": "2"}, "replication", WARNING, "fail-over"),
        ({"connected_clients": "9000"}, "connections", WARNING, "9,000 of at most 10,000"),
        ({"rejected_connections": "4"}, "connections", WARNING, "4 were refused"),
    ],
)
def test_faults_of_a_redis(
    changes: dict[str, str], subject: str, verdict: Verdict, says: str
) -> None:
    finding = redis(None, **changes)[subject]
    assert finding.verdict is verdict
    assert says in finding.says


def test_a_redis_that_is_evicting() -> None:
    finding = redis(later={"evicted_keys": "9"}, evicted_keys="5")["evictions"]
    assert finding.verdict is WRONG
    assert "4 more while this ran" in finding.says
