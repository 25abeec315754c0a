"""A circuit breaker: a dead or hanging store costs a process one timeout now and then.

After a failure the breaker stays open in proportion to the cost of the failure. A refused
connection costs nothing, so the next request simply tries again. After a reply that never came (a
third of a second) no request tries for a second. Then one caller probes, and the others go on
without the store until the probe has its answer.
"""

from __future__ import annotations

import math
import threading

from userlock.clock import Clock
from userlock.fork import reset_in_child
from userlock.waits import with_mutex

#: How many times the cost of a failure a breaker stays open.
_PAUSE_FACTOR = 10.0


class CircuitBreaker:
    """Thread-safe. All times in seconds.

    Args:
        clock: for the time.
        most_pause_seconds: longest pause after one failure.

    Attributes:
        closed: the common case, to be read without the lock.
        reason: the last failure, in words.
        answered_one_of: when the latest request was sent that has been answered.
    """

    def __init__(self, clock: Clock, *, most_pause_seconds: float = 1.0) -> None:
        self._clock = clock
        self._most_pause_seconds = most_pause_seconds
        self.closed = True
        self.answered_one_of = -math.inf
        self._open_until = -math.inf
        self.reason = ""
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time

    def allows(self) -> bool:
        """Return whether the store may be asked now. In an outage: one caller at a time."""
        return self.closed or self._may_probe()

    @with_mutex
    def _may_probe(self) -> bool:
        now = self._clock.now()
        if self.closed or now < self._open_until:
            return self.closed
        # Others stay out until this caller reports, or, should it never
        # report (its thread was killed), for one more pause.
        self._open_until = now + self._most_pause_seconds
        return True

    def succeeded(self) -> None:
        """Note that the store answered."""
        self.closed = True

    @with_mutex
    def failed(self, *, cost_seconds: float, reason: str) -> None:
        """Note that the store did not answer, and that finding out took `cost_seconds`."""
        pause = min(cost_seconds * _PAUSE_FACTOR, self._most_pause_seconds)
        self.reason = reason
        self.closed = False
        self._open_until = self._clock.now() + pause
