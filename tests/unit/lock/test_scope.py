"""Scopes and tenures: re-entrancy, release at the end, threads."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import userlock
from tests.leases import existing
from tests.unit.lock.writes import Writes
from userlock.lock.configuration import default_service, defaults
from userlock.lock.held_lock import held_seconds_of
from userlock.lock.scope import LockScope, current_scope
from userlock.lock.store import GRACE_SECONDS
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture(autouse=True)
def service(store: MemoryStore, clock: ManualClock) -> userlock.LockService:
    service = userlock.LockService(store, clock=clock)
    userlock.configure(service=service)
    return service


def holder(lock_id: str) -> str | None:
    found = default_service().holder(lock_id)
    return None if found is None else found.token


class TestGlobalLock:
    def test_it_is_held_inside_and_free_after(self) -> None:
        with userlock.global_lock("ann") as lock:
            assert holder("ann") == lock._lease.token
            assert (lock.held, lock.degraded) == (True, False)
        assert (lock.held, lock.degraded, lock.expires_in) == (False, False, 0)
        assert holder("ann") is None
        assert current_scope() is None

    def test_it_is_released_when_the_block_fails(self) -> None:
        with pytest.raises(ZeroDivisionError), userlock.global_lock("ann"):
            raise ZeroDivisionError
        assert holder("ann") is None

    def test_it_may_be_released_inside(self) -> None:
        """The release stands for the end of the innermost block."""
        with userlock.global_lock("ann") as outer:
            with userlock.global_lock("ann") as inner:
                inner.release()
            assert outer.held
            outer.release()
            assert holder("ann") is None
            with pytest.raises(userlock.LockNotHeld):
                outer.release()

    def test_as_a_decorator_it_locks_each_call(self) -> None:
        seen: list[str | None] = []

        @userlock.global_lock("report", wait_timeout=0)
        def report(name: str) -> str:
            """Write a report."""
            seen.append(holder("report"))
            return name

        assert report("a") == "a"
        assert report("b") == "b"
        assert len(set(seen)) == 2
        assert None not in seen
        assert holder("report") is None
        assert report.__doc__ == "Write a report."

    def test_without_a_service_it_says_how_to_get_one(self) -> None:
        defaults.service = None
        with pytest.raises(userlock.NoService, match=r"userlock\.configure"):
            userlock.global_lock("ann").__enter__()

    def test_the_tenure_knows_its_lease(self, clock: ManualClock) -> None:
        with userlock.global_lock("ann", lock_timeout=5) as lock:
            assert lock.expires_in == 5
            clock.advance(2)
            assert lock.expires_in == 3
            assert (held_seconds_of(lock), lock._ran_out) == (2, False)
            clock.advance(3)
            assert (held_seconds_of(lock), lock._ran_out) == (5, True)
            assert lock.expires_in == 0
            assert repr(lock) == "<HeldLock of 'ann': ran out>"


class TestOddEndings:
    def test_a_nested_acquire_ends_with_the_outermost_block(self) -> None:
        with userlock.global_lock("ann"):
            userlock.acquire_lock("ann")
            userlock.acquire_lock("bob")
        assert (holder("ann"), holder("bob")) == (None, None)
        assert current_scope() is None

    def test_a_generator_that_is_finished_in_another_scope_releases_its_own_lock(self) -> None:
        def work() -> Iterator[int]:
            with userlock.global_lock("ann"):
                yield 1

        generator = work()
        next(generator)
        with userlock.scope(), userlock.global_lock("bob"):
            assert list(generator) == []
            assert holder("ann") is None
            assert holder("bob") is not None
        assert current_scope() is None

    def test_scopes_of_generators_may_end_in_any_order(self) -> None:
        def work() -> Iterator[userlock.LockScope]:
            with userlock.scope() as scope:
                yield scope

        first, second = work(), work()
        outer, inner = next(first), next(second)
        list(first)
        assert current_scope() is inner
        list(second)
        assert current_scope() is None
        with pytest.raises(userlock.NoScope, match="has ended"):
            outer.acquire("ann")

    @pytest.mark.parametrize("kind", ["generator", "async generator", "wrapped"])
    def test_a_generator_function_cannot_be_decorated(self, kind: str) -> None:
        def generator() -> Iterator[int]:
            yield 1

        async def coroutine() -> AsyncIterator[int]:
            yield 1

        @functools.wraps(generator)
        def wrapped() -> object:
            return generator()

        functions: dict[str, Callable[[], object]] = {
            "generator": generator,
            "async generator": coroutine,
            "wrapped": wrapped,
        }
        with pytest.raises(TypeError, match="inside it"):
            userlock.global_lock("ann")(functions[kind])()
        assert holder("ann") is None

    def test_a_function_that_runs_its_generator_itself_can_be_decorated(self) -> None:
        def generator() -> Iterator[str | None]:
            yield holder("ann")

        @userlock.global_lock("ann")
        @functools.wraps(generator)
        def run_it() -> list[str | None]:
            return list(generator())

        assert None not in run_it()

    def test_blocks_of_interleaved_generators_do_not_end_each_other(self) -> None:
        """They share the scope that the first of them opened."""

        def work(name: str) -> Generator[None, None, None]:
            with userlock.global_lock(name):
                yield

        first, second = work("ann"), work("bob")
        next(first)
        next(second)
        first.close()
        assert (holder("ann"), holder("bob") is None) == (None, False)
        second.close()
        assert holder("bob") is None
        assert current_scope() is None

    def test_a_forked_child_that_unwinds_releases_nothing(self, store: MemoryStore) -> None:
        asked = 0
        child = -1
        try:
            with userlock.scope(), userlock.acquire_lock("ann"), userlock.global_lock("bob"):
                child = os.fork()
                if child == 0:
                    asked = sum(store.asked.values())
                    raise ZeroDivisionError
                _, status = os.waitpid(child, 0)
                assert (holder("ann"), holder("bob")) != (None, None)
        except ZeroDivisionError:
            pass
        finally:
            if child == 0:
                os._exit(sum(store.asked.values()) - asked)
        assert os.waitstatus_to_exitcode(status) == 0


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    return thread


class TestSharedScopes:
    """`asyncio.to_thread` and new tasks copy context variables, and so share the scope."""

    def test_two_threads_with_one_scope_exclude_each_other(self) -> None:
        inside: list[int] = []
        most: list[int] = []
        real = userlock.LockService(MemoryStore())

        def work() -> None:
            with userlock.global_lock("ann"):
                inside.append(1)
                most.append(len(inside))
                os.sched_yield()
                inside.pop()

        with userlock.scope(real):
            for thread in [in_a_thread(work) for _ in range(8)]:
                thread.join()
        assert most == [1] * 8

    def test_the_block_of_another_thread_outlives_it(self) -> None:
        inside, ended, entered_again = threading.Event(), threading.Event(), threading.Event()

        def block() -> None:
            with userlock.global_lock("ann"):
                inside.set()
                assert ended.wait(30)
                with userlock.global_lock("ann", wait_timeout=0):
                    entered_again.set()

        with userlock.scope():
            thread = in_a_thread(block)
            assert inside.wait(30)
        assert holder("ann") is not None
        ended.set()
        thread.join()
        assert entered_again.is_set()
        assert holder("ann") is None

    @pytest.mark.parametrize("around", [userlock.scope, lambda: userlock.global_lock("ann")])
    def test_what_another_thread_has_taken_without_a_block_ends_with_it(
        self, around: Callable[[], AbstractContextManager[object]]
    ) -> None:
        with around():
            in_a_thread(lambda: userlock.acquire_lock("bob")).join()
            assert holder("bob") is not None
        assert holder("bob") is None

    def test_a_block_that_waited_inside_keeps_it_open(self) -> None:
        real = userlock.LockService(MemoryStore())
        userlock.configure(service=real)
        kept: list[bool] = []

        def block() -> None:
            with userlock.global_lock("ann"):
                bob = userlock.acquire_lock("bob", heartbeat=True).tenure
                bob._when_due(real.clock.now())
                kept.append(bob.held)

        with userlock.global_lock("ann"):
            thread = in_a_thread(block)
            while not real.waiters("ann"):
                os.sched_yield()
        thread.join()
        assert kept == [True]
        assert real.holder("bob") is None

    def test_a_scope_that_ends_as_another_thread_takes_a_lock_releases_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check = LockScope._check_release

        def check_and_end(scope: LockScope, *facts: Any) -> None:
            check(scope, *facts)
            if scope.service.holder("ann"):  # the second check, after the wait
                scope.close(ending=True)

        monkeypatch.setattr(LockScope, "_check_release", check_and_end)
        with userlock.scope():
            userlock.acquire_lock("ann")
            assert holder("ann") is None


class TestAcquireLock:
    def test_it_counts_and_the_last_release_ends_it(self) -> None:
        with userlock.scope():
            userlock.acquire_lock("ann")
            userlock.acquire_lock("ann")
            userlock.release_lock("ann")
            assert holder("ann") is not None
            userlock.release_lock("ann")
            assert holder("ann") is None
            with userlock.acquire_lock("ann") as lock:
                assert holder("ann") == lock._lease.token
            assert holder("ann") is None
            userlock.acquire_lock("ann")
            userlock.acquire_lock("ann")
            userlock.acquire_lock("bob")
        assert (holder("ann"), holder("bob")) == (None, None), "it ends with its scope"

    def test_without_a_scope_it_says_what_to_do(self) -> None:
        with pytest.raises(userlock.NoScope, match="global_lock"):
            userlock.acquire_lock("ann")
        assert holder("ann") is None

    def test_a_lock_that_is_not_held_cannot_be_released(self) -> None:
        with pytest.raises(userlock.LockNotHeld, match="there is no scope"):
            userlock.release_lock("ann")
        with userlock.scope():
            userlock.acquire_lock("bob")
            with pytest.raises(userlock.LockNotHeld, match="held: 'bob'") as caught:
                userlock.release_lock("ann")
        assert caught.value.lock_id == "ann"

    def test_a_block_of_another_thread_is_not_left(self) -> None:
        def leave() -> None:
            with pytest.raises(userlock.LockNotHeld, match="another task or thread"):
                userlock.release_lock("ann")
            refused.append("ann")

        refused: list[str] = []
        with userlock.global_lock("ann"):
            in_a_thread(leave).join()
            assert holder("ann") is not None
        assert refused == ["ann"]


class TestScopes:
    def test_the_scope_says_the_priority_and_the_request(
        self, service: userlock.LockService
    ) -> None:
        with userlock.scope(priority="batch", request="POST /tasks/x"):
            userlock.acquire_lock("ann")
            found = existing(service.holder("ann"))
            assert (found.priority, found.request) == ("batch", "POST /tasks/x")
            with userlock.global_lock("bob", priority="interactive"):
                assert existing(service.holder("bob")).priority == "interactive"

    def test_an_inner_scope_does_not_share_the_outer_ones_locks(self) -> None:
        with userlock.scope(), userlock.global_lock("ann"):
            with userlock.scope() as inner:
                assert inner.held == {}
            assert current_scope() is not None

    def test_leaving_releases_the_rest_when_one_release_fails(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove = store.remove

        def failing(lock_id: str, version: object) -> bool:
            if lock_id == "bob":
                raise RuntimeError("a bug in a store")
            return remove(lock_id, version)

        monkeypatch.setattr(store, "remove", failing)

        def request() -> None:
            with userlock.scope():
                for name in ("ann", "bob", "cid"):
                    userlock.acquire_lock(name)

        with pytest.raises(RuntimeError, match="a bug in a store"):
            request()
        assert store.read("ann") is None
        assert store.read("cid") is None
        assert current_scope() is None

    @pytest.mark.parametrize("failing", [False, True])
    def test_a_write_that_fails_at_the_end_is_raised_unless_the_block_has_failed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: bool
    ) -> None:
        def fail(tenure: userlock.HeldLock) -> None:
            raise OSError

        monkeypatch.setattr("userlock.lock.scope.participants", [Writes(fail)])

        def request() -> None:
            with userlock.scope():
                userlock.acquire_lock("ann").tenure._notes["write"] = 1
                if failing:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError if failing else OSError):
            request()
        assert ("a write under lock 'ann' failed as well" in caplog.text) == failing
        assert holder("ann") is None

    def test_the_priority_says_whether_it_is_batch_work(self) -> None:
        for priority in ("interactive", "batch"):
            with userlock.scope(priority=priority) as scope:
                assert scope.batch_work == (priority == "batch")

    def test_held_is_a_snapshot(self) -> None:
        """Read stamps keep it; it must not change later."""
        with userlock.scope() as scope:
            before = scope.held
            with userlock.global_lock("ann"):
                during = scope.held
                with userlock.global_lock("bob"):
                    assert set(during) == {"ann"}
            assert set(during) == {"ann"}
            assert before == {}

    def test_an_address_is_no_service(self) -> None:
        with pytest.raises(TypeError, match="must be a LockService"):
            userlock.configure(service="memcache://x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a LockService"):
            userlock.scope("memcache://x").__enter__()  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"fencing": "no"}, "fencing must be True or False, not 'no'"),
            ({"fencing": 0}, "fencing must be True or False, not 0"),
            ({"capture_places": "x"}, "capture_places must be True or False, not 'x'"),
        ],
    )
    def test_settings_that_are_no_switches(self, settings: Any, error: str) -> None:
        before = defaults.settings
        with pytest.raises(TypeError, match=error):
            userlock.configure(**settings)
        with pytest.raises(TypeError, match=error):
            userlock.Settings(**settings)
        assert defaults.settings is before


def test_a_late_leave_takes_nothing_from_the_next_tenure(
    service: userlock.LockService, clock: ManualClock
) -> None:
    """The lease of one thread has expired, and another thread of the scope holds the lock."""
    with userlock.scope(service) as scope:
        late = scope.acquire("ann", lock_timeout=1)
        clock.advance(1 + GRACE_SECONDS)
        late._owner = (0, 0)  # another thread's
        tenure = scope.acquire("ann")
        scope._leave_once(late)
        assert scope.held == {"ann": tenure}
    assert service.holder("ann") is None


def test_finalizers_of_what_was_read_may_use_the_scope() -> None:
    seen: list[list[str]] = []

    class Read:
        def __del__(self) -> None:
            seen.append(list(scope.held))

    with userlock.scope() as scope, userlock.global_lock("ann") as lock:
        lock._notes["read"] = Read()
    assert seen == [[]]
