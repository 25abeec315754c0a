"""The servers of a trial: memcached behind a network, and the emulator with its data on disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from pymemcache.client.base import Client as MemcacheClient

from sample_app.stack.ports import LOOPBACK, any_free
from tests.contract.emulator.process import EmulatorProcess
from tests.servers import Memcached
from tests.trial.network import Network

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

    def _started(self) -> EmulatorProcess:
        return EmulatorProcess(*self._arguments, port=self._port)

    @property
    def url(self) -> str:
        """Of the lease store."""
        return f"memcache://{LOOPBACK}:{self.network.port}?prefix=trial"

    def kill_emulator(self, seconds: float) -> None:
        """Kill the emulator, and start it again after so long, with what it has on disk."""
        self._emulator.__exit__(None, None, None)
        time.sleep(seconds)
        self._emulator = self._started()
        assert self._emulator.host == f"{LOOPBACK}:{self._port}"

    def plant(self, fault: Mapping[str, Any]) -> None:
        """Plant a fault of the emulator, if that is there at present."""
        self._ask("POST", json.dumps(fault).encode())

    def clear_faults(self) -> None:
        """Remove all faults of the emulator."""
        self._ask("DELETE")

    def _ask(self, method: str, body: bytes | None = None) -> None:
        url = f"http://{LOOPBACK}:{self._port}/faults"
        request = urllib.request.Request(url, body, method=method)
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(request, timeout=10),  # noqa: S310 (loopback)
        ):
            pass

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
