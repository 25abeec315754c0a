"""Versions: commit times in microseconds, strictly increasing.

An entity's version is the time of the commit that wrote it. Versions, update times and `read_time`
therefore share one scale, as they seem to do in the service. The clock hands out two kinds of
times:

* a commit's version, greater than every version and every read time before it;
* a read time, at which every acknowledged commit is visible and below which nothing can change any
  more.

The second needs care while a commit is in progress: its version is known but its rows are not
visible yet. Reads that start at that moment get a time just before it:

    commit    version 10 ─────────── rows visible ── finished
    reader A         reads at 9
    reader B                                         reads at 10 or later
"""

import threading
import time
from collections.abc import Callable


def wall_clock_microseconds() -> int:
    """Return the time of day in microseconds since the epoch."""
    return time.time_ns() // 1000


class VersionClock:
    """Hands out commit versions and read times. Thread-safe.

    At most one commit is under way at a time (the caller holds the writer lock).

    Args:
        last_version: the highest version in the database; the clock stays above it
            even if the machine's clock was set back.
        now: microseconds since the epoch.
    """

    def __init__(
        self, last_version: int = 0, now: Callable[[], int] = wall_clock_microseconds
    ) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._high = max(last_version, 1)
        self._pending: int | None = None
        self._last_commit = self._high

    def now(self) -> int:
        """Return the time of day in microseconds, unrelated to versions."""
        return self._now()

    @property
    def last_commit(self) -> int:
        """Return the version of the newest commit, in progress or finished."""
        return self._last_commit

    def start_commit(self) -> int:
        """Return the version for a commit that starts now."""
        with self._lock:
            if self._pending is not None:
                raise AssertionError("one commit at a time: the writer lock is not held")
            self._high = max(self._high + 1, self._now())
            self._pending = self._last_commit = self._high
            return self._high

    def finish_commit(self) -> None:
        """Record that the commit's rows are visible, or that the commit was given up."""
        with self._lock:
            self._pending = None

    def read_time(self) -> int:
        """Return the latest time at which a read is repeatable."""
        with self._lock:
            if self._pending is not None:
                return self._pending - 1
            self._high = max(self._high, self._now())
            return self._high
