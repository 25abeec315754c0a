"""`userlock.transactional`: ndb's decorator under the rules of locks, with its options."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import add_points, stored_points
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("key", "quick_retries")
INDEPENDENT = ndb.TransactionOptions.INDEPENDENT


@userlock.transactional
def bare(points: int) -> bool:
    """Add points."""
    add_points(points)
    return bool(ndb.in_transaction())


@userlock.transactional()
def called(points: int) -> bool:
    """Add points."""
    add_points(points)
    return bool(ndb.in_transaction())


@pytest.mark.parametrize("add", [bare, called])
class TestBothForms:
    def test_under_the_lock(self, add: Callable[[int], bool]) -> None:
        with userlock.global_lock("ann"):
            assert add(5)
        assert stored_points() == 5

    def test_without_the_lock(self, add: Callable[[int], bool]) -> None:
        with pytest.raises(userlock.PutWithoutLock):
            add(5)
        assert stored_points() == 0

    def test_name_and_docstring_stay(self, add: Any) -> None:
        assert add.__doc__ == "Add points."
        assert add.__name__ in ("bare", "called")


def options(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "function"
    }


def test_options_and_defaults_are_those_of_ndb() -> None:
    assert options(userlock.transactional) == options(ndb.transactional)


@pytest.mark.parametrize(("retries", "runs"), [(0, 1), (1, 2), (3, 2)])
def test_retries(retries: int, runs: int, datastore: Emulator) -> None:
    seen = []

    @userlock.transactional(retries=retries)
    def work() -> None:
        seen.append(1)
        add_points()

    datastore.faults.abort()
    with userlock.global_lock("ann"):
        if retries:
            work()
        else:
            with pytest.raises(Exception, match=r"(?i)abort|contention"):
                work()
    assert len(seen) == runs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "joined"),
        ({"xg": False}, "joined"),
        ({"propagation": INDEPENDENT}, "another"),
        ({"join": False}, "refused"),
    ],
    ids=str,
)
def test_a_call_inside_a_transaction(given: dict[str, Any], expected: str) -> None:
    def number() -> Any:
        return ndb.get_context().transaction

    inner = userlock.transactional(**given)(number)

    @userlock.transactional
    def outer() -> str:
        try:
            return "joined" if inner() == number() else "another"
        except NotImplementedError:
            return "refused"

    assert outer() == expected


def test_read_only() -> None:
    @userlock.transactional(read_only=True)
    def work() -> None:
        add_points()

    with userlock.global_lock("ann"), pytest.raises(Exception, match=r"(?i)read.only"):
        work()
    assert stored_points() == 0


async def coroutine() -> None: ...


def generator() -> Iterator[None]:
    yield


async def both() -> AsyncIterator[None]:
    yield


class Asynchronous:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        generator,
        both,
        functools.partial(generator),
        staticmethod(coroutine),
        Asynchronous(),
    ],
)
@pytest.mark.parametrize("decorator", [userlock.transactional, userlock.transactional()])
def test_what_would_run_after_the_transaction(decorator: Any, function: Any) -> None:
    name = re.escape(getattr(function, "__name__", str(function)))
    with pytest.raises(TypeError, match=f"{name} is one: it would run after"):
        decorator(function)


@pytest.mark.parametrize("option", [{"join": "no"}, {"read_only": 1}, {"retries": True}])
def test_an_option_of_another_type(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        userlock.transactional(**option)
