"""A thread waits for a lock on behalf of a task (`asyncio.to_thread`), and the task goes on.

The thread cannot be cancelled. It must not keep a lock that nobody would leave.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

import pytest

import userlock
from userlock import LockNotHeld, LockService, NoScope
from userlock.events import Listeners
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import LockScope, current_scope
from userlock.stores import MemoryStore


@pytest.fixture(autouse=True)
def service() -> LockService:
    service = LockService(MemoryStore(), listeners=Listeners(), random=Random(1))
    userlock.configure(service=service)
    return service


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class TestYielding:
    """The task leaves its block while the thread waits to take the lock back."""

    async def _work(self, service: LockService, *, in_scope: bool) -> list[LockNotHeld]:
        errors: list[LockNotHeld] = []
        go_on = asyncio.Event()

        def let_others_pass(lock: HeldLock) -> None:
            try:
                lock.yield_to_waiters()
            except LockNotHeld as error:
                errors.append(error)

        async def batch() -> None:
            async with userlock.global_locks(["ann", "ben"], priority="batch") as (lock, _):
                await go_on.wait()
                await asyncio.to_thread(let_others_pass, lock)

        with userlock.scope() if in_scope else contextlib.nullcontext():
            task = asyncio.create_task(batch())
            await until(lambda: service.holder("ben"))
            other = asyncio.create_task(asyncio.to_thread(service.acquire, "ann"))
            await until(lambda: service.waiters("ann"))
            go_on.set()
            lease = await other
            await until(lambda: service.waiters("ann"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            service.release(lease)
            await asyncio.get_running_loop().shutdown_default_executor()
            held = [each for each in ("ann", "ben") if service.holder(each)]
            assert held == [], "a lock stayed behind"
        return errors

    @pytest.mark.parametrize("in_scope", [False, True])
    def test_the_lock_is_not_taken_back(self, service: LockService, in_scope: bool) -> None:
        [error] = asyncio.run(self._work(service, in_scope=in_scope))
        assert str(error) == "lock 'ann' was left while it was yielded"
        assert current_scope() is None

    def test_otherwise_it_would_stay(
        self, service: LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(HeldLock, "entered", True)
        with pytest.raises(AssertionError, match="a lock stayed behind"):
            asyncio.run(self._work(service, in_scope=True))


class TestAcquireLock:
    @pytest.mark.parametrize(
        "around", [userlock.scope, lambda: userlock.global_lock("ben")], ids=["scope", "block"]
    )
    def test_the_scope_has_ended(
        self, service: LockService, around: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> None:
        asyncio.run(self._work(service, around))
        assert service.store.read("ann") is None

    def test_otherwise_it_would_stay(
        self, service: LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(LockScope, "_ended", False)
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            asyncio.run(self._work(service, userlock.scope))
        assert service.holder("ann") is not None

    async def _work(
        self,
        service: LockService,
        around: Callable[[], contextlib.AbstractContextManager[object]],
    ) -> None:
        lease = service.acquire("ann")
        with around():
            waiting = asyncio.create_task(asyncio.to_thread(userlock.acquire_lock, "ann"))
            await until(lambda: service.waiters("ann"))
        service.release(lease)
        with pytest.raises(NoScope, match="'ann' cannot be taken in a scope that has ended"):
            await waiting

    def test_the_scope_ends_at_that_moment(
        self, service: LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It releases its locks when the thread has the lock, and has not said so yet."""
        taken = service.acquire

        async def work() -> None:
            with userlock.scope() as scope:

                def take(*args: object, **kwargs: object) -> object:
                    lease = taken(*args, **kwargs)  # type: ignore[arg-type]
                    scope.close()
                    return lease

                monkeypatch.setattr(service, "acquire", take)
                with pytest.raises(NoScope):
                    await asyncio.to_thread(userlock.acquire_lock, "ann")

        asyncio.run(work())
        assert service.store.read("ann") is None
