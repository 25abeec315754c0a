"""Leases spread over several memcached servers.

Rendezvous hashing of its id finds the one server of each lock: all processes
agree without talking, and a new server takes over only the locks that move to
it. No lock ever moves because a server is down: one process would find the
lock on the second server while another one still holds it on the first. The
locks of a server that is down are simply unavailable, and the outage policy
applies to them; those of the other servers are not disturbed.

A change of the list is like a restart of a memcached: for as long as processes
with the old and the new list run side by side, locks that moved do not
exclude, and fencing refuses the losers' writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult

from userlock.lock.store import LeaseStore
from userlock.stores.memcache.store import MemcacheStore
from userlock.stores.memcache.url import parse, shard_name
from userlock.stores.urls import AddressError
from userlock.stores.verbs import WaitingStore


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

    def shard_of(self, lock_id: str) -> int:
        key = lock_id.encode("utf-8", "surrogatepass")
        scores = [hashlib.sha256(name + b"\0" + key).digest() for name in self._names]
        return scores.index(max(scores))

    acreate, aread, aswap = _forwarded("acreate"), _forwarded("aread"), _forwarded("aswap")
    aremove, aappend = _forwarded("aremove"), _forwarded("aappend")
    afence = _forwarded("afence")

    @property
    def fences(self) -> bool:  # type: ignore[override]
        return all(server.fences for server in self.servers)

    def close(self) -> None:
        for server in self.servers:
            server.close()


def of_parts(parts: SplitResult) -> LeaseStore:
    """Return the store that a `memcache://` URL names; see `url.parse`."""
    addresses, options = parse(parts)
    servers = [MemcacheStore(address, **options) for address in addresses]
    return servers[0] if len(servers) == 1 else ShardedMemcacheStore(servers)
