"""Administration of a Redis, or of each node of a cluster. Listing goes through all keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from userlock.admin.health import (
    OK,
    WARNING,
    WRONG,
    Check,
    Finding,
    examine_server,
    new_lock_id,
    number_in,
    unreachable,
)
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.lock.store import StoreUnavailable
from userlock.stores.pool import REPLY_TIMEOUT
from userlock.stores.redis import ClusterStore, RedisStore
from userlock.stores.redis.cluster import Node
from userlock.stores.redis.connections import Connection, Connections, ErrorReply
from userlock.stores.redis.store import MOST_ID_BYTES, read_commands, stored
from userlock.stores.stream import MOST_VALUES, Refused
from userlock.waits import run
from userlock.words import counted

#: How long looking through the keys of a database may take, in seconds.
LIST_SECONDS = 2.0
_SCAN_COUNT = 1000
_ADVICE = (
    "Is it running, are the address and the password right, and may this machine connect "
    "to it? Until it answers, locks are degraded."
)


def list_locks(store: RedisStore, limit: int) -> Listing:
    """List the locks, found by SCAN. Keys of other types than string are left out."""

    def list_one(server: Connections, limit: int) -> Listing:
        def exchange(connection: Connection) -> Listing:
            keys, note = _scan(connection, store.space, limit)
            keys = _shortest_first(connection, keys)
            return Listing.within_room(_read(connection, store.space, keys), note)

        return server.block_apart(exchange)

    servers = {f"redis at {each.name}": each for each in _servers(store)}
    return Listing.of_servers(servers, list_one, limit)


def _servers(store: RedisStore) -> Sequence[Connections]:
    """Return the server, or the primaries of a cluster, by name."""
    if isinstance(store, ClusterStore):
        return sorted(store.connections.primaries(), key=lambda node: node.name)
    return [store.connections]


def _read(connection: Connection, space: bytes, keys: list[bytes]) -> Iterator[LockState]:
    for first in range(0, len(keys), MOST_VALUES):
        batch = keys[first : first + MOST_VALUES]
        connection.begin()
        replies = run(connection.call_all, read_commands(batch))
        for key, reply in zip(batch, replies, strict=True):
            record = None if isinstance(reply, ErrorReply) else stored(reply)
            if record is not None:
                name, hashed = key[len(space) + 1 :], key[len(space) :].startswith(b"#")
                yield LockState(_lock_id(name), Record(record), hashed)


def _scan(connection: Connection, space: bytes, limit: int) -> tuple[list[bytes], str]:
    """Return the keys of locks, and why some may be missing."""
    pattern = re.sub(rb"([\\*?\[\]^])", rb"\\\1", space) + b"[=#]*"
    found: dict[bytes, None] = {}
    ends = time.monotonic() + LIST_SECONDS
    longest = len(space) + 1 + MOST_ID_BYTES
    cursor = b"0"
    while True:
        connection.begin()
        match run(
            connection.call, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _SCAN_COUNT
        ):
            case [bytes(cursor), [*keys]] if all(isinstance(key, bytes) for key in keys):
                found |= dict.fromkeys(key for key in keys if len(key) <= longest)
            case _:
                raise Refused("it answered SCAN with something else than a list of keys")
        if cursor == b"0" or len(found) >= limit:
            return list(found), ""
        if time.monotonic() > ends:
            note = f"the database has so many keys that {LIST_SECONDS:g} s were not enough for all"
            return list(found), note


def _shortest_first(connection: Connection, keys: list[bytes]) -> list[bytes]:
    """Sort keys by the length of their values: if there is no room for all, the longest go."""
    lengths: dict[bytes, int] = {}
    for first in range(0, len(keys), _SCAN_COUNT):
        batch = keys[first : first + _SCAN_COUNT]
        connection.begin()
        replies = run(connection.call_all, [(b"STRLEN", key) for key in batch])
        found = zip(batch, replies, strict=True)  # a key of another type is no lock
        lengths |= {key: length for key, length in found if isinstance(length, int)}
    return sorted(lengths, key=lengths.__getitem__)


def _lock_id(name: bytes) -> str:
    try:
        return name.decode("utf-8", "surrogatepass")  # as the store encodes them
    except UnicodeDecodeError:  # not one of ours
        return name.decode("utf-8", "surrogateescape")


def examine(store: RedisStore) -> list[Finding]:
    try:
        servers = _servers(store)
    except StoreUnavailable as trouble:
        return unreachable(f"redis at {store.connections.name}", trouble, _ADVICE)
    return [finding for server in servers for finding in _examine_one(store, server)]


def _examine_one(store: RedisStore, server: Connections) -> list[Finding]:
    lock_id = new_lock_id()
    while isinstance(server, Node) and store.shard_of(lock_id) != server.number:
        lock_id = new_lock_id()

    def ask() -> Iterator[Check]:
        return judge(server.block_apart(_info), clustered=isinstance(server, Node))

    name = f"redis at {server.name}"
    return examine_server(name, store, ask, _ADVICE, REPLY_TIMEOUT, lock_id)


def _info(connection: Connection) -> dict[str, str]:
    connection.begin()
    answer = run(connection.call, b"INFO")
    if not isinstance(answer, bytes):
        raise Refused("it answered INFO with something else than text")
    lines = answer.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def judge(info: Mapping[str, str], *, clustered: bool = False) -> Iterator[Check]:
    """Check what a server says by INFO. `clustered`: the store takes it for a node."""
    yield "version", OK, info.get("redis_version") or "it does not say", ""
    if info.get("redis_mode") == "sentinel":
        says = "this is a Sentinel, which keeps no data"
        advice = "Name the service that it watches: redis+sentinel://HOST:PORT/SERVICE."
        yield "role", WRONG, says, advice
    elif info.get("role") == "slave":
        says = "this is a replica: locks taken here are refused or lost"
        yield "role", WRONG, says, "Name the primary in the URL."
    elif clustered and info.get("connected_slaves") == "0":
        advice = "If it fails, its locks are degraded until it is back. Give it a replica."
        yield "role", WARNING, "a primary of a cluster, without replicas", advice
    elif info.get("redis_mode") == "cluster" and not clustered:
        says = "this is one node of a cluster: locks of the other nodes are refused here (MOVED)"
        advice = "Name the cluster by redis+cluster:// (TLS: rediss+cluster://)."
        yield "role", WRONG, says, advice
    policy, count = info.get("maxmemory_policy", ""), number_in(info, "evicted_keys")
    evicts = bool(number_in(info, "maxmemory")) and policy != "noeviction"
    says = f"{counted(count, 'key')} evicted since it was started" if count else "none"
    if evicts:
        says += f"; {policy or 'unknown policy'}: when it is full, it evicts live locks too"
    advice = "An evicted lock is free for anybody while its holder goes on. Set maxmemory-policy "
    advice += "noeviction, or give locks a Redis of their own."
    yield "evictions", WARNING if count or evicts else OK, says, advice
