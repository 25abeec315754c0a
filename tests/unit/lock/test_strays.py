"""What a store could not be told when it did not answer, it is told later."""

from __future__ import annotations

from random import Random

import pytest

from userlock import LockService
from userlock.events import Listeners
from userlock.lock.lease import Lease
from userlock.lock.leases import Leases
from userlock.lock.store import Stored
from userlock.lock.strays import Strays
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


class TwoServers:
    """Locks whose name begins with "x" are on the second one."""

    def __init__(self, clock: ManualClock) -> None:
        self.servers = MemoryStore(clock=clock), MemoryStore(clock=clock)

    def shard_of(self, lock_id: str) -> int:
        return int(lock_id.startswith("x"))

    def _of(self, lock_id: str) -> MemoryStore:
        return self.servers[self.shard_of(lock_id)]

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        return self._of(lock_id).create(lock_id, record, ttl_seconds)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return self._of(lock_id).read(lock_id, hurry=hurry)

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return self._of(lock_id).swap(lock_id, version, record, ttl_seconds)

    def remove(self, lock_id: str, version: object) -> bool:
        return self._of(lock_id).remove(lock_id, version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        return self._of(lock_id).append(lock_id, line)

    def close(self) -> None: ...


def left_behind(leases: Leases, lock_id: str, ttl_seconds: float = 60.0) -> Lease:
    lease = leases.take(make_claim(lock_id, ttl_seconds=ttl_seconds))
    assert lease is not None
    return lease


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


@pytest.fixture
def strays(leases: Leases, clock: ManualClock) -> Strays:
    return Strays(leases, clock)


class TestOneServer:
    def test_what_is_remembered_is_given_back(
        self, strays: Strays, leases: Leases, store: MemoryStore
    ) -> None:
        strays.remember(left_behind(leases, "ann"))
        assert len(strays) == 1
        strays.collect()
        assert store.read("ann") is None
        assert len(strays) == 0

    def test_another_who_has_the_lock_by_now_is_left_alone(
        self, strays: Strays, leases: Leases, store: MemoryStore
    ) -> None:
        strays.remember(left_behind(leases, "ann"))
        store.evict("ann")
        theirs = left_behind(leases, "ann")
        strays.collect()
        record = leases.look("ann")
        assert record is not None
        assert (record.holder.token, record.free) == (theirs.token, False)

    def test_no_request_pays_for_all_of_them(
        self, strays: Strays, leases: Leases, store: MemoryStore
    ) -> None:
        for number in range(10):
            strays.remember(left_behind(leases, f"learner-{number}"))
        seen = []
        while len(strays):
            strays.collect()
            seen.append(len(strays))
        assert seen == [6, 2, 0]

    def test_a_store_that_does_not_answer_is_asked_once_each_time(
        self, strays: Strays, leases: Leases, store: MemoryStore
    ) -> None:
        for number in range(3):
            strays.remember(left_behind(leases, f"learner-{number}"))
        store.go_down()
        asked = store.asked["remove"]
        strays.collect()
        assert store.asked["remove"] == asked + 1
        assert len(strays) == 3
        store.come_back()
        strays.collect()
        assert len(strays) == 0

    def test_what_is_over_by_itself_is_forgotten(
        self, strays: Strays, leases: Leases, store: MemoryStore, clock: ManualClock
    ) -> None:
        strays.remember(left_behind(leases, "ann", ttl_seconds=5))
        clock.advance(5)
        asked = store.asked.total()
        strays.collect()
        assert len(strays) == 0
        assert store.asked.total() == asked

    def test_one_that_may_still_arrive_is_looked_for_once_a_second_for_ten(
        self, strays: Strays, leases: Leases, store: MemoryStore, clock: ManualClock
    ) -> None:
        lease = left_behind(leases, "ann")._replace(unsettled=True, version=None)
        store.evict("ann")
        strays.remember(lease)
        looks = 0
        for _ in range(200):
            before = store.asked["append"]
            strays.collect()
            looks += store.asked["append"] - before
            clock.advance(0.1)
        assert 9 <= looks <= 11
        assert len(strays) == 0

    def test_it_is_given_back_when_it_arrives(
        self, strays: Strays, leases: Leases, store: MemoryStore, clock: ManualClock
    ) -> None:
        claim = make_claim("ann")
        lease = Lease("ann", claim.token, clock.now() + 60, 60, degraded=True, unsettled=True)
        strays.remember(lease)
        clock.advance(5)
        strays.collect()
        granted_late = leases.take(claim)
        assert granted_late is not None
        clock.advance(1.1)
        strays.collect()
        assert store.read("ann") is None

    def test_there_are_bounds(self, strays: Strays, leases: Leases) -> None:
        lease = left_behind(leases, "ann")
        for _ in range(5000):
            strays.remember(lease)
        assert len(strays) <= 1000


class TestSeveralServers:
    @pytest.fixture
    def two(self, clock: ManualClock) -> TwoServers:
        return TwoServers(clock)

    @pytest.fixture
    def service(self, two: TwoServers, clock: ManualClock) -> LockService:
        return LockService(two, clock=clock, random=Random(1), listeners=Listeners())

    def test_a_server_that_hangs_is_no_concern_of_those_who_use_another(
        self, service: LockService, two: TwoServers, clock: ManualClock
    ) -> None:
        leases = [service.acquire(f"x{number}") for number in range(20)]
        hanging = two.servers[1]
        hanging.go_down("timed out", slow=True)
        for lease in leases:
            service.release(lease)
        asked = hanging.asked.total()
        for _ in range(50):
            clock.advance(1)
            service.release(service.acquire("ann"))
        assert hanging.asked.total() == asked

    def test_what_is_owed_to_it_is_given_back_when_it_answers(
        self, service: LockService, two: TwoServers, clock: ManualClock
    ) -> None:
        lease = service.acquire("x1")
        two.servers[1].go_down()
        service.release(lease)
        two.servers[1].come_back()
        clock.advance(1)
        service.release(service.acquire("ann"))
        assert two.servers[1].read("x1") is not None
        service.release(service.acquire("x2"))
        assert two.servers[1].read("x1") is None
