"""The waiters of one process at one lock share their readings of its record.

The first of them in the queue polls for all. The others wake up seldom, use its latest reading, and
sleep on. When it leaves, it wakes the next one. A process queues so many of them as the store takes
of one (`LeaseStore.most_queued`), and leaves room in the record for another process. Batch has half
as many places of its own. The others wait here for their turn to queue, in order, and cost nothing
meanwhile: ten thousand tasks may wait for one lock.

`Admission` bounds the callers of this process that wait for one lock: each of them occupies a
thread, and one user's requests must not occupy all threads of a server:

    8 threads   ann has the lock, 7 requests of ann wait   │ bob waits for a thread
    bounded     ann has the lock, 5 requests of ann wait   │ bob is served; ann's others: 429
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

from userlock.clock import Clock, SystemClock, WaitingClock
from userlock.fork import reset_in_child
from userlock.lock.lease import Claim, Holder, Priority
from userlock.lock.record import MOST_WAITERS, Record
from userlock.lock.store import WakeUps
from userlock.waits import Bell, locked, with_mutex

#: For how long after a release to others this process expects them to be there still.
_QUEUE_SECONDS = 1.0
#: For how long those that it was released to are left alone: a change of its record meanwhile
#: would have their claim refused. They come first in any case.
_COURTESY_SECONDS = 0.001
#: The locks that are remembered for it. Above this number all are forgotten: each costs one create.
_MOST_KEPT = 1000


class Reading(NamedTuple):
    """A record as it was read; None if there was none. The time is of the request."""

    record: Record | None
    asked_at: float


_NOT_READ = Reading(None, -math.inf)
#: Of most crowds there are none, and ten thousand empty dicts take much memory. Never filled.
_NOBODY: dict[str, Bell] = {}


class _Crowd:
    """The bells of the waiters of one lock, by token: of those in its queue, of the batch among
    them, and of those that may not queue yet, by priority.
    """

    __slots__ = ("batch", "bells", "outside", "outside_batch", "reading", "seen")

    def __init__(self) -> None:
        self.bells: dict[str, Bell] = {}
        self.batch = self.outside = self.outside_batch = _NOBODY
        self.reading: Reading | None = None
        #: The latest one that found a record.
        self.seen = _NOT_READ

    def queue(self, priority: Priority, token: str, bell: Bell) -> None:
        self.bells[token] = bell
        if priority is Priority.BATCH:
            self.batch = self.batch or {}
            self.batch[token] = bell

    def queued(self, priority: Priority) -> int:
        batch = len(self.batch)
        return batch if priority is Priority.BATCH else len(self.bells) - batch

    def wait_outside(self, priority: Priority, bells: dict[str, Bell]) -> None:
        if priority is Priority.BATCH:
            self.outside_batch = bells
        else:
            self.outside = bells

    def those_outside(self, priority: Priority) -> dict[str, Bell]:
        return self.outside_batch if priority is Priority.BATCH else self.outside


class LocalWaiters:
    """The waiters of this process in one store, by lock. Thread-safe. A forked child has none."""

    def __init__(self, clock: Clock, most_queued: int = MOST_WAITERS) -> None:
        self._clock = clock
        self._most_queued = most_queued
        self._waits = clock.wait if isinstance(clock, WaitingClock) else None
        #: Whether the clock goes as an event loop's does; a test moves it by hand otherwise.
        self._real = isinstance(clock, SystemClock)
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may end a wait at any time
        self.crowds: dict[str, _Crowd] = {}
        #: Those that are queued, at all locks, by token.
        self.queued: dict[str, None] = {}
        #: The locks that somebody of this process tries to take just now.
        self.tried: dict[str, object] = {}
        #: The time of the last release to others, by lock.
        self.released_at: dict[str, float] = {}

    @with_mutex
    def enter(self, claim: Claim, bell: Bell, *, at_once: bool = True) -> bool:
        """Add a waiter, inside the `try` whose `finally` leaves. Return whether it may queue.

        If it may not queue yet, its bell rings when it may. `at_once`: it may, whatever room that
        leaves for another process.
        """
        crowd = self.crowds.setdefault(claim.lock_id, _Crowd())
        outside = crowd.those_outside(claim.priority)
        at_once = at_once and len(crowd.bells) < MOST_WAITERS
        if at_once or (not outside and self._has_room(crowd, claim.priority)):
            crowd.queue(claim.priority, claim.token, bell)
            self.queued[claim.token] = None
            return True
        outside = outside or {}
        outside[claim.token] = bell
        crowd.wait_outside(claim.priority, outside)
        return False

    def _has_room(self, crowd: _Crowd, priority: Priority) -> bool:
        """Return whether another waiter may queue: the record has room for one process more.

        Batch has places of its own, half as many: it keeps no interactive waiter out, and ages in
        the queue whatever waits outside.
        """
        record = crowd.seen.record
        share = MOST_WAITERS / (2 if record is None else record.processes + 1)
        most = min(self._most_queued, share * 2 / 3) / (2 if priority is Priority.BATCH else 1)
        return crowd.queued(priority) < max(most, 1)

    def _let_in(self, crowd: _Crowd, more: int = 0) -> None:
        """Let those queue for whom there is room: as many as in the record, and some `more`."""
        record = crowd.seen.record
        room = more + (MOST_WAITERS if record is None else record.room)
        for priority in Priority:
            outside, let_in = crowd.those_outside(priority), 0
            while outside:
                token, bell = next(iter(outside.items()))
                if token not in crowd.bells:  # (an interrupted call may not have rung it)
                    if let_in == room or not self._has_room(crowd, priority):
                        break
                    let_in += 1
                    crowd.queue(priority, token, bell)
                    self.queued[token] = None
                bell.ring()
                outside.pop(token)

    def _first(self, crowd: _Crowd) -> Bell | None:
        """Return the bell of the one that comes first here."""
        record = crowd.seen.record
        return None if record is None else crowd.bells.get(record.first_of(crowd.bells))

    @with_mutex
    def step_out(self, claim: Claim, bell: Bell) -> bool:
        """Let a waiter for which the record has no room wait until another one leaves.

        Return whether it does; not if it is the only one here, which has to try again.
        """
        crowd = self.crowds[claim.lock_id]
        if crowd.queued(claim.priority) < 2:
            return False
        later = crowd.those_outside(claim.priority)
        for waiters in (crowd.bells, crowd.batch, self.queued):
            waiters.pop(claim.token, None)
        crowd.wait_outside(claim.priority, {claim.token: bell, **later})  # before those
        first = self._first(crowd)
        if first is not None:
            first.ring()  # it polls from now on
        return True

    def may_queue(self, claim: Claim) -> bool:
        """Return whether a waiter may queue that had to wait for its turn."""
        crowd = self.crowds.get(claim.lock_id)
        return crowd is not None and claim.token in crowd.bells

    @with_mutex
    def leave(self, claim: Claim) -> Bell | None:
        """Remove a waiter; return the bell of the one that comes first here, and polls from now on.

        Its caller rings it, unless the store does.
        """
        self.queued.pop(claim.token, None)
        crowd = self.crowds.get(claim.lock_id)
        if crowd is None:
            return None
        for waiters in (crowd.bells, crowd.batch, crowd.those_outside(claim.priority)):
            waiters.pop(claim.token, None)
        if not (crowd.bells or crowd.outside or crowd.outside_batch):
            del self.crowds[claim.lock_id]
            return None
        self._let_in(crowd, 1)
        return self._first(crowd)

    def expect_queue(self, lock_id: str) -> None:
        """Note that a lock was released to others."""
        if len(self.released_at) >= _MOST_KEPT:
            self.released_at = {}
        self.released_at[lock_id] = self._clock.now()

    def expects_queue(self, lock_id: str) -> bool:
        """Return whether the record is likely to be there: others try, wait, or got the lock."""
        if lock_id in self.tried or lock_id in self.crowds:
            return True
        released_at = self.released_at.get(lock_id)
        return released_at is not None and self._clock.now() - released_at < _QUEUE_SECONDS

    def courtesy(self, lock_id: str) -> float:
        """Return how long to leave a lock to those that it was released to, in seconds."""
        released_at = self.released_at.get(lock_id)
        if released_at is None:
            return 0.0
        return max(0.0, released_at + _COURTESY_SECONDS - self._clock.now())

    def latest(self, lock_id: str) -> Reading | None:
        """Return the latest reading of any waiter."""
        crowd = self.crowds.get(lock_id)
        return None if crowd is None else crowd.reading

    def seen(self, lock_id: str) -> Reading:
        """Return the latest reading of any waiter that found a record."""
        crowd = self.crowds.get(lock_id)
        return _NOT_READ if crowd is None else crowd.seen

    def tell(self, claim: Claim, reading: Reading) -> None:
        """Share a waiter's reading; wake the waiter whose turn it is."""
        crowd = self.crowds.get(claim.lock_id)
        if crowd is None or (crowd.reading and crowd.reading.asked_at > reading.asked_at):
            return
        crowd.reading = reading
        record = reading.record
        if record is not None:
            crowd.seen = reading
            if crowd.outside or crowd.outside_batch:
                locked(self._mutex, self._let_in, crowd)
        if record is not None and record.free:
            token = record.next_token()
            bell = crowd.bells.get(token)
            if bell is not None and token != claim.token:
                bell.ring()

    def is_woken(self, claim: Claim, record: Record) -> bool:
        """Return whether another waiter of this process comes first: it polls, and wakes us."""
        crowd = self.crowds.get(claim.lock_id)
        if crowd is None or len(crowd.bells) < 2:
            return False
        return record.first_of(crowd.bells) not in ("", claim.token)

    async def rest(self, bell: Bell, seconds: float, wake_ups: WakeUps | None = None) -> None:
        """Sleep until the bell rings, or for that long; `wake_ups`: listen to the store."""
        task = bell.loop is not None
        if not (task and self._real):
            if self._waits is None:
                self._clock.sleep(seconds)
            else:
                self._waits(bell, seconds)
            seconds = 0.0
        if task:
            await (bell.sleep(seconds) if wake_ups is None else wake_ups.await_(bell, seconds))


class Rejection(NamedTuple):
    """The number of callers that wait, the holder that one of them met last, and how many such
    rejections there were while callers wait without a break.
    """

    waiting: int
    holder: Holder | None
    times: int


class Admission:
    """The callers of this process that wait, by lock. Thread-safe. A forked child has none.

    A caller is hashed by identity, and has the `holder` that it met last.
    """

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        #: By lock: those that wait, in the order in which they began, and the number of rejections.
        self._crowds: dict[str, dict[Any, None]] = {}
        self._rejected: dict[str, int] = {}

    def waiting(self, lock_id: str) -> int:
        """Return the number of callers that wait for a lock."""
        return len(self._crowds.get(lock_id, ()))

    @with_mutex
    def enter(self, lock_id: str, caller: Any, most: int | None) -> Rejection | None:
        """Let a caller wait, if fewer than `most` do already; None: without a limit.

        Enter inside the `try` whose `finally` leaves: a thread may be stopped
        between any two steps.
        """
        crowd = self._crowds.get(lock_id, {})
        if most is not None and len(crowd) >= most:
            times = self._rejected.get(lock_id, 0) + 1
            if crowd:
                self._rejected[lock_id] = times
            # The latest to begin has the latest news, once it has met the holder.
            met = (each.holder for each in reversed(crowd))
            holder = next((holder for holder in met if holder is not None), None)
            return Rejection(len(crowd), holder, times)
        self._crowds.setdefault(lock_id, {})[caller] = None
        return None

    @with_mutex
    def leave(self, lock_id: str, caller: Any) -> None:
        """Give a caller's place back. Does nothing if it has none."""
        crowd = self._crowds.get(lock_id, {})
        crowd.pop(caller, None)
        if not crowd:
            self._crowds.pop(lock_id, None)
            self._rejected.pop(lock_id, None)
