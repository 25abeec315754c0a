"""Count the events of one process since its start: of locks, and of requests that happen once.

The counts are bounded: of locks and endpoints, the latest that waited are kept; of flows, the
latest that were served.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import threading
from collections.abc import Callable

from userlock.clock import Clock
from userlock.events import (
    Acquired,
    Conflict,
    Deadlock,
    Degraded,
    Event,
    LeaseLost,
    Rejected,
    RequestServed,
    StaleWrite,
    TimedOut,
    Unavailable,
)
from userlock.fork import reset_in_child

_MOST = 1_000
_MOST_OUTAGES = 100
#: The longest gap between two degraded or refused locks of one outage, in seconds.
_ONE_OUTAGE = 5.0
#: The longest wait of each group of waits but the last, in seconds.
WAIT_LIMITS = (0.01, 0.1, 1.0, 5.0)


@dataclasses.dataclass
class Waits:
    """The waits for one lock, or of one endpoint. Times are in seconds.

    Attributes:
        locks: the number of granted locks.
        waited: the number of calls that had to wait, granted or not.
        timed_out: the number of calls that timed out.
        rejected: the number of calls that were rejected, because enough others waited.
        waited_seconds: the total wait.
        longest_seconds: the longest wait.
    """

    locks: int = 0
    waited: int = 0
    timed_out: int = 0
    rejected: int = 0
    waited_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclasses.dataclass
class Outage:
    """A period in which the store did not answer.

    Attributes:
        since, until: when the first and the last lock was asked for, in seconds since 1970.
        reason: the store's reason.
        degraded: the number of locks granted without the store.
        refused: the number of locks refused.
    """

    since: float
    until: float
    reason: str
    degraded: int = 0
    refused: int = 0


class Tally:
    """Counts events. Thread-safe.

    Args:
        clock: the clock.
        endpoint: returns the endpoint that is running; empty if it is not known.

    Attributes:
        since: the begin of the counts, in seconds since 1970.
        by_lock, by_endpoint: the waits, the latest last.
        waits: the number of waits in each group of `WAIT_LIMITS`, and of longer ones.
        outages: the outages, the latest last.
        troubles: the numbers of other events that should be rare, by their names.
        requests: the numbers of requests with an idempotency key, by flow and outcome, the latest
            last.
    """

    def __init__(self, clock: Clock, endpoint: Callable[[], str]) -> None:
        self._clock = clock
        self._endpoint = endpoint
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self.since = self._clock.wall()
        self.by_lock: collections.OrderedDict[str, Waits] = collections.OrderedDict()
        self.by_endpoint: collections.OrderedDict[str, Waits] = collections.OrderedDict()
        self.waits = [0] * (len(WAIT_LIMITS) + 1)
        self.outages: collections.deque[Outage] = collections.deque(maxlen=_MOST_OUTAGES)
        self.troubles: collections.Counter[str] = collections.Counter()
        self.requests: collections.OrderedDict[str, collections.Counter[str]] = (
            collections.OrderedDict()
        )

    @property
    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._clock.wall()

    def listen(self, event: Event) -> None:
        """Count an event: a listener."""
        match event:
            case Acquired(lock_id=str(lock_id), waited_seconds=waited, blocked_by=blocked_by):
                self._count_wait(lock_id, "locks", waited if blocked_by else 0.0)
            case TimedOut(lock_id=str(lock_id), waited_seconds=waited):
                self._count_wait(lock_id, "timed_out", waited)
            case Rejected(lock_id=str(lock_id)):
                self._count_wait(lock_id, "rejected", 0.0)
            case Degraded(reason=reason):
                self._count_outage(reason, refused=False)
            case Unavailable(reason=reason):
                self._count_outage(reason, refused=True)
            case StaleWrite() | LeaseLost() | Conflict() | Deadlock():
                with self._mutex:
                    self.troubles[type(event).__name__] += 1
            case RequestServed(flow=flow, outcome=outcome):
                self._count_request(flow, outcome)

    def _count_wait(self, lock_id: str, outcome: str, seconds: float) -> None:
        endpoint = self._endpoint()
        waited = seconds > 0 or outcome == "timed_out"
        with self._mutex:
            if waited:
                self.waits[bisect.bisect_left(WAIT_LIMITS, seconds)] += 1
            for table, name in ((self.by_lock, lock_id), (self.by_endpoint, endpoint)):
                # Locks without any wait would push out the others.
                uneventful = outcome == "locks" and not waited
                if uneventful and table is self.by_lock and name not in table:
                    continue
                row = table.setdefault(name, Waits())
                setattr(row, outcome, getattr(row, outcome) + 1)
                if waited:
                    row.waited += 1
                    row.waited_seconds += seconds
                    row.longest_seconds = max(row.longest_seconds, seconds)
                if not uneventful:
                    table.move_to_end(name)
                if len(table) > _MOST:
                    table.popitem(last=False)

    def _count_outage(self, reason: str, *, refused: bool) -> None:
        now = self._clock.wall()
        with self._mutex:
            if not self.outages or now - self.outages[-1].until > _ONE_OUTAGE:
                self.outages.append(Outage(now, now, reason))
            latest = self.outages[-1]
            latest.until = now
            latest.refused += refused
            latest.degraded += not refused

    def _count_request(self, flow: str, outcome: str) -> None:
        with self._mutex:
            self.requests.setdefault(flow, collections.Counter())[outcome] += 1
            self.requests.move_to_end(flow)
            if len(self.requests) > _MOST:
                self.requests.popitem(last=False)

    def outcomes(self) -> list[tuple[str, dict[str, int]]]:
        """Return the numbers of requests by outcome, of each flow, by name."""
        with self._mutex:
            return [(flow, dict(counts)) for flow, counts in sorted(self.requests.items())]
