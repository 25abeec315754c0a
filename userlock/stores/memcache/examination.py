"""Findings about the state of a memcached."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pymemcache.exceptions import MemcacheError

from userlock.lock.store import Finding, LeaseStore, Verdict
from userlock.stores.memcache.connections import Connections
from userlock.stores.memcache.stats import Observed, observe
from userlock.stores.memcache.wire import TROUBLE, Refused, speaks_meta
from userlock.stores.trial import milliseconds, try_out, unreachable
from userlock.words import counted

#: A record may come to so many bytes; see `LeaseStore`.
_RECORD_BYTES = 100_000
#: LeaseProtocol are of a minute as a rule; what is evicted at such an age may be a live lock.
_LEASE_SECONDS = 120
_LATELY_SECONDS = 120
_PROXY_NAMES = ("mcrouter", "twemproxy", "nutcracker", "dynomite")


class Examined(NamedTuple):
    """One server to examine.

    Attributes:
        store: the store on that server.
        server: its name, for people.
        connections: to it.
        key: one that nobody uses.
        via_proxy: the store was told that there is something in between.
        patience: how long the store waits for a reply, in seconds.
    """

    store: LeaseStore
    server: str
    connections: Connections
    key: bytes
    via_proxy: bool
    patience: float


def examine(subject: Examined) -> list[Finding]:
    """All there is to know about one server."""
    try:
        observed = observe(subject.connections, subject.key)
    except (*TROUBLE, Refused) as error:
        return [
            unreachable(
                subject.server,
                _reason(error),
                "Is it running, is the address right, and may this machine connect to it "
                "(firewall, -l)? Until it answers, locks are taken on trust.",
            )
        ]
    return judge(observed, subject.server, via_proxy=subject.via_proxy) + try_out(
        subject.store, subject.server, patience=subject.patience
    )


def examine_each(examinations: list[Callable[[], list[Finding]]]) -> list[Finding]:
    """Return those of several servers, at the same time."""
    with ThreadPoolExecutor(max_workers=min(len(examinations), 16)) as pool:
        running = [pool.submit(each) for each in examinations]
        return [finding for each in running for finding in each.result()]


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no reply in time"
    if isinstance(error, MemcacheError | Refused) and str(error):
        return f"something else does, by the look of it: {error}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def judge(observed: Observed, server: str, *, via_proxy: bool) -> list[Finding]:
    """Return the findings that follow from the facts."""
    numbers = _Numbers(observed)
    checks = (
        _reachable(observed),
        _version(observed),
        _protocol(observed),
        _proxy(observed, via_proxy=via_proxy),
        _cas(observed),
        _uptime(numbers),
        _evictions(observed, numbers),
        _memory(observed, numbers),
        _item_size(numbers),
        _connections(numbers),
        _clock(observed),
        _listing(observed),
    )
    return [check._replace(server=server) for check in checks if check is not None]


class _Numbers:
    """The server's figures; None for those that it does not report."""

    def __init__(self, observed: Observed) -> None:
        self._all = {**observed.settings, **observed.stats}
        self._later = observed.later

    def __call__(self, name: str) -> int | None:
        return _number(self._all, name)

    def later(self, name: str) -> int | None:
        return _number(self._later, name)


def _number(answers: Mapping[str, str], name: str) -> int | None:
    try:
        return int(answers[name])
    except (KeyError, ValueError):
        return None


def _ok(subject: str, says: str, **facts: str | float | bool | None) -> Finding:
    return Finding("", subject, Verdict.OK, says, facts=facts)


def _warning(subject: str, says: str, advice: str, **facts: str | float | bool | None) -> Finding:
    return Finding("", subject, Verdict.WARNING, says, advice, facts)


def _wrong(subject: str, says: str, advice: str, **facts: str | float | bool | None) -> Finding:
    return Finding("", subject, Verdict.WRONG, says, advice, facts)


def _reachable(observed: Observed) -> Finding:
    took = milliseconds(observed.connect_seconds)
    return _ok("reachable", f"it answers; connecting took {took}", up=True)


def _version(observed: Observed) -> Finding:
    return _ok("version", observed.version or "it does not say", version=observed.version)


def _protocol(observed: Observed) -> Finding:
    if observed.meta:
        return _ok("protocol", "meta", protocol="meta")
    if speaks_meta(observed.version.encode()):
        return _warning(
            "protocol",
            "text, because the URL says so; the server has the meta protocol",
            "Take protocol=text out of the URL.",
            protocol="text",
        )
    return _warning(
        "protocol",
        "text: the server is too old for the meta protocol, so it does not tell when a lease is "
        "over, and a crashed holder's lock may go to somebody who came later than others",
        "memcached 1.6.12 or later has it.",
        protocol="text",
    )


def _proxy(observed: Observed, *, via_proxy: bool) -> Finding | None:
    if observed.other_pids:
        return _wrong(
            "proxy",
            "different memcached processes answer at this one address: two can hold one lock",
            "A load balancer must not stand before memcached. Name each server in the URL: "
            "memcache://HOST1,HOST2.",
            proxy=True,
        )
    name = next((name for name in _PROXY_NAMES if name in observed.version.lower()), "")
    proxied = any(key.startswith("proxy_") for key in observed.stats)
    if name or proxied or observed.counts_us is False:
        what = f"{name or 'a proxy'} stands in between"
        if via_proxy:
            return _ok("proxy", f"{what}, as the URL says", proxy=True)
        return _wrong(
            "proxy",
            f"{what}; it may reconnect unseen to a server that was restarted",
            "Say via_proxy=yes in the URL; or go to memcached itself, which is faster.",
            proxy=True,
        )
    if observed.counts_us is None:
        return _warning(
            "proxy",
            "the server gives no statistics; it may be a proxy",
            "If there is one (mcrouter, twemproxy, a managed service), say via_proxy=yes "
            "in the URL.",
            proxy=None,
        )
    if via_proxy:
        return _ok(
            "proxy",
            "none is seen, although the URL says via_proxy=yes, which costs a round trip more",
            proxy=False,
        )
    return _ok("proxy", "none is seen", proxy=False)


def _cas(observed: Observed) -> Finding | None:
    enabled = observed.settings.get("cas_enabled")
    if enabled is None:
        return None  # the trial tells
    if enabled == "yes":
        return _ok("cas", "on", cas=True)
    return _wrong(
        "cas",
        "off: memcached was started with -C, and cannot hold locks",
        "Start it without -C.",
        cas=False,
    )


def _uptime(numbers: _Numbers) -> Finding | None:
    seconds = numbers("uptime")
    if seconds is None:
        return None
    if seconds < _LATELY_SECONDS:
        return _warning(
            "uptime",
            f"it was started {seconds} s ago; what was locked before is forgotten",
            "If nobody restarted it on purpose, see why it ended.",
            uptime_seconds=seconds,
        )
    return _ok("uptime", _span(seconds), uptime_seconds=seconds)


def _evictions(observed: Observed, numbers: _Numbers) -> Finding | None:
    count, later = numbers("evictions"), numbers.later("evictions")
    if count is None:
        return None
    if observed.settings.get("evictions") == "off":
        return _ok(
            "evictions", "off (-M): a full server refuses new locks, and keeps those that it has"
        )
    now = 0 if later is None else max(later - count, 0)
    ours, age = observed.among_locks.get("evicted"), observed.among_locks.get("evicted_time")
    facts: dict[str, str | float | bool | None] = {
        "evictions": count,
        "evictions_per_second": round(now / max(observed.elapsed, 0.001), 1),
        "evictions_among_locks": ours,
    }
    if not count:
        return _ok("evictions", "none", **facts)
    says = f"{counted(count, 'item')} evicted in {_span(numbers('uptime') or 0)}"
    advice = (
        "An evicted lock is free for anybody while its holder goes on. Give locks a memcached "
        "of their own, or this one more memory (-m)."
    )
    if ours and now and age is not None and age < _LEASE_SECONDS:
        says += (
            f", {now:,} of them while this ran; items of a lock record's size go when nobody has "
            f"asked for them for {age} s"
        )
        return _wrong("evictions", says, advice, **facts)
    if now:
        says += f", {now:,} of them while this ran"
    elif ours == 0:
        says += ", none of a lock record's size"
    return _warning("evictions", says, advice, **facts)


def _memory(observed: Observed, numbers: _Numbers) -> Finding | None:
    used, limit = numbers("bytes"), numbers("limit_maxbytes")
    if used is None or not limit:
        return None
    part = used / limit
    says = f"{_megabytes(used)} of {_megabytes(limit)} in use ({part:.0%})"
    facts = {"bytes": used, "limit_bytes": limit}
    failed = numbers("store_no_memory") or 0
    if failed:
        says += f"; {counted(failed, 'write')} refused for want of memory"
    if failed or part > 0.85:
        return _warning(
            "memory",
            says,
            "When it is full, it refuses new locks. Give it more memory (-m)."
            if observed.settings.get("evictions") == "off"
            else "When it is full, it evicts what was not asked for lately, locks as well.",
            **facts,
        )
    return _ok("memory", says, **facts)


def _item_size(numbers: _Numbers) -> Finding | None:
    size = numbers("item_size_max")
    if size is None:
        return None
    if size < _RECORD_BYTES + 500:
        return _warning(
            "item size",
            f"at most {size:,} bytes: a lock that very many wait for may outgrow it",
            f"Start memcached with -I {max(_RECORD_BYTES * 2 // 1024, 1)}k or more.",
            item_size_max=size,
        )
    return _ok("item size", f"at most {size:,} bytes", item_size_max=size)


def _connections(numbers: _Numbers) -> Finding | None:
    now = numbers("curr_connections")
    most = numbers("max_connections") or numbers("maxconns")
    if now is None or not most:
        return None
    full = (numbers("rejected_connections") or 0) + (numbers("listen_disabled_num") or 0)
    says = f"{now:,} of at most {most:,}"
    facts = {"connections": now, "most_connections": most, "times_full": full}
    if now > 0.8 * most or full:
        says += f"; the limit was met {counted(full, 'time')}" if full else ""
        return _warning(
            "connections",
            says,
            "A process that gets no connection goes on without locks. Raise the limit (-c).",
            **facts,
        )
    return _ok("connections", says, **facts)


def _clock(observed: Observed) -> Finding | None:
    if observed.life is None:
        return None
    if math.isinf(observed.life):
        return _warning(
            "clock",
            "an item that should live for 1 s did not end within 3 s",
            "A crashed holder's lock will be freed late. Is the server paused or overloaded?",
            life_seconds=None,
        )
    life = round(observed.life, 2)
    says = f"an item asked to live for 1 s lived for {life:.2f} s"
    if life <= 2.2 and "time" not in observed.stats:
        return _warning(
            "clock",
            f"{says}; the server does not tell its time",
            "After a stop (a paused or migrated machine), a lease may end before its time.",
            life_seconds=life,
        )
    if life <= 2.2:
        return _ok("clock", f"{says} (whole seconds; allowed for)", life_seconds=life)
    return _warning("clock", says, "A crashed holder's lock is freed late.", life_seconds=life)


def _listing(observed: Observed) -> Finding:
    if observed.lists:
        return _warning(
            "listing",
            observed.lists,
            "Locks work; but `userlock watch` has to be told which ones to watch.",
            lists=False,
        )
    return _ok("listing", "keys can be listed, for `userlock watch`", lists=True)


def _megabytes(count: int) -> str:
    mega = count / (1 << 20)
    return f"{mega:,.1f} MB" if mega < 10 else f"{mega:,.0f} MB"


def _span(seconds: int) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"
