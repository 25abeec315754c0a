"""Deadlock cycles: the member that detects and ends one, and situations that only resemble one."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

import userlock
from tests.simulation.rivals import Step, chain, run
from tests.simulation.world import World
from tests.unit.lock.test_deadlock_notes import note_of
from userlock import DeadlockDetected, LockService, LockTimeout
from userlock.events import Deadlock, Event
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

#: From the beginning of the last wait to the error: the grace period, with an exact scheduler.
AT_ONCE = 0.011


@pytest.fixture
def undetected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.lock.scope._Holding", lambda *args: ())


class TestCycles:
    @pytest.mark.parametrize("names", ["ab", "abcd", "cab"])
    def test_the_youngest_gets_the_error_at_once_and_the_others_their_locks(
        self, world: World, names: str
    ) -> None:
        rivals = chain(world, names)
        run(world, *rivals)
        *others, youngest = rivals
        assert isinstance(youngest.error, DeadlockDetected)
        assert youngest.failed_at - youngest.waits_from <= AT_ONCE
        assert [rival.error for rival in others] == [None] * len(others)
        assert all(rival.served for rival in others)

    def test_without_the_detection_the_wait_has_to_time_out(
        self, world: World, undetected: None
    ) -> None:
        rivals = chain(world, "abc", wait_timeout=5.0)
        run(world, *rivals)
        assert isinstance(rivals[0].error, LockTimeout), "the first to wait is the first to end"
        assert rivals[0].failed_at - rivals[0].waits_from == pytest.approx(5)

    def test_the_error_names_the_cycle(self, world: World) -> None:
        events: list[Event] = []
        rivals = chain(world, "abc")
        rivals[-1].process.listeners.add(events.append)
        run(world, *rivals)
        error = rivals[-1].error
        assert isinstance(error, DeadlockDetected)
        assert error.lock_id == "a"
        assert [lock_id for lock_id, _ in error.cycle] == ["a", "b", "c"]
        assert [holder.split(" ")[0] for _, holder in error.cycle] == [
            "host/a",
            "host/b",
            "host/c",
        ]
        assert "'b' is held by host/b" in str(error)
        assert "global_locks" in str(error)
        (deadlock,) = [event for event in events if isinstance(event, Deadlock)]
        assert deadlock.lock_id == "a"
        assert "'c' is held by host/c" in deadlock.cycle

    def test_a_retry_with_held_locks_is_the_youngest_again(self, world: World) -> None:
        rivals = chain(world, "ab")
        stubborn = rivals[1]
        times = []

        def again(error: userlock.LockError) -> None:
            times.append(world.clock.now())
            if len(times) < 3:
                stubborn._take([Step("a", after=0.5)])

        stubborn.refused = again  # type: ignore[method-assign]
        run(world, *rivals)
        assert len(times) == 3
        assert rivals[0].served


@pytest.mark.usefixtures("configured")
class TestOneThread:
    def test_what_an_outer_scope_holds(self, clock: ManualClock, store: MemoryStore) -> None:
        with userlock.global_lock("a"), userlock.scope():
            asked = store.asked.copy()
            with pytest.raises(DeadlockDetected) as caught, userlock.global_lock("a"):
                pass
        assert clock.sleeps == []
        assert [lock_id for lock_id, _ in caught.value.cycle] == ["a"]
        asked.subtract(store.asked)
        assert asked["append"] >= -3, "joins the queue, leaves it; and the release"

    def test_what_another_task_of_the_thread_holds(self, clock: ManualClock) -> None:
        """It cannot continue and release the lock while this one blocks the thread."""
        errors: list[userlock.EventLoopBlocked] = []

        async def work() -> None:
            try:
                with userlock.global_lock("a", wait_timeout=5):
                    await asyncio.sleep(0)
            except userlock.EventLoopBlocked as error:
                errors.append(error)

        async def both() -> None:
            with userlock.scope():
                await asyncio.gather(work(), work())

        asyncio.run(both())
        assert len(errors) == 1
        assert clock.sleeps == []

    def test_not_what_another_thread_holds_in_the_same_scope(self) -> None:
        """It continues by itself, and releases the lock."""
        real = LockService(MemoryStore())
        holds, may_end = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def hold() -> None:
            with userlock.global_lock("a"):
                holds.set()
                may_end.wait(10)

        def wait() -> None:
            try:
                with userlock.global_lock("b"), userlock.global_lock("a"):
                    pass
            except BaseException as error:
                errors.append(error)

        with userlock.scope(real):
            first = threading.Thread(target=contextvars.copy_context().run, args=(hold,))
            first.start()
            assert holds.wait(10)
            second = threading.Thread(target=contextvars.copy_context().run, args=(wait,))
            second.start()
            while note_of(real, "b") is None:  # it has checked for a cycle
                assert second.is_alive()
            may_end.set()
            first.join()
            second.join()
        assert errors == []

    def test_a_wait_of_zero_is_a_try(self, clock: ManualClock) -> None:
        with (
            userlock.global_lock("a"),
            userlock.scope(),
            pytest.raises(LockTimeout),
            userlock.global_lock("a", wait_timeout=0),
        ):
            pass
