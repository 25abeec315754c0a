"""Releases that failed during an outage are sent later."""

from __future__ import annotations

from random import Random

import pytest

from tests.forks import in_child
from tests.leases import MemoryLeases, existing
from tests.unit.lock.pulse import Here, live
from userlock import LockService
from userlock.events import Listeners
from userlock.lock.lease import Lease, Lost
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore, Stored
from userlock.lock.store_client import StoreClient
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run


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


def left_behind(leases: MemoryLeases, lock_id: str, ttl_seconds: float = 60.0) -> Lease:
    return existing(leases.take(make_claim(lock_id, ttl_seconds=ttl_seconds)))


@pytest.fixture
def client(leases: MemoryLeases, clock: ManualClock) -> StoreClient:
    return StoreClient(leases.store, leases.protocol.release, clock)


def answer(client: StoreClient) -> None:
    """Let the server answer a request, so that it gets some pending releases."""

    async def nothing() -> None: ...

    run(client.call, "another", nothing)


class TestOneServer:
    def test_no_request_pays_for_all_of_them(
        self, client: StoreClient, leases: MemoryLeases
    ) -> None:
        for number in range(10):
            client.release_later(left_behind(leases, f"learner-{number}"))
        seen = []
        while client.pending:
            answer(client)
            seen.append(len(client.pending))
        assert seen == [6, 2, 0]

    def test_a_store_that_does_not_answer_is_asked_once_each_time(
        self, client: StoreClient, leases: MemoryLeases
    ) -> None:
        for number in range(3):
            client.release_later(left_behind(leases, f"learner-{number}"))
        leases.store.go_down()
        asked = leases.store.asked["remove"]
        answer(client)
        assert leases.store.asked["remove"] == asked + 1
        assert len(client.pending) == 3
        leases.store.come_back()
        answer(client)
        assert len(client.pending) == 0

    def test_expired_leases_are_forgotten(
        self, client: StoreClient, leases: MemoryLeases, here: Here
    ) -> None:
        client.release_later(left_behind(leases, "ann", ttl_seconds=5))
        here.clock.advance(5)
        asked = here.store.asked.total()
        answer(client)
        assert len(client.pending) == 0
        assert here.store.asked.total() == asked

    def test_a_late_command_is_checked_once_a_second_for_ten(
        self, client: StoreClient, leases: MemoryLeases, here: Here
    ) -> None:
        """Without a line each time: a crowd that is cancelled would fill the record."""
        lease = left_behind(leases, "ann")._replace(unsettled=True, version=None)
        here.store.evict("ann")
        left_behind(leases, "ann")
        client.release_later(lease)
        here.store.asked.clear()
        for _ in range(200):
            answer(client)
            here.clock.advance(0.1)
        assert 9 <= here.store.asked.pop("read") <= 11
        assert here.store.asked == {"append": 1}
        assert len(client.pending) == 0

    def test_a_failed_release_is_not_retried_at_once(self, here: Here) -> None:
        """A hanging store would cost the request its timeout twice."""
        lease = here.service.acquire("ann")
        here.store.go_down("timed out", slow=True)
        here.service.release(lease)
        assert here.store.asked["remove"] == 1

    @pytest.mark.parametrize(("left", "kept"), [(10_000, 10_000), (60_000, 50_000)])
    def test_all_of_a_crowd_are_kept_within_a_bound(
        self, client: StoreClient, leases: MemoryLeases, left: int, kept: int
    ) -> None:
        lease = left_behind(leases, "ann")
        for _ in range(left):
            client.release_later(lease)
        assert len(client.pending) == kept


@pytest.fixture
def two(clock: ManualClock) -> TwoServers:
    return TwoServers(clock)


class TestSeveralServers:
    @pytest.fixture
    def service(self, two: TwoServers, clock: ManualClock) -> LockService:
        return on(two, clock)

    def test_a_hanging_server_does_not_affect_the_others(self, here: Here, two: TwoServers) -> None:
        leases = [here.service.acquire(f"x{number}") for number in range(20)]
        hanging = two.servers[1]
        hanging.go_down("timed out", slow=True)
        for lease in leases:
            here.service.release(lease)
        asked = hanging.asked.total()
        for _ in range(50):
            here.clock.advance(1)
            here.service.release(here.service.acquire("ann"))
        assert hanging.asked.total() == asked

    def test_its_pending_releases_are_sent_when_it_answers(
        self, here: Here, two: TwoServers
    ) -> None:
        lease = here.service.acquire("x1")
        two.servers[1].go_down()
        here.service.release(lease)
        two.servers[1].come_back()
        here.clock.advance(1)
        here.service.release(here.service.acquire("ann"))
        assert two.servers[1].read("x1") is not None
        here.service.release(here.service.acquire("x2"))
        assert two.servers[1].read("x1") is None


class TestIdle:
    """A process without further requests sends its pending releases nevertheless."""

    def leave_pending(self, service: LockService, store: MemoryStore, count: int = 1) -> None:
        leases = [service.acquire(f"learner-{number}") for number in range(count)]
        store.go_down("timed out", slow=True)
        for lease in leases:
            service.release(lease)

    def hang(self, store: MemoryStore, clock: ManualClock) -> None:
        """Make each command cost its timeout from now on."""
        for _ in range(100):
            store.before("remove", lambda: clock.advance(0.3))
            store.before("create", lambda: clock.advance(0.3))

    def test_when_the_store_answers_again(self, here: Here) -> None:
        self.leave_pending(here.service, here.store)
        here.live(5)
        here.store.come_back()
        assert here.store.read("learner-0") is not None
        here.live(1)
        assert here.store.read("learner-0") is None
        here.live(1)
        assert len(here.service.renewals) == 0

    def test_without_the_renewal_thread_it_is_not(self, here: Here) -> None:
        """The negative control: all clients are locked out for the rest of the lease."""
        self.leave_pending(here.service, here.store)
        here.store.come_back()
        here.clock.advance(50)
        assert here.store.read("learner-0") is not None

    def test_late_commands_too(self, here: Here) -> None:
        here.store.delay("create")
        here.store.lose_command("read", slow=True)
        here.service.release(here.service.acquire("ann"))
        here.live(5)
        here.store.arrive()
        assert here.store.read("ann") is not None
        here.live(1.1)
        assert here.store.read("ann") is None

    def test_while_the_store_hangs_it_is_asked_as_often_as_the_breaker_has_it(
        self, here: Here
    ) -> None:
        self.hang(here.store, here.clock)
        self.leave_pending(here.service, here.store, 10)
        asked = here.store.asked["remove"]
        here.live(13)
        assert 9 <= here.store.asked["remove"] - asked <= 11

    def test_it_is_not_asked_after_a_request_has_just_failed(self, here: Here) -> None:
        self.hang(here.store, here.clock)
        self.leave_pending(here.service, here.store)
        here.clock.advance(1)
        asked = here.store.asked["create"], here.store.asked["remove"]
        assert here.service.acquire("bob").degraded
        here.service.renewals.run_due()
        assert (here.store.asked["create"], here.store.asked["remove"]) == (asked[0] + 1, asked[1])

    def test_the_next_caller_finds_the_breaker_closed(self, here: Here) -> None:
        here.store.before("remove", lambda: here.clock.advance(0.3))
        self.leave_pending(here.service, here.store)
        here.store.come_back()
        assert here.service.acquire("ann", lock_timeout=1).degraded, "the control"
        here.live(1.1)
        assert here.service.client.server_of("ann").closed

    def test_a_thousand_are_sent_at_once(self, here: Here) -> None:
        self.leave_pending(here.service, here.store, 1000)
        here.store.come_back()
        here.live(1)
        assert here.store.read("learner-0") is None
        assert len(here.service.client.pending) == 0

    def test_new_pending_releases_do_not_delay_others(self, here: Here) -> None:
        lease = here.service.acquire("ann")
        for _ in range(6):
            here.service.client.release_later(lease)
            here.live(0.2)
        assert here.store.read("ann") is None

    def test_a_store_for_requests_only_is_left_alone(self, here: Here) -> None:
        here.store.requests_only = True
        service = LockService(here.store, clock=here.clock, listeners=Listeners())
        self.leave_pending(service, here.store)
        here.store.come_back()
        live(service, here.clock, 5)
        assert here.store.read("learner-0") is not None
        service.release(service.acquire("ann"))
        assert here.store.read("learner-0") is None

    def test_a_forked_child_leaves_it_to_its_parent(self, here: Here) -> None:
        """The child handles its own pending releases."""
        self.leave_pending(here.service, here.store)

        def release_another() -> list[int]:
            client = here.service.client
            inherited = len(client.pending)
            here.service.release(here.service.acquire("child"))
            own = len(client.pending)
            here.store.come_back()
            here.live(11)
            return [inherited, own, len(client.pending)]

        assert in_child(release_another) == [0, 1, 0]
        assert len(here.service.client.pending) == 1


def test_a_release_that_is_being_sent_keeps_the_renewal_task(clock: ManualClock) -> None:
    """Its run meanwhile finds none, and the late command has not arrived yet.

    a request                    the renewal thread
    takes the only one
                                 runs: there is none
    "not there": puts it back
                                 must run again
    """
    renewals = RenewalThread(clock, threaded=False)
    released: list[Lease] = []

    async def release(lease: Lease, *, again: bool) -> Lost:
        assert again == bool(released)
        released.append(lease)
        if len(released) == 1:
            renewals.run_due()
        return Lost("not there yet")

    client = StoreClient(MemoryStore(clock=clock), release, clock, renewals)
    lease = Lease("ann", "token", deadline=clock.now() + 60, ttl_seconds=60, unsettled=True)
    client.release_later(lease)
    clock.advance(1.0)
    run(client.call, "ann", client.give_back, lease._replace(degraded=True, unsettled=False))
    assert released == [lease]
    assert len(client.pending) == 1
    clock.advance(1.0)
    renewals.run_due()
    assert released == [lease, lease]
    clock.advance(60.0)
    renewals.run_due()
    assert len(client.pending) == 0
    assert len(renewals) == 0
