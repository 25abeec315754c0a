"""Administration of memcached, one server or several. All on connections of its own.

memcached has no command that finds keys; its LRU crawler can write down its
keys (`lru_crawler metadump`), and does so beside its work. It may be switched
off (`-X`, `-o no_lru_crawler`), there is one for all clients, and in a big
cache it takes long: so listing looks at keys only, and gives up after a time.

Source: memcached's doc/protocol.txt, "LRU Crawler".
"""

from __future__ import annotations

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

from userlock.admin.diagnostics import Listed, Listing, Room
from userlock.admin.findings import Finding, Findings
from userlock.admin.memcache_findings import Observed, judge
from userlock.admin.selftest import new_lock_id, try_out
from userlock.lock.store import StoreUnavailable
from userlock.stores.memcache import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memcache.connections import Connection, Connections
from userlock.stores.memcache.dialects import Item
from userlock.stores.memcache.wire import SLOW
from userlock.stores.pool import REPLY_TIMEOUT
from userlock.stores.stream import MOST_LINE_BYTES, MOST_VALUE_BYTES, MOST_VALUES, Refused, words

#: How long writing down the keys may take, in seconds.
LIST_SECONDS = 2.0
#: The crawler is in no hurry.
_SILENCE_SECONDS = 1.0
_BUSY_PAUSE = 0.05

_SIZE = re.compile(rb" size=([0-9]{1,12})\b")
#: For an item that is not read.
_FOREIGN = Item(b"", 0, None)

_MOST_STATISTICS = 20_000
#: Lengths of lock records: nearly empty, usual, with some waiters.
_RECORD_SIZES = (80, 120, 180, 280, 420)
_POLL_SECONDS = 0.01
#: For how long an item that is to live for one second is watched, in seconds.
_MOST_LIFE = 3.0


# --- listing ------------------------------------------------------------------------------------


def list_locks(store: MemcacheStore | ShardedMemcacheStore, limit: int) -> Listing:
    """Return the locks of all servers. Without those of a server that is down; the note says so."""
    if isinstance(store, MemcacheStore):
        return _list_one(store, limit)
    locks: list[Listed] = []
    notes: list[str] = []
    down: list[StoreUnavailable] = []
    for server in store.servers:
        try:
            listing = _list_one(server, limit - len(locks))
        except StoreUnavailable as trouble:
            down.append(trouble)
            notes.append(trouble.reason)
            continue
        locks += listing.locks
        strange = sum(_belongs_elsewhere(store, server, each) for each in listing.locks)
        if strange:
            notes.append(
                f"memcached at {server.address}: {strange:,} locks that this process looks for on "
                "another server (are the servers named alike in all processes?)"
            )
        if listing.note:
            notes.append(f"memcached at {server.address}: {listing.note}")
        if len(locks) >= limit:
            break
    if len(down) == len(store.servers):
        raise down[-1]
    return Listing(locks, "; ".join(notes))


def _belongs_elsewhere(store: ShardedMemcacheStore, server: MemcacheStore, lock: Listed) -> bool:
    """Return whether a lock is not on its server. The server of a hashed id is not known."""
    return not lock.hashed and store.servers[store.shard_of(lock.name)] is not server


def _list_one(store: MemcacheStore, limit: int) -> Listing:
    space = store.keys.space.encode()
    sizes, note = store.connections.ask_apart(lambda connection: _dump(connection, space, limit))
    items, no_room = store.connections.ask_apart(lambda connection: _read(connection, sizes))
    locks: list[Listed] = []
    for key, item in items.items():
        record = store.stored(item, key)
        if record is not None:
            name, hashed = key[len(space) + 1 :], key[len(space) :].startswith(b"#")
            locks.append(Listed.of(name.decode("latin-1"), hashed, record))
    return Listing(locks, no_room or note)


def _read(connection: Connection, sizes: dict[bytes, int]) -> tuple[dict[bytes, Item], str]:
    """Return the items, the short ones first, and why some are missing."""
    # Longer ones are not ours. memcached has them with `-I`; reading one would end the list.
    items = {key: _FOREIGN for key, size in sizes.items() if size > MOST_VALUE_BYTES}
    keys = sorted(sizes.keys() - items.keys(), key=sizes.__getitem__)
    room = Room()
    for first in range(0, len(keys), MOST_VALUES):
        batch = keys[first : first + MOST_VALUES]
        connection.begin()
        for key, item in zip(batch, connection.dialect.read(connection, batch), strict=True):
            if item is None:
                continue
            if not room.takes(item.record):
                return items, Room.NOTE
            items[key] = item
    return items, ""


def _dump(connection: Connection, space: bytes, limit: int) -> tuple[dict[bytes, int], str]:
    """Return the keys of locks with their sizes, and why some may be missing.

    A size is that of the whole item; 0 if an old server does not tell. Uses the connection up.
    """
    wanted = b"key=" + quote_from_bytes(space, safe="").encode()
    found: dict[bytes, int] = {}
    ends = time.monotonic() + LIST_SECONDS
    # By the hash table, so that keys in steady use, which move from one LRU
    # list to another, are not missed; older servers cannot.
    commands = [b"lru_crawler metadump hash\r\n", b"lru_crawler metadump all\r\n"]
    rest = b""
    heard_at = time.monotonic()
    connection.send(commands.pop(0))
    while True:
        connection.begin()
        try:
            chunk = connection.receive()
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
                connection.send(b"lru_crawler metadump all\r\n")
            elif line.startswith(b"CLIENT_ERROR bad class id") and commands:
                connection.send(commands.pop(0))
            else:
                return found, _why_not(line)
        if time.monotonic() > ends:
            note = f"the cache has so many keys that {LIST_SECONDS:g} s were not enough for all"
            return found, note


def _why_not(line: bytes) -> str:
    """Return why a server does not list its keys, from its answer."""
    if line.startswith(b"BUSY"):
        return "its crawler is busy with another list; try again"
    if b"not allowed" in line:
        return "memcached was started with -X, so it does not list its keys"
    if b"disabled" in line:
        return "memcached was started without its LRU crawler, so it does not list its keys"
    if line.startswith(b"ERROR"):
        return "the server does not list its keys (memcached can, from 1.4.31 on)"
    return f"the server does not list its keys; it says {words(line.strip())}"


# --- examination --------------------------------------------------------------------------------


def examine(store: MemcacheStore | ShardedMemcacheStore) -> list[Finding]:
    """Return the findings about each server; several are examined at the same time."""
    if isinstance(store, MemcacheStore):
        return _examine_one(store)
    with ThreadPoolExecutor(max_workers=min(len(store.servers), 16)) as pool:
        return [finding for found in pool.map(_examine_one, store.servers) for finding in found]


def _examine_one(store: MemcacheStore) -> list[Finding]:
    found = Findings(f"memcached at {store.address}")
    try:
        observed = observe(store.connections, store.keys.lock(new_lock_id()))
    except StoreUnavailable as trouble:
        advice = (
            "Is it running, is the address right, and may this machine connect to it (firewall, "
            "-l)? Until it answers, locks are degraded."
        )
        found.unreachable(_reason(cast(Exception, trouble.__cause__)), advice)
        return found
    judge(found, observed, via_proxy=store.via_proxy)
    try_out(found, store, patience=REPLY_TIMEOUT)
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, SLOW):
        return "no reply in time"
    if not isinstance(error, OSError) and str(error):
        return f"it seems to be another kind of server: {error}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def observe(connections: Connections, key: bytes) -> Observed:
    """Ask the server for its statistics, and measure with an item under a key of nobody's."""
    began = time.monotonic()

    def exchange(first: Connection) -> Observed:
        connect_seconds = time.monotonic() - began
        first.begin()
        version = first.line(b"version\r\n").decode("latin-1").strip().removeprefix("VERSION ")
        asked_at = time.monotonic()
        stats = _statistics(connections, b"stats")
        settings = _statistics(connections, b"stats settings")
        others = [_statistics(connections, b"stats") for _ in range(3)]
        life = _life(first, key)
        among_locks = _evicted_among_locks(connections, first, key) if first.meta else {}
        return Observed(
            connect_seconds=connect_seconds,
            version=version,
            meta=first.meta,
            stats=stats,
            settings=settings,
            later=_statistics(connections, b"stats"),
            elapsed=time.monotonic() - asked_at,
            other_pids=frozenset(other["pid"] for other in others if "pid" in other)
            - {stats.get("pid", "")},
            counts_us=_counts_us(stats, others[-1]),
            among_locks=among_locks,
            life=life,
            lists=connections.ask_apart(_begins_to_list),
        )

    return connections.ask_apart(exchange)


def _statistics(connections: Connections, command: bytes) -> dict[str, str]:
    """Return the answer of `stats` and its like, over a new connection; empty if refused."""

    def exchange(connection: Connection) -> dict[str, str]:
        answers: dict[str, str] = {}
        try:
            connection.send(command + b"\r\n")
            for _ in range(_MOST_STATISTICS):
                line = connection.read_line()
                if not line.startswith(b"STAT "):
                    break
                _, name, *value = line.decode("latin-1").split(" ", 2)
                answers[name] = value[0] if value else ""
        except (Refused, ConnectionError):
            return {}  # some proxies end the connection at an unknown command
        return answers

    return connections.ask_apart(exchange)


def _counts_us(before: dict[str, str], after: dict[str, str]) -> bool | None:
    try:
        return int(after["total_connections"]) >= int(before["total_connections"]) + 3
    except (KeyError, ValueError):
        return None


def _life(connection: Connection, key: bytes) -> float | None:
    """Measure the time to live of an item that is set for one second."""
    # By the text protocol, which all of them speak. The server's clock ticks in
    # whole seconds, so the result depends on the moment in its second.
    stored_at = time.monotonic()
    connection.begin()
    try:
        connection.line(b"set %b 0 1 1\r\nx\r\n" % key)
    except Refused:  # no memory; the self-test says so
        return None
    while time.monotonic() - stored_at < _MOST_LIFE:
        time.sleep(_POLL_SECONDS)
        connection.begin()
        connection.send(b"get %b\r\n" % key)
        if connection.read_line().startswith(b"END"):
            return time.monotonic() - stored_at
        connection.read_block(1)
        connection.read_line()
    return math.inf


def _evicted_among_locks(
    connections: Connections, connection: Connection, key: bytes
) -> dict[str, int]:
    """Return memcached's figures on the slab classes of lock records: `evicted`, how many items;
    `evicted_time`, the least age of the last one evicted, since it was last asked for."""
    numbers: set[str] = set()
    try:
        connection.begin()
        for size in _RECORD_SIZES:
            connection.line(b"ms %b %d T5\r\n%b\r\n" % (key, size, b"x" * size))
            described = connection.line(b"me %b\r\n" % key).decode("latin-1")
            numbers.add(described.partition(" cls=")[2].partition(" ")[0].strip())
        items = _statistics(connections, b"stats items")
        connection.begin()
        connection.line(b"md %b\r\n" % key)
        evicted = {each: int(items.get(f"items:{each}:evicted", "0")) for each in numbers}
        ages = [
            int(items[f"items:{each}:evicted_time"]) for each, count in evicted.items() if count
        ]
    except (Refused, KeyError, ValueError):
        return {}
    return {"evicted": sum(evicted.values()), **({"evicted_time": min(ages)} if ages else {})}


def _begins_to_list(connection: Connection) -> str:
    """Return why keys cannot be listed; empty if they can. Sees the list begin, no more."""
    try:
        connection.send(b"lru_crawler metadump all\r\n")
        answer = connection.receive()
    except OSError:
        return "the list did not begin in time"
    return "" if answer.startswith((b"key=", b"END", b"BUSY")) else _why_not(answer)
