"""Deadlocks: seeing, in the holders' records, that a wait would never end.

Whoever waits for a lock while it holds others says so in the records of those
that it holds. So the chain can be followed from lock to lock:

    A holds x, waits for y          record of x: held by A, who waits for y
    B holds y, waits for z          record of y: held by B, who waits for z
    C holds z, begins to wait for x record of z: held by C, who waits for x
    C follows: x → A waits for y → B waits for z → that is C: a circle

Everybody in the circle sees the same one. The one that began to wait last (by
the waiters' own clocks) gives up, and the others go on. Whoever says so last
sees what all the others have said, because it looks afterwards.

A chain is read lock by lock, while things go on. A circle that is read twice
with the same waits in it was there as a whole in between:

    read 1   x → A   y → B   z → C
                                     ◀── all of it was true here
    read 2                           x → A   y → B   z → C

Limits: one that has died while it waited looks as if it still did, until its
lease is over; a circle with it is reported like any other, although it would
end then. At most 16 locks are followed, and none of a fallback store.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from userlock.errors import DeadlockDetected
from userlock.lock.lease import Claim, Lease
from userlock.lock.record import BlockedOn, Record, blocked
from userlock.lock.store import StoreUnavailable

if TYPE_CHECKING:
    from userlock.lock.service import LockService

#: Longer chains are not followed: nobody takes so many locks one by one.
_MOST_LINKS = 16
#: Most waits are over by then, and nobody has had to be told of them.
_GRACE_SECONDS = 0.01
#: How often the chain is followed at most, in seconds.
_INTERVAL_SECONDS = 0.02


class _Link(NamedTuple):
    """One in the circle: since when it waits, as whom it holds what, and for people."""

    since: float
    token: str
    lock_id: str
    holder: str


class DeadlockWatch:
    """Watches for a circle while one claim waits.

    Args:
        service: where all the locks come from.
        claim: what is waited for.
        holding: the leases that the waiter has.
    """

    def __init__(self, service: LockService, claim: Claim, holding: Iterable[Lease]) -> None:
        self._service = service
        self._claim = claim
        # What the store does not know of, it cannot tell others.
        self._holding = {lease.token: lease for lease in holding if not lease.degraded}
        self._since = round(claim.holder.since, 3)
        self._untold = dict(self._holding)
        self._perhaps_told: dict[str, Lease] = {}
        self._next_look = service.clock.now() + _GRACE_SECONDS

    def look(self, record: Record) -> float:
        """Follow the chain from the record of the lock that is waited for.

        Returns:
            For how long the waiter may sleep, at most, before it looks again; in seconds.

        Raises:
            DeadlockDetected: it leads back to us, and we are the one to give up.
        """
        if not self._holding:
            return math.inf
        if not record.free and record.holder.token in self._holding:
            raise self._deadlock([self._own_link(record, self._claim.lock_id)])
        now = self._service.clock.now()
        if now < self._next_look:
            return self._next_look - now if self._untold else math.inf
        self._next_look = now + _INTERVAL_SECONDS
        circle = None
        # A lock on the way may be with a server that does not answer. Whether
        # the one with our lock does, the wait finds out for itself.
        with contextlib.suppress(StoreUnavailable):
            circle = self._see(record)
        if circle is not None and max(circle, key=_rank) is circle[-1]:
            raise self._deadlock(circle)
        return math.inf

    def end(self) -> None:
        """The wait is over."""
        for lease in self._perhaps_told.values():
            # Who follows the chain sees it anyway.
            with contextlib.suppress(StoreUnavailable):
                self._write(lease, None)

    def _see(self, record: Record) -> list[_Link] | None:
        """Return the circle that we are in, seen twice; None if there is none."""
        latest: Record | None = record
        if self._untold:
            self._say_so()
            latest = self._look_at(self._claim.lock_id)
        circle = self._follow(latest)
        if circle is None or self._follow(self._look_at(self._claim.lock_id)) != circle:
            return None
        return circle

    def _say_so(self) -> None:
        waiting = BlockedOn(self._claim.lock_id, self._since, self._claim.token)
        for token, lease in list(self._untold.items()):
            self._perhaps_told[token] = lease
            with contextlib.suppress(StoreUnavailable):  # said at the next look, then
                self._write(lease, waiting)
                del self._untold[token]

    def _write(self, lease: Lease, on: BlockedOn | None) -> None:
        self._service.ask(
            lease.lock_id,
            self._service.leases.write_line,
            lease.lock_id,
            blocked(lease.token, on),
        )

    def _look_at(self, lock_id: str) -> Record | None:
        return self._service.ask(lock_id, self._service.leases.look, lock_id)

    def _follow(self, record: Record | None) -> list[_Link] | None:
        """The circle from the lock that is waited for to one of ours; None if there is none."""
        circle: list[_Link] = []
        lock_id, waiting = self._claim.lock_id, self._claim.token
        seen: set[str] = set()
        while record is not None and lock_id not in seen and len(seen) < _MOST_LINKS:
            # Whoever has given up waiting may not have been able to say so.
            if record.free or record.position_of(waiting) is None:
                return None
            if record.holder.token in self._holding:
                return [*circle, self._own_link(record, lock_id)]
            on = record.blocked_on
            if on is None:
                return None
            holder = record.holder
            circle.append(_Link(on.since, holder.token, lock_id, holder.describe()))
            seen.add(lock_id)
            lock_id, waiting = on.lock_id, on.token
            record = self._look_at(lock_id)
        return None

    def _own_link(self, record: Record, lock_id: str) -> _Link:
        return _Link(self._since, record.holder.token, lock_id, record.holder.describe())

    def _deadlock(self, circle: list[_Link]) -> DeadlockDetected:
        return DeadlockDetected(
            lock_id=self._claim.lock_id,
            cycle=tuple((link.lock_id, link.holder) for link in circle),
        )


def _rank(link: _Link) -> tuple[float, str]:
    """Return the rank of a waiter: the one with the highest gives up."""
    return link.since, link.token
