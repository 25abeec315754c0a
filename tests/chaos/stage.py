"""The servers of a trial: memcached behind a network, and the emulator with its data on disk."""

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
#: Megabytes: so little that what is put into it soon throws out everything else.
_MEMORY = "8"
#: Of values that fill it: memcached keeps items of one size together, and records have many.
_SIZES = (60, 100, 150, 200, 260, 330, 420, 520)
_OF_EACH_SIZE = 8000
#: For so long they stay; what has expired gives its room back, and nothing else has to go for it.
_FILLED_SECONDS = 1


class Stage:
    """See the module. Use `set_up`.

    Attributes:
        memcached: the server itself.
        network: what processes reach it through.
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
        #: What waits in the emulator for a request, by the number that it has there.
        self._planted: dict[int, str] = {}
        self._faults_met: Counter[str] = Counter()
        self._mutex = threading.Lock()

    def _started(self) -> EmulatorProcess:
        return EmulatorProcess(*self._arguments, port=self._port)

    @property
    def url(self) -> str:
        """Of the lease store."""
        return f"memcache://{LOOPBACK}:{self.network.port}?prefix=trial"

    @property
    def met(self) -> Counter[str]:
        """What was met so far: packets in bad weather, and requests to the emulator with a fault.

        At least: who met one of the emulator just before that was killed is not counted.
        """
        packets = {trouble.value: count for trouble, count in self.network.hit.items()}
        return Counter(packets) + self._faults_met

    def kill_emulator(self, seconds: float) -> None:
        """Kill the emulator, and start it again after so long, with what it has on disk."""
        with self._mutex:
            self._count_faults()
            self._emulator.__exit__(None, None, None)
            self._planted.clear()
            time.sleep(seconds)
            self._emulator = self._started()
        assert self._emulator.host == f"{LOOPBACK}:{self._port}"

    def plant(self, what: str) -> None:
        """Plant one of `FAULTS` in the emulator, for one request."""
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
        """Those that are not there any more were met."""
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
        """Fill memcached until it throws out what is there; how much it has thrown out so far."""
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
    """The servers, found by the clients of this process and its children; stopped afterwards.

    Args:
        folder: for logs and data.
        concurrency_mode: of the emulator.
        seed: of which packets are hit.
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
