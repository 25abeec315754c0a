"""The servers of a run: memcached behind a network, and the emulator with its data on disk."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from pymemcache.client.base import Client as MemcacheClient

from sample_app.stack.ports import LOOPBACK, any_free
from tests.chaos.harms import FAULTS
from tests.chaos.network import Network
from tests.contract.emulator.process import EmulatorProcess
from tests.servers import Memcached

_PROJECT = "trial"
#: Megabytes: small enough that new items soon evict all others.
_MEMORY = "8"
#: The sizes of the filling values: memcached groups items by size, and records have many sizes.
_SIZES = (60, 100, 150, 200, 260, 330, 420, 520)
_OF_EACH_SIZE = 8000
#: The lifetime of the filling values. Expired ones make room without further evictions.
_FILLED_SECONDS = 1


class Stage:
    """The servers of a run. Created by `set_up`.

    Attributes:
        memcached: the server.
        network: the network between the processes and memcached.
    """

    def __init__(self, folder: Path, concurrency_mode: str, seed: str) -> None:
        self.memcached = Memcached(folder, "-m", _MEMORY)
        self.network = Network(self.memcached.port, Random(f"{seed}/network"))
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
        return f"memcache://{LOOPBACK}:{self.network.port}?prefix=trial"

    @property
    def met(self) -> Counter[str]:
        """Count the faults met so far: packets in bad weather, and requests to the emulator.

        This is a lower bound: faults met just before the emulator was killed are not counted.
        """
        packets = {trouble.value: count for trouble, count in self.network.hit.items()}
        return Counter(packets) + self._faults_met

    def kill_emulator(self, seconds: float) -> None:
        """Kill the emulator, and restart it after this time with its data on disk."""
        with self._mutex:
            self._count_faults()
            self._emulator.__exit__(None, None, None)
            self._planted.clear()
            time.sleep(seconds)
            self._emulator = self._started()
        assert self._emulator.host == f"{LOOPBACK}:{self._port}"

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

    def fill_memcached(self) -> int:
        """Fill memcached until it evicts items; return the number of evictions so far."""
        client = MemcacheClient((LOOPBACK, self.memcached.port), timeout=10)
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
        self.memcached.stop()


@contextlib.contextmanager
def set_up(folder: Path, concurrency_mode: str, seed: str) -> Iterator[Stage]:
    """Start the servers for the clients of this process and its children; stop them afterwards.

    Args:
        folder: the folder for logs and data.
        concurrency_mode: the emulator's mode.
        seed: selects the affected packets.
    """
    stage = Stage(folder, concurrency_mode, seed)
    environment = {
        "DATASTORE_EMULATOR_HOST": f"{LOOPBACK}:{stage._port}",
        "GOOGLE_CLOUD_PROJECT": _PROJECT,
    }
    with (
        contextlib.closing(stage),
        stage.network,
        mock.patch.dict(os.environ, environment),
    ):
        yield stage
