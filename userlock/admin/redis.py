"""Administration of a Redis, or of each node of a cluster. Listing goes through all keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from userlock.admin import health
from userlock.admin.health import OK, WARNING, WRONG, Finding, Findings, milliseconds, number_in
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
_ASKED_LIFE_MS, _MOST_LIFE, _POLL_SECONDS = 100, 1.0, 0.002


def list_locks(store: RedisStore, limit: int, after: str = "") -> Listing:
    """List the locks, found by SCAN. Keys of other types than string are left out."""

    def list_one(name: str, limit: int, start: str) -> Listing:
        def exchange(connection: Connection) -> Listing:
            keys, note, cursor = _scan(connection, store.space, limit, start.encode() or b"0")
            keys = _shortest_first(connection, keys)
            found = Listing.within_room(_read(connection, store.space, keys), note)
            return found._replace(more="" if cursor == b"0" else cursor.decode())

        return servers[name].block_apart(exchange)

    servers = {each.name: each for each in _servers(store)}
    return Listing.of_servers("redis", servers, list_one, limit, after)


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


def _scan(
    connection: Connection, space: bytes, limit: int, cursor: bytes
) -> tuple[list[bytes], str, bytes]:
    """Return the keys of locks, why some may be missing, and where to go on (0: that is all)."""
    pattern = re.sub(rb"([\\*?\[\]^])", rb"\\\1", space) + b"[=#]*"
    found: dict[bytes, None] = {}
    ends = time.monotonic() + LIST_SECONDS
    longest = len(space) + 1 + MOST_ID_BYTES
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
            return list(found), "", cursor
        if time.monotonic() > ends:
            note = f"the database has so many keys that {LIST_SECONDS:g} s were not enough for all"
            return list(found), note, cursor


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
        found = Findings(f"redis at {store.connections.name}")
        return found.unreachable(trouble.reason.partition(": ")[2], _ADVICE)
    return [finding for server in servers for finding in _examine_one(store, server)]


def _examine_one(store: RedisStore, server: Connections) -> list[Finding]:
    found = Findings(f"redis at {server.name}")
    began = time.monotonic()

    def lock_id() -> str:
        while True:
            new = health.new_lock_id()
            if not isinstance(server, Node) or store.shard_of(new) == server.number:
                return new

    def exchange(connection: Connection) -> None:
        info, took = _info(connection), time.monotonic() - began
        life = _life(connection, store.key(lock_id()))
        judge(found, info, _info(connection), took, life, clustered=isinstance(server, Node))

    try:
        server.block_apart(exchange)
    except StoreUnavailable as trouble:
        return found.unreachable(trouble.reason.partition(": ")[2], _ADVICE)
    health.try_out(found, store, patience=REPLY_TIMEOUT, lock_id=lock_id)
    return found


def _info(connection: Connection) -> dict[str, str]:
    connection.begin()
    answer = run(connection.call, b"INFO")
    if not isinstance(answer, bytes):
        raise Refused("it answered INFO with something else than text")
    lines = answer.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _life(connection: Connection, key: bytes) -> float | None:
    """Measure the time to live of a key that is set for 0.1 s; None if it is not reported."""
    stored_at = time.monotonic()
    try:
        connection.begin()
        run(connection.call, b"SET", key, b"x", b"PX", b"%d" % _ASKED_LIFE_MS)
        while time.monotonic() - stored_at < _MOST_LIFE:
            connection.begin()
            if run(connection.call, b"GET", key) is None:
                return time.monotonic() - stored_at
            time.sleep(_POLL_SECONDS)
    except ErrorReply:  # a replica; no rights; no memory: other findings say so
        pass
    return None


def judge(
    found: Findings,
    info: Mapping[str, str],
    later: Mapping[str, str],
    first_seconds: float,
    life: float | None,
    *,
    clustered: bool = False,
) -> None:
    """Add the findings that follow from INFO, twice with a moment in between, and from the rest.

    `life`: of a key that was asked to live for 0.1 s. `clustered`: the store takes it for a node.
    """
    found.reachable(first_seconds)
    version = info.get("redis_version", "")
    found.add("version", OK, version or "it does not say", version=version)
    _role(found, info, clustered)
    policy, limit = info.get("maxmemory_policy", ""), number_in(info, "maxmemory")
    count = number_in(info, "evicted_keys") or 0
    now = max((number_in(later, "evicted_keys") or 0) - count, 0)
    evicts = bool(limit) and policy != "noeviction"
    says = health.evicted("key", count, now)
    if evicts:
        says += f"; {policy or 'unknown policy'}: when it is full, it evicts live locks too"
    advice = "An evicted lock is free for anybody while its holder goes on. Set maxmemory-policy "
    advice += "noeviction, or give locks a Redis of their own."
    verdict = WRONG if now else WARNING if count or evicts else OK
    facts = {"evicted_keys": count, "evicted_while_looking": now}
    found.add("evictions", verdict, says, advice, **facts, maxmemory_policy=policy)
    if life is not None:
        says = f"a key asked to live for {_ASKED_LIFE_MS} ms lived for {milliseconds(life)}"
        advice = "A crashed holder's lock is freed late."
        found.check("clock", life < 0.5, says, advice, life_seconds=round(life, 3))


def _role(found: Findings, info: Mapping[str, str], clustered: bool) -> None:
    """Add a finding if this server takes no locks, or is a primary of a cluster."""
    mode, role = info.get("redis_mode", "standalone"), info.get("role", "master")
    if mode == "sentinel":
        says = "this is a Sentinel, which keeps no data"
        advice = "Name the service that it watches: redis+sentinel://HOST:PORT/SERVICE."
    elif role == "slave":
        says = "this is a replica: it takes no locks, and shows them late"
        advice = "Name the primary in the URL."
    elif clustered:
        replicas = number_in(info, "connected_slaves") or 0
        says = f"a primary of a cluster, with {counted(replicas, 'replica')}"
        advice = "If it fails, its locks are degraded until it is back. Give it a replica."
        found.check("role", replicas > 0, says, advice, mode=mode, role=role, replicas=replicas)
        return
    elif mode == "cluster":
        says = "this is one node of a cluster: locks of the other nodes are refused here (MOVED)"
        advice = "Name the cluster by redis+cluster:// (TLS: rediss+cluster://)."
    else:
        return
    found.add("role", WRONG, says, advice, mode=mode, role=role)
