"""Parts that the store contract shares: hooks to override, and generated lock ids."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from userlock.lock.store import LeaseStore, Stored

_Result = TypeVar("_Result")

#: Lock ids as they may come: any Unicode, any length.
LOCK_IDS = {
    "plain": "learner-1",
    "not ASCII": "ü 漢字 🔒",
    "a space": " ",
    "line ends": "a\r\nb",
    "control characters": "\x00\x7f\x85\u2028",
    "long": "x" * 10_000,
    "long, not ASCII": "漢" * 10_000,
    "a lone surrogate": "\ud800",
}

#: For how long threads are waited for, in seconds, before a test gives up on them.
PATIENCE = 30.0


class StoreContract:
    """The ground of the contract's parts. Subclasses of those give a `store` fixture."""

    #: Whether the store can tell how long a record has still to live, and so says `lapsed`.
    tells_lapsed = True
    #: How much later than promised a record may lapse or go, in seconds.
    late_seconds = 3.0

    def now(self, store: LeaseStore) -> float:
        """Return the time by the clock that `wait` waits on, in seconds. To override with it."""
        return time.monotonic()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        """Let that much time pass. To override where time is moved by hand.

        Tests call it between two looks at what they wait for, and never
        conclude anything from its return alone.
        """
        time.sleep(seconds)

    def eventually(
        self, store: LeaseStore, what: str, condition: Callable[[], bool], *, within: float
    ) -> None:
        """Return as soon as `condition` holds; it must within that many seconds."""
        end = self.now(store) + within
        while not condition():
            assert self.now(store) < end, f"{what}: not so after {within:g} s"
            self.wait(store, 0.02)

    @pytest.fixture(params=list(LOCK_IDS.values()), ids=list(LOCK_IDS))
    def lock_id(self, request: pytest.FixtureRequest) -> str:
        """Return a lock id as it may come."""
        lock_id: str = request.param
        return lock_id


def found(stored: Stored | None) -> Stored:
    """Return the record that was read, which must be there."""
    assert stored is not None, "there is no record, although there should be one"
    return stored


def created(version: object | None) -> object:
    """Return the version that `create` gave, which must have done its work."""
    assert version is not None, "create did nothing, although there was no record"
    return version


class Race:
    """Threads that do things at once, and give up together."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE
        self._errors: list[BaseException] = []

    def run(self, *actions: Callable[[], _Result]) -> list[_Result]:
        """Do all of these at once, each in a thread; their results, in order.

        The first error in any of them is raised here.
        """
        barrier = threading.Barrier(len(actions))
        results: dict[int, _Result] = {}

        def run_one(number: int, action: Callable[[], _Result]) -> None:
            try:
                barrier.wait(PATIENCE)
                results[number] = action()
            except BaseException as error:
                self._errors.append(error)

        threads = [
            threading.Thread(target=run_one, args=numbered, daemon=True)
            for numbered in enumerate(actions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        if self._errors:
            raise self._errors[0]
        assert len(results) == len(actions), "the store keeps threads waiting for one another"
        return [results[number] for number in range(len(actions))]

    def go_on(self, otherwise: str) -> None:
        """For loops in these threads: raises when it has lasted too long, or another failed."""
        assert time.monotonic() < self._end, otherwise
        assert not self._errors, "another thread failed"
