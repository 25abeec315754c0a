"""The threads that wait and release on behalf of tasks: idle ones, and none left."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import time
import weakref

import pytest

import userlock
from tests.waiting import until, wait_until
from userlock import LockService, LockTimeout
from userlock.events import Event, Listeners, TimedOut
from userlock.lock import tasks
from userlock.lock.lease import Lease
from userlock.stores import MemoryStore


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture(autouse=True)
def service(events: list[Event]) -> LockService:
    service = LockService(MemoryStore(), listeners=Listeners([events.append]))
    userlock.configure(service=service)
    return service


async def enter(lock_id: str, wait_timeout: float | None = None) -> None:
    async with userlock.global_lock(lock_id, wait_timeout=wait_timeout):
        pass


def test_there_are_no_more_than_may_be() -> None:
    threads = tasks.Threads("bounded", 50)
    done = [threads.submit(threading.get_ident) for _ in range(2000)]
    assert len({each.result() for each in done}) <= 50


def test_a_thread_that_stands_idle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone: of several, Python 3.11 may leave some in `SimpleQueue.get` beyond its timeout."""
    monkeypatch.setattr(tasks, "_IDLE_SECONDS", 0.01)
    threads = tasks.Threads("idle", 1)
    thread = threads.submit(threading.current_thread).result()
    thread.join()
    assert threads.submit(threading.current_thread).result() is not thread


def test_a_thread_lets_go_of_its_calls(service: LockService) -> None:
    """The first one, too: it refers to the request."""
    for _ in range(2):
        request = asyncio.run(_a_request())
        gc.collect()
        assert request() is None


class _Request:
    """The request of a task."""


_request = contextvars.ContextVar[_Request]("request")


async def _a_request() -> weakref.ref[_Request]:
    async def work() -> weakref.ref[_Request]:
        _request.set(_Request())
        await enter("ann")
        return weakref.ref(_request.get())

    return await asyncio.create_task(work())


# --- the system refuses to begin one ---------------------------------------------------------


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_lock_is_released(service: LockService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks._threads, "releasing", tasks.Threads("none", 1))

    async def work() -> None:
        async with userlock.global_lock("ann"):
            monkeypatch.setattr(threading.Thread, "start", _refuse)
        assert service.holder("ann") is None

    asyncio.run(work())


def test_the_others_make_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, begun, go_on = tasks.Threads("some", 5), threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        assert go_on.wait(30)
        return 1

    waiting = [threads.submit(first)]
    assert begun.wait(30)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        waiting.append(threads.submit(lambda: 2))
    go_on.set()
    assert [each.result(30) for each in waiting] == [1, 2]


def test_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = tasks.Threads("none", 5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: 1)
    assert threads.submit(lambda: 2).result(30) == 2


def test_a_call_is_not_lost_to_an_interrupt(
    service: LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives when the thread has begun, and nothing has its result."""
    monkeypatch.setattr(tasks._threads, "waiting", tasks.Threads("none", 1))
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    async def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await enter("ann")
        await until(lambda: tasks._threads.waiting._free == 1)
        assert service.store.read("ann") is None
        await enter("ann")

    asyncio.run(work())


@pytest.mark.parametrize("holding", [False, True])
def test_a_free_lock_is_taken_beside_a_waiter(
    service: LockService, monkeypatch: pytest.MonkeyPatch, holding: bool
) -> None:
    """The system refuses the second thread."""
    monkeypatch.setattr(tasks._threads, "waiting", tasks.Threads("few", 100))
    monkeypatch.setattr(tasks._threads, "trying", tasks.Threads("none", 100))

    async def work() -> None:
        lease = service.acquire("ann")
        async with userlock.global_lock("ben") if holding else contextlib.nullcontext():
            waiting = asyncio.create_task(enter("ann"))
            await until(lambda: service.waiters("ann"))
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", _refuse)
                async with userlock.global_lock("cat"):
                    assert not waiting.done()
        service.release(lease)
        await waiting

    asyncio.run(work())


def test_a_waiter_tries_once(service: LockService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks._threads, "waiting", tasks.Threads("none", 1))
    monkeypatch.setattr(tasks._threads, "trying", tasks.Threads("none", 1))

    async def work() -> None:
        lease = service.acquire("ann", request="POST /slow")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            async with userlock.global_lock("ben"):
                assert service.holder("ben")
            with pytest.raises(LockTimeout, match="POST /slow") as caught:
                await enter("ann")
            assert "no thread was free" in caught.value.__notes__[0]
            with pytest.raises(LockTimeout) as caught:
                async with userlock.global_locks(["ann", "ben"]):
                    pass
            assert "no thread was free" in caught.value.__notes__[0]
        service.release(lease)

    asyncio.run(work())
    assert service.store.read("ann") is service.store.read("ben") is None


# --- as many wait as may wait ----------------------------------------------------------------


class _OneThread:
    """Threads of which there is one of a kind."""

    def __init__(self) -> None:
        self.waiting, self.releasing, self.trying = (tasks.Threads("one", 1) for _ in range(3))


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> _OneThread:
    threads = _OneThread()
    monkeypatch.setattr(tasks, "_threads", threads)
    return threads


class TestFull:
    """The one thread waits for ann's lock."""

    @pytest.fixture
    def lease(self, service: LockService) -> Lease:
        return service.acquire("ann", request="POST /slow")

    async def waiter(self, service: LockService) -> asyncio.Task[None]:
        task = asyncio.create_task(enter("ann"))
        await until(lambda: service.waiters("ann"))
        return task

    def test_a_free_lock_is_taken(
        self, service: LockService, one_thread: _OneThread, lease: Lease, events: list[Event]
    ) -> None:
        async def work() -> None:
            first = await self.waiter(service)
            began = time.monotonic()
            left = service.acquire("ben")
            async with userlock.global_lock("cat"):
                assert service.holder("cat")
            service.release(left)
            async with userlock.global_locks(["ben", "cat"], wait_timeout=5):
                assert service.holder("ben")
            assert not first.done()
            assert time.monotonic() - began < 4
            service.release(lease)
            await first

        asyncio.run(work())
        assert not [each for each in events if isinstance(each, TimedOut)]

    def test_it_waits_no_longer_than_it_would_for_the_lock(
        self, service: LockService, one_thread: _OneThread, lease: Lease, events: list[Event]
    ) -> None:
        async def work() -> None:
            first = await self.waiter(service)
            began = time.monotonic()
            with pytest.raises(LockTimeout, match="POST /slow") as caught:
                await enter("ann", wait_timeout=0.1)
            assert 0.1 <= caught.value.waited_seconds <= time.monotonic() - began < 5
            assert caught.value.__notes__
            assert not first.done()
            service.release(lease)
            await first

        asyncio.run(work())
        [timed_out] = [each for each in events if isinstance(each, TimedOut)]
        assert timed_out.waited_seconds >= 0.1

    def test_the_time_counts_from_the_call(
        self, service: LockService, one_thread: _OneThread, lease: Lease
    ) -> None:
        other = service.acquire("ben")

        async def work() -> None:
            first = await self.waiter(service)
            second = asyncio.create_task(enter("ben", wait_timeout=1.5))
            await until(lambda: one_thread.waiting._free < 0)
            await asyncio.sleep(1)
            began = time.monotonic()
            service.release(lease)
            await first
            with pytest.raises(LockTimeout) as caught:
                await second
            assert time.monotonic() - began < 1.3
            assert caught.value.waited_seconds >= 1.5
            assert not hasattr(caught.value, "__notes__")

        asyncio.run(work())
        service.release(other)

    def test_a_holder_gets_a_thread(self, service: LockService, one_thread: _OneThread) -> None:
        """The other waits for its lock."""
        assert asyncio.run(self._nested(service, 10)) == "taken"
        wait_until(lambda: one_thread.waiting._all <= 1)

    def test_without_a_thread_it_would_wait_for_those_that_wait_for_it(
        self, service: LockService, one_thread: _OneThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr("userlock.lock.scope.LockScope.holds_any", lambda self: False)
        assert asyncio.run(self._nested(service, 0.5)) == "timed out"

    async def _nested(self, service: LockService, wait_timeout: float) -> str:
        other = service.acquire("ben")

        async def release_the_other() -> None:
            await until(lambda: service.waiters("ben"))
            service.release(other)

        async with userlock.global_lock("ann"):
            first = await self.waiter(service)
            releasing = asyncio.create_task(release_the_other())
            try:
                await enter("ben", wait_timeout)
            except LockTimeout:
                outcome = "timed out"
            else:
                outcome = "taken"
        await first
        releasing.cancel()
        return outcome

    def test_a_task_that_is_cancelled_ends_at_once(
        self, service: LockService, one_thread: _OneThread, lease: Lease
    ) -> None:
        other = service.acquire("ben")

        async def work() -> None:
            first = await self.waiter(service)
            second = asyncio.create_task(enter("ben"))
            await until(lambda: one_thread.waiting._free < 0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert not first.done()
            service.release(lease)
            await first
            assert service.waiters("ben") == []

        asyncio.run(work())
        service.release(other)
        assert service.store.read("ben") is None

    def test_its_block_ends_meanwhile(
        self, service: LockService, one_thread: _OneThread, lease: Lease
    ) -> None:
        """It has begun inside of another task's block, and shares its scope."""
        other = service.acquire("ben")

        async def work() -> None:
            async with userlock.global_lock("cat"):
                first = await self.waiter(service)
                second = asyncio.create_task(enter("ben"))
                await until(lambda: one_thread.waiting._free < 0)
            service.release(other)
            service.release(lease)
            await asyncio.gather(first, second)

        asyncio.run(work())
        assert service.store.read("ben") is None

    def test_a_task_that_is_dropped_does_not_begin(
        self, service: LockService, one_thread: _OneThread, lease: Lease
    ) -> None:
        other = service.acquire("ben")

        async def work() -> None:
            first = await self.waiter(service)
            dropped = asyncio.create_task(enter("ben"))
            await until(lambda: one_thread.waiting._free < 0)
            coroutine = dropped.get_coro()
            assert coroutine is not None
            coroutine.close()
            service.release(lease)
            await first
            await until(lambda: one_thread.waiting._free == 1, 5)
            assert service.waiters("ben") == []
            dropped.cancel()
            with pytest.raises(RuntimeError, match="cannot reuse"):
                await dropped

        asyncio.run(work())
        service.release(other)

    def test_waiters_do_not_keep_a_holder_from_its_release(
        self, service: LockService, one_thread: _OneThread
    ) -> None:
        async def work() -> None:
            await asyncio.gather(*(enter("ann") for _ in range(20)))

        asyncio.run(work())


def test_one_try_does_not_wait_for_its_turn(
    service: LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than threads for tries ask the store at the same time."""
    together, create = threading.Barrier(20), service.store.create

    def at_the_same_time(lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        together.wait(30)
        return create(lock_id, record, ttl_seconds)

    monkeypatch.setattr(service.store, "create", at_the_same_time)

    async def work() -> None:
        await asyncio.gather(*(enter(f"user-{number}", 0) for number in range(20)))

    asyncio.run(work())
