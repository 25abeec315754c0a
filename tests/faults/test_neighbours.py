"""A crowd on one row of Datastore, and the locks beside it."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.cloud import ndb

from tests.contract.emulator.process import EmulatorProcess
from userlock import LockService
from userlock.stores.datastore import DatastoreStore


@pytest.fixture(scope="module")
def emulator_process() -> Iterator[EmulatorProcess]:
    with EmulatorProcess() as process:
        yield process


@pytest.fixture
def datastore(emulator_process: EmulatorProcess, monkeypatch: pytest.MonkeyPatch) -> ndb.Client:
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", emulator_process.host)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulator")
    return ndb.Client()


class Crowd:
    """Threads that wait for one lock, and a thread that uses others meanwhile."""

    def __init__(self, service: LockService, size: int) -> None:
        self.service = service
        self.outcomes: Counter[str] = Counter()
        self.overlaps = 0
        self._inside = threading.Lock()
        self._over = threading.Event()
        with ThreadPoolExecutor(size + 1) as threads:
            others = threads.submit(self._use_others)
            list(threads.map(self._use, range(size)))
            self._over.set()
            others.result()

    def _use(self, _: int) -> None:
        lease = self.service.acquire("all want it", wait_timeout=60)
        self.outcomes["degraded" if lease.degraded else "confirmed"] += 1
        if self._inside.acquire(blocking=False):
            self._inside.release()
        else:
            self.overlaps += 1
        with self._inside:
            time.sleep(0.005)  # the work
        self.service.release(lease)

    def _use_others(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            lease = self.service.acquire(f"learner-{number % 9}")
            self.outcomes["others degraded"] += lease.degraded
            self.service.release(lease)


@pytest.mark.slow
def test_a_crowd_on_one_row_of_datastore(datastore: ndb.Client) -> None:
    # A slow machine is not to be taken for an outage either.
    service = LockService(DatastoreStore(datastore, prefix=uuid.uuid4().hex, timeout=10))
    crowd = Crowd(service, 60)
    assert crowd.outcomes["confirmed"] == 60
    assert crowd.overlaps == 0
    assert crowd.outcomes["others degraded"] == 0
    service.close()
