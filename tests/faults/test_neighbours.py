"""One record, one slow server or one burst in trouble, and the locks beside it."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from google.cloud import ndb

import userlock
from tests.contract.emulator.process import EmulatorProcess
from tests.faults.distance import distant
from tests.servers import Memcached, RedisServer
from userlock import LockService
from userlock.errors import LockServiceUnavailable
from userlock.lock.store import LeaseStore, RecordBusy, StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.stores.datastore import DatastoreStore
from userlock.stores.redis import RedisStore

#: Time-outs of stores in tests that are not about time-outs, on a busy machine; in seconds.
PATIENT = 10.0


@pytest.fixture(scope="module")
def emulator_process() -> Iterator[EmulatorProcess]:
    with EmulatorProcess() as process:
        yield process


@pytest.fixture
def datastore(emulator_process: EmulatorProcess, monkeypatch: pytest.MonkeyPatch) -> ndb.Client:
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", emulator_process.host)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulator")
    return ndb.Client()


Spoil = Callable[[str], object]


@pytest.fixture(params=["redis", "datastore"])
def spoiled(request: pytest.FixtureRequest) -> tuple[LeaseStore, Spoil]:
    """Provide a store, and a function that puts something else in a lock's place."""
    prefix = uuid.uuid4().hex
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        client = redis.Redis(port=server.port)

        def put_a_list(lock_id: str) -> None:
            client.delete(f"{prefix}:lock={lock_id}")
            client.rpush(f"{prefix}:lock={lock_id}", "x")

        return RedisStore.from_url(f"redis://{server.address}/0?prefix={prefix}"), put_a_list

    ndb_client = request.getfixturevalue("datastore")

    class UserLockLease(ndb.Expando):
        pass

    def put_another(lock_id: str) -> None:
        with ndb_client.context():
            UserLockLease(id=f"{prefix}={lock_id}", ttl_microseconds="a minute").put()

    return DatastoreStore(ndb_client, prefix=prefix, timeout=PATIENT), put_another


@pytest.mark.parametrize("outage", ["optimistic", "fail"])
@pytest.mark.parametrize("when", ["before", "while it is held"])
def test_a_record_of_another_type(
    spoiled: tuple[LeaseStore, Spoil], outage: str, when: str
) -> None:
    store, spoil = spoiled
    service = LockService(store, outage=outage)
    if when == "before":
        spoil("bad")
        try:
            service.release(service.acquire("bad", wait_timeout=0))
        except LockServiceUnavailable:
            assert outage == "fail"
    else:
        lease = service.acquire("bad")
        spoil("bad")
        service.release(lease)
    for number in range(60):
        lease = service.acquire(f"learner-{number}")  # raises if it is refused
        assert not lease.degraded
        service.release(lease)
    service.close()


class Crowd:
    """Threads that wait for one lock, and a thread that uses others meanwhile."""

    def __init__(self, service: LockService, size: int) -> None:
        self.service = service
        self.outcomes: Counter[str] = Counter()
        self.overlaps = 0
        self.longest_of_others = 0.0
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
            began = time.monotonic()
            lease = self.service.acquire(f"learner-{number % 9}")
            self.outcomes["others degraded"] += lease.degraded
            self.service.release(lease)
            self.longest_of_others = max(self.longest_of_others, time.monotonic() - began)


@pytest.mark.slow
def test_a_crowd_on_one_row_of_datastore(datastore: ndb.Client) -> None:
    # A slow machine is not to be taken for an outage either.
    service = LockService(DatastoreStore(datastore, prefix=uuid.uuid4().hex, timeout=10))
    crowd = Crowd(service, 60)
    assert crowd.outcomes["confirmed"] == 60
    assert crowd.overlaps == 0
    assert crowd.outcomes["others degraded"] == 0
    service.close()


def test_without_the_distinction_a_crowd_is_an_outage(
    datastore: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreUnavailable, "of_demand", False)
    monkeypatch.setattr(RecordBusy, "of_demand", False)
    service = LockService(DatastoreStore(datastore, prefix=uuid.uuid4().hex, timeout=0.1))
    assert Crowd(service, 60).outcomes["degraded"] > 0
    service.close()


@pytest.mark.slow
def test_a_stopped_datastore_costs_each_thread_half_a_second_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EmulatorProcess() as process:
        monkeypatch.setenv("DATASTORE_EMULATOR_HOST", process.host)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulator")
        service = LockService(DatastoreStore())
        service.release(service.acquire("before", wait_timeout=60))

        def duration_of(lock_id: str) -> float:
            began = time.monotonic()
            assert service.acquire(lock_id, wait_timeout=2).degraded
            return time.monotonic() - began

        process.process.send_signal(signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(60) as threads:
                first = list(threads.map(duration_of, map(str, range(60))))
                later = list(threads.map(duration_of, map(str, range(60))))
        finally:
            process.process.send_signal(signal.SIGCONT)
        assert max(first) < 1.2  # half a second, on a busy machine
        assert sorted(later)[-2] < 0.25  # one may ask again
        service.close()


@pytest.mark.parametrize(("patience", "degraded"), [(None, False), (0.05, True)])
def test_a_burst_of_threads_to_a_distant_server(
    memcached: Memcached,
    monkeypatch: pytest.MonkeyPatch,
    patience: float | None,
    degraded: bool,
) -> None:
    """With little patience for a connection, some find none."""
    if patience is None:
        monkeypatch.setattr("userlock.stores.pool.PATIENCE", PATIENT)
    else:
        monkeypatch.setattr("userlock.stores.pool.PATIENCE", patience)
    with distant(memcached.port, 0.04) as address:
        store = MemcacheStore(
            address, prefix=uuid.uuid4().hex, connect_timeout=PATIENT, timeout=PATIENT
        )
        service = LockService(store)
        barrier = threading.Barrier(200)

        def use(number: int) -> bool:
            barrier.wait(60)
            with userlock.scope(service), userlock.global_lock(f"learner-{number}") as tenure:
                return tenure.degraded

        with ThreadPoolExecutor(200) as threads:
            found = list(threads.map(use, range(200)))
        assert any(found) == degraded
        service.close()
