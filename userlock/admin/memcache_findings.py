"""Findings about a memcached, from its statistics and measurements. No I/O."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from userlock.admin.findings import Fact, Findings, milliseconds
from userlock.stores.memcache.wire import speaks_meta
from userlock.words import counted

#: A record may come to so many bytes; see `LeaseStore`.
_RECORD_BYTES = 100_000
#: Leases are of a minute as a rule; an item evicted at such an age may be a live lock.
_LEASE_SECONDS = 120
_LATELY_SECONDS = 120
_PROXY_NAMES = ("mcrouter", "twemproxy", "nutcracker", "dynomite")


class Observed(NamedTuple):
    """The facts about a server."""

    connect_seconds: float  # the first question included
    version: str
    #: Whether the meta protocol is spoken with it.
    meta: bool
    #: Its own words; empty where it does not answer. Some of them again, and how much later.
    stats: dict[str, str]
    settings: dict[str, str]
    later: dict[str, str]
    elapsed: float
    #: Process ids that other connections to the same address met.
    other_pids: frozenset[str]
    #: Whether a new connection from here raised the server's own count of them, if it has one.
    counts_us: bool | None
    #: Evictions of items of a lock record's size, and their age; empty where not reported.
    among_locks: dict[str, int]
    #: How long an item lived that was asked to live for one second; infinite if it was not seen
    #: to end, None if it was not stored.
    life: float | None
    #: Why the server does not list its keys; empty if it does.
    lists: str

    def number(self, name: str) -> int | None:
        """Return one of the server's figures; None if it does not report it."""
        return _number(self.settings | self.stats, name)


def _number(answers: dict[str, str], name: str) -> int | None:
    text = answers.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None


def judge(found: Findings, observed: Observed, *, via_proxy: bool) -> None:
    """Add the findings that follow from the facts, and from whether the URL names a proxy."""
    found.reachable(f"connecting took {milliseconds(observed.connect_seconds)}")
    found.ok("version", observed.version or "it does not say", version=observed.version)
    _protocol(found, observed)
    _proxy(found, observed, via_proxy=via_proxy)
    _cas(found, observed)
    _uptime(found, observed)
    _evictions(found, observed)
    _memory(found, observed)
    _item_size(found, observed)
    _connections(found, observed)
    _clock(found, observed)
    says = observed.lists or "keys can be listed, for `userlock watch`"
    advice = "Locks work; but `userlock watch` needs the ids of those to watch."
    found.check("listing", not observed.lists, says, advice, lists=not observed.lists)


def _protocol(found: Findings, observed: Observed) -> None:
    if observed.meta:
        found.ok("protocol", "meta", protocol="meta")
        return
    says = (
        "text: the server is too old for the meta protocol, so it does not tell when a lease is "
        "over, and a crashed holder's lock may go to a caller that came later than others"
    )
    advice = "memcached 1.6.12 or later has it."
    if speaks_meta(observed.version.encode()):
        says = "text, because the URL says so; the server has the meta protocol"
        advice = "Take protocol=text out of the URL."
    found.warning("protocol", says, advice, protocol="text")


def _proxy(found: Findings, observed: Observed, *, via_proxy: bool) -> None:
    name = next((name for name in _PROXY_NAMES if name in observed.version.lower()), "")
    proxied = any(key.startswith("proxy_") for key in observed.stats)
    seen = f"{name or 'a proxy'} stands in between"
    if observed.other_pids:
        says = "different memcached processes answer at this one address: two can hold one lock"
        advice = (
            "A load balancer must not stand before memcached. Name each server in the URL: "
            "memcache://HOST1,HOST2."
        )
        found.wrong("proxy", says, advice, proxy=True)
    elif name or proxied or observed.counts_us is False:
        if via_proxy:
            found.ok("proxy", f"{seen}, as the URL says", proxy=True)
            return
        says = f"{seen}; it may reconnect unseen to a server that was restarted"
        advice = "Say via_proxy=yes in the URL; or go to memcached itself, which is faster."
        found.wrong("proxy", says, advice, proxy=True)
    elif observed.counts_us is None:
        says = "the server gives no statistics; it may be a proxy"
        advice = (
            "For a proxy (mcrouter, twemproxy, a managed service), say via_proxy=yes in the URL."
        )
        found.warning("proxy", says, advice, proxy=None)
    else:
        needless = ", although the URL says via_proxy=yes, which costs a round trip more"
        found.ok("proxy", "none is seen" + (needless if via_proxy else ""), proxy=False)


def _cas(found: Findings, observed: Observed) -> None:
    enabled = observed.settings.get("cas_enabled")
    if enabled == "yes":
        found.ok("cas", "on", cas=True)
    elif enabled is not None:  # else the self-test tells
        says = "off: memcached was started with -C, and cannot hold locks"
        found.wrong("cas", says, "Start it without -C.", cas=False)


def _uptime(found: Findings, observed: Observed) -> None:
    seconds = observed.number("uptime")
    if seconds is None:
        return
    long = seconds >= _LATELY_SECONDS
    says = (
        _span(seconds) if long else f"it was started {seconds} s ago; earlier locks are forgotten"
    )
    advice = "If nobody restarted it on purpose, see why it ended."
    found.check("uptime", long, says, advice, uptime_seconds=seconds)


def _evictions(found: Findings, observed: Observed) -> None:
    count, later = observed.number("evictions"), _number(observed.later, "evictions")
    if count is None:
        return
    if observed.settings.get("evictions") == "off":
        says = "off (-M): a full server refuses new locks, and keeps those that it has"
        found.ok("evictions", says)
        return
    now = 0 if later is None else max(later - count, 0)
    ours, age = observed.among_locks.get("evicted"), observed.among_locks.get("evicted_time")
    facts: dict[str, Fact] = {
        "evictions": count,
        "evictions_per_second": round(now / max(observed.elapsed, 0.001), 1),
        "evictions_among_locks": ours,
    }
    if not count:
        found.ok("evictions", "none", **facts)
        return
    says = f"{counted(count, 'item')} evicted in {_span(observed.number('uptime') or 0)}"
    advice = (
        "An evicted lock is free for anybody while its holder goes on. Give locks a memcached "
        "of their own, or this one more memory (-m)."
    )
    if now:
        says += f", {now:,} of them while this ran"
    elif ours == 0:
        says += ", none of a lock record's size"
    if ours and now and age is not None and age < _LEASE_SECONDS:
        says += f"; items of a lock record's size go when nobody has asked for them for {age} s"
        found.wrong("evictions", says, advice, **facts)
    else:
        found.warning("evictions", says, advice, **facts)


def _memory(found: Findings, observed: Observed) -> None:
    used, limit = observed.number("bytes"), observed.number("limit_maxbytes")
    if used is None or not limit:
        return
    part = used / limit
    says = f"{_megabytes(used)} of {_megabytes(limit)} in use ({part:.0%})"
    failed = observed.number("store_no_memory") or 0
    if failed:
        says += f"; {counted(failed, 'write')} refused for want of memory"
    advice = "When it is full, it evicts items that nobody asked for lately, locks as well."
    if observed.settings.get("evictions") == "off":
        advice = "When it is full, it refuses new locks. Give it more memory (-m)."
    fine = not failed and part <= 0.85
    found.check("memory", fine, says, advice, bytes=used, limit_bytes=limit)


def _item_size(found: Findings, observed: Observed) -> None:
    size = observed.number("item_size_max")
    if size is None:
        return
    advice = f"Many waiters may outgrow it. Start memcached with -I {_RECORD_BYTES * 2 // 1024}k."
    fine = size >= _RECORD_BYTES + 500
    found.check("item size", fine, f"at most {size:,} bytes", advice, item_size_max=size)


def _connections(found: Findings, observed: Observed) -> None:
    now = observed.number("curr_connections")
    most = observed.number("max_connections") or observed.number("maxconns")
    if now is None or not most:
        return
    full = sum(
        observed.number(name) or 0 for name in ("rejected_connections", "listen_disabled_num")
    )
    says = f"{now:,} of at most {most:,}"
    if full:
        says += f"; the limit was met {counted(full, 'time')}"
    advice = "A process that gets no connection goes on without locks. Raise the limit (-c)."
    facts: dict[str, Fact] = {"connections": now, "most_connections": most, "times_full": full}
    found.check("connections", not full and now <= 0.8 * most, says, advice, **facts)


def _clock(found: Findings, observed: Observed) -> None:
    if observed.life is None:
        return
    if math.isinf(observed.life):
        says = "an item that should live for 1 s did not end within 3 s"
        advice = "A crashed holder's lock will be freed late. Is the server paused or overloaded?"
        found.warning("clock", says, advice, life_seconds=None)
        return
    life = round(observed.life, 2)
    says = f"an item asked to live for 1 s lived for {life:.2f} s"
    advice = "A crashed holder's lock is freed late."
    fine = False
    if life <= 2.2 and "time" not in observed.stats:
        says += "; the server does not tell its time"
        advice = "After a stop (a paused or migrated machine), a lease may end before its time."
    elif life <= 2.2:
        fine, says = True, f"{says} (whole seconds; allowed for)"
    found.check("clock", fine, says, advice, life_seconds=life)


def _megabytes(count: int) -> str:
    mega = count / (1 << 20)
    return f"{mega:,.1f} MB" if mega < 10 else f"{mega:,.0f} MB"


def _span(seconds: int) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"
