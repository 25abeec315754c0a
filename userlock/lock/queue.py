"""A waiter's view of its queue: whose turn it is, and when to poll again. No I/O.

Waiters of one priority are served first come, first served. Batch is served only while no
interactive request waits, unless it has aged (see `userlock.lock.record`). A lock is never free for
newcomers while others are queued, because the record stays until its queue is empty.

A waiter may die in the queue. A free lock that is not taken for `PATIENCE_SECONDS` goes to the next
waiter. A caller that wants to wait less makes a reservation (see `userlock.lock.protocol`). One
that was only paused finds itself passed, and queues again, before those that came after it.

A waiter that comes to stand ahead while the lock is free (interactive before batch) is alive, and
the time of those behind it starts again:

    A (dead)    first in the queue ┄┄┄┄┄┄┄┄┄┄┄┄┄
    batch       polls: free, A is first ─┄┄┄ starts again ── 0.5 s
    B                                    joins ── 0.25 s ──▶ takes it, past A
"""

from __future__ import annotations

import collections
import enum

from userlock.lock.policy import Polling
from userlock.lock.record import PATIENCE_SECONDS, Record

#: After the loss of a record, each waiter gives those ahead of it this long to restore it.
_COURTESY_SECONDS = 0.05
#: The assumed length of a hold before any has been seen.
_UNKNOWN_HOLD_SECONDS = 0.01
#: The duration of a poll.
_POLL_SECONDS = 0.0001
#: Longest delays of the second waiter (and of a first one that is woken), and of those behind it.
_MOST_SECONDS_SECOND = 0.1
_MOST_SECONDS_BEHIND = 0.25
#: The delay of a waiter that another one of its process wakes, in seconds.
LED_SECONDS = 0.5
#: Its patience, in seconds: those ahead live, and are slow, unless their event loop was stopped.
_LED_PATIENCE_SECONDS = 2.0


class Decision(enum.Enum):
    """The next step of a waiter."""

    #: Take the lock: it is free, and this waiter is first.
    CLAIM = enum.auto()
    #: Take it, past those ahead: they have had their time.
    PASS = enum.auto()
    #: Queue again: the record has lost this waiter.
    REJOIN = enum.auto()
    #: The record is gone, and this waiter is to restore it.
    CREATE = enum.auto()
    #: Poll again later.
    WAIT = enum.auto()


class Turn:
    """One waiter's view of its turn, from poll to poll.

    Attributes:
        gone_since: the time of the first poll that found no record, or None.
        position: the number of waiters ahead, at the last poll.
        free_since: the time since when those ahead could claim the lock, or None.
        patience_ends: the time when it is this waiter's turn although others are ahead, or None.
    """

    __slots__ = ("_free", "_token", "free_since", "gone_since", "patience_ends", "position")

    def __init__(self, token: str) -> None:
        self._token = token
        self.position = 0
        self.gone_since: float | None = None
        self.free_since: float | None = None
        self.patience_ends: float | None = None
        #: The last holder, the time the lock was first seen free, and the waiters ahead then.
        self._free: tuple[bytes, float, frozenset[bytes]] | None = None

    def decide(self, record: Record | None, now: float, *, led: bool = False) -> Decision:
        """Return the next step after `record` was read at `now`.

        `led`: another waiter of this process comes first, and wakes this one when it leaves.
        """
        self.free_since = self.patience_ends = None
        if record is None:
            return self._decide_gone(now)
        self.gone_since = None
        position = record.position_of(self._token)
        if position is None:
            return Decision.REJOIN
        self.position = position
        if not record.free:
            self._free = None
            return Decision.WAIT
        if position == 0:
            return Decision.CLAIM
        return self._decide_behind(record, now, led)

    def _decide_behind(self, record: Record, now: float, led: bool) -> Decision:
        """Pass the waiters ahead of a free lock, once they have had time to claim it."""
        ahead = frozenset(record.tokens_ahead_of(self._token))
        last = record.last_held_by
        # A waiter that has just come to stand ahead is alive, and has had no time yet.
        if self._free is None or self._free[0] != last or ahead - self._free[2]:
            self._free = last, now, ahead
        self.free_since = self._free[1]
        if led:
            patience = _LED_PATIENCE_SECONDS
        else:  # the threads of one process live and die together
            patience = PATIENCE_SECONDS * record.processes_ahead_of(self._token)
        self.patience_ends = self.free_since + patience
        if now >= self.patience_ends or (record.is_turn_of(self._token) and not led):
            return Decision.PASS
        return Decision.WAIT

    def _decide_gone(self, now: float) -> Decision:
        """Restore a record that the store has lost; the waiters ahead go first."""
        if self.gone_since is None:
            self.gone_since = now
        self.patience_ends = self.gone_since + _COURTESY_SECONDS * min(self.position, 20)
        return Decision.CREATE if now >= self.patience_ends else Decision.WAIT


class HoldTimes:
    """The durations of the latest holds in this process, by priority. Thread-safe."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = collections.defaultdict[str, collections.deque[float]](
            lambda: collections.deque(maxlen=15)
        )

    def typical(self, priority: str) -> float:
        """Return the median, in seconds: one slow request moves it little."""
        latest = self.latest.get(priority)
        if not latest:
            return _UNKNOWN_HOLD_SECONDS
        # From one copy: other threads go on noting meanwhile.
        holds = sorted(latest.copy())
        return max(holds[len(holds) // 2], 0.0001)


def delay(
    position: int, typical: float, held: float, polling: Polling, *, woken: bool = False
) -> float:
    """Return the delay before the next poll, in seconds.

    Args:
        position: the number of waiters ahead.
        typical: the usual length of a hold, in seconds.
        held: the time since the present holder got the lock, as far as is known, in seconds; since
            the lock was free for those ahead, if it is.
        polling: bounds.
        woken: whether the store wakes the waiter.

    The first waiter polls three times in a hold of the usual length, the last time
    shortly after its end, and at least every `most_seconds`:

        |         |         | ||| | | | | | | | | | | | | |  |   |    |
        0       0.45 h    0.9 h  1.1 h                    2 h     h: the typical hold

    Those behind poll twice in the time until their turn, and four times a second at least.

    A waiter that is woken polls in case a wake-up is lost. If it is first: about every tenth of a
    second, shortly after the usual end, and then after a quarter of the hold more.
    """
    if position == 0:
        if woken and held < 1.1 * typical:
            rest = 1.1 * typical - held
            most = max(polling.most_seconds, _MOST_SECONDS_SECOND)
            seconds = rest / max(1, round(rest / most))
            return max(polling.least_seconds, seconds)
        rest = 1.002 * typical + _POLL_SECONDS - held  # the release takes its time too
        if rest > 0:
            seconds = min(0.45 * typical, rest)
        elif held < 2 * typical:
            seconds = min(max(held - typical, typical / 50), typical / 20)
        else:
            seconds = held / 12
        if woken:
            seconds = max(seconds, held / 4)
        return max(polling.least_seconds, min(seconds, polling.most_seconds))
    # All waiters ahead may be of one process, and dead: nobody sleeps longer than patience lasts.
    most = _MOST_SECONDS_SECOND if position == 1 else _MOST_SECONDS_BEHIND
    seconds = most if woken else position * max(typical, held / 6) / 2
    return max(10 * polling.least_seconds, min(seconds, most))
