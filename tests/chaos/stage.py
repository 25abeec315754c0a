"""The servers of a run: lease servers behind networks, and the emulator with its data on disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from pymemcache.client.base import Client as MemcacheClient

from sample_app.stack.ports import LOOPBACK, any_free
from tests.chaos.groups import Group, Networks, Shards, Watched
from tests.chaos.harms import FAULTS
from tests.chaos.network import Network
from tests.chaos.programs import USERS
from tests.chaos.stores import StoreKind
from tests.contract.emulator.process import EmulatorProcess
from tests.servers import Memcached, RedisServer
from userlock.stores import ShardedMemcacheStore
from userlock.stores.redis import RedisStore
from userlock.stores.urls import open_store

_PROJECT = "trial"
#: The sizes of the filling values: memcached groups items by size, and records have many sizes.
_SIZES = (60, 100, 150, 200, 260, 330, 420, 520)
_OF_EACH_SIZE = 8000
#: The lifetime of the filling values. Expired ones make room without further evictions.
_FILLED_SECONDS = 1


class LeaseServer(NamedTuple):
    """A lease server, and the network between it and the processes."""

    server: Memcached | RedisServer | Group
    network: Network | Networks


class Stage:
    """The servers of a run. Created by `set_up`.

    Attributes:
        lease_servers: the lease servers, each with its network. None if the emulator has the
            leases.
        homes: the number of the lease server of each lock.
        cache_port: the port of the memcached that is ndb's global cache: of the first lease
            server if it is one, and otherwise of a memcached without faults.
    """

    def __init__(self, kind: StoreKind, folder: Path, concurrency_mode: str, seed: str) -> None:
        self._kind = kind
        self.lease_servers = [_lease_server(kind, folder, n, seed) for n in range(kind.servers)]
        self.grouped: Shards | Watched | None = None
        if kind.groups is not None:
            (folder / "groups").mkdir()
            self.grouped = kind.groups(folder / "groups", seed)
            self.lease_servers = [
                LeaseServer(group, self.grouped.of(group)) for group in self.grouped.groups
            ]
        self._cache: Memcached | None = None
        if self.lease_servers and isinstance(self.lease_servers[0].server, Memcached):
            self.cache_port = self.lease_servers[0].network.port
        else:
            self._cache = Memcached(folder)
            self.cache_port = self._cache.port
        self.homes = self._homes()
        self._port = any_free()
        self._arguments = (
            *("--concurrency-mode", concurrency_mode),
            *("--data-dir", str(folder / "datastore")),
        )
        self._emulator = self._started()
        #: The emulator's faults that were not met yet, by their ids.
        self._planted: dict[int, str] = {}
        self._faults_met: Counter[str] = Counter()
        self._mutex = threading.Lock()

    def _started(self) -> EmulatorProcess:
        return EmulatorProcess(*self._arguments, port=self._port)

    @property
    def url(self) -> str:
        """Return the URL of the lease store."""
        servers = (
            ",".join(f"{LOOPBACK}:{each.network.port}" for each in self.lease_servers)
            if self.grouped is None
            else self.grouped.urls
        )
        return self._kind.url.format(servers=servers)

    @property
    def ports(self) -> list[int]:
        """Return the ports of the lease servers, of their networks, and of ndb's cache."""
        each = [(one.server.port, one.network.port) for one in self.lease_servers]
        if self.grouped is not None:
            each = [(port, network.port) for port, network in self.grouped.networks.items()]
        return sorted({self.cache_port, *itertools.chain(*each)})

    def _homes(self) -> dict[str, int]:
        if not self.lease_servers:
            return {}
        store = open_store(self.url)
        if self.grouped is not None:
            assert isinstance(store, RedisStore)
            self._keys = {user: store.key(user) for user in USERS}
            return self.grouped.homes(self._keys)
        shard_of = store.shard_of if isinstance(store, ShardedMemcacheStore) else lambda _: 0
        return {user: shard_of(user) for user in USERS}

    def move(self, number: int) -> None:
        """Move the slot of a lock of this lease server to the next one."""
        assert isinstance(self.grouped, Shards)
        user, to = self.locks_of(number)[0], (number + 1) % len(self.lease_servers)
        self.grouped.move(self._keys[user], to)
        self.homes[user] = to

    def locks_of(self, number: int) -> list[str]:
        """Return the locks of the lease server with that number."""
        return [lock for lock, home in self.homes.items() if home == number]

    @property
    def met(self) -> Counter[str]:
        """Count the faults met so far: packets in bad weather, and requests to the emulator.

        This is a lower bound: faults met just before the emulator was killed are not counted.
        """
        met = self._faults_met.copy()
        for each in self.lease_servers:
            met.update({trouble.value: count for trouble, count in each.network.hit.items()})
        return met

    def kill_emulator(self, seconds: float) -> None:
        """Kill the emulator, and restart it after this time with its data on disk."""
        with self._mutex:
            self._count_faults()
            self._emulator.__exit__(None, None, None)
            self._planted.clear()
            time.sleep(seconds)
            self._emulator = self._started()
        assert self._emulator.host == f"{LOOPBACK}:{self._port}"

    def stop_emulator(self, seconds: float) -> None:
        """Stop the emulator (SIGSTOP) for this time."""
        with self._mutex:
            self._emulator.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self._emulator.process.send_signal(signal.SIGCONT)

    def plant(self, what: str) -> None:
        """Add one of `FAULTS` to the emulator, for one request."""
        _, fault = FAULTS[what]
        with self._mutex:
            self._planted[self._ask("POST", json.dumps(fault).encode())["id"]] = what
            self._count_faults()

    def clear_faults(self) -> None:
        """Remove all faults of the emulator."""
        with self._mutex:
            self._count_faults()
            self._ask("DELETE")
            self._planted.clear()

    def _count_faults(self) -> None:
        """Count the faults that are gone: a request has met them."""
        left = {each["id"] for each in self._ask("GET")["faults"]}
        for number in self._planted.keys() - left:
            self._faults_met[self._planted.pop(number)] += 1

    def _ask(self, method: str, body: bytes | None = None) -> dict[str, Any]:
        url = f"http://{LOOPBACK}:{self._port}/faults"
        request = urllib.request.Request(url, body, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 (loopback)
            facts: dict[str, Any] = json.load(answer)
        return facts

    def fill(self, number: int) -> int:
        """Fill a memcached until it evicts items; return the number of evictions so far."""
        client = MemcacheClient((LOOPBACK, self.lease_servers[number].server.port), timeout=10)
        try:
            for size in _SIZES:
                value = b"x" * size
                filling = {f"fill-{size}-{n}": value for n in range(_OF_EACH_SIZE)}
                client.set_many(filling, expire=_FILLED_SECONDS)
            return int(client.stats()[b"evictions"])
        finally:
            client.close()

    def close(self) -> None:
        self._emulator.__exit__(None, None, None)
        for each in self.lease_servers:
            each.server.stop()
        if self.grouped is not None:
            self.grouped.stack.close()
        if self._cache is not None:
            self._cache.stop()


def _lease_server(kind: StoreKind, folder: Path, number: int, seed: str) -> LeaseServer:
    assert kind.start is not None
    logs = folder / f"server-{number}"
    logs.mkdir()
    server = kind.start(logs)
    return LeaseServer(server, Network(server.port, Random(f"{seed}/network {number}")))


@contextlib.contextmanager
def set_up(kind: StoreKind, folder: Path, concurrency_mode: str, seed: str) -> Iterator[Stage]:
    """Start the servers for the clients of this process and its children; stop them afterwards."""
    stage = Stage(kind, folder, concurrency_mode, seed)
    environment = {
        "DATASTORE_EMULATOR_HOST": f"{LOOPBACK}:{stage._port}",
        "GOOGLE_CLOUD_PROJECT": _PROJECT,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(stage))
        for each in stage.lease_servers:
            stack.enter_context(each.network)
        stack.enter_context(mock.patch.dict(os.environ, environment))
        yield stage
