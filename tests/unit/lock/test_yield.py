"""The function `yield_to_waiters`: who passes, the tenure, several locks, and failures."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Callable

import pytest

import userlock
from tests.forks import in_child
from tests.leases import dead_waiter, existing
from tests.simulation.rivals import Rival, Step
from tests.simulation.scheduler import Actor
from tests.simulation.world import World
from tests.unit.lock.pulse import Here, interrupt
from tests.unit.lock.writes import Writes
from userlock import DeadlockDetected, HeldLock, LockNotHeld, LockService, LockTimeout
from userlock.events import Extended
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

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

    def test_a_dead_waiter_costs_its_patience_once(self, here: Here) -> None:
        with userlock.global_lock("ann", priority="batch") as lock:
            dead_waiter(here.service, "ann")
            before = here.clock.now()
            new = lock.yield_to_waiters()
            assert new is not lock
            assert here.clock.now() - before < 0.4
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

    def test_what_waits_for_the_end_of_all_locks_waits_for_its_end(
        self, service: LockService
    ) -> None:
        called: list[None] = []
        with userlock.scope() as scope:
            with userlock.global_lock("ann") as lock:
                scope.when_free(lambda: called.append(None))
                dead_waiter(service, "ann")
                lock.yield_to_waiters()
                assert called == []
            assert called == [None]

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

    def test_the_heartbeat_goes_on(self, here: Here) -> None:
        with userlock.global_lock("ann", heartbeat=True, lock_timeout=3) as lock:
            dead_waiter(here.service, "ann")
            new = lock.yield_to_waiters()
            assert new._lease.ttl_seconds == 3
            for _ in range(20):
                here.clock.advance(0.5)
                here.service.renewals.run_due()
            assert not new._ran_out
            assert not new.lost
        assert sum(isinstance(event, Extended) for event in here.events) == pytest.approx(10, abs=2)

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

    def test_in_a_transaction_nothing_happens(self, here: Here, participant: Writes) -> None:
        with userlock.scope():
            lock = userlock.acquire_lock("ann").tenure
            dead_waiter(here.service, "ann")
            participant.keeps = ["ann"]
            before = here.store.asked.copy()
            assert lock.yield_to_waiters() is lock
            assert here.store.asked == before, "and nobody is asked"
            participant.keeps = []
            assert lock.yield_to_waiters() is not lock


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    thread.join()


def snatch(service: LockService, lock_id: str, token: str) -> None:
    """Let the interactive request take its turn after all, and keep the lock for long."""
    claim = make_claim(lock_id)
    claim = dataclasses.replace(claim, token=token, ttl_seconds=1000)
    record = existing(service.look(lock_id))
    assert run(service.protocol.claim, claim, record, passing=False) is not None


class TestNotTakenBack:
    def person_keeps(self, service: LockService, clock: ManualClock, lock_id: str) -> None:
        token = dead_waiter(service, lock_id)
        clock.after(0.0001, lambda: snatch(service, lock_id, token))

    def test_a_time_out_leaves_nothing_held(self, service: LockService, clock: ManualClock) -> None:
        with userlock.scope() as scope, userlock.global_lock("ann", priority="batch") as lock:
            self.person_keeps(service, clock, "ann")
            started = clock.now()
            with pytest.raises(LockTimeout) as caught:
                lock.yield_to_waiters()
            assert clock.now() - started == pytest.approx(60, abs=0.1)
            assert caught.value.holder is not None
            assert scope.held == {}
            assert not lock.held
            with pytest.raises(LockNotHeld):
                lock.yield_to_waiters()
        assert service.holder("ann") is not None, "the interactive's, still"
        assert service.waiters("ann") == []

    def test_the_wait_can_be_bounded(self, service: LockService, clock: ManualClock) -> None:
        with userlock.scope(), userlock.global_lock("ann") as lock:
            self.person_keeps(service, clock, "ann")
            started = clock.now()
            with pytest.raises(LockTimeout):
                lock.yield_to_waiters(wait_timeout=2)
            assert clock.now() - started == pytest.approx(2, abs=0.1)

    def test_blocks_without_a_scope_of_their_own_end_theirs(self, here: Here) -> None:
        def work() -> None:
            with userlock.global_lock("ann") as lock, userlock.global_lock("ann"):
                self.person_keeps(here.service, here.clock, "ann")
                lock.yield_to_waiters(wait_timeout=1)

        with pytest.raises(LockTimeout):
            work()
        assert current_scope() is None
        with userlock.global_lock("bob"):
            assert current_scope() is not None
        assert current_scope() is None

    def test_a_block_may_go_on_with_other_locks(self, here: Here) -> None:
        with userlock.global_lock("ann") as lock:
            self.person_keeps(here.service, here.clock, "ann")
            with pytest.raises(LockTimeout):
                lock.yield_to_waiters(wait_timeout=1)
            with userlock.global_lock("bob"):
                assert here.service.holder("bob") is not None
        assert here.service.holder("bob") is None
        assert current_scope() is None

    def test_an_interrupt(self, service: LockService, clock: ManualClock) -> None:
        def work() -> None:
            with userlock.global_lock("ann") as lock:
                self.person_keeps(service, clock, "ann")
                clock.after(0.5, interrupt)
                lock.yield_to_waiters()

        with pytest.raises(KeyboardInterrupt):
            work()
        assert current_scope() is None
        assert service.waiters("ann") == []


class TestReleased:
    def test_a_released_lock_cannot_be_yielded(self) -> None:
        with userlock.global_lock("ann") as lock:
            pass
        with pytest.raises(LockNotHeld, match="has been released"):
            lock.yield_to_waiters()

    def test_a_lost_lease_is_taken_again(self, service: LockService, store: MemoryStore) -> None:
        """Another request waits: then the lock is not ours to keep anyway."""
        with userlock.global_lock("ann") as lock:
            service.break_lock("ann")
            dead_waiter(service, "ann")
            new = lock.yield_to_waiters()
            assert new is not lock
            assert service.holder("ann") is not None

    def test_a_forked_child_does_not_yield_its_parents_lock(self, store: MemoryStore) -> None:
        with userlock.global_lock("ann") as lock:

            def try_it() -> None:
                with pytest.raises(LockNotHeld, match="parent process"):
                    lock.yield_to_waiters()

            in_child(try_it)
            assert lock.held


class TestSeveralLocks:
    def test_locks_inside_that_come_after_it_go_with_it(self, service: LockService) -> None:
        with userlock.scope() as scope:
            a, b, c = (userlock.acquire_lock(name).tenure for name in "abc")
            dead_waiter(service, "b")
            new = b.yield_to_waiters()
            assert a.held
            assert (b.held, c.held) == (False, False)
            assert list(scope.held) == ["a", "b", "c"]
            assert scope.held["b"] is new
            assert c.yield_to_waiters() is scope.held["c"]

    def test_locks_inside_that_come_before_it_stay(self, service: LockService) -> None:
        """Taking it back is in order then."""
        with userlock.scope() as scope:
            b, a, c = (userlock.acquire_lock(name).tenure for name in "bac")
            dead_waiter(service, "b")
            b.yield_to_waiters()
            assert a.held
            assert not c.held
            assert list(scope.held) == ["a", "b", "c"]

    def test_scopes_inside(self, service: LockService) -> None:
        with userlock.global_lock("a") as a, userlock.scope(), userlock.global_lock("b") as b:
            dead_waiter(service, "a")
            new = a.yield_to_waiters()
            assert not b.held
            assert existing(current_scope()).held["b"].held
            assert new._scope is a._scope
        assert (service.holder("a"), service.holder("b")) == (None, None)

    def test_locks_of_another_service_stay(self, service: LockService, clock: ManualClock) -> None:
        other = LockService(MemoryStore(clock=clock), clock=clock)
        with userlock.global_lock("a") as a, userlock.scope(other), userlock.global_lock("b") as b:
            dead_waiter(service, "a")
            a.yield_to_waiters()
            assert b.held

    def test_if_one_of_those_inside_has_to_stay_all_do(
        self, service: LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a transaction that has begun since."""

        keeper = Writes()
        keeper.keeps = ["b"]
        with userlock.scope():
            a, b = (userlock.acquire_lock(name).tenure for name in "ab")
            dead_waiter(service, "a")
            monkeypatch.setattr("userlock.lock.scope.participants", [keeper])
            assert a.yield_to_waiters() is a
            assert (a.held, b.held) == (True, True)

    def test_another_thread_may_yield_for_the_one_that_has_it(self, service: LockService) -> None:
        """It enters the lock again afterwards without waiting for itself."""
        with userlock.scope() as scope:
            a = userlock.acquire_lock("a").tenure
            dead_waiter(service, "a")
            in_a_thread(lambda: a.yield_to_waiters())
            assert not a.held
            with userlock.global_lock("a", wait_timeout=0) as again:
                assert again is scope.held["a"]

    def test_all_are_taken_back_or_none(self, service: LockService, clock: ManualClock) -> None:
        with userlock.scope() as scope:
            a, b = (userlock.acquire_lock(name).tenure for name in "ab")
            dead_waiter(service, "a")
            token = dead_waiter(service, "b")
            clock.after(0.0001, lambda: snatch(service, "b", token))
            with pytest.raises(LockTimeout):
                a.yield_to_waiters(wait_timeout=1)
            assert scope.held == {}
            assert (a.held, b.held) == (False, False)
        assert service.holder("a") is None

    def test_a_checkpoint_under_global_locks(self, world: World) -> None:
        """Requests wait for one lock, or for all; each of them passes, and there is no deadlock."""
        served: list[list[bool]] = []

        def job() -> None:
            with (
                userlock.scope(process.service, priority="batch"),
                userlock.global_locks(["c", "a", "b"]) as locks,
            ):
                tenures: list[HeldLock] = list(locks)
                for _ in range(4):
                    process.clock.sleep(0.1)
                    tenures = [lock.yield_to_waiters() for lock in tenures]
                    served.append([rival.served for rival in rivals])
                assert [tenure.held for tenure in tenures] == [True] * 3

        process = world.process("host/batch")
        actor = world.spawn(process, "job", job)
        rivals = [
            Rival(world, "host/1", [Step("b", after=0.05)]),
            Rival(world, "host/2", [Step("a", after=0.15), Step("c")]),
            Rival(world, "host/3", [Step("c", after=0.45)]),
        ]
        world.pass_time(20, until=lambda: actor.finished)
        assert served == [
            [True, False, False],
            [True, True, False],
            [True, True, False],
            [True, True, True],
        ]

    def test_if_later_locks_were_kept_an_interactive_request_could_be_refused(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reason why they are not kept."""
        monkeypatch.setattr("userlock.lock.scope.LockScope._taken_after", lambda *args: ())

        def job() -> None:
            with (
                userlock.scope(process.service, priority="batch"),
                userlock.global_locks(["a", "b"]) as (a, _),
            ):
                process.clock.sleep(0.1)
                a.yield_to_waiters()

        process = world.process("host/batch")
        actor = world.spawn(process, "job", job)
        interactive = Rival(world, "host/1", [Step("a", after=0.05), Step("b")])
        world.pass_time(20, until=lambda: actor.finished and interactive.done)
        assert isinstance(interactive.error, DeadlockDetected)
