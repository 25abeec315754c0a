"""A thread uses a lock on behalf of a task (`asyncio.to_thread`), and the task goes on without it.

The thread cannot be cancelled. It must not keep a lock that nothing would release.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

import userlock
from tests.waiting import until, wait_until
from userlock import LockNotHeld, LockService, LockTimeout, NoScope
from userlock.events import Event, LeaseLost, Listeners
from userlock.lock import scope as scopes
from userlock.lock.held_lock import HeldLock, participants
from userlock.lock.lease import Lease
from userlock.lock.scope import LockScope, current_scope
from userlock.stores import MemoryStore

Around = Callable[[], contextlib.AbstractContextManager[object]]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture(autouse=True)
def service(events: list[Event]) -> Iterator[LockService]:
    listeners = Listeners([events.append])
    service = LockService(MemoryStore(), listeners=listeners, random=Random(1))
    userlock.configure(service=service)
    yield service
    assert not [event for event in events if isinstance(event, LeaseLost)]


def held(service: LockService) -> list[str]:
    return [each for each in ("ann", "ben", "aaa") if service.holder(each)]


async def other_threads_end() -> None:
    await asyncio.get_running_loop().shutdown_default_executor()


class TestYielding:
    """An interactive caller waits for ann's lock. The task whose thread yields it is cancelled."""

    errors: list[Exception]

    @pytest.fixture(autouse=True)
    def no_errors(self) -> None:
        self.errors = []

    def let_others_pass(self, lock: HeldLock) -> None:
        try:
            lock.yield_to_waiters()
        except Exception as error:
            self.errors.append(error)

    async def batch(self, service: LockService) -> None:
        async with userlock.global_lock("ann", priority="batch") as lock:
            await until(lambda: service.waiters("ann"))
            await asyncio.to_thread(self.let_others_pass, lock)

    async def work(self, service: LockService, around: Around, moment: Pause | None = None) -> None:
        with around():
            task = asyncio.create_task(self.batch(service))
            await until(lambda: service.holder("ann"))
            other = asyncio.create_task(asyncio.to_thread(service.acquire, "ann"))
            if moment is not None:
                await until(moment.come.is_set)
            else:
                await other
                await until(lambda: service.waiters("ann"))  # the thread, to take it back
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if moment is not None:
                moment.over.set()
            service.release(await other)
            await other_threads_end()
            assert held(service) == [], "a lock stayed behind"
        assert current_scope() is None

    def said(self) -> str:
        [error] = self.errors
        assert isinstance(error, LockNotHeld)
        return str(error)

    @pytest.fixture(params=[contextlib.nullcontext, userlock.scope], ids=["implicit", "scope"])
    def around(self, request: pytest.FixtureRequest) -> Around:
        around: Around = request.param
        return around

    def test_while_it_waits(self, service: LockService, around: Around) -> None:
        asyncio.run(self.work(service, around))
        assert self.said() == "lock 'ann' cannot be yielded: it was left meanwhile"

    def test_otherwise_the_lock_would_stay(
        self, service: LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(HeldLock, "entered", True)
        with pytest.raises(AssertionError, match="a lock stayed behind"):
            asyncio.run(self.work(service, userlock.scope))

    @pytest.mark.parametrize("name", ["LockScope._interactive_waits", "_pass"])
    def test_before_it_waits(
        self, service: LockService, around: Around, pause: Callable[[str], Pause], name: str
    ) -> None:
        asyncio.run(self.work(service, around, pause(name)))
        assert "was left meanwhile" in self.said()

    def test_when_it_has_taken_the_lock_back(
        self, service: LockService, pause: Callable[[str], Pause]
    ) -> None:
        moment = pause("LockScope._take_back")

        async def work() -> None:
            task = asyncio.create_task(self.with_one_more(service))
            await until(lambda: service.holder("aaa"))
            service.release(await asyncio.to_thread(service.acquire, "ann"))
            await until(moment.come.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            moment.over.set()
            await other_threads_end()

        asyncio.run(work())
        assert self.errors == []
        assert held(service) == []

    async def with_one_more(self, service: LockService) -> None:
        async with userlock.global_lock("ann", priority="batch") as lock:
            userlock.acquire_lock("aaa")
            await until(lambda: service.waiters("ann"))
            await asyncio.to_thread(self.let_others_pass, lock)

    def test_while_it_waits_for_one_more(self, service: LockService) -> None:
        async def batch() -> None:
            locks = userlock.global_locks(["ann", "ben"], priority="batch")
            async with locks as (lock, _):
                await until(lambda: service.waiters("ann") and service.waiters("ben"))
                await asyncio.to_thread(self.let_others_pass, lock)

        async def work() -> None:
            task = asyncio.create_task(batch())
            await until(lambda: service.holder("ben"))
            ann, ben = (
                asyncio.create_task(asyncio.to_thread(service.acquire, lock_id))
                for lock_id in ("ann", "ben")
            )
            service.release(await ann)
            await until(lambda: ben.done() and service.waiters("ben"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            service.release(await ben)
            await other_threads_end()

        asyncio.run(work())
        assert self.said() == "lock 'ben' cannot be yielded: it was left meanwhile"
        assert held(service) == []

    def test_a_lock_that_only_the_scope_would_release(self, service: LockService) -> None:
        def thread() -> None:
            lock = userlock.acquire_lock("ann", priority="batch").tenure
            wait_until(lambda: service.waiters("ann"))
            self.let_others_pass(lock)

        async def work() -> None:
            with userlock.scope():
                yielding = asyncio.create_task(asyncio.to_thread(thread))
                await until(lambda: service.holder("ann"))
                lease = await asyncio.to_thread(service.acquire, "ann")
                await until(lambda: service.waiters("ann"))
            service.release(lease)
            await yielding

        asyncio.run(work())
        assert "was left meanwhile" in self.said()
        assert held(service) == []

    def test_what_other_tasks_hold_stays(self, service: LockService) -> None:
        async def other_task(inside: asyncio.Event, leave: asyncio.Event) -> None:
            async with userlock.global_lock("ben") as lock:
                inside.set()
                await leave.wait()
                assert lock.held

        async def work() -> None:
            inside, leave = asyncio.Event(), asyncio.Event()
            with userlock.scope():
                async with userlock.global_lock("ann", priority="batch") as lock:
                    task = asyncio.create_task(other_task(inside, leave))
                    await inside.wait()
                    waiting = asyncio.create_task(asyncio.to_thread(service.acquire, "ann"))
                    await until(lambda: service.waiters("ann"))
                    yielding = asyncio.create_task(asyncio.to_thread(lock.yield_to_waiters))
                    service.release(await waiting)
                    assert (await yielding).held
                    leave.set()
                    await task

        asyncio.run(work())
        assert held(service) == []

    def test_a_callback_for_a_loss_may_use_the_scope(
        self, service: LockService, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lock is lost as soon as it has been taken back."""
        seen: list[list[str]] = []
        began = HeldLock.begin_renewal

        def begin(tenure: HeldLock, *, heartbeat: bool) -> None:
            began(tenure, heartbeat=heartbeat)
            tenure.lose("broken by an operator")

        async def work() -> None:
            with userlock.scope() as scope:
                async with userlock.global_lock("ann", priority="batch", heartbeat=True) as lock:
                    lock.on_lost(lambda tenure: seen.append(list(scope.held)))
                    waiting = asyncio.create_task(asyncio.to_thread(service.acquire, "ann"))
                    await until(lambda: service.waiters("ann"))
                    monkeypatch.setattr(HeldLock, "begin_renewal", begin)
                    yielding = asyncio.create_task(asyncio.to_thread(lock.yield_to_waiters))
                    service.release(await waiting)
                    assert (await yielding).lost

        asyncio.run(work())
        assert seen == [["ann"]]
        events.clear()  # it was lost

    def test_callbacks_when_free_are_called(self, service: LockService) -> None:
        """The lock could not be taken back."""
        called: list[str] = []

        async def work() -> Lease:
            async with userlock.global_lock("ann", priority="batch") as lock:
                scope = current_scope()
                assert scope is not None
                scope.when_free(lambda: called.append("free"))
                waiting = asyncio.create_task(asyncio.to_thread(service.acquire, "ann"))
                await until(lambda: service.waiters("ann"))
                with pytest.raises(LockTimeout):
                    await asyncio.to_thread(lock.yield_to_waiters, wait_timeout=0.05)
                return await waiting

        asyncio.run(work())
        assert called == ["free"]


class Pause:
    """A function that waits before or after its work, once."""

    def __init__(self) -> None:
        self.come, self.over = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.come.set()
        assert self.over.wait(30)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Pause]:
    """Return a function that makes one of `scope.py` pause."""

    def pause(name: str) -> Pause:
        moment = Pause()
        owner = LockScope if "." in name else scopes
        last = name.rpartition(".")[2]
        work = getattr(owner, last)

        def slow(*args: object, **kwargs: object) -> object:
            if name == "_pass":
                moment()
            result = work(*args, **kwargs)
            if name != "_pass":
                moment()
            return result

        monkeypatch.setattr(owner, last, slow)
        return moment

    return pause


class TestAcquireLock:
    @pytest.mark.parametrize(
        "around", [userlock.scope, lambda: userlock.global_lock("ben")], ids=["scope", "block"]
    )
    def test_the_scope_has_ended(self, service: LockService, around: Around) -> None:
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

    async def _work(self, service: LockService, around: Around) -> None:
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
                    scope.close(ending=True)
                    return lease

                monkeypatch.setattr(service, "acquire", take)
                with pytest.raises(NoScope):
                    await asyncio.to_thread(userlock.acquire_lock, "ann")

        asyncio.run(work())
        assert service.store.read("ann") is None


class SlowWrites:
    """A participant whose writes take until `landed`."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.begun, self.landed = threading.Event(), threading.Event()

    def leaving(self, tenure: HeldLock) -> None:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.landed.wait(30)

    def holds(self, tenure: HeldLock) -> bool:
        return False

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        raise AssertionError("it holds nothing")


class TestBlocksOfThreads:
    """The request ends. A block in a thread of it goes on."""

    @pytest.fixture
    def writes(self, monkeypatch: pytest.MonkeyPatch) -> SlowWrites:
        writes = SlowWrites()
        monkeypatch.setattr(scopes, "participants", [*participants, writes])
        return writes

    def test_it_enters_its_lock_again_and_yields(self, service: LockService) -> None:
        inside, ended = threading.Event(), threading.Event()
        locks: list[HeldLock] = []

        def thread() -> None:
            with userlock.global_lock("ann", priority="batch") as lock:
                inside.set()
                assert ended.wait(30)
                with userlock.global_lock("ann", wait_timeout=0) as again:
                    assert again is lock
                other = threading.Thread(target=interactive)
                other.start()
                wait_until(lambda: service.waiters("ann"))
                locks.append(lock.yield_to_waiters())
                other.join()
                assert locks[0].held
                with pytest.raises(NoScope):
                    userlock.acquire_lock("ben")
            assert current_scope() is None

        def interactive() -> None:
            service.release(service.acquire("ann"))

        async def work() -> None:
            with userlock.scope():
                task = asyncio.create_task(asyncio.to_thread(thread))
                await until(inside.is_set)
            ended.set()
            await task

        asyncio.run(work())
        assert held(service) == []

    def test_it_is_left_once(self, service: LockService, writes: SlowWrites) -> None:
        """The scope ends while the block waits for its writes."""

        def thread() -> None:
            with userlock.global_lock("ann") as lock:
                lock.notes["a write"] = 1

        async def work() -> None:
            with userlock.scope():
                task = asyncio.create_task(asyncio.to_thread(thread))
                await until(writes.begun.is_set)
            writes.landed.set()
            await task

        asyncio.run(work())
        assert len(writes.threads) == 1
        assert held(service) == []

    def test_a_lock_that_is_being_released_is_not_entered_again(
        self, service: LockService, writes: SlowWrites
    ) -> None:
        taken = threading.Event()
        seen: list[bool] = []

        def thread() -> None:
            userlock.acquire_lock("ann").tenure.notes["a write"] = 1
            taken.set()
            assert writes.begun.wait(30)
            threading.Timer(0.05, writes.landed.set).start()
            with userlock.global_lock("ann") as lock:
                wait_until(lambda: len(writes.threads) == 1 and closed.is_set())
                seen.append(lock.held)

        closed = threading.Event()

        async def work() -> None:
            with userlock.scope() as scope:
                task = asyncio.create_task(asyncio.to_thread(thread))
                await until(taken.is_set)
                await asyncio.to_thread(scope.close)
                closed.set()
            await task

        asyncio.run(work())
        assert seen == [True]
        assert held(service) == []

    def test_what_acquire_lock_entered_is_released_with_the_block(
        self, service: LockService
    ) -> None:
        inside, ended = threading.Event(), threading.Event()

        def thread() -> None:
            with userlock.global_lock("ann"):
                userlock.acquire_lock("ann")
                inside.set()
                assert ended.wait(30)

        async def work() -> None:
            with userlock.scope():
                task = asyncio.create_task(asyncio.to_thread(thread))
                await until(inside.is_set)
            assert service.holder("ann") is not None
            ended.set()
            await task

        asyncio.run(work())
        assert held(service) == []

    def test_it_begins_when_the_block_around_it_has_ended(self, service: LockService) -> None:
        def thread() -> None:
            with userlock.global_lock("ben"):
                assert userlock.acquire_lock("ann").tenure.held
            assert current_scope() is None

        async def work() -> None:
            lease = service.acquire("ben")
            async with userlock.global_lock("aaa"):
                task = asyncio.create_task(asyncio.to_thread(thread))
                await until(lambda: service.waiters("ben"))
            service.release(lease)
            await task

        asyncio.run(work())
        assert held(service) == []

    def test_it_begins_while_the_block_around_it_ends(
        self, service: LockService, writes: SlowWrites
    ) -> None:
        """It keeps the locks that it takes inside."""
        begun, ended = threading.Event(), threading.Event()

        def thread() -> None:
            assert writes.begun.wait(30)
            with userlock.global_lock("ben"):
                taken = userlock.acquire_lock("ann").tenure
                begun.set()
                assert ended.wait(30)
                assert taken.held

        async def work() -> None:
            async with userlock.global_lock("aaa") as lock:
                lock.notes["a write"] = 1
                task = asyncio.create_task(asyncio.to_thread(thread))
                landing = asyncio.create_task(asyncio.to_thread(let_land))
            ended.set()
            await asyncio.gather(task, landing)

        def let_land() -> None:
            assert begun.wait(30)
            writes.landed.set()

        asyncio.run(work())
        assert held(service) == []
