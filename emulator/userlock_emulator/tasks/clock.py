"""The emulator's clock: microseconds since the epoch, or any function that returns them."""

import threading
import time
from collections.abc import Callable

#: Later than any time that is asked for.
NEVER = 2**62


def wall_clock_microseconds() -> int:
    """Return the time of day in microseconds since the epoch."""
    return time.time_ns() // 1000


class ManualClock:
    """A clock for tests, which moves only when it is told to. Thread-safe.

    Emulators that were started with it as `now` notice each move.

    Args:
        start: seconds since the epoch; by default the time of day.
    """

    def __init__(self, start: float | None = None) -> None:
        self._now = wall_clock_microseconds() if start is None else int(start * 1_000_000)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """Return the time in microseconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.advance_to(self._now + round(seconds * 1_000_000))

    def advance_to(self, microseconds: int) -> None:
        """Move the clock to a time; an earlier time than its own changes nothing."""
        with self._lock:
            self._now = max(self._now, microseconds)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a function after each move."""
        with self._lock:
            self._listeners.append(listener)
