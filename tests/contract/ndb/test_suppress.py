"""`suppress` follows the code that opened it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner
from userlock.ndb import enforcement

pytestmark = pytest.mark.usefixtures("key")


def is_checked() -> bool:
    """Return whether a put here, without the lock, is checked."""
    try:
        Learner.get_by_id("ann", use_cache=False).put()
    except userlock.PutWithoutLock:
        return True
    return False


def on_an_exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(userlock.suppress("tried out"))
        assert not is_checked()


def nested() -> None:
    with userlock.suppress("outer"):
        with userlock.suppress("inner"):
            assert not is_checked()
        assert not is_checked()


def by_a_context_manager_of_the_applications() -> None:
    @contextlib.contextmanager
    def maintenance() -> Iterator[None]:
        with userlock.suppress("tried out"):
            yield

    with maintenance():
        assert not is_checked()


def by_writes_that_ndb_sends_later() -> None:
    with userlock.suppress("tried out"):
        Learner.get_or_insert("bob")
        Learner.get_or_insert_async("cy").get_result()
        assert not ndb.transaction(is_checked)


def by_a_decorated_function() -> None:
    assert not userlock.suppress("tried out")(is_checked)()


def by_a_decorated_tasklet() -> None:
    @ndb.tasklet
    @userlock.suppress("tried out")
    def work() -> Any:
        yield ndb.sleep(0)
        return is_checked()

    assert not work().get_result()


def by_a_decorated_coroutine() -> None:
    @userlock.suppress("tried out")
    async def work() -> bool:
        await asyncio.sleep(0)
        return is_checked()

    assert not asyncio.run(work())


def by_a_decorated_generator() -> None:
    @userlock.suppress("tried out")
    def numbers() -> Any:
        yield is_checked()

    assert list(numbers()) == [False]


def by_a_generator_that_is_suspended() -> None:
    def numbers() -> Generator[bool, None, None]:
        with userlock.suppress("tried out"):
            yield is_checked()

    each = numbers()
    assert next(each) is False
    assert is_checked()
    each.close()


@pytest.mark.parametrize(
    "block",
    [
        nested,
        on_an_exit_stack,
        by_a_context_manager_of_the_applications,
        by_writes_that_ndb_sends_later,
        by_a_decorated_function,
        by_a_decorated_tasklet,
        by_a_decorated_coroutine,
        by_a_decorated_generator,
        by_a_generator_that_is_suspended,
    ],
)
def test_nothing_is_checked_in_a_block_and_all_after_it(block: Callable[[], None]) -> None:
    block()
    assert is_checked()


Seen = list[tuple[str, bool]]


def tasklets(seen: Seen) -> None:
    @ndb.tasklet
    def work(name: str, before: int, inside: int) -> Any:
        for _ in range(before):
            yield ndb.sleep(0)
        with userlock.suppress(name):
            for _ in range(inside):
                yield ndb.sleep(0)
                seen.append(("inside", is_checked()))
        seen.append(("after", is_checked()))

    ndb.wait_all([work("first", 1, 4), work("second", 3, 6)])


def tasks(seen: Seen) -> None:
    async def work(name: str, before: int, inside: int) -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        with userlock.suppress(name):
            for _ in range(inside):
                await asyncio.sleep(0)
                seen.append(("inside", is_checked()))
        seen.append(("after", is_checked()))

    async def main() -> None:
        await asyncio.gather(work("first", 1, 4), work("second", 3, 6))

    asyncio.run(main())


@pytest.mark.parametrize("run", [tasklets, tasks])
def test_blocks_that_overlap(run: Callable[[Seen], None]) -> None:
    """First in, first out: each put is checked after its own block, and not before."""
    seen: Seen = []
    run(seen)
    assert set(seen) == {("inside", False), ("after", True)}


class TestOthersAreChecked:
    """Code that the block has not called, while the block waits."""

    def test_a_tasklet(self) -> None:
        seen: list[bool] = []

        @ndb.tasklet
        def outside() -> Any:
            yield ndb.sleep(0)
            seen.append(is_checked())

        future = outside()
        with userlock.suppress("tried out"):
            future.wait()
        assert seen == [True]

    def test_a_callback(self) -> None:
        seen: list[bool] = []
        future = ndb.Key(Learner, "ann").get_async(use_cache=False)
        ndb.get_context().eventloop.call_soon(lambda: seen.append(is_checked()))
        with userlock.suppress("not the callback's"):
            future.wait()
        assert seen == [True]

    def test_a_thread(self, ndb_client: ndb.Client) -> None:
        def in_another_context() -> bool:
            with ndb_client.context():
                return is_checked()

        with concurrent.futures.ThreadPoolExecutor(1) as pool, userlock.suppress("tried out"):
            assert pool.submit(in_another_context).result()

    def test_without_the_tasklets_blocks_one_would_be_excused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        with userlock.suppress("opened once"):
            pass
        monkeypatch.setattr(enforcement, "_tasklet_of", lambda frame: None)
        with pytest.raises(AssertionError):
            self.test_a_tasklet()


def _suspended() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("misuse", "error", "says"),
    [
        (lambda: userlock.suppress(" "), ValueError, "needs a reason"),
        (lambda: userlock.suppress("why")(Learner), TypeError, "takes a function"),
        (
            lambda: userlock.suppress("why")(ndb.tasklet(_suspended)),
            TypeError,
            r"below the other decorator \(@ndb.tasklet",
        ),
    ],
    ids=["no reason", "a class", "above @ndb.tasklet"],
)
def test_misuse(misuse: Callable[[], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        misuse()
