"""What a store could not be told when it did not answer, it is told later."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.unit.lock.pulse import live
from userlock import LockService
from userlock.events import Listeners
from userlock.lock.lease import Lease
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.lock.strays import PendingReleases
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


class TwoServers(LeaseStore):
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


def on(two: TwoServers, clock: ManualClock) -> LockService:
    return LockService(two, clock=clock, random=Random(1), listeners=Listeners())


def left_behind(leases: LeaseProtocol, lock_id: str, ttl_seconds: float = 60.0) -> Lease:
    lease = leases.take(make_claim(lock_id, ttl_seconds=ttl_seconds))
    assert lease is not None
    return lease


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> LeaseProtocol:
    return LeaseProtocol(store, clock)


@pytest.fixture
def strays(leases: LeaseProtocol, clock: ManualClock) -> PendingReleases:
    return PendingReleases(leases, clock)


class TestOneServer:
    def test_what_is_remembered_is_given_back(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore
    ) -> None:
        strays.remember(left_behind(leases, "ann"))
        assert len(strays) == 1
        strays.collect()
        assert store.read("ann") is None
        assert len(strays) == 0

    def test_another_who_has_the_lock_by_now_is_left_alone(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore
    ) -> None:
        strays.remember(left_behind(leases, "ann"))
        store.evict("ann")
        theirs = left_behind(leases, "ann")
        strays.collect()
        record = leases.look("ann")
        assert record is not None
        assert (record.holder.token, record.free) == (theirs.token, False)

    def test_no_request_pays_for_all_of_them(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore
    ) -> None:
        for number in range(10):
            strays.remember(left_behind(leases, f"learner-{number}"))
        seen = []
        while len(strays):
            strays.collect()
            seen.append(len(strays))
        assert seen == [6, 2, 0]

    def test_a_store_that_does_not_answer_is_asked_once_each_time(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore
    ) -> None:
        for number in range(3):
            strays.remember(left_behind(leases, f"learner-{number}"))
        store.go_down()
        asked = store.asked["remove"]
        with pytest.raises(StoreUnavailable):
            strays.collect()
        assert store.asked["remove"] == asked + 1
        assert len(strays) == 3
        store.come_back()
        strays.collect()
        assert len(strays) == 0

    def test_what_is_over_by_itself_is_forgotten(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore, clock: ManualClock
    ) -> None:
        strays.remember(left_behind(leases, "ann", ttl_seconds=5))
        clock.advance(5)
        asked = store.asked.total()
        strays.collect()
        assert len(strays) == 0
        assert store.asked.total() == asked

    def test_one_that_may_still_arrive_is_looked_for_once_a_second_for_ten(
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore, clock: ManualClock
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
        self, strays: PendingReleases, leases: LeaseProtocol, store: MemoryStore, clock: ManualClock
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

    def test_a_release_that_has_failed_is_not_tried_again_at_once(
        self, service: LockService, store: MemoryStore
    ) -> None:
        """A store that hangs would cost the request its time-out twice."""
        lease = service.acquire("ann")
        store.go_down("timed out", slow=True)
        service.release(lease)
        assert store.asked["remove"] == 1

    def test_there_are_bounds(self, strays: PendingReleases, leases: LeaseProtocol) -> None:
        lease = left_behind(leases, "ann")
        for _ in range(5000):
            strays.remember(lease)
        assert len(strays) <= 1000


@pytest.fixture
def two(clock: ManualClock) -> TwoServers:
    return TwoServers(clock)


class TestSeveralServers:
    @pytest.fixture
    def service(self, two: TwoServers, clock: ManualClock) -> LockService:
        return on(two, clock)

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


class TestIdle:
    """A process that asks for nothing more gives back what it owes all the same."""

    def owe(self, service: LockService, store: MemoryStore, count: int = 1) -> None:
        """Be unable to release some locks, since the store hangs."""
        leases = [service.acquire(f"learner-{number}") for number in range(count)]
        store.go_down("timed out", slow=True)
        for lease in leases:
            service.release(lease)

    def hang(self, store: MemoryStore, clock: ManualClock) -> None:
        """Let each command cost its time-out from now on."""
        for _ in range(100):
            store.before("remove", lambda: clock.advance(0.3))
            store.before("create", lambda: clock.advance(0.3))

    def test_when_the_store_answers_again(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        self.owe(service, store)
        live(service, clock, 5)
        store.come_back()
        assert store.read("learner-0") is not None
        live(service, clock, 1)
        assert store.read("learner-0") is None
        live(service, clock, 1)
        assert len(service.renewals) == 0

    def test_without_a_heart_it_is_not(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        """The negative control: everybody is locked out for the rest of the lease."""
        self.owe(service, store)
        store.come_back()
        clock.advance(50)
        assert store.read("learner-0") is not None

    def test_what_arrives_late_too(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        store.delay("create")
        store.lose_command("read", slow=True)
        service.release(service.acquire("ann"))
        live(service, clock, 5)
        store.arrive()
        assert store.read("ann") is not None
        live(service, clock, 1.1)
        assert store.read("ann") is None

    def test_while_the_store_hangs_it_is_asked_as_often_as_the_breaker_has_it(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        self.hang(store, clock)
        self.owe(service, store, 10)
        asked = store.asked["remove"]
        live(service, clock, 13)
        assert 9 <= store.asked["remove"] - asked <= 11

    def test_nor_at_all_when_a_request_has_just_found_out_the_same(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        self.hang(store, clock)
        self.owe(service, store)
        clock.advance(1)
        asked = store.asked["create"], store.asked["remove"]
        assert service.acquire("bob").degraded
        service.renewals.run_due()
        assert (store.asked["create"], store.asked["remove"]) == (asked[0] + 1, asked[1])

    def test_whoever_comes_next_finds_the_breaker_closed(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        store.before("remove", lambda: clock.advance(0.3))
        self.owe(service, store)
        store.come_back()
        assert service.acquire("ann", lock_timeout=1).degraded, "the control"
        live(service, clock, 1.1)
        assert service._access.breaker_of("ann").closed

    def test_a_thousand_are_given_back_at_once(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        """Renewals that are due meanwhile come in between."""
        self.owe(service, store, 1000)
        store.come_back()
        live(service, clock, 1)
        assert store.read("learner-0") is None
        assert len(service._access.pending) == 0

    def test_more_that_is_owed_all_the_time_does_not_put_it_off(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        lease = service.acquire("ann")
        for _ in range(6):
            service.release_later(lease)
            live(service, clock, 0.2)
        assert store.read("ann") is None

    def test_what_is_over_by_itself_is_not_asked_for(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        self.owe(service, store)
        clock.advance(60)
        asked = store.asked.total()
        live(service, clock, 5)
        assert store.asked.total() == asked
        assert len(service.renewals) == 0

    def test_a_server_that_hangs_keeps_the_others_from_nothing(
        self, two: TwoServers, clock: ManualClock
    ) -> None:
        service = on(two, clock)
        leases = [service.acquire(lock_id) for lock_id in ("x1", "ann")]
        for server in two.servers:
            server.go_down("timed out", slow=True)
        for lease in leases:
            service.release(lease)
        two.servers[0].come_back()
        live(service, clock, 1)
        assert two.servers[0].read("ann") is None
        two.servers[1].come_back()
        live(service, clock, 1)
        assert two.servers[1].read("x1") is None

    def test_a_store_for_requests_only_is_left_alone(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        store.requests_only = True
        service = LockService(store, clock=clock, listeners=Listeners())
        self.owe(service, store)
        store.come_back()
        live(service, clock, 5)
        assert store.read("learner-0") is not None
        service.release(service.acquire("ann"))
        assert store.read("learner-0") is None

    def test_a_forked_child_leaves_it_to_its_parent(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        """And looks after what it owes itself."""
        self.owe(service, store)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                strays = service._access.pending
                inherited = len(strays)
                service.release(service.acquire("child"))
                owed = len(strays)
                store.come_back()
                live(service, clock, 11)
                code = 0 if (inherited, owed, len(strays)) == (0, 1, 0) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len(service._access.pending) == 1
