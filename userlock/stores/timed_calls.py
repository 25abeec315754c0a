"""Calls of others that may block for long: look-ups of names, servers that issue credentials."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from userlock.clock import SYSTEM_CLOCK
from userlock.fork import reset_in_child
from userlock.waits import Bell, begun_in_thread, locked

_Answer = TypeVar("_Answer")

#: For how long an answer that came late is given to the next caller, in seconds.
_GOOD_SECONDS = 30.0


class TooLate(TimeoutError):
    """The answer of a `TimedCall` has not come in time."""


class TimedCall(Generic[_Answer]):
    """A function that may block for long, called in a thread. Thread-safe; survives fork.

    Callers share the call that runs. Once it is late they fail at once, and its answer is there for
    the next caller, for a while.
    """

    def __init__(self, function: Callable[[], _Answer], thread_name: str, words: str) -> None:
        self._function = function
        self._thread_name = thread_name
        self._words = words  # for what it does
        self._forget()
        reset_in_child(self._forget)

    def _forget(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._running: tuple[concurrent.futures.Future[_Answer], float] | None = None

    async def result(self, seconds: float) -> _Answer:
        """Return what the function returns; `TooLate` if it takes longer."""
        future, late_at = running = locked(self._mutex, self._begun, seconds)
        try:
            left = late_at - SYSTEM_CLOCK.now()
            if left > 0:
                bell = Bell()
                future.add_done_callback(lambda _: bell.ring())
                await bell.sleep(left)
            if not future.done():
                raise TooLate(f"{self._words} takes over {seconds:g} s")
            if self._running is running:
                self._running = None
            return future.result()
        finally:
            del future, running  # which keep the error, whose frames would keep them

    def _begun(self, seconds: float) -> tuple[concurrent.futures.Future[_Answer], float]:
        now = SYSTEM_CLOCK.now()
        if self._running is not None:
            future, late_at = self._running
            is_old = now > late_at + _GOOD_SECONDS
            if not future.done() or not (is_old or future.exception()):
                return self._running
        future = begun_in_thread(self._function, self._thread_name, or_here=True)
        self._running = future, now + seconds
        return self._running
