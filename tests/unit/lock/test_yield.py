"""The function `yield_to_waiters`: the waiters that pass, the tenure, and failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import userlock
from tests.leases import dead_waiter
from tests.simulation.rivals import Rival, Step
from tests.simulation.scheduler import Actor
from tests.simulation.world import World
from tests.unit.lock.writes import Writes
from userlock import HeldLock, LockNotHeld, LockService
from userlock.events import Event, Extended
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("configured")


class TestNobodyWaits:
    def test_it_is_the_same_tenure_for_one_round_trip(self, store: MemoryStore) -> None:
        with userlock.global_lock("ann", priority="batch") as lock:
            before = store.asked.copy()
            assert lock.yield_to_waiters() is lock
            assert store.asked - before == {"read": 1}

    def test_a_store_that_does_not_answer_is_no_reason_to_stop(self, store: MemoryStore) -> None:
        with userlock.global_lock("ann", priority="batch") as lock:
            store.go_down()
            assert lock.yield_to_waiters() is lock
            store.come_back()


class Batch:
    """A simulated batch job: takes a lock, works in steps, yields between them."""

    def __init__(self, world: World, work: Callable[[HeldLock], object], **options: object) -> None:
        self.process = world.process("host/batch")
        self._work = work
        self._options = {"priority": "batch", **options}
        self.actor: Actor = world.spawn(self.process, "job", self._run)

    def _run(self) -> None:
        with (
            userlock.scope(self.process.service),
            userlock.global_lock("ann", **self._options) as lock,  # type: ignore[arg-type]
        ):
            self._work(lock)

    def step(self, seconds: float = 0.1) -> None:
        self.process.clock.sleep(seconds)


class TestSomebodyWaits:
    def test_an_interactive_request_gets_it_and_the_batch_gets_it_back(self, world: World) -> None:
        seen: list[object] = []

        def work(lock: HeldLock) -> None:
            batch.step()
            new = lock.yield_to_waiters()
            seen.extend([interactive.served, new is lock, lock.held, new.held])
            seen.append(batch.process.service.holder("ann") is not None)
            assert new.yield_to_waiters() is new

        batch = Batch(world, work)
        interactive = Rival(world, "host/interactive", [Step("ann", after=0.05)], work=0.02)
        world.pass_time(5, until=lambda: batch.actor.finished)
        assert seen == [True, False, False, True, True]
        assert not world.watch.violations
        assert world.watch.store.read("ann") is None

    def test_without_the_checkpoint_the_interactive_request_waits_to_the_end(
        self, world: World
    ) -> None:
        served: list[bool] = []

        def work(lock: HeldLock) -> None:
            for _ in range(10):
                batch.step()
                served.append(interactive.served)

        batch = Batch(world, work)
        interactive = Rival(world, "host/interactive", [Step("ann", after=0.05)], work=0.02)
        world.pass_time(5, until=lambda: interactive.done)
        assert served == [False] * 10

    def test_all_interactive_waiters_are_served_first(self, world: World) -> None:
        served: list[int] = []

        def work(lock: HeldLock) -> None:
            batch.step()
            lock.yield_to_waiters()
            served.append(sum(rival.served for rival in rivals))

        batch = Batch(world, work)
        rivals = [
            Rival(world, f"host/{number}", [Step("ann", after=0.01 * number)], work=0.02)
            for number in range(1, 5)
        ]
        world.pass_time(5, until=lambda: batch.actor.finished)
        assert served == [4]

    def test_aged_batch_is_served_first_too(self, world: World) -> None:
        """It ranks as interactive then, and the yielding job is behind it in the queue."""
        first: list[bool] = []

        def work(lock: HeldLock) -> None:
            for _ in range(40):
                batch.step(1.0)
                lock.extend(60)
                lock = lock.yield_to_waiters()
                first.append(other.served)

        batch = Batch(world, work)
        other = Rival(world, "host/other", [Step("ann", after=0.05)], priority="batch", work=0.02)
        world.pass_time(60, until=lambda: batch.actor.finished)
        assert sum(first) in (10, 11), "after its 30 s"

    def test_a_dead_waiter_costs_its_patience_once(
        self, service: LockService, clock: ManualClock
    ) -> None:
        with userlock.global_lock("ann", priority="batch") as lock:
            dead_waiter(service, "ann")
            before = clock.now()
            new = lock.yield_to_waiters()
            assert new is not lock
            assert clock.now() - before < 0.4
            assert new.yield_to_waiters() is new


class TestTheNewTenure:
    def test_it_has_the_options_of_the_old_one(self, service: LockService) -> None:
        with userlock.global_lock("ann", lock_timeout=7, priority="batch") as lock:
            dead_waiter(service, "ann")
            new = lock.yield_to_waiters()
            assert (new._lease.ttl_seconds, new._lease.priority) == (7, "batch")
            assert new._owner == lock._owner
            assert new._lease.token != lock._lease.token

    def test_nested_blocks_leave_it(self, service: LockService, store: MemoryStore) -> None:
        with userlock.global_lock("ann") as outer:
            with userlock.global_lock("ann") as inner:
                dead_waiter(service, "ann")
                new = inner.yield_to_waiters()
                with userlock.global_lock("ann") as again:
                    assert again is new
                held = [new.held]
            held.append(new.held)
            assert outer.yield_to_waiters() is new, "through the old one as well"
        assert [*held, new.held] == [True, True, False]
        assert store.read("ann") is None

    def test_acquire_lock_and_release_lock(self, service: LockService) -> None:
        with userlock.scope():
            lock = userlock.acquire_lock("ann").tenure
            dead_waiter(service, "ann")
            new = lock.yield_to_waiters()
            userlock.release_lock("ann")
            assert not new.held
            with pytest.raises(LockNotHeld):
                lock.release()

    def test_the_old_one_names_the_new_one(self, service: LockService) -> None:
        with userlock.global_lock("ann") as lock:
            dead_waiter(service, "ann")
            lock.yield_to_waiters().extend(5)
            with pytest.raises(LockNotHeld, match=r"what yield_to_waiters\(\) returned"):
                lock.extend(5)

    def test_the_heartbeat_goes_on(
        self, service: LockService, clock: ManualClock, events: list[Event]
    ) -> None:
        with userlock.global_lock("ann", heartbeat=True, lock_timeout=3) as lock:
            dead_waiter(service, "ann")
            new = lock.yield_to_waiters()
            assert new._lease.ttl_seconds == 3
            for _ in range(20):
                clock.advance(0.5)
                service.renewals.run_due()
            assert not new._ran_out
            assert not new.lost
        assert sum(isinstance(event, Extended) for event in events) == pytest.approx(10, abs=2)

    def test_a_longer_end_by_hand_does_not_make_its_heartbeat_slow(
        self, service: LockService
    ) -> None:
        with userlock.global_lock("ann", heartbeat=True, lock_timeout=3) as lock:
            lock.extend(100)
            dead_waiter(service, "ann")
            assert lock.yield_to_waiters()._lease.ttl_seconds == 3


class TestParticipants:
    @pytest.fixture
    def participant(self, monkeypatch: pytest.MonkeyPatch) -> Writes:
        participant = Writes()
        monkeypatch.setattr("userlock.lock.scope.participants", [participant])
        return participant

    def test_begun_work_is_finished_before_the_release(
        self, service: LockService, participant: Writes
    ) -> None:
        with userlock.global_lock("ann") as lock:
            dead_waiter(service, "ann")
            participant.at_the_end = lambda tenure: tenure.held
            lock.yield_to_waiters()
            assert participant.log == [(lock, True)]

    def test_if_that_fails_the_lock_stays(self, service: LockService, participant: Writes) -> None:
        def fail(tenure: HeldLock) -> object:
            raise ZeroDivisionError

        with userlock.global_lock("ann") as lock:
            dead_waiter(service, "ann")
            participant.at_the_end = fail
            with pytest.raises(ZeroDivisionError):
                lock.yield_to_waiters()
            assert lock.held
            participant.at_the_end = lambda tenure: None

    def test_in_a_transaction_nothing_happens(
        self, service: LockService, store: MemoryStore, participant: Writes
    ) -> None:
        with userlock.scope():
            lock = userlock.acquire_lock("ann").tenure
            dead_waiter(service, "ann")
            participant.keeps = ["ann"]
            before = store.asked.copy()
            assert lock.yield_to_waiters() is lock
            assert store.asked == before, "and nobody is asked"
            participant.keeps = []
            assert lock.yield_to_waiters() is not lock
