"""Leases in memcached, through pymemcache. `connections` lists the commands of each verb.

Why a version can be trusted. CAS numbers begin again at 1 when the server restarts, so a number
alone could name the next owner's record. It is used alone only on a connection that was made before
the number was got: a restart would have cut it. On any other one the record is read first and
compared with the one that the number stood for, and the number that came with it is used:

    we                    memcached                next owner
    ms k … ─────────────▶ HD c1
                          (restarts, empty)
                          HD c1 ◀───────────────── ms k …
    connection is cut
    md k C1 would delete the next owner's record:
    mg k ───────────────▶ (the next owner's record)
    not as we left it: changed, and nothing is deleted

Limits. Behind a proxy that reconnects by itself, say `via_proxy`. memcached may evict a live record
under memory pressure, and forgets all on a restart: the lock then does not exclude, and fencing at
the Datastore commit refuses the loser's write. A record is kept until a date in the server's own
time (`connections`), one to four seconds longer than asked. Behind a proxy, and where the server
does not tell its time, seconds are sent: a server that was just stopped counts them from an earlier
moment, and two leases may overlap. By the text protocol (before 1.6.12), a crashed holder's lock
may go to a caller that came later than those in the queue.

Several servers. Rendezvous hashing of its id finds the one server of each lock: all processes agree
without talking, and a new server takes over only the locks that move to it. No lock moves because a
server is down: one process would find it on the second server while another holds it on the first.
A change of the list is like a restart: while processes with the old and the new list run side by
side, locks that moved do not exclude.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import GRACE_SECONDS, LeaseStore, Stored
from userlock.stores.address import joined
from userlock.stores.keys import KeySpace
from userlock.stores.memcache.connections import (
    Connection,
    Connections,
    Item,
    WithoutCas,
    is_first,
)
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.stream import Refused
from userlock.stores.urls import YES_NO, AddressError, options_of, tls_context
from userlock.stores.verbs import WaitingStore

#: A handshake of TLS takes three times as many round trips as connecting, and some computing.
_TLS_FACTOR = 3
#: Options of URLs.
_FORMS = {"protocol": ("(meta|text)?", "meta or text"), "via_proxy": YES_NO}
#: 2020-01-01, in seconds since 1970: fences have 63 bits until the year 2088.
_FENCE_EPOCH = 1_577_836_800


@dataclasses.dataclass(slots=True)
class _Version:
    """A state of a record. `cas`: 0 if not known; `latest`: the latest connection then."""

    cas: int
    latest: int
    record: bytes
    key: bytes


class MemcacheStore(WaitingStore):
    """A lease store in one memcached server. Thread-safe; survives fork.

    Args:
        address: `HOST:PORT` of the server, or the path of a socket in the file system.
        prefix: begins every key, so that deployments can share a server. 1 to 80 printable
            ASCII characters without `=` and `#`.
        connect_timeout: in seconds.
        timeout: for a reply, in seconds.
        via_proxy: a proxy stands in between (mcrouter, twemproxy, Envoy) whose connections
            outlive memcached's. Every change then reads the record first, one round trip more.
        protocol: "meta", "text", or None to ask each server. The same in all processes: by the
            text protocol a record is stored without the grace that the meta protocol counts on.
        tls: how to check the server's certificate. Connecting may take three times as long.
        clock: ours, to compare with the server's.

    Attributes:
        address: in full, so that all processes that name this server spread locks alike.
        keys: of its records.
        connections: to the server.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:11211",
        *,
        prefix: str = "userlock",
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REPLY_TIMEOUT,
        via_proxy: bool = False,
        protocol: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if protocol not in (None, "meta", "text"):
            raise ValueError(f"protocol must be 'meta', 'text' or None, not {protocol!r}")
        self.keys = KeySpace(prefix)
        self.connections = Connections(
            address if address.startswith("/") else split_address(address),
            connect_timeout=connect_timeout * (1 if tls is None else _TLS_FACTOR),
            timeout=timeout,
            protocol=protocol,
            via_proxy=via_proxy,
            tls=tls,
            clock=clock,
        )
        self.address = self.connections.address
        self.via_proxy = via_proxy
        self.fences = not via_proxy

    async def acreate(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        # A create is read back after a break, so a dead connection does no harm.
        key = self.keys.lock(lock_id)
        return await self.connections.exchange(False, self._create, key, record, ttl_seconds)

    async def _create(
        self, connection: Connection, key: bytes, record: bytes, ttl_seconds: float
    ) -> _Version | None:
        until, latest = await connection.until(ttl_seconds), self.connections.latest
        try:
            cas = await connection.dialect.create(connection, key, record, until)
        except WithoutCas:
            await connection.ask(b"delete %b\r\n" % key)
            raise
        return None if cas is None else _Version(cas, latest, record, key)

    async def aread(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        key = self.keys.lock(lock_id)
        return self.stored(await self.connections.ask_to_read(hurry, Connection.read, key), key)

    async def aswap(
        self, lock_id: str, version: Any, record: bytes, ttl_seconds: float
    ) -> object | None:
        return await self.connections.exchange(True, self._swap, version, record, ttl_seconds)

    async def _swap(
        self, connection: Connection, own: _Version, record: bytes, ttl_seconds: float
    ) -> _Version | None:
        until = await connection.until(ttl_seconds)
        cas = await self._number(connection, own)
        if cas is None:
            return None
        new = await connection.dialect.swap(connection, own.key, cas, record, until)
        return None if new is None else _Version(new, self.connections.latest, record, own.key)

    async def aremove(self, lock_id: str, version: Any) -> bool:
        return await self.connections.exchange(True, self._remove, version)

    async def _remove(self, connection: Connection, own: _Version) -> bool:
        cas = await self._number(connection, own)
        if cas is None:
            return False
        dialect = connection.dialect
        reply = await connection.ask(dialect.remove % (own.key, cas))
        return reply == dialect.removed[0] or is_first(reply, dialect.removed)

    async def aappend(self, lock_id: str, line: bytes) -> Stored | None:
        key = self.keys.lock(lock_id)
        return self.stored(await self.connections.exchange(True, Connection.append, key, line), key)

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        """Append; the number is the record's CAS number, above the time when the server started.

        So it grows over restarts too, unless the server's clock was set back, or it had counted
        2^32 changes in each second.
        """
        return await self.connections.exchange(True, self._fence, self.keys.lock(lock_id), line)

    async def _fence(
        self, connection: Connection, key: bytes, line: bytes
    ) -> tuple[Stored, int] | None:
        await connection.until(0)  # so that the time of its start is known
        item = await connection.append(key, line)
        stored = self.stored(item, key)
        if item is None or stored is None:
            return None
        if connection.started is None:
            raise Refused("it does not tell when it was started, so there is no fence")
        return stored, ((connection.started - _FENCE_EPOCH) << 32) + item.cas

    def close(self) -> None:
        self.connections.drop_idle()

    def stored(self, item: Item | None, key: bytes) -> Stored | None:
        if item is None:
            return None
        version = _Version(item.cas, self.connections.latest, item.record, key)
        if item.remaining is None:
            return Stored(item.record, version, lapsed=False)
        left = item.remaining - GRACE_SECONDS
        return Stored(item.record, version, left <= 0, left)

    async def _number(self, connection: Connection, version: _Version) -> int | None:
        """Return the CAS number to use for a version; None where the record is of another.

        Read and change go over one connection, which a restart in between would break.
        """
        if connection.number <= version.latest and version.cas > 0 and not self.via_proxy:
            return version.cas
        item = await connection.read(version.key)
        # An extension writes the same record again, which the number tells where it is known. After
        # a restart no record is the same by chance: it has its owner's random token.
        if item is not None and item.record == version.record and version.cas in (0, item.cas):
            return item.cas
        return None


# --- several servers ----------------------------------------------------------------------------


def _forwarded(verb: str) -> Any:
    """Return a verb of the server that has the lock."""

    def forwarded(store: ShardedMemcacheStore, lock_id: str, *args: Any, **options: Any) -> Any:
        return getattr(store.servers[store.shard_of(lock_id)], verb)(lock_id, *args, **options)

    return forwarded


class ShardedMemcacheStore(WaitingStore):
    """A lease store over several memcached servers. Thread-safe; survives fork.

    Args:
        servers: a store for each, in any order. Each must have the same name in every process:
            the names decide which locks it has. (`localhost` is 127.0.0.1.)
    """

    def __init__(self, servers: Sequence[MemcacheStore]) -> None:
        addresses = [shard_name(server.address) for server in servers]
        if not servers or len(set(addresses)) < len(addresses):
            raise AddressError("memcached servers must be named once each")
        self.servers = tuple(servers)
        self._names = [address.encode() for address in addresses]
        self.fences = all(server.fences for server in servers)

    def shard_of(self, lock_id: str) -> int:
        key = lock_id.encode("utf-8", "surrogatepass")
        scores = [hashlib.sha256(name + b"\0" + key).digest() for name in self._names]
        return scores.index(max(scores))

    acreate, aread, aswap = _forwarded("acreate"), _forwarded("aread"), _forwarded("aswap")
    aremove, aappend = _forwarded("aremove"), _forwarded("aappend")
    afence = _forwarded("afence")

    def close(self) -> None:
        for server in self.servers:
            server.close()


def of_parts(parts: SplitResult) -> LeaseStore:
    """Return the store that a `memcache://` URL names; see `parse`."""
    addresses, options = parse(parts)
    servers = [MemcacheStore(address, **options) for address in addresses]
    return servers[0] if len(servers) == 1 else ShardedMemcacheStore(servers)


def parse(parts: SplitResult) -> tuple[list[str], dict[str, Any]]:
    """Return the servers, and the options of their stores, that a URL names.

    `memcache://HOST:PORT,…?prefix=NAME&via_proxy=no&protocol=meta`;
    `memcaches://…?ca=FILE&cert=FILE&key=FILE` is the same over TLS;
    `memcache:///run/memcached.sock` names a socket in the file system.
    """
    if "@" in parts.netloc:
        raise AddressError(
            "a memcache:// URL has no user and password: there are none to log in with"
        )
    secure = parts.scheme == "memcaches"
    files = ("ca", "cert", "key") if secure else ()
    options = options_of(
        parts,
        forms=_FORMS,
        prefix="userlock",
        via_proxy="no",
        protocol="",
        **dict.fromkeys(files, ""),
    )
    path = parts.path.strip("/")
    addresses = [parts.path] if path and not parts.netloc else parts.netloc.split(",")
    if not all(addresses) or (path and parts.netloc):
        raise AddressError(f"it must look like {parts.scheme}://HOST:PORT?prefix=NAME")
    if "," in path:
        raise AddressError("it names several sockets: leases are kept on one of them")
    if secure and path:
        raise AddressError("a socket in the file system has no TLS: use memcache:///PATH")
    return addresses, {
        "prefix": options["prefix"],
        "via_proxy": options["via_proxy"] == "yes",
        "protocol": options["protocol"] or None,
        "tls": tls_context(*(options[name] for name in files), names=files) if secure else None,
    }


def shard_name(address: str) -> str:
    """Return the name by which all processes spread locks over servers."""
    host, port = split_address(address)
    return joined("127.0.0.1" if host == "localhost" else host.rstrip("."), port)


def split_address(address: str) -> tuple[str, int]:
    """Return `host`, `host:port` or `[v6]:port` as a pair; `AddressError` if malformed.

    In small letters, so that all processes that name this host spread locks alike.
    """
    match = re.fullmatch(
        r"\[([0-9a-f:.]+)\](?::([0-9]+))?|([^:\[\]/\s]+)(?::([0-9]+))?", address.lower()
    )
    if match is None:
        raise AddressError("this is not a memcached address: use HOST:PORT")
    host = match[1] or match[3]
    port = int(match[2] or match[4] or 11211)
    if not 0 < port < 65536:
        raise AddressError("this is not a memcached address: its port does not exist (1 to 65535)")
    return host, port
