"""The waiters of one process at one lock: they share readings, and hand the lock over.

One polls for all. A waiter whose time has come to poll uses the latest reading
of another one, if there is one since. Only the first in the queue polls often;
the others wake up, find its reading, and sleep on.

    B (first)     poll      poll      poll: free ── claims
    C (second)         (uses B's)

A holder hands the lock over without a request, if the first waiter in the queue
is of the same process. That one goes on under the same lease, as the record
names it, and ends its position in the queue with the release:

    A                          record           B (same process)
    has the lock               A +B             waits, first in the queue
    release: B's ────────────────────────────▶ has the lock
                               A +B             release
                               A +B =B =A ◀────

So that all others see no difference but the holder's name, the lease must be
as long as B asked for, nearly; the queue must have been read within the last
second; and B must be interactive: nobody can come to stand before it. No
request of A for this lease may be in flight: it would change B's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from userlock.bell import Bell
from userlock.clock import Clock, Signal, WaitingClock
from userlock.fork import reset_in_child
from userlock.lock.lease import Claim, Lease, Priority
from userlock.lock.record import Record

#: The longest time since the queue was read, for a hand-over without a request.
_FRESH_SECONDS = 1.0
#: The part of its length by which a lease that is handed over may differ from the one asked for.
_TOLERANCE = 0.05
#: How often a lease is handed over at most: its record lists all that had it as waiting.
_MOST_SERVED = 16
#: For how long after a release to others this process expects them to be there still.
_QUEUE_SECONDS = 1.0
#: Leases that were handed over and are held; above this number those that ran out are dropped.
#: Locks that others waited for, likewise.
_MOST_KEPT = 1000


class Reading(NamedTuple):
    """A record as it was read; None if there was none. The time is of the request."""

    record: Record | None
    asked_at: float


class LocalWaiter:
    """One waiter.

    Attributes:
        claim: its claim.
        bell: wakes its thread.
        lease: a lease that was handed over to it.
    """

    __slots__ = ("bell", "claim", "lease", "resting")

    def __init__(self, claim: Claim, bell: Bell) -> None:
        self.claim = claim
        self.bell = bell
        self.lease: Lease | None = None
        #: Its thread sleeps in the queue, and asks for nothing.
        self.resting = False


class _Crowd:
    """The waiters of one lock, by token, and the latest reading of one of them."""

    __slots__ = ("reading", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[str, LocalWaiter] = {}
        self.reading: Reading | None = None


class LocalWaiters:
    """The waiters of this process in one store, by lock. Thread-safe. A forked child has none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits = clock.wait if isinstance(clock, WaitingClock) else _sleep_by(clock)
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._crowds: dict[str, _Crowd] = {}
        #: Of each lease that was handed over and is still held: its latest state, by token.
        self._handed_over: dict[str, Lease] = {}
        #: The time of the last release to others, by lock.
        self._released_at: dict[str, float] = {}

    def enter(self, waiter: LocalWaiter) -> None:
        """Add a waiter, inside the `try` whose `finally` leaves."""
        with self._mutex:
            crowd = self._crowds.setdefault(waiter.claim.lock_id, _Crowd())
            crowd.waiters[waiter.claim.token] = waiter

    def leave(self, waiter: LocalWaiter) -> None:
        """Remove a waiter. Does nothing if it is not there."""
        with self._mutex:
            waiter.resting = False
            crowd = self._crowds.get(waiter.claim.lock_id)
            if crowd is not None:
                crowd.waiters.pop(waiter.claim.token, None)
                if not crowd.waiters:
                    del self._crowds[waiter.claim.lock_id]

    # --- demand -----------------------------------------------------------------------------

    def expect_queue(self, lock_id: str) -> None:
        """Note that a lock was released to others."""
        now = self._clock.now()
        if len(self._released_at) >= _MOST_KEPT:
            kept = {each: at for each, at in self._released_at.items() if now - at < _QUEUE_SECONDS}
            self._released_at = kept if len(kept) < _MOST_KEPT else {}
        self._released_at[lock_id] = now

    def expects_queue(self, lock_id: str) -> bool:
        """Return whether a lock was released to others a short time ago.

        Its record is likely to be there, so that a caller need not try to create it first.
        """
        released_at = self._released_at.get(lock_id)
        return released_at is not None and self._clock.now() - released_at < _QUEUE_SECONDS

    # --- readings ---------------------------------------------------------------------------

    def latest(self, lock_id: str) -> Reading | None:
        """Return the latest reading of any waiter."""
        crowd = self._crowds.get(lock_id)
        return None if crowd is None else crowd.reading

    def tell(self, lock_id: str, reading: Reading) -> None:
        """Share a reading; wake the waiter whose turn it is."""
        crowd = self._crowds.get(lock_id)
        if crowd is None:
            return
        with self._mutex:
            if crowd.reading is not None and crowd.reading.asked_at > reading.asked_at:
                return
            crowd.reading = reading
            record = reading.record
            if len(crowd.waiters) > 1 and record is not None and record.free:
                waiter = crowd.waiters.get(record.next_token())
                if waiter is not None and waiter.resting:
                    waiter.bell.ring()

    # --- hand-over --------------------------------------------------------------------------

    def rest(self, waiter: LocalWaiter, seconds: float) -> Lease | None:
        """Sleep until the bell rings, or for that long; return a lease that was handed over."""
        with self._mutex:
            waiter.resting = True
        try:
            self._waits(waiter.bell, seconds)
        finally:
            with self._mutex:
                waiter.resting = False
        return waiter.lease

    def has_passed(self, lease: Lease) -> bool:
        """Return whether a lease was handed over: its token is another holder's now."""
        latest = self._handed_over.get(lease.token)
        return latest is not None and len(lease.served) < len(latest.served)

    def served(self, token: str) -> tuple[str, ...]:
        """Return the waiters of a lease that have or had the lock; the record still lists them."""
        latest = self._handed_over.get(token)
        return () if latest is None else latest.served

    def owns(self, lease: Lease) -> bool:
        """Return whether a lease that is being released was not handed over; it is forgotten."""
        if not self._handed_over:
            return True
        with self._mutex:
            if self.has_passed(lease):
                return False
            self._handed_over.pop(lease.token, None)
            return True

    def hand_over(self, lease: Lease) -> bool:
        """Hand a lease over to the first waiter in the queue; return whether that was done."""
        crowd = self._crowds.get(lease.lock_id)
        if crowd is None or lease.degraded or lease.unsettled:
            return False
        with self._mutex:
            if self.has_passed(lease) or len(lease.served) >= _MOST_SERVED:
                return False
            waiter = self._heir(crowd, lease)
            if waiter is None:
                return False
            waiter.resting = False
            waiter.lease = lease._replace(
                ttl_seconds=lease.deadline - self._clock.now(),  # of the tenure that begins
                version=None,  # the heir has queued since, at least
                contended=True,
                priority=waiter.claim.priority.value,
                served=(*lease.served, waiter.claim.token),
            )
            self._handed_over[lease.token] = waiter.lease
            if len(self._handed_over) > _MOST_KEPT:
                self._drop_those_that_ended()
            waiter.bell.ring()
            return True

    def _drop_those_that_ended(self) -> None:
        now = self._clock.now()
        kept = {each.token: each for each in self._handed_over.values() if each.deadline > now}
        self._handed_over = kept

    def _heir(self, crowd: _Crowd, lease: Lease) -> LocalWaiter | None:
        now, reading = self._clock.now(), crowd.reading
        if reading is None or reading.record is None or now - reading.asked_at > _FRESH_SECONDS:
            return None
        record = reading.record
        if record.free or record.holder.token != lease.token:
            return None
        waiter = crowd.waiters.get(record.next_token(served=lease.served))
        if waiter is None or not waiter.resting:
            return None
        if waiter.claim.priority is not Priority.INTERACTIVE:
            return None
        asked = waiter.claim.ttl_seconds
        fits = abs(lease.deadline - now - asked) <= asked * _TOLERANCE
        return waiter if fits else None


def _sleep_by(clock: Clock) -> Callable[[Signal, float], None]:
    return lambda _, seconds: clock.sleep(seconds)
