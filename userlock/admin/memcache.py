"""Administration of memcached, one server or several. All on connections of its own.

memcached has no command that finds keys; its LRU crawler writes them down (`lru_crawler metadump`).
It may be switched off (`-X`, `-o no_lru_crawler`), there is one for all clients, and in a big cache
it takes long: so listing looks at keys only, and gives up after a time.

Source: memcached's doc/protocol.txt, "LRU Crawler".
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote_from_bytes, unquote_to_bytes

from userlock.admin.health import (
    OK,
    WARNING,
    WRONG,
    Check,
    Finding,
    examine_server,
    number_in,
)
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.stores.memcache import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memcache.connections import Connection, Item, Meta, speaks_meta
from userlock.stores.pool import REPLY_TIMEOUT, SLOW
from userlock.stores.stream import MOST_LINE_BYTES, MOST_VALUE_BYTES, MOST_VALUES, Refused, words
from userlock.waits import run
from userlock.words import counted

#: How long writing down the keys may take, in seconds.
LIST_SECONDS = 2.0
#: The crawler is in no hurry.
_SILENCE_SECONDS, _BUSY_PAUSE = 1.0, 0.05
_SIZE = re.compile(rb" size=([0-9]{1,12})\b")
#: For an item that is not read.
_FOREIGN = Item(b"", 0, None)
_MOST_STATISTICS = 20_000
_PROXY_NAMES = ("mcrouter", "twemproxy", "nutcracker", "dynomite")
_ADVICE = (
    "Is it running, is the address right, and may this machine connect to it (firewall, -l)? Until "
    "it answers, locks are degraded."
)


def list_locks(store: MemcacheStore | ShardedMemcacheStore, limit: int) -> Listing:
    def list_one(server: MemcacheStore, limit: int) -> Listing:
        found = _list_one(server, limit)
        if isinstance(store, MemcacheStore):
            return found
        # The server of a hashed id is not known.
        ids = [each.name for each in found.locks if not each.hashed]
        strange = sum(store.servers[store.shard_of(each)] is not server for each in ids)
        note = f"{strange:,} locks that this process looks for on another server (are the servers "
        note += "named alike in all processes?)"
        notes = (note if strange else "", found.note)
        return found._replace(note="; ".join(filter(None, notes)))

    servers = {f"memcached at {each.address}": each for each in _servers(store)}
    return Listing.of_servers(servers, list_one, limit)


def _servers(store: MemcacheStore | ShardedMemcacheStore) -> Sequence[MemcacheStore]:
    return [store] if isinstance(store, MemcacheStore) else store.servers


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
                # Started with -X or -o no_lru_crawler, older than 1.4.31, or busy for others.
                return found, f"the server does not list its keys: it says {words(line.strip())}"
        if time.monotonic() > ends:
            note = f"the cache has so many keys that {LIST_SECONDS:g} s were not enough for all"
            return found, note


def examine(store: MemcacheStore | ShardedMemcacheStore) -> list[Finding]:
    servers = _servers(store)
    with ThreadPoolExecutor(max_workers=min(len(servers), 16)) as pool:
        return [finding for found in pool.map(_examine_one, servers) for finding in found]


def _examine_one(store: MemcacheStore) -> list[Finding]:
    apart = store.connections.block_apart

    def ask() -> Iterator[Check]:
        version, meta = apart(_version)
        statistics = [apart(_statistics) for _ in range(8)]
        return judge(version, statistics, meta=meta, via_proxy=store.via_proxy)

    return examine_server(f"memcached at {store.address}", store, ask, _ADVICE, REPLY_TIMEOUT)


def _version(connection: Connection) -> tuple[str, bool]:
    """Return the server's version, and whether the meta protocol is spoken with it."""
    connection.begin()
    answer = run(connection.ask, b"version\r\n").decode("latin-1")
    return answer.strip().removeprefix("VERSION "), isinstance(connection.dialect, Meta)


def _statistics(connection: Connection) -> dict[str, str]:
    """Return the answer of `stats`; empty if it is refused."""
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


def judge(
    version: str, statistics: Sequence[Mapping[str, str]], *, meta: bool, via_proxy: bool
) -> Iterator[Check]:
    """Check what a server says; its statistics come from new connections, one after the other.

    `meta`: whether the meta protocol is spoken with it. `via_proxy`: whether the URL names a proxy.
    """
    says, advice = version or "it does not say", "memcached 1.6.12 or later has it."
    if not meta and speaks_meta(version.encode()):
        says += ", of which the URL asks for the text protocol only"
        advice = "Take protocol=text out of the URL."
    elif not meta:
        says += (
            ": too old for the meta protocol, so it does not tell when a lease is over, and a "
            "crashed holder's lock may go to a caller that came later than others"
        )
    yield "version", OK if meta else WARNING, says, advice
    count = number_in(statistics[0], "evictions")
    says = "none" if count == 0 else "the server does not say how many"
    if count:
        says = f"{counted(count, 'item')} evicted since it was started"
    advice = "An evicted lock is free for anybody while its holder goes on. Give locks a "
    advice += "memcached of their own, or this one more memory (-m)."
    yield "evictions", OK if count == 0 else WARNING, says, advice
    yield _proxy(version, statistics, via_proxy)


def _proxy(version: str, statistics: Sequence[Mapping[str, str]], via_proxy: bool) -> Check:
    processes = {each["pid"] for each in statistics if "pid" in each}
    if len(processes) > 1:
        says = "different memcached processes answer at this one address: two can hold one lock"
        advice = "A load balancer must not stand before memcached. Name each server in the URL: "
        return "proxy", WRONG, says, advice + "memcache://HOST1,HOST2."
    if via_proxy:
        return "proxy", OK, "one may stand in between, as the URL says", ""
    name = next((name for name in _PROXY_NAMES if name in version.lower()), "")
    # A proxy shares its connections among ours.
    ends = statistics[0], statistics[-1]
    first, last = (number_in(each, "total_connections") for each in ends)
    shared = first is not None and last is not None and last < first + len(statistics) - 1
    if name or shared or any(key.startswith("proxy_") for key in statistics[0]):
        says = f"{name or 'a proxy'} stands in between; it may reconnect unseen to a server that "
        says += "was restarted"
        advice = "Say via_proxy=yes in the URL; or go to memcached itself, which is faster."
        return "proxy", WRONG, says, advice
    if first is None or last is None:
        advice = (
            "For a proxy (mcrouter, twemproxy, a managed service), say via_proxy=yes in the URL."
        )
        return "proxy", WARNING, "the server gives no statistics; it may be a proxy", advice
    return "proxy", OK, "none is seen", ""
