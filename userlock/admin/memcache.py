"""Administration of memcached, one server or several. All on connections of its own.

memcached has no command that finds keys; its LRU crawler writes them down (`lru_crawler metadump`).
It may be switched off (`-X`, `-o no_lru_crawler`), there is one for all clients, and in a big cache
it takes long: so listing looks at keys only, and gives up after a time.

Source: memcached's doc/protocol.txt, "LRU Crawler".
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

from userlock.admin import health
from userlock.admin.health import OK, WARNING, WRONG, Finding, Findings, number_in
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.lock.store import StoreUnavailable
from userlock.stores.memcache import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memcache.connections import (
    Connection,
    Connections,
    Item,
    Meta,
    speaks_meta,
)
from userlock.stores.pool import REPLY_TIMEOUT, SLOW
from userlock.stores.stream import MOST_LINE_BYTES, MOST_VALUE_BYTES, MOST_VALUES, Refused, words
from userlock.waits import run

#: How long writing down the keys may take, in seconds.
LIST_SECONDS = 2.0
#: The crawler is in no hurry.
_SILENCE_SECONDS, _BUSY_PAUSE = 1.0, 0.05
_SIZE = re.compile(rb" size=([0-9]{1,12})\b")
#: For an item that is not read.
_FOREIGN = Item(b"", 0, None)
_MOST_STATISTICS = 20_000
#: For how long an item that is to live for one second is watched, and how often, in seconds.
_MOST_LIFE, _POLL_SECONDS = 3.0, 0.01
_PROXY_NAMES = ("mcrouter", "twemproxy", "nutcracker", "dynomite")


def list_locks(store: MemcacheStore | ShardedMemcacheStore, limit: int, after: str = "") -> Listing:
    if isinstance(store, MemcacheStore):
        return _list_one(store, limit)

    def list_one(address: str, limit: int, _: str) -> Listing:
        server = servers[address]
        found = _list_one(server, limit)
        # The server of a hashed id is not known.
        ids = [each.name for each in found.locks if not each.hashed]
        strange = sum(store.servers[store.shard_of(each)] is not server for each in ids)
        note = f"{strange:,} locks that this process looks for on another server (are the servers "
        note += "named alike in all processes?)"
        notes = (note if strange else "", found.note)
        return found._replace(note="; ".join(filter(None, notes)))

    servers = {each.address: each for each in store.servers}
    return Listing.of_servers("memcached", servers, list_one, limit, after)


def _list_one(store: MemcacheStore, limit: int) -> Listing:
    space = store.keys.space.encode()
    apart = store.connections.block_apart
    sizes, note = apart(lambda connection: _dump(connection, space, limit))
    return apart(lambda each: Listing.within_room(_read(each, store, space, sizes), note))


def _read(
    connection: Connection, store: MemcacheStore, space: bytes, sizes: dict[bytes, int]
) -> Iterator[LockState]:
    """Read the locks, the shortest first."""
    ordered = sorted(sizes, key=sizes.__getitem__)
    for first in range(0, len(ordered), MOST_VALUES):
        keys = ordered[first : first + MOST_VALUES]
        # Longer ones are not ours. memcached has them with `-I`; reading one would end the list.
        short = [key for key in keys if sizes[key] <= MOST_VALUE_BYTES]
        connection.begin()
        dialect = connection.dialect
        run(connection.send_each, [dialect.get % key for key in short])
        items = {key: run(dialect.item, connection) for key in short}
        connection.finish()
        for key in keys:
            item = items.get(key, _FOREIGN)
            stored = None if item is None else store.stored(item, key)
            if stored is not None:
                name, hashed = key[len(space) + 1 :], key[len(space) :].startswith(b"#")
                yield LockState(name.decode("latin-1"), Record(stored), hashed)


def _dump(connection: Connection, space: bytes, limit: int) -> tuple[dict[bytes, int], str]:
    """Return the keys of locks, with the sizes of their items (0: not known), and a note.

    Uses the connection up.
    """
    wanted = b"key=" + quote_from_bytes(space, safe="").encode()
    found: dict[bytes, int] = {}
    ends = time.monotonic() + LIST_SECONDS
    # By the hash table: keys in steady use move from one LRU list to another. Older servers cannot.
    commands = [b"lru_crawler metadump hash\r\n", b"lru_crawler metadump all\r\n"]
    rest = b""
    heard_at = time.monotonic()
    run(connection.send, commands.pop(0))
    while True:
        connection.begin()
        try:
            chunk = run(connection.receive)
        except SLOW:
            if time.monotonic() > heard_at + _SILENCE_SECONDS:
                raise
            continue
        heard_at = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            raise Refused(f"it answered {words(rest)}")
        for line in lines:
            if line.startswith(wanted):
                key = unquote_to_bytes(line[4:].partition(b" ")[0])
                if key.startswith((space + b"=", space + b"#")):
                    size = _SIZE.search(line)
                    found[key] = int(size[1]) if size is not None else 0
                if len(found) >= limit:
                    return found, ""
            elif line.startswith(b"key="):
                continue
            elif line.startswith(b"END"):
                return found, ""
            elif line.startswith(b"BUSY") and time.monotonic() < ends:
                time.sleep(_BUSY_PAUSE)
                run(connection.send, b"lru_crawler metadump all\r\n")
            elif line.startswith(b"CLIENT_ERROR bad class id") and commands:
                run(connection.send, commands.pop(0))
            else:
                return found, _why_not(line)
        if time.monotonic() > ends:
            note = f"the cache has so many keys that {LIST_SECONDS:g} s were not enough for all"
            return found, note


def _why_not(line: bytes) -> str:
    if line.startswith(b"BUSY"):
        return "its crawler is busy with another list; try again"
    if b"not allowed" in line:
        return "memcached was started with -X, so it does not list its keys"
    if b"disabled" in line:
        return "memcached was started without its LRU crawler, so it does not list its keys"
    if line.startswith(b"ERROR"):
        return "the server does not list its keys (memcached can, from 1.4.31 on)"
    return f"the server does not list its keys; it says {words(line.strip())}"


class Observed(NamedTuple):
    """The facts about a server."""

    first_seconds: float  # to connect and to get the first answer
    version: str  # its own word
    meta: bool  # whether the meta protocol is spoken with it
    stats: dict[str, str]  # empty if it gives none
    later: int | None  # its evictions a moment later
    others: bool  # whether other processes answered new connections to the same address
    #: Whether new connections from here raised its own count of them, if it has one.
    counts_us: bool | None
    #: How long an item lived that was asked to live for one second; infinite if it was not seen to
    #: end, None if it was not stored.
    life: float | None


def examine(store: MemcacheStore | ShardedMemcacheStore) -> list[Finding]:
    if isinstance(store, MemcacheStore):
        return _examine_one(store)
    with ThreadPoolExecutor(max_workers=min(len(store.servers), 16)) as pool:
        return [finding for found in pool.map(_examine_one, store.servers) for finding in found]


def _examine_one(store: MemcacheStore) -> list[Finding]:
    found = Findings(f"memcached at {store.address}")
    try:
        observed = observe(store.connections, store.keys.lock(health.new_lock_id()))
    except StoreUnavailable as trouble:
        advice = "Is it running, is the address right, and may this machine connect to it "
        advice += "(firewall, -l)? Until it answers, locks are degraded."
        return found.unreachable(_reason(cast(Exception, trouble.__cause__)), advice)
    judge(found, observed, via_proxy=store.via_proxy)
    health.try_out(found, store, patience=REPLY_TIMEOUT)
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, SLOW):
        return "no reply in time"
    if not isinstance(error, OSError) and str(error):
        return f"it seems to be another kind of server: {error}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def observe(connections: Connections, key: bytes) -> Observed:
    """Ask the server for its statistics, and measure with an item under a key that nobody uses."""
    began = time.monotonic()

    def exchange(first: Connection) -> Observed:
        first.begin()
        version = run(first.ask, b"version\r\n").decode("latin-1").strip().removeprefix("VERSION ")
        first_seconds = time.monotonic() - began
        stats, *others = (_statistics(connections) for _ in range(4))
        life = _life(first, key)
        before, after = (number_in(each, "total_connections") for each in (stats, others[-1]))
        return Observed(
            first_seconds=first_seconds,
            version=version,
            meta=isinstance(first.dialect, Meta),
            stats=stats,
            later=number_in(_statistics(connections), "evictions"),
            others=any(each.get("pid", stats.get("pid")) != stats.get("pid") for each in others),
            counts_us=None if before is None or after is None else after >= before + 3,
            life=life,
        )

    return connections.block_apart(exchange)


def _statistics(connections: Connections) -> dict[str, str]:
    """Return the answer of `stats`, over a new connection; empty if it is refused."""

    def exchange(connection: Connection) -> dict[str, str]:
        answers: dict[str, str] = {}
        try:
            run(connection.send, b"stats\r\n")
            for _ in range(_MOST_STATISTICS):
                line = run(connection.read_line)
                if not line.startswith(b"STAT "):
                    break
                _, name, *value = line.decode("latin-1").split(" ", 2)
                answers[name] = value[0] if value else ""
        except (Refused, ConnectionError):
            return {}  # some proxies end the connection at an unknown command
        return answers

    return connections.block_apart(exchange)


def _life(connection: Connection, key: bytes) -> float | None:
    """Measure the time to live of an item that is set for one second."""
    # By the text protocol, which all speak. The result depends on the moment in its second.
    stored_at = time.monotonic()
    connection.begin()
    if run(connection.ask, b"set %b 0 1 1\r\nx\r\n" % key) != b"STORED":
        return None  # no memory; the self-test says so
    while time.monotonic() - stored_at < _MOST_LIFE:
        time.sleep(_POLL_SECONDS)
        connection.begin()
        run(connection.send, b"get %b\r\n" % key)
        if run(connection.read_line).startswith(b"END"):
            return time.monotonic() - stored_at
        run(connection.read_block, 1)
        run(connection.read_line)
    return math.inf


def judge(found: Findings, observed: Observed, *, via_proxy: bool) -> None:
    """Add the findings that follow from the facts, and from whether the URL names a proxy."""
    found.reachable(observed.first_seconds)
    version, meta = observed.version, observed.meta
    says, advice = version or "it does not say", ""
    if not meta and speaks_meta(version.encode()):
        says += ", of which the URL asks for the text protocol only"
        advice = "Take protocol=text out of the URL."
    elif not meta:
        says += (
            ": too old for the meta protocol, so it does not tell when a lease is over, and a "
            "crashed holder's lock may go to a caller that came later than others"
        )
        advice = "memcached 1.6.12 or later has it."
    found.check("version", meta, says, advice, version=version, meta=meta)
    count = number_in(observed.stats, "evictions")
    if count is not None:
        now = max((observed.later or 0) - count, 0)
        advice = "An evicted lock is free for anybody while its holder goes on. Give locks a "
        advice += "memcached of their own, or this one more memory (-m)."
        says, facts = health.evicted("item", count, now), {"evicted_while_looking": now}
        found.check("evictions", not count and not now, says, advice, evictions=count, **facts)
    _proxy(found, observed, via_proxy=via_proxy)
    if observed.life is not None:
        _clock(found, observed.life, tells_time="time" in observed.stats)


def _proxy(found: Findings, observed: Observed, *, via_proxy: bool) -> None:
    name = next((name for name in _PROXY_NAMES if name in observed.version.lower()), "")
    named = name or any(key.startswith("proxy_") for key in observed.stats)
    seen = f"{name or 'a proxy'} stands in between"
    verdict, advice = WRONG, ""
    proxy: bool | None = True
    if observed.others:
        says = "different memcached processes answer at this one address: two can hold one lock"
        advice = "A load balancer must not stand before memcached. Name each server in the URL: "
        advice += "memcache://HOST1,HOST2."
    elif (named or observed.counts_us is False) and via_proxy:
        verdict, says = OK, f"{seen}, as the URL says"
    elif named or observed.counts_us is False:
        says = f"{seen}; it may reconnect unseen to a server that was restarted"
        advice = "Say via_proxy=yes in the URL; or go to memcached itself, which is faster."
    elif observed.counts_us is None:
        verdict, proxy = WARNING, None
        says = "the server gives no statistics; it may be a proxy"
        advice = (
            "For a proxy (mcrouter, twemproxy, a managed service), say via_proxy=yes in the URL."
        )
    else:
        verdict, proxy, says = OK, False, "none is seen"
        if via_proxy:
            says += ", although the URL says via_proxy=yes, which costs a round trip more"
    found.add("proxy", verdict, says, advice, proxy=proxy)


def _clock(found: Findings, life: float, *, tells_time: bool) -> None:
    fine = life <= 2.2 and tells_time
    says = f"an item asked to live for 1 s lived for {life:.2f} s"
    advice = "A crashed holder's lock is freed late."
    if math.isinf(life):
        says = "an item that should live for 1 s did not end within 3 s"
        advice = "A crashed holder's lock will be freed late. Is the server paused or overloaded?"
    elif fine:
        says += " (whole seconds; allowed for)"
    elif life <= 2.2:
        says += "; the server does not tell its time"
        advice = "After a stop (a paused or migrated machine), a lease may end before its time."
    seconds = None if math.isinf(life) else round(life, 2)
    found.check("clock", fine, says, advice, life_seconds=seconds)
