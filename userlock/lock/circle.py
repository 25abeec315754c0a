"""Deadlocks: seeing, in the holders' records, that a wait would never end.

Whoever waits for a lock while it holds others says so in the records of those
that it holds. So the chain can be followed from lock to lock:

    A holds x, waits for y          record of x: held by A, who waits for y
    B holds y, waits for z          record of y: held by B, who waits for z
    C holds z, begins to wait for x record of z: held by C, who waits for x
    C follows: x → A waits for y → B waits for z → that is C: a circle

Everybody in the circle sees the same one. The one that began to wait last (by
the waiters' own clocks) gives up, and the others go on. Two that begin to
wait at the same moment may each look before the other has said so; they see
it at their next look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from userlock.errors import DeadlockDetected
from userlock.lock.lease import Claim, Lease
from userlock.lock.record import BlockedOn, Record, blocked
from userlock.lock.store import StoreUnavailable

if TYPE_CHECKING:
    from userlock.lock.service import LockService

#: Longer chains are not followed: nobody takes so many locks one by one.
_MOST_LINKS = 16
#: How often the chain is followed, in seconds.
_INTERVAL_SECONDS = 0.02


class _Link(NamedTuple):
    """One in the circle: since when it waits, as whom it holds, and for people."""

    since: float
    token: str
    lock_id: str
    holder: str


class Circle:
    """Watches for a circle while one claim waits.

    Args:
        service: where all the locks come from.
        claim: what is waited for.
        holding: the leases that the waiter has.
    """

    def __init__(self, service: LockService, claim: Claim, holding: Sequence[Lease]) -> None:
        self._service = service
        self._claim = claim
        self._holding = {lease.token: lease for lease in holding if not lease.degraded}
        self._since = round(claim.holder.since, 3)
        self._said = False
        self._next_look = 0.0

    def look(self, record: Record) -> None:
        """Follow the chain from the record of the lock that is waited for.

        Raises:
            DeadlockDetected: it leads back to us, and we are the one to give up.
        """
        now = self._service.clock.now()
        if not self._holding or now < self._next_look:
            return
        self._next_look = now + _INTERVAL_SECONDS
        self._say_so()
        circle = self._follow(record)
        if circle is not None and max(circle)[:2] == (self._since, circle[-1].token):
            raise DeadlockDetected(
                lock_id=self._claim.lock_id,
                circle=tuple((link.lock_id, link.holder) for link in circle),
            )

    def _say_so(self) -> None:
        if not self._said:
            self._said = True
            self._write(BlockedOn(self._claim.lock_id, self._since, self._claim.token))

    def end(self) -> None:
        """The wait is over."""
        if self._said:
            with contextlib.suppress(StoreUnavailable):  # who follows the chain sees it anyway
                self._write(None)

    def _write(self, on: BlockedOn | None) -> None:
        for lease in self._holding.values():
            self._service.ask(
                lease.lock_id,
                self._service.leases.write_line,
                lease.lock_id,
                blocked(lease.token, on),
            )

    def _follow(self, record: Record) -> list[_Link] | None:
        """The circle from the lock that is waited for to one of ours; None if there is none."""
        circle: list[_Link] = []
        lock_id = self._claim.lock_id
        for _ in range(_MOST_LINKS):
            holder = record.holder
            if record.free:
                return None
            if holder.token in self._holding:
                return [*circle, _Link(self._since, holder.token, lock_id, holder.describe())]
            on = record.blocked_on
            if on is None:
                return None
            circle.append(_Link(on.since, holder.token, lock_id, holder.describe()))
            following = self._service.ask(on.lock_id, self._service.leases.look, on.lock_id)
            # Whoever has given up waiting may not have been able to say so.
            if following is None or following.position_of(on.token) is None:
                return None
            lock_id, record = on.lock_id, following
        return None
