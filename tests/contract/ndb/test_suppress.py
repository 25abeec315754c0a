"""`suppress` follows the code that opened it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere
from tests.contract.ndb.models import Learner
from userlock.ndb import enforcement

pytestmark = pytest.mark.usefixtures("key")


def put() -> None:
    """Put without the lock."""
    Learner.get_by_id("ann", use_cache=False).put()


def is_checked() -> bool:
    """Return whether a put here is checked."""
    try:
        put()
    except userlock.PutWithoutLock:
        return True
    return False


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Check that no block is left open after a test."""
    yield
    gc.collect()
    assert not enforcement._open_blocks()


class TestInOneFunction:
    def test_the_block(self) -> None:
        with userlock.suppress("tried out"):
            assert not is_checked()
        assert is_checked()

    def test_blocks_in_each_other(self) -> None:
        with userlock.suppress("outer"):
            with userlock.suppress("inner"):
                assert not is_checked()
            assert not is_checked()
        assert is_checked()

    def test_left_by_an_error(self) -> None:
        with pytest.raises(ZeroDivisionError), userlock.suppress("tried out"):
            raise ZeroDivisionError
        assert is_checked()

    def test_by_an_exit_stack(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(userlock.suppress("tried out"))
            assert not is_checked()
        assert is_checked()

    def test_two_on_an_exit_stack_and_one_between(self) -> None:
        between = userlock.suppress("between")
        with contextlib.ExitStack() as stack:
            stack.enter_context(userlock.suppress("first"))
            between.__enter__()
            stack.enter_context(userlock.suppress("second"))
            stack.pop_all().close()
            assert not is_checked()
            between.__exit__(None, None, None)
            assert is_checked()

    def test_by_a_context_manager_of_the_applications(self) -> None:
        @contextlib.contextmanager
        def maintenance() -> Iterator[None]:
            with userlock.suppress("tried out"):
                yield

        class Maintenance:
            def __enter__(self) -> None:
                self._block = userlock.suppress("tried out")
                self._block.__enter__()

            def __exit__(self, *error: Any) -> None:
                self._block.__exit__(*error)

        for manager in (maintenance(), Maintenance()):
            with manager:
                assert not is_checked()
            assert is_checked()

    def test_a_put_that_ndb_sends_later(self) -> None:
        with userlock.suppress("tried out"):
            Learner.get_or_insert("bob")
            Learner.get_or_insert_async("cy").get_result()
            ndb.transaction(put)
            Learner.query().map(lambda learner: learner.put())
        with pytest.raises(userlock.CreatedWithoutLock):
            Learner.get_or_insert("dan")

    def test_a_reason_is_needed(self) -> None:
        with pytest.raises(ValueError, match="needs a reason"):
            userlock.suppress(" ")


class TestTasklets:
    def test_blocks_that_overlap(self) -> None:
        """First in, first out: each put is checked after its own block, and not before."""
        seen: list[tuple[str, bool]] = []

        @ndb.tasklet
        def work(name: str, before: int, inside: int) -> Any:
            for _ in range(before):
                yield ndb.sleep(0)
            with userlock.suppress(name):
                for _ in range(inside):
                    yield ndb.sleep(0)
                    seen.append((name, is_checked()))
            seen.append((f"{name} after", is_checked()))

        ndb.wait_all([work("first", 1, 4), work("second", 3, 6)])
        assert {name for name, _ in seen} == {"first", "second", "first after", "second after"}
        assert [checked for name, checked in seen if "after" in name] == [True] * 2
        assert not any(checked for name, checked in seen if "after" not in name)
        assert is_checked()

    def test_one_outside_of_it_is_checked(self) -> None:
        seen: list[bool] = []

        @ndb.tasklet
        def inside() -> Any:
            with userlock.suppress("tried out"):
                for _ in range(4):
                    yield ndb.sleep(0)

        @ndb.tasklet
        def outside() -> Any:
            for _ in range(3):
                yield ndb.sleep(0)
                seen.append(is_checked())

        ndb.wait_all([inside(), outside()])
        assert seen == [True] * 3

    def test_one_that_runs_while_the_block_waits(self) -> None:
        """It was begun before the block, so the block does not hold for it."""
        seen: list[bool] = []

        @ndb.tasklet
        def outside() -> Any:
            yield ndb.sleep(0)
            seen.append(is_checked())

        future = outside()
        with userlock.suppress("tried out"):
            Learner.get_by_id("nobody")
            future.wait()
        assert seen == [True]

    def test_a_callback_that_runs_while_the_block_waits(self) -> None:
        """An event loop runs it, not the block."""
        seen: list[bool] = []
        future = ndb.Key(Learner, "ann").get_async(use_cache=False)
        ndb.get_context().eventloop.call_soon(lambda: seen.append(is_checked()))
        with userlock.suppress("not the callback's"):
            future.wait()
        assert seen == [True]

    def test_one_that_is_begun_in_the_block(self) -> None:
        seen: list[bool] = []

        @ndb.tasklet
        def inner() -> Any:
            yield ndb.sleep(0)
            seen.append(is_checked())

        @ndb.tasklet
        def outer() -> Any:
            yield inner()
            seen.append(is_checked())

        with userlock.suppress("tried out"):
            outer().get_result()
        assert seen == [False, False]
        with userlock.suppress("tried out"):
            future = outer()
        future.get_result()
        assert seen == [False, False, True, True]

    def test_decorated(self) -> None:
        seen: list[bool] = []

        @ndb.tasklet
        @userlock.suppress("tried out")
        def work() -> Any:
            yield ndb.sleep(0)
            seen.append(is_checked())
            return 7

        assert work().get_result() == 7
        assert seen == [False]

    def test_decorated_the_wrong_way_round(self) -> None:
        @ndb.tasklet
        def work() -> Any:
            yield ndb.sleep(0)

        with pytest.raises(TypeError, match=r"below the other decorator \(@ndb.tasklet"):
            userlock.suppress("tried out")(work)


class TestGenerators:
    def test_a_suspended_one_excuses_nobody(self) -> None:
        def numbers() -> Generator[bool, None, None]:
            with userlock.suppress("tried out"):
                for _ in range(2):
                    yield is_checked()

        each = numbers()
        assert next(each) is False
        assert is_checked()
        assert next(each) is False
        each.close()
        assert is_checked()

    def test_two_that_are_left_in_the_order_they_were_entered(self) -> None:
        def numbers() -> Generator[int, None, None]:
            with userlock.suppress("tried out"):
                yield 1

        first, second = numbers(), numbers()
        next(first)
        next(second)
        first.close()
        assert is_checked()
        second.close()
        assert is_checked()

    def test_one_that_another_thread_closes(self) -> None:
        def numbers() -> Generator[int, None, None]:
            with userlock.suppress("tried out"):
                yield 1

        each = numbers()
        next(each)
        thread = threading.Thread(target=each.close)
        thread.start()
        thread.join()
        assert is_checked()

    def test_one_that_is_dropped(self) -> None:
        def numbers() -> Generator[int, None, None]:
            with userlock.suppress("tried out"):
                yield 1

        next(numbers())
        gc.collect()
        assert not enforcement._open_blocks()

    def test_decorated(self) -> None:
        @userlock.suppress("tried out")
        def numbers() -> Any:
            yield is_checked()
            return "done"

        def all_of_them() -> Iterator[Any]:
            yield (yield from numbers())

        each = all_of_them()
        assert next(each) is False
        assert is_checked()
        assert next(each) == "done"

    def test_decorated_below_a_context_manager_it_is_not_the_callers(self) -> None:
        @contextlib.contextmanager
        @userlock.suppress("tried out")
        def manager() -> Iterator[bool]:
            yield is_checked()

        with manager() as checked:
            assert not checked
            assert is_checked()


class TestThreads:
    def test_one_that_is_begun_in_the_block(self, elsewhere: Elsewhere) -> None:
        with userlock.suppress("tried out"), pytest.raises(userlock.PutWithoutLock):
            elsewhere(put)

    def test_one_that_has_a_block(self, ndb_client: ndb.Client) -> None:
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with userlock.suppress("tried out"):
                inside.set()
                leave.wait(10)

        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert is_checked()
        leave.set()
        thread.join()

    def test_many_at_once(self, ndb_client: ndb.Client) -> None:
        def work(number: int) -> list[bool]:
            with ndb_client.context():
                seen = []
                for _ in range(20):
                    with userlock.suppress(f"thread {number}"):
                        seen.append(is_checked())
                    seen.append(is_checked())
                return seen

        userlock.configure(fencing=False)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for seen in pool.map(work, range(4)):
                assert seen == [False, True] * 20


class TestCoroutines:
    def run(self, main: Callable[[], Any]) -> None:
        asyncio.run(main())

    def test_tasks_that_overlap(self) -> None:
        seen: list[tuple[str, bool]] = []

        async def work(name: str, before: int, inside: int) -> None:
            for _ in range(before):
                await asyncio.sleep(0)
            with userlock.suppress(name):
                for _ in range(inside):
                    await asyncio.sleep(0)
                    seen.append((name, is_checked()))
            seen.append((f"{name} after", is_checked()))

        async def main() -> None:
            await asyncio.gather(work("first", 1, 4), work("second", 3, 6))

        self.run(main)
        assert {checked for name, checked in seen if "after" in name} == {True}
        assert {checked for name, checked in seen if "after" not in name} == {False}

    def test_decorated(self) -> None:
        @userlock.suppress("tried out")
        async def work() -> bool:
            await asyncio.sleep(0)
            return is_checked()

        async def main() -> None:
            assert not await work()
            assert is_checked()

        self.run(main)

    def test_an_async_context_manager_of_the_applications(self) -> None:
        @contextlib.asynccontextmanager
        async def maintenance() -> AsyncIterator[None]:
            with userlock.suppress("tried out"):
                yield

        async def main() -> None:
            async with maintenance():
                assert not is_checked()
            assert is_checked()

        self.run(main)

    def test_an_async_generator_cannot_be_decorated(self) -> None:
        async def numbers() -> AsyncIterator[int]:
            yield 1

        with pytest.raises(TypeError, match="async generator"):
            userlock.suppress("tried out")(numbers)


def test_nor_a_class() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        userlock.suppress("tried out")(Learner)


def test_a_function_can() -> None:
    @userlock.suppress("tried out")
    def work() -> bool:
        return is_checked()

    assert not work()
    assert is_checked()


def test_without_the_tasklets_blocks_a_put_within_would_be_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control: `get_or_insert` passes because its tasklets inherit the block."""
    with userlock.suppress("opened once"):
        pass
    monkeypatch.setattr(enforcement, "_tasklet_of", lambda frame: None)

    @ndb.tasklet
    def outside() -> Any:
        yield ndb.sleep(0)
        assert not is_checked(), "the block around the loop excuses it"

    future = outside()
    with userlock.suppress("tried out"):
        future.get_result()
