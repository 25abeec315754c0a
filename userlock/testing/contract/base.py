"""Share parts among the contract's tests: hooks to override, lock ids, threads, a forked child."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from userlock.ids import MAX_CHARACTERS
from userlock.lock.store import LeaseStore, Stored

_Result = TypeVar("_Result")

#: Lock ids of all kinds: any Unicode, up to the longest.
LOCK_IDS = {
    "plain": "learner-1",
    "not ASCII": "ü 漢字 🔒",
    "a space": " ",
    "line ends": "a\r\nb",
    "control characters": "\x00\x7f\x85\u2028",
    "long": "x" * MAX_CHARACTERS,
    "long, not ASCII": "漢" * MAX_CHARACTERS,
    "a lone surrogate": "\ud800",
}

#: The longest wait for a thread, in seconds.
PATIENCE = 30.0


class Timed:
    """Tests that wait for time to pass. Override both if it is moved by hand."""

    def now(self, subject: Any) -> float:
        """Return the time of the clock that `wait` waits on, in seconds."""
        return time.monotonic()

    def wait(self, subject: Any, seconds: float) -> None:
        """Let that much time pass, between two polls."""
        time.sleep(seconds)


class StoreContract(Timed):
    """Base of the contract's parts. Their subclasses provide a `store` fixture."""

    #: Whether the store knows the remaining life of a record, and so reports `lapsed`.
    tells_lapsed = True
    #: The longest delay with which a record may lapse or disappear, in seconds.
    late_seconds = 3.0

    def eventually(
        self, store: LeaseStore, what: str, condition: Callable[[], bool], *, within: float
    ) -> None:
        """Return as soon as `condition` holds; fail if it does not within that many seconds."""
        end = self.now(store) + within
        while not condition():
            assert self.now(store) < end, f"{what}: not so after {within:g} s"
            self.wait(store, 0.02)


def found(stored: Stored | None) -> Stored:
    assert stored is not None, "there is no record, although there should be one"
    return stored


def created(version: object | None) -> object:
    assert version is not None, "create did nothing, although there was no record"
    return version


class Race:
    """Runs actions in concurrent threads, which give up together."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE
        self._errors: list[BaseException] = []

    def run(self, *actions: Callable[[], _Result]) -> list[_Result]:
        """Run all actions at once, each in a thread; return their results, or raise an error."""
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
        """End a loop in a thread: raise if it has run too long, or if another thread failed."""
        assert time.monotonic() < self._end, otherwise
        assert not self._errors, "another thread failed"


def fork(work: Callable[[], int]) -> int:
    """Run a function in a forked child, whose exit status it returns, 1 for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child has no threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Return the exit status of a child process; kill it if it does not end."""
    end = time.monotonic() + PATIENCE
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
