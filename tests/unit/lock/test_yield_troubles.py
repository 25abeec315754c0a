"""The function `yield_to_waiters` with several locks, and when the lock does not come back."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Callable

import pytest

import userlock
from tests.forks import in_child
from tests.leases import dead_waiter
from tests.simulation.rivals import Rival, Step
from tests.simulation.world import World
from tests.unit.lock.writes import Writes
from userlock import DeadlockDetected, HeldLock, LockNotHeld, LockService, LockTimeout
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

pytestmark = pytest.mark.usefixtures("configured")


def in_a_thread(work: Callable[[], object]) -> None:
    """Run it in another thread that shares the scope."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    thread.join()


def snatch(service: LockService, lock_id: str, token: str) -> None:
    """Let the interactive request take its turn after all, and keep the lock for long."""
    claim = make_claim(lock_id)
    claim = dataclasses.replace(claim, token=token, ttl_seconds=1000)
    record = service.look(lock_id)
    assert record is not None
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

    def test_blocks_without_a_scope_of_their_own_end_theirs(
        self, service: LockService, clock: ManualClock
    ) -> None:
        def work() -> None:
            with userlock.global_lock("ann") as lock, userlock.global_lock("ann"):
                self.person_keeps(service, clock, "ann")
                lock.yield_to_waiters(wait_timeout=1)

        with pytest.raises(LockTimeout):
            work()
        assert current_scope() is None
        with userlock.global_lock("bob"):
            assert current_scope() is not None
        assert current_scope() is None

    def test_a_block_may_go_on_with_other_locks(
        self, service: LockService, clock: ManualClock
    ) -> None:
        with userlock.global_lock("ann") as lock:
            self.person_keeps(service, clock, "ann")
            with pytest.raises(LockTimeout):
                lock.yield_to_waiters(wait_timeout=1)
            with userlock.global_lock("bob"):
                assert service.holder("bob") is not None
        assert service.holder("bob") is None
        assert current_scope() is None

    def test_an_interrupt(self, service: LockService, clock: ManualClock) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

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
            inside = current_scope()
            assert inside is not None
            assert inside.held["b"].held
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
