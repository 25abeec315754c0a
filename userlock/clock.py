"""Provide the time. Code that measures or waits is given a `Clock`, which tests drive by hand."""

from __future__ import annotations

import functools
import time
from typing import Protocol, runtime_checkable


class Signal(Protocol):
    """A signal that a thread may wait for."""

    @property
    def rung(self) -> bool:
        """Return whether it has come."""

    def wait(self, seconds: float) -> None:
        """Wait for it, for that long at most."""


class Clock(Protocol):
    """The clock that the library uses. All times are in seconds."""

    def now(self) -> float:
        """Return a time that never goes back, for deadlines. Its zero has no meaning."""

    def wall(self) -> float:
        """Return the seconds since 1970, for people and for other machines."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@runtime_checkable
class WaitingClock(Clock, Protocol):
    """A clock that can end a wait early. With any other one, a signal is noticed after a sleep."""

    def wait(self, signal: Signal, seconds: float) -> None:
        """Wait until a signal comes, or for that long."""


# A lease keeps running while a laptop sleeps or a virtual machine is suspended. On Linux
# CLOCK_MONOTONIC stops then and CLOCK_BOOTTIME does not, so a holder that wakes up sees that its
# lease is over.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clocks. Where the system can tell, `now` counts suspended time."""

    # Functions without a Python frame: every lock reads the time several times.
    now = staticmethod(
        time.monotonic
        if _BOOTTIME is None  # not Linux
        else functools.partial(time.clock_gettime, _BOOTTIME)
    )
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, signal: Signal, seconds: float) -> None:
        signal.wait(seconds)


SYSTEM_CLOCK: Clock = SystemClock()
