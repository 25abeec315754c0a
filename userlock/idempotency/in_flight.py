"""The requests that threads of this process are running: an equal one waits here, not for a lock.

thread A                                 thread B, the same request
enters, first
locks the user, runs, is done            waits for A
leaves ────────────────────────────────▶ looks up: the answer

Without it each of many equal requests would need the user's lock in turn, only to find
the answer. It saves time, and guards nothing: B goes on by itself after a second.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Any

from userlock.fork import reset_in_child

#: The longest wait for another thread, in seconds.
MOST_SECONDS = 1.0


class Other(enum.Enum):
    """Another thread with the same request."""

    NONE = "none"
    RUNNING = "running"
    #: It was running, and has left.
    LEFT = "left"


class _Flight:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.left = threading.Event()


class InFlight:
    """The requests of a process. Thread-safe."""

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._flights: dict[Any, _Flight] = {}

    @contextlib.contextmanager
    def entered(self, key: Any, seconds: float) -> Iterator[Other]:
        """Enter a request for a block. If another thread runs it, wait for that one before.

        Args:
            key: the request.
            seconds: the longest wait for the other thread.
        """
        with self._mutex:
            other = self._flights.get(key)
            mine = None if other is not None else self._flights.setdefault(key, _Flight())
        try:
            if other is None or other.thread == threading.get_ident():
                yield Other.NONE
            elif other.left.wait(min(seconds, MOST_SECONDS)):
                yield Other.LEFT
            else:
                yield Other.RUNNING
        finally:
            if mine is not None:
                with self._mutex:
                    self._flights.pop(key, None)
                mine.left.set()


#: Of this process.
IN_FLIGHT = InFlight()
