"""Count the waits for locks of one process since its start.

The counts are bounded: of locks and endpoints, the latest that waited are kept.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable

from userlock.clock import Clock
from userlock.events import Acquired, Event, Rejected, TimedOut
from userlock.fork import reset_in_child

_MOST = 1_000


@dataclasses.dataclass
class Waits:
    """The waits for one lock, or of one endpoint: calls by their ends, and seconds.

    Those that waited may have been granted the lock or not; rejected ones have not waited.
    """

    locks: int = 0
    waited: int = 0
    timed_out: int = 0
    rejected: int = 0
    waited_seconds: float = 0.0
    longest_seconds: float = 0.0


class Tally:
    """Counts events, by lock and by endpoint, the latest last. Thread-safe.

    `endpoint`: returns the endpoint that is running; empty if it is not known. `since`: the begin
    of the counts, in seconds since 1970.
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

    def listen(self, event: Event) -> None:
        """Count an event: a listener."""
        match event:
            case Acquired(lock_id=str(lock_id), waited_seconds=waited, blocked_by=blocked_by):
                self._count_wait(lock_id, "locks", waited if blocked_by else 0.0)
            case TimedOut(lock_id=str(lock_id), waited_seconds=waited):
                self._count_wait(lock_id, "timed_out", waited)
            case Rejected(lock_id=str(lock_id)):
                self._count_wait(lock_id, "rejected", 0.0)

    def _count_wait(self, lock_id: str, outcome: str, seconds: float) -> None:
        endpoint = self._endpoint()
        waited = seconds > 0 or outcome == "timed_out"
        with self._mutex:
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
