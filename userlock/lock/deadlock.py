"""Deadlock detection through the holders' records.

A waiter that holds other locks says so in the records of those locks. So the
chain can be followed from lock to lock:

    A holds x, waits for y          record of x: held by A, who waits for y
    B holds y, waits for z          record of y: held by B, who waits for z
    C holds z, begins to wait for x record of z: held by C, who waits for x
    C follows: x → A waits for y → B waits for z → that is C: a cycle

All members of a cycle see the same one. The member that began to wait last (by the waiters' own
clocks) gives up, and the others go on. The last member to write its entry sees those of all others,
because it reads afterwards. A chain is read while locks change hands; a cycle that is read twice
with the same waits in it existed as a whole in between.

Limits: a process that died while it waited seems to wait until its lease is over, and a cycle
through it is reported like any other. At most 16 locks are followed, and none of a fallback store.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from userlock.clock import Clock
from userlock.errors import DeadlockDetected
from userlock.lock.lease import Claim, Holder, Lease
from userlock.lock.record import BlockedOn, Record, blocked
from userlock.lock.store import StoreUnavailable

#: Longer chains are not followed: few programs take so many locks one by one.
_MOST_LINKS = 16
#: Most waits are over by then, and need no entry in the records of the locks that are held.
_GRACE_SECONDS = 0.01
#: Least time between two checks, in seconds.
_INTERVAL_SECONDS = 0.02


class _Link(NamedTuple):
    """A member of a cycle: the start of its wait, and the lock that it has."""

    since: float
    lock_id: str
    holder: Holder


class DeadlockWatch:
    """Watches for a deadlock cycle while one claim waits that has the leases `holding`."""

    def __init__(
        self,
        claim: Claim,
        holding: Iterable[Lease],
        read: Callable[[str], Coroutine[Any, Any, Record | None]],
        append: Callable[[str, bytes], Coroutine[Any, Any, object]],
        clock: Clock,
    ) -> None:
        self._claim = claim
        # Other processes cannot read of a lease that the store does not have.
        self._holding = {lease.token: lease for lease in holding if not lease.degraded}
        self._read = read
        self._append = append
        self._clock = clock
        self._since = round(claim.since, 3)
        #: The leases whose records still lack our entry, and those that may have it.
        self._unmarked = dict(self._holding)
        self._marked: dict[str, Lease] = {}
        self._next_check = clock.now() + _GRACE_SECONDS

    async def check(self, record: Record) -> float:
        """Follow the chain from the record of the lock that is waited for.

        Return the longest time to the next check, in seconds; or raise `DeadlockDetected`.
        """
        if not self._holding:
            return math.inf
        if not record.free and record.holder.token in self._holding:
            raise self._deadlock([_Link(self._since, self._claim.lock_id, record.holder)])
        now = self._clock.now()
        if now < self._next_check:
            return self._next_check - now if self._unmarked else math.inf
        self._next_check = now + _INTERVAL_SECONDS
        cycle = None
        # The server of a lock on the way may not answer. Trouble with the
        # server of our lock shows in the wait itself.
        with contextlib.suppress(StoreUnavailable):
            cycle = await self._find(record)
        if cycle is not None and max(cycle, key=_rank) is cycle[-1]:
            raise self._deadlock(cycle)
        return math.inf

    async def end(self) -> None:
        """Remove the entries of this wait: it is over."""
        for lease in self._marked.values():
            # Best effort: a reader of the chain sees the end of the wait anyway.
            with contextlib.suppress(StoreUnavailable):
                await self._append(lease.lock_id, blocked(lease.token, None))

    async def _find(self, record: Record) -> list[_Link] | None:
        """Return the cycle that we are in, read twice; None if there is none."""
        latest: Record | None = record
        if self._unmarked:
            await self._mark()
            latest = await self._read(self._claim.lock_id)
        cycle = await self._follow(latest)
        if cycle is None or await self._follow(await self._read(self._claim.lock_id)) != cycle:
            return None
        return cycle

    async def _mark(self) -> None:
        """Write our wait into the records of the locks that we hold."""
        waiting = BlockedOn(self._claim.lock_id, self._since, self._claim.token)
        for token, lease in list(self._unmarked.items()):
            self._marked[token] = lease
            with contextlib.suppress(StoreUnavailable):  # tried again at the next check
                await self._append(lease.lock_id, blocked(token, waiting))
                del self._unmarked[token]

    async def _follow(self, record: Record | None) -> list[_Link] | None:
        """Return the cycle from the lock that is waited for to one of ours, if there is one."""
        cycle: list[_Link] = []
        lock_id, waiting = self._claim.lock_id, self._claim.token
        seen: set[str] = set()
        while record is not None and lock_id not in seen and len(seen) < _MOST_LINKS:
            # A waiter that timed out may not have been able to remove its entry.
            if record.free or record.position_of(waiting) is None:
                return None
            if record.holder.token in self._holding:
                return [*cycle, _Link(self._since, lock_id, record.holder)]
            on = record.blocked_on
            if on is None:
                return None
            cycle.append(_Link(on.since, lock_id, record.holder))
            seen.add(lock_id)
            lock_id, waiting = on.lock_id, on.token
            record = await self._read(lock_id)
        return None

    def _deadlock(self, cycle: list[_Link]) -> DeadlockDetected:
        return DeadlockDetected(
            lock_id=self._claim.lock_id,
            cycle=tuple((link.lock_id, link.holder.describe()) for link in cycle),
        )


def _rank(link: _Link) -> tuple[float, str]:
    """Return the rank of a member; the one with the highest gives up."""
    return link.since, link.holder.token
