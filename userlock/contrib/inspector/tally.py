"""Counts of the lock events of one process since its start.

Bounded: of locks and endpoints those are kept that have been waited for last.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable

from userlock.clock import Clock
from userlock.events import (
    Acquired,
    Conflict,
    Deadlock,
    Degraded,
    Event,
    LeaseLost,
    StaleWrite,
    TimedOut,
    Unavailable,
)

_MOST = 1_000
_MOST_OUTAGES = 100
#: Degraded leases nearer together than this belong to one outage, in seconds.
_ONE_OUTAGE = 5.0


@dataclasses.dataclass
class Waits:
    """Count and duration of the waits for one thing. Times are in seconds.

    Attributes:
        locks: how many locks were granted.
        waited: how many of them, or of those that were not granted, had to wait.
        timed_out: how many were not granted in time.
        waited_seconds: all waits together.
        longest_seconds: the longest one.
    """

    locks: int = 0
    waited: int = 0
    timed_out: int = 0
    waited_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclasses.dataclass
class Outage:
    """A stretch of time in which the store did not answer.

    Attributes:
        since, until: of the first and the last lock that was asked for, in seconds since 1970.
        reason: what the store said, or did not say.
        degraded: locks that were granted without it.
        refused: locks that were not.
    """

    since: float
    until: float
    reason: str
    degraded: int = 0
    refused: int = 0


class Tally:
    """Counts events. Thread-safe.

    Args:
        clock: for the time.
        endpoint: which part of the app is running; empty where that is not known.

    Attributes:
        since: when it began to count, in seconds since 1970.
        by_lock, by_endpoint: waits; what has been waited for last is last.
        outages: the latest is last.
        troubles: how often each other thing happened that should be rare, by its name.
    """

    def __init__(self, clock: Clock, endpoint: Callable[[], str]) -> None:
        self._clock = clock
        self._endpoint = endpoint
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Each process counts its own."""
        self._mutex = threading.Lock()
        self.since = self._clock.wall()
        self.by_lock: collections.OrderedDict[str, Waits] = collections.OrderedDict()
        self.by_endpoint: collections.OrderedDict[str, Waits] = collections.OrderedDict()
        self.outages: collections.deque[Outage] = collections.deque(maxlen=_MOST_OUTAGES)
        self.troubles: collections.Counter[str] = collections.Counter()

    def listen(self, event: Event) -> None:
        """For `Listeners.add`."""
        match event:
            case Acquired(lock_id=str(lock_id), waited_seconds=waited, blocked_by=blocked_by):
                self._waited(lock_id, waited if blocked_by else 0.0, granted=True)
            case TimedOut(lock_id=str(lock_id), waited_seconds=waited):
                self._waited(lock_id, waited, granted=False)
            case Degraded(reason=reason):
                self._out(reason, refused=False)
            case Unavailable(reason=reason):
                self._out(reason, refused=True)
            case StaleWrite() | LeaseLost() | Conflict() | Deadlock():
                with self._mutex:
                    self.troubles[type(event).__name__] += 1
            case _:
                pass

    def _waited(self, lock_id: str, seconds: float, *, granted: bool) -> None:
        endpoint = self._endpoint()
        with self._mutex:
            for table, name in ((self.by_lock, lock_id), (self.by_endpoint, endpoint)):
                # Locks that nobody ever waited for would push out the others.
                if not seconds and granted and table is self.by_lock and name not in table:
                    continue
                waits = table.setdefault(name, Waits())
                if granted:
                    waits.locks += 1
                else:
                    waits.timed_out += 1
                if seconds or not granted:
                    waits.waited += 1
                    waits.waited_seconds += seconds
                    waits.longest_seconds = max(waits.longest_seconds, seconds)
                    table.move_to_end(name)
                if len(table) > _MOST:
                    table.popitem(last=False)

    def _out(self, reason: str, *, refused: bool) -> None:
        now = self._clock.wall()
        with self._mutex:
            last = self.outages[-1] if self.outages else None
            if last is None or now - last.until > _ONE_OUTAGE:
                last = Outage(now, now, reason)
                self.outages.append(last)
            last.until = now
            if refused:
                last.refused += 1
            else:
                last.degraded += 1


_all: weakref.WeakSet[Tally] = weakref.WeakSet()


def _after_fork() -> None:
    for tally in list(_all):
        tally._begin()


os.register_at_fork(after_in_child=_after_fork)
