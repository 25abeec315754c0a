"""A waiter's view of its queue: whose turn it is, and when to poll again. No I/O.

Waiters of one priority are served first come, first served; batch only when
no person waits, unless it has waited so long that it ranks with them (that is
decided in `userlock.lock.record`). A lock is never free for newcomers while
somebody stands in line, because the record stays until the line is empty.

A waiter may die in line. Nobody need find out until it is its turn: a free
lock that is not taken for `PATIENCE_SECONDS` goes to the next one.

    A (dead)    first in line ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
    B           looks: free, A is first ── 0.25 s ──▶ takes it, past A
    C                                                 is first now

Whoever wants to wait less than that cannot know for how long the lock has lain
free. Before it gives up it leaves an offer (`userlock.lock.upkeep`), which the
store times: once it has lapsed, those whom it was made to are passed at once.

One that was only paused finds itself passed over, and lines up again, before
those who came after it. Who comes to stand ahead while the lock lies free (a
person before batch) is alive, and the time of those behind begins anew:

    A (dead)    first in line ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
    batch       looks: free, A is first ─┄┄┄┄ begins anew ── 0.5 s
    B                                    joins ── 0.25 s ──▶ takes it, past A
"""

from __future__ import annotations

import collections
import enum
from typing import NamedTuple

from userlock.lock.policy import Polling
from userlock.lock.record import Record

#: How long a free lock waits for whoever is first, in each process that stands ahead.
PATIENCE_SECONDS = 0.25
#: After a record has gone, how long each one behind lets those ahead begin again.
_COURTESY_SECONDS = 0.05
#: Who stood in a line that was seen longer ago is not taken to stand there still: those ahead have
#: had their 0.05 s, a second together at most, and everybody looks four times a second.
MEMORY_SECONDS = 1.5
#: What a hold is taken to last as long as none has been seen.
_UNKNOWN_HOLD_SECONDS = 0.01
#: What a look itself takes.
_LOOK_SECONDS = 0.0001
#: Who is not first looks at least this often, in seconds; see `Pace.delay`.
_MOST_SECONDS_SECOND = 0.1
_MOST_SECONDS_BEHIND = 0.25


class Decision(enum.Enum):
    """The next step of a waiter."""

    #: Take the lock: it is free, and this is the first in line.
    CLAIM = enum.auto()
    #: Take it, past those ahead: they have had their time.
    PASS = enum.auto()
    #: Stand in line again: the record has lost us.
    REJOIN = enum.auto()
    #: The record has gone, and it is for us to begin again.
    CREATE = enum.auto()
    #: Look again later.
    WAIT = enum.auto()


class Turn:
    """One waiter's view: whose turn it is, from look to look.

    Attributes:
        position: how many are served before this one, at the last look.
    """

    __slots__ = ("_free", "_gone_since", "_token", "patience_ends", "position")

    def __init__(self, token: str) -> None:
        self._token = token
        self.position = 0
        #: When the lock was first seen free with nobody ahead but these, and who had left it.
        self._free: tuple[bytes, float, frozenset[bytes]] | None = None
        self._gone_since: float | None = None
        #: When it is our turn although others stand ahead, or None.
        self.patience_ends: float | None = None

    def decide(self, record: Record | None, now: float) -> Decision:
        """Return the next step after `record` was read at `now`."""
        self.patience_ends = None
        if record is None:
            return self._decide_gone(now)
        self._gone_since = None
        position = record.position_of(self._token)
        if position is None:
            return Decision.REJOIN
        self.position = position
        if not record.free:
            self._free = None
            return Decision.WAIT
        if position == 0:
            return Decision.CLAIM
        return self._decide_behind(record, now)

    def _decide_behind(self, record: Record, now: float) -> Decision:
        """It is another's turn: ours when they have let it pass."""
        ahead = record.tokens_ahead_of(self._token)
        # Whoever has just come to stand ahead is alive, and has not had this time yet.
        if self._free is None or self._free[0] != record.left_by or ahead - self._free[2]:
            self._free = record.left_by, now, ahead
        # The threads of one process live and die together.
        processes = record.processes_ahead_of(self._token)
        self.patience_ends = self._free[1] + PATIENCE_SECONDS * processes
        if now >= self.patience_ends or record.is_turn_of(self._token):
            return Decision.PASS
        return Decision.WAIT

    def _decide_gone(self, now: float) -> Decision:
        """The store has lost the record. Those ahead begin again first."""
        if self._gone_since is None:
            self._gone_since = now
        self.patience_ends = self._gone_since + _COURTESY_SECONDS * min(self.position, 20)
        return Decision.CREATE if now >= self.patience_ends else Decision.WAIT


class HoldTimes:
    """The usual duration of holds in this process, as a guide to polling. Thread-safe.

    The median of the latest: one slow request among many moves it little, and
    a change of habits is learnt after a few.
    """

    __slots__ = ("_latest",)

    _COUNT = 15

    def __init__(self) -> None:
        self._latest: dict[str, collections.deque[float]] = {}

    def note(self, priority: str, seconds: float) -> None:
        """A lock of that priority was held for so long."""
        latest = self._latest.get(priority)
        if latest is None:
            latest = self._latest.setdefault(priority, collections.deque(maxlen=self._COUNT))
        latest.append(seconds)

    def typical(self, priority: str) -> float:
        """Return the expected hold of that priority, in seconds."""
        latest = self._latest.get(priority)
        if not latest:
            return _UNKNOWN_HOLD_SECONDS
        # A middle one; a little more exact would not be worth the time. Other
        # threads go on noting meanwhile, so everything is taken from one copy.
        middle = sorted(latest.copy())
        return max(middle[len(middle) // 2], 0.0001)


class Look(NamedTuple):
    """The facts that a polling delay depends on. All times are in seconds.

    Attributes:
        position: how many are served before this waiter.
        typical: what a hold lasts as a rule.
        held: for how long the present holder has had the lock, as far as is known.
    """

    position: int
    typical: float
    held: float


def delay(look: Look, polling: Polling) -> float:
    """Return the delay before the next poll, in seconds.

    The first in line looks half a dozen times in a hold of the usual length,
    mostly towards its end:

        |         |         |||||| | | | | | | | | | | | | |  |   |    |
        0       0.45 h    0.9 h  1.1 h                    2 h     h: the typical hold

    so a hand-off costs few looks and a small part of a hold, be it long or
    short; in one of more than `most_seconds` x 25 it looks every `most_seconds`.
    Those behind look twice in the time until their turn: all together, a line
    of n asks as often as 2 (1 + 1/2 + … + 1/n) per hold, and where that is
    seldom, four times a second each.
    """
    position, typical, held = look
    if position == 0:
        if held < 0.88 * typical:
            seconds = min(0.45 * typical, 0.9 * typical - held)
        elif held < 1.1 * typical:
            seconds = typical / 25 - _LOOK_SECONDS
        elif held < 2 * typical:
            seconds = typical / 20
        else:
            seconds = held / 12
        return max(polling.least_seconds, min(seconds, polling.most_seconds))
    seconds = position * max(typical, held / 6) / 2
    # All ahead may be of one process, and dead: so nobody sleeps for longer than patience lasts.
    most = _MOST_SECONDS_SECOND if position == 1 else _MOST_SECONDS_BEHIND
    return max(10 * polling.least_seconds, min(seconds, most))
