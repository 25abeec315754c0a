"""The statistics of a memcached, and measurements from here.

All over connections of its own, which are closed again.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import NamedTuple

from userlock.stores.memcache.connections import Connections
from userlock.stores.memcache.listing import why_not
from userlock.stores.memcache.wire import Connection, Refused

_MOST_LINES = 20_000
#: How long lock records are: with hardly anything in them, as usual, with some who wait.
_RECORD_SIZES = (80, 120, 180, 280, 420)
_POLL_SECONDS = 0.01
#: A record asked to live for one second is watched for so long.
_MOST_LIFE = 3.0


class Observed(NamedTuple):
    """The facts about a server.

    Attributes:
        connect_seconds: how long connecting took, the first question included.
        version: as the server says.
        meta: whether the meta protocol is spoken with it.
        stats, settings: its own words; empty where it does not answer.
        later: some of the stats again, a moment later.
        elapsed: seconds between the two.
        other_pids: process ids that other connections to the same address met.
        counts_us: whether a new connection from here raised the server's own count of them;
            None if it has none.
        among_locks: evictions of items that are as big as lock records, and their age; empty
            where it is not told.
        life: how long an item lived that was asked to live for one second; infinite if it was
            not seen to end, None if it was not stored.
        lists: why the server does not list its keys; empty if it does.
    """

    connect_seconds: float
    version: str
    meta: bool
    stats: dict[str, str]
    settings: dict[str, str]
    later: dict[str, str]
    elapsed: float
    other_pids: frozenset[str]
    counts_us: bool | None
    among_locks: dict[str, int]
    life: float | None
    lists: str


def observe(connections: Connections, key: bytes) -> Observed:
    """Ask and measure.

    Args:
        connections: to the server.
        key: one that nobody uses; something is stored under it for a second.

    Raises:
        OSError, MemcacheError, Refused: the server cannot be reached, or stops answering.
    """
    began = time.monotonic()
    first = connections.make()
    with contextlib.closing(first):
        connect_seconds = time.monotonic() - began
        version = first.line(b"version\r\n").decode("latin-1").strip().removeprefix("VERSION ")
        asked_at = time.monotonic()
        stats, settings = ask(connections, b"stats"), ask(connections, b"stats settings")
        others = [ask(connections, b"stats") for _ in range(3)]
        life = _life(first, key)
        among_locks = _evicted_among_locks(connections, first, key) if first.meta else {}
        return Observed(
            connect_seconds=connect_seconds,
            version=version,
            meta=first.meta,
            stats=stats,
            settings=settings,
            later=ask(connections, b"stats"),
            elapsed=time.monotonic() - asked_at,
            other_pids=frozenset(other["pid"] for other in others if "pid" in other)
            - {stats.get("pid", "")},
            counts_us=_counts_us(stats, others[-1]),
            among_locks=among_locks,
            life=life,
            lists=_lists(connections),
        )


def ask(connections: Connections, command: bytes) -> dict[str, str]:
    """Return the answer of `stats` and its like, over a new connection; empty if refused."""
    connection = connections.make()
    with contextlib.closing(connection):
        answers: dict[str, str] = {}
        try:
            connection.send(command + b"\r\n")
            for _ in range(_MOST_LINES):
                line = connection.read_line()
                if not line.startswith(b"STAT "):
                    break
                _, name, *value = line.decode("latin-1").split(" ", 2)
                answers[name] = value[0] if value else ""
        except (Refused, ConnectionError):
            return {}  # some proxies end the connection at what they do not know
        return answers


def _counts_us(before: dict[str, str], after: dict[str, str]) -> bool | None:
    try:
        return int(after["total_connections"]) >= int(before["total_connections"]) + 3
    except (KeyError, ValueError):
        return None


def _life(connection: Connection, key: bytes) -> float | None:
    """Measure the time to live of an item that is set for one second."""
    # The text protocol, which all of them speak. The clock of the server ticks
    # in whole seconds, so where in its second we begin matters: by chance.
    stored_at = time.monotonic()
    try:
        connection.line(b"set %b 0 1 1\r\nx\r\n" % key)
    except Refused:  # no memory; the trial says so
        return None
    while time.monotonic() - stored_at < _MOST_LIFE:
        time.sleep(_POLL_SECONDS)
        connection.send(b"get %b\r\n" % key)
        if connection.read_line().startswith(b"END"):
            return time.monotonic() - stored_at
        connection.read_data(1)
        connection.read_line()
    return math.inf


def _evicted_among_locks(
    connections: Connections, connection: Connection, key: bytes
) -> dict[str, int]:
    """Return memcached's figures on the slab classes of lock records.

    `evicted`, how many items; `evicted_time`, for how many seconds nobody had
    asked for the last one when it went, the least of all classes.
    """
    numbers: set[str] = set()
    try:
        for size in _RECORD_SIZES:
            connection.line(b"ms %b %d T5\r\n%b\r\n" % (key, size, b"x" * size))
            described = connection.line(b"me %b\r\n" % key).decode("latin-1")
            numbers.add(described.partition(" cls=")[2].partition(" ")[0].strip())
        items = ask(connections, b"stats items")
        connection.line(b"md %b\r\n" % key)
        evicted = {each: int(items.get(f"items:{each}:evicted", "0")) for each in numbers}
        ages = [
            int(items[f"items:{each}:evicted_time"]) for each, count in evicted.items() if count
        ]
    except (Refused, KeyError, ValueError):
        return {}
    return {"evicted": sum(evicted.values()), **({"evicted_time": min(ages)} if ages else {})}


def _lists(connections: Connections) -> str:
    """Why keys cannot be listed; empty if they can. Sees the list begin, no more."""
    try:
        with contextlib.closing(connections.make()) as connection:
            connection.send(b"lru_crawler metadump all\r\n")
            answer = connection.client.sock.recv(4096)
    except OSError:
        return "the list did not begin in time"
    return "" if answer.startswith((b"key=", b"END", b"BUSY")) else why_not(answer)
