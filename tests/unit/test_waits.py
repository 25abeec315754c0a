"""The two places to wait, and sections that reach their end in spite of a cancellation."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from userlock.lock.breaker import CircuitBreaker
from userlock.stores import MemoryStore
from userlock.stores.redis.google_tokens import GoogleTokens
from userlock.testing import ManualClock
from userlock.waits import Bell, finish, locked, ready, run, task_loop


async def _plain(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await function()


@pytest.mark.parametrize(("section", "ended"), [(finish, ["begun", "over"]), (_plain, ["begun"])])
@pytest.mark.parametrize("times", [1, 3])
def test_a_section_reaches_its_end(
    section: Callable[..., Coroutine[Any, Any, None]], ended: list[str], times: int
) -> None:
    """However often its task is cancelled; then the cancellation is raised."""
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        await Bell().sleep(0.05)
        seen.append("over")

    async def main() -> None:
        task = asyncio.create_task(section(work))
        for _ in range(times):
            await asyncio.sleep(0.005)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ended


def test_a_section_goes_on_although_each_iteration_of_the_loop_cancels_it() -> None:
    """As anyio does: the loop sees the socket after the cancellation, each time."""
    reader, writer = socket.socketpair()

    async def read() -> None:
        await ready(asyncio.get_running_loop(), reader.fileno(), 30)

    async def main() -> int:
        task = asyncio.create_task(finish(read))
        await asyncio.sleep(0)
        writer.send(b"x")
        times = 0
        while not task.done() and times < 1000:
            times += task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        return times

    with reader, writer:
        assert asyncio.run(main()) < 1000


@pytest.mark.parametrize("to_write", [False, True], ids=["a reply", "room, the control"])
def test_a_cancelled_task_waits_for_its_reply(to_write: bool) -> None:
    """So that nothing it does afterwards overtakes its command."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    while to_write:
        try:
            reader.send(b"x" * 65_536)
        except BlockingIOError:
            break

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(ready(loop, reader.fileno(), 30, to_write=to_write))
        for _ in range(5):
            await asyncio.sleep(0)
            task.cancel()
        waits = not task.done()
        writer.send(b"x")
        with pytest.raises(asyncio.CancelledError):
            await task
        return waits

    with reader, writer:
        assert asyncio.run(main()) is not to_write


def test_a_section_inside_another_hands_the_cancellation_on() -> None:
    seen: list[str] = []

    async def inner() -> None:
        await Bell().sleep(0.02)

    async def outer() -> None:
        await finish(inner)
        await Bell().sleep(0)
        seen.append("over")

    async def main() -> None:
        task = asyncio.create_task(finish(outer))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["over"]


def test_a_dropped_task_reaches_the_end_by_blocking() -> None:
    seen: list[str] = []

    async def undo() -> None:
        assert task_loop() is None
        await Bell().sleep(0.001)
        seen.append("undone")

    async def work() -> None:
        try:
            await Bell().sleep(60)
        except BaseException:
            await finish(undo)
            raise

    async def main() -> None:
        dropped = work()
        dropped.send(None)
        dropped.close()

    asyncio.run(main())
    assert seen == ["undone"]


def test_another_thread_rings_the_bell_of_a_task() -> None:
    async def main() -> float:
        bell = Bell()
        began = time.monotonic()
        threading.Timer(0.01, bell.ring).start()
        await bell.sleep(60)
        assert bell.rung
        return time.monotonic() - began

    assert asyncio.run(main()) < 30


def test_a_bell_that_rang_before_is_not_waited_for() -> None:
    async def main() -> None:
        bell = Bell()
        bell.stir()
        await bell.sleep(60)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_loop_that_is_late_finds_the_reply_that_came_in_time() -> None:
    """Own congestion is no time-out."""
    here, there = socket.socketpair()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        there.send(b"HD")
        loop.call_soon(time.sleep, 0.05)
        await ready(loop, here.fileno(), 0.01)
        here.recv(10)
        with pytest.raises(TimeoutError):
            await ready(loop, here.fileno(), 0.01)

    with here, there:
        asyncio.run(main())


def test_a_thread_that_blocks_in_an_event_loop_says_so() -> None:
    async def inside() -> bool:
        return task_loop() is None

    async def main() -> tuple[bool, bool]:
        return run(inside), await inside()

    assert asyncio.run(main()) == (True, False)


def test_a_mutex_is_free_after_an_error() -> None:
    mutex = threading.Lock()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        locked(mutex, fail)
    assert not mutex.locked()


# --- code that runs inside of other code --------------------------------------------------------


class Garbage(ManualClock):
    """A clock, and an account of Google's. Calls `collected` once, within a call, as the garbage
    collector may: an object's end releases a lock."""

    token, expiry = "", None
    collected: Callable[[], object] | None = None

    def now(self) -> float:
        collected, self.collected = self.collected, None
        if collected is not None:
            collected()
        return super().now()

    def refresh(self, request: object) -> None:
        self.now()
        self.token = "token"


def release(garbage: Garbage) -> object:
    store = MemoryStore(clock=garbage)
    store.create("ann", b"record", 60)
    garbage.collected = lambda: store.remove("bob", 1)
    return store.read("ann")


def fail_to_answer(garbage: Garbage) -> object:
    breaker = CircuitBreaker(garbage)
    fail = functools.partial(breaker.failed, cost_seconds=0.1, reason="down")
    garbage.collected = fail
    return fail() is None and breaker.reason


def sign_in(garbage: Garbage) -> object:
    tokens = GoogleTokens(garbage)
    garbage.collected = tokens.get_credentials
    return tokens.get_credentials()


@pytest.mark.parametrize("call", [release, fail_to_answer, sign_in])
def test_the_garbage_collector_may_release_a_lock_at_any_time(
    call: Callable[[Garbage], object],
) -> None:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(call(Garbage())), daemon=True)
    thread.start()
    thread.join(10)
    assert answers
    assert answers[0]
