"""`async with`: the event loop goes on, and a cancelled task leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar
from unittest import mock

import pytest

import userlock
from tests.waiting import until, wait_until
from userlock import EventLoopBlocked, LockService, LockTimeout
from userlock.events import Listeners
from userlock.lock.policy import LockPolicy, Polling, PriorityPolicy
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore

_T = TypeVar("_T")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(autouse=True)
def service(store: MemoryStore) -> LockService:
    service = LockService(store, listeners=Listeners(), random=Random(1))
    userlock.configure(service=service)
    return service


def run(work: Coroutine[Any, Any, _T], seconds: float = 60) -> _T:
    return asyncio.run(asyncio.wait_for(work, seconds))


def queued(service: LockService, number: int = 1, lock_id: str = "ann") -> Callable[[], bool]:
    return lambda: len(service.waiters(lock_id)) == number


class TestUse:
    async def test_it_is_entered_again(self, service: LockService) -> None:
        block = userlock.global_lock("ann", wait_timeout=1)
        async with block as outer, block as inner:
            assert inner is outer
            with block as third:
                assert third is outer
        assert service.holder("ann") is None

    def test_a_coroutine_is_decorated(self, service: LockService) -> None:
        @userlock.global_lock("ann")
        async def work(name: str) -> str:
            await asyncio.sleep(0)
            assert service.holder("ann") is not None
            return name

        assert run(work("x")) == "x"
        assert service.holder("ann") is None

    async def test_several_locks(self, service: LockService) -> None:
        async with userlock.global_locks(["b", "a"]) as locks:
            assert [lock.lock_id for lock in locks] == ["a", "b"]
            assert service.holder("b") is not None
        assert service.holder("a") is None
        assert service.holder("b") is None
        assert current_scope() is None

    async def test_a_stack_enters_a_block_for_which_another_task_waits(
        self, service: LockService
    ) -> None:
        block = userlock.global_locks(["a", "b"], wait_timeout=30)
        counts = [0]

        async def count() -> None:
            before = counts[0]
            await asyncio.sleep(0.001)
            counts[0] = before + 1

        async def by_statement() -> None:
            async with block:
                await count()

        async def by_stack() -> None:
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(block)
                await count()

        lease = service.acquire("a")
        tasks = [asyncio.create_task(each()) for each in (by_statement, by_stack)]
        await until(queued(service, 2, "a"))
        service.release(lease)
        await asyncio.gather(*tasks)
        assert counts == [2]
        assert [each for each in "ab" if service.store.read(each)] == []

    async def test_several_locks_of_which_one_is_held(self, service: LockService) -> None:
        service.acquire("b")
        with pytest.raises(LockTimeout, match="'b' was not free") as caught:
            async with userlock.global_locks(["a", "b"], wait_timeout=0.05):
                pass
        assert caught.value.waited_seconds >= 0.05
        assert service.holder("a") is None
        assert current_scope() is None


async def _enter(
    lock_id: str = "ann",
    inside: Callable[[], object] = lambda: None,
    wait_timeout: float = 30,
) -> None:
    async with userlock.global_lock(lock_id, wait_timeout=wait_timeout):
        inside()
        await asyncio.sleep(0)


class TestABlockingWait:
    async def test_it_raises(self, service: LockService) -> None:

        async def other() -> None:
            with (
                pytest.raises(EventLoopBlocked, match=r"use `async with userlock.global_lock"),
                userlock.global_lock("ann"),
            ):
                pass

        async with userlock.global_lock("ann"):
            await asyncio.create_task(other())
        assert service.store.read("ann") is None

    async def test_a_free_lock_is_taken(self, service: LockService) -> None:
        with userlock.global_lock("ann"), userlock.global_locks(["b", "c"]):
            await asyncio.sleep(0)

    async def test_a_free_lock_whose_record_is_there_is_taken(self, service: LockService) -> None:
        service.acquire("ann")
        service.break_lock("ann", by="op")
        assert service.store.read("ann") is not None
        with userlock.global_lock("ann"):
            await asyncio.sleep(0)
        assert service.store.read("ann") is None

    async def test_one_try_is_no_wait(self, service: LockService) -> None:
        service.acquire("ann")
        with pytest.raises(LockTimeout), userlock.global_lock("ann", wait_timeout=0):
            pass

    async def test_to_yield_is_to_wait(self, service: LockService) -> None:
        async with userlock.global_lock("ann", priority="batch") as lock:
            waiting = asyncio.create_task(_enter())
            await until(queued(service))
            with pytest.raises(EventLoopBlocked):
                lock.yield_to_waiters()
            assert lock.held
            await asyncio.to_thread(lock.yield_to_waiters)
        await waiting

    @pytest.mark.parametrize("lock_ids", [["ann"], ["ann", "ben"]])
    async def test_a_waiter_that_shares_the_scope_does_not_end_it(
        self, service: LockService, lock_ids: list[str]
    ) -> None:
        """While the lock is yielded, the scope holds nothing; its block is not over."""
        async with userlock.global_locks(lock_ids, priority="batch") as (lock, *_):
            scope = current_scope()
            waiting = asyncio.create_task(_enter())
            await until(queued(service))
            await asyncio.to_thread(lock.yield_to_waiters)
            await waiting
            assert current_scope() is scope
            assert scope is not None
            assert not scope._is_over
            assert set(scope.held) == {*lock_ids}
            async with userlock.global_lock("ann", wait_timeout=0):
                pass
        assert current_scope() is None
        assert all(service.holder(each) is None for each in lock_ids)


class TestCancelled:
    async def test_the_next_poll_is_not_waited_for(self, store: MemoryStore) -> None:
        seldom = PriorityPolicy(polling=Polling(least_seconds=5.0, most_seconds=5.0))
        service = LockService(
            store, policy=LockPolicy(interactive=seldom), listeners=Listeners(), random=Random(1)
        )
        userlock.configure(service=service)
        service.acquire("ann")
        waiting = asyncio.create_task(_enter())
        await until(queued(service))
        waiting.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - began < 2

    @pytest.mark.parametrize("place", ["in the queue", "inside"])
    @pytest.mark.parametrize("how", ["a group that fails", "a time limit"])
    @pytest.mark.parametrize("works", [True, False], ids=["", "control"])
    async def test_by_structured_concurrency(
        self,
        service: LockService,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
        how: str,
        works: bool,
    ) -> None:
        """With the negative control: nothing is undone, and nothing released."""
        if not works:
            monkeypatch.setattr(LockService, "undo", mock.AsyncMock())
            monkeypatch.setattr(LockService, "released", mock.AsyncMock())

        def there() -> object:
            return service.waiters("ann") if place == "in the queue" else service.holder("ann")

        async def use() -> None:
            async with userlock.global_lock("ann", wait_timeout=30):
                await asyncio.Event().wait()

        async def fail() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(use())
                await until(there)
                raise KeyError

        async def limit() -> None:
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                group.create_task(end(limit))
                await use()

        async def end(limit: asyncio.Timeout) -> None:
            await until(there)
            limit.reschedule(0)

        lease = service.acquire("ann") if place == "in the queue" else None
        with pytest.raises((TimeoutError, ExceptionGroup)):
            await (fail() if how == "a group that fails" else limit())
        left = service.waiters("ann") if lease is not None else service.holder("ann")
        assert bool(left) != works
        assert current_scope() is None
        if lease is not None and works:
            service.release(lease)
        assert (service.store.read("ann") is None) == works


class TestClosedLoops:
    def test_a_waiter_of_a_closed_loop_leaves(self, service: LockService) -> None:
        lease = service.acquire("ann")
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(_enter())
        loop.run_until_complete(until(queued(service)))
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        del waiting, loop
        gc.collect()
        wait_until(lambda: service.waiters("ann") == [])
        service.release(lease)
        assert service.store.read("ann") is None

    def test_a_holder_that_never_ran_to_its_end(self, service: LockService) -> None:
        async def hold() -> None:
            async with userlock.global_lock("ann"):
                await asyncio.Event().wait()

        loop = asyncio.new_event_loop()
        holder = loop.create_task(hold())
        loop.run_until_complete(until(lambda: service.holder("ann")))
        holder._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        del holder, loop
        gc.collect()
        assert service.store.read("ann") is None


async def test_a_task_that_is_dropped_leaves_the_queue(service: LockService) -> None:
    lease = service.acquire("ann")
    dropped = _enter()
    dropped.send(None)
    await until(queued(service))
    dropped.close()
    await until(lambda: service.waiters("ann") == [], 5)
    service.release(lease)
    assert service.store.read("ann") is None


class TestScopes:
    async def test_a_thread_inside_keeps_its_lock_when_the_scope_ends(
        self, service: LockService
    ) -> None:
        """As after a time limit of the request: the thread cannot be stopped."""
        inside, may_end = threading.Event(), threading.Event()
        held: list[bool] = []

        def save() -> None:
            with userlock.global_lock("ann") as lock:
                inside.set()
                assert may_end.wait(30)
                held.append(lock.held)

        with userlock.scope():
            saving = asyncio.create_task(asyncio.to_thread(save))
            await until(inside.is_set)
            userlock.acquire_lock("bob")
        assert service.holder("ann") is not None
        assert service.holder("bob") is None
        may_end.set()
        await saving
        assert held == [True]
        assert service.store.read("ann") is None

    async def test_what_it_acquires_inside_is_released_with_its_block(
        self, service: LockService
    ) -> None:
        """The scope, which would have released it, has ended before."""
        inside, may_end = threading.Event(), threading.Event()

        def save() -> None:
            with userlock.global_lock("ann"):
                userlock.acquire_lock("ann")
                inside.set()
                assert may_end.wait(30)

        with userlock.scope():
            saving = asyncio.create_task(asyncio.to_thread(save))
            await until(inside.is_set)
        assert service.holder("ann") is not None
        may_end.set()
        await saving
        assert service.store.read("ann") is None

    async def test_a_task_that_outlives_its_scope(self, service: LockService) -> None:
        async def section() -> None:
            async with userlock.global_lock("ann") as lock:
                await asyncio.sleep(0.05)
                assert lock.held

        with userlock.scope():
            task = asyncio.create_task(section())
            await until(lambda: service.holder("ann"))
        await task
        assert service.store.read("ann") is None


class TestCrowds:
    """Crowds with random cancellation: tests/faults/test_async_crowds.py."""

    async def test_tasks_and_threads(self, service: LockService) -> None:
        counts = [0]

        def count() -> None:
            counts[0] += 1

        def in_a_thread() -> None:
            for _ in range(20):
                with userlock.global_lock("ann", wait_timeout=30):
                    count()

        threads = [asyncio.to_thread(in_a_thread) for _ in range(3)]
        await asyncio.gather(*(_enter("ann", count) for _ in range(50)), *threads)
        assert counts == [110]

    async def test_a_scope_around_is_no_lock(self, service: LockService) -> None:
        """A process queues a part of its crowd, but for those that have other locks."""
        held = service.acquire("ann")
        with userlock.scope(), userlock.scope():
            tasks = [asyncio.create_task(_enter("ann")) for _ in range(80)]
            await until(queued(service, 67))
            await until(lambda: len(service.local_waiters.crowds["ann"].outside) == 13)
            service.release(held)
            await asyncio.gather(*tasks)


class TestDeadlocks:
    async def test_between_two_tasks(self, service: LockService) -> None:
        errors: list[userlock.DeadlockDetected] = []

        async def take(first: str, second: str) -> None:
            try:
                async with userlock.global_lock(first):
                    await until(lambda: service.holder("a") and service.holder("b"))
                    async with userlock.global_lock(second, wait_timeout=30):
                        pass
            except userlock.DeadlockDetected as error:
                errors.append(error)

        await asyncio.gather(take("a", "b"), take("b", "a"))
        assert len(errors) == 1

    async def test_not_what_another_task_holds_in_the_same_scope(
        self, service: LockService
    ) -> None:
        with userlock.scope():
            await asyncio.gather(*(_enter() for _ in range(5)))


class TestTenThousand:
    MOST_BYTES = 10_000
    #: For all of them together: caches, and tables that grow.
    MOST_SHARED_BYTES = 100_000

    @pytest.mark.parametrize(
        ("tasks", "locks"),
        [
            (1000, 1000),
            *(
                pytest.param(10_000, locks, marks=[pytest.mark.slow, pytest.mark.timeout(900)])
                for locks in (1, 10_000)
            ),
        ],
    )
    def test_they_cost_no_thread_and_little_memory(
        self, service: LockService, tasks: int, locks: int
    ) -> None:
        async def work() -> tuple[int, float]:
            leases = [service.acquire(f"learner-{lock}", lock_timeout=600) for lock in range(locks)]
            with contextlib.suppress(LockTimeout):  # modules are imported with the first wait
                await _enter("learner-0", wait_timeout=0.01)
            threads = threading.active_count()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            waiters = [
                asyncio.create_task(_enter(f"learner-{number % locks}", wait_timeout=600))
                for number in range(tasks)
            ]
            await until(lambda: waiting(service) == tasks, 400)
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            more = threading.active_count() - threads
            for task in waiters:
                task.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
            for lease in leases:
                service.release(lease)
            return more, (after - before - self.MOST_SHARED_BYTES) / tasks

        more, size = run(work(), 800)
        assert more == 0
        assert size <= self.MOST_BYTES
        assert waiting(service) == 0
        assert service.store.read("learner-0") is None

    def test_without_wake_ups_each_of_them_polls(self) -> None:
        store, number = MemoryStore(wakes=False), 110
        service = LockService(store, listeners=Listeners(), random=Random(1))
        userlock.configure(service=service)

        async def work() -> None:
            leases = [service.acquire(f"learner-{lock}") for lock in range(number)]
            waiters = [
                asyncio.create_task(_enter(lease.lock_id, wait_timeout=60)) for lease in leases
            ]
            await until(lambda: waiting(service) == number)
            before = store.asked["read"]
            await until(lambda: store.asked["read"] > before + 2 * number)
            for lease in leases:
                service.release(lease)
            await asyncio.gather(*waiters)

        run(work(), 30)


def waiting(service: LockService) -> int:
    """Return the number of callers of this process that wait."""
    crowds = service.local_waiters.crowds.values()
    places = ("bells", "outside", "outside_batch")
    return sum(len(getattr(crowd, place)) for crowd in crowds for place in places)
