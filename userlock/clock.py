"""Time, handed in.

Whatever measures or waits takes a `Clock`, so that tests drive time by hand
and no test sleeps.
"""

from __future__ import annotations

import functools
import time
from typing import Protocol


class Clock(Protocol):
    """The clock that the library uses. All times are in seconds."""

    def now(self) -> float:
        """A clock that never goes back, for deadlines; its zero means nothing."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for people and for other machines to read."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


# A lease goes on running while a laptop sleeps or a virtual machine is
# suspended. CLOCK_MONOTONIC stands still then on Linux; CLOCK_BOOTTIME does
# not, so a holder that wakes up knows that its lease is over.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clocks; `now` counts time spent suspended where the system can tell."""

    # Without a Python frame of their own: every lock asks for the time a few times.
    now = staticmethod(
        time.monotonic
        if _BOOTTIME is None  # not Linux
        else functools.partial(time.clock_gettime, _BOOTTIME)
    )
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()
