"""Leases that could not be given back, because the store did not answer.

    this process              memcached
    ms key (a record) ──────▶ (stopped: the command waits in its socket)
    times out, goes on
    without the lock
                              (continued: the command is carried out;
                               the record is now there, for a whole lease,
                               and nobody holds it)
    later answers: release it, if it is still ours

A lease that was not there yet is looked for again, once a second, for as long
as a command may take to arrive.

Of several servers only the one that has just answered is asked: another may
still hang, and whoever uses this one has nothing to do with that.

Whoever is next to ask a server gives some back; the renewal thread does, where nobody
asks (`access`).
"""

from __future__ import annotations

import collections
import dataclasses
import os
import weakref
from collections.abc import Callable, Hashable

from userlock.clock import Clock
from userlock.lock.lease import Lease, Lost
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.store import StoreUnavailable

#: How many are remembered of each server; the oldest are forgotten first, and end by themselves.
_MOST = 1000
#: For how long a command that was sent may still be carried out.
_ARRIVAL_SECONDS = 10.0
#: How often it is looked for meanwhile.
_LOOK_SECONDS = 1.0
#: How many a request looks after, so that none pays for all of them.
_AT_ONCE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Stray:
    """A lease to give back, and when to look for it."""

    lease: Lease
    until: float
    next_look: float = 0.0


class PendingReleases:
    """The leases of one service that are still to be given back. Thread-safe.

    Args:
        leases: where they are from.
        clock: for the time.
        server_of: what stands for the server that has a lock.
        begin: called when something is owed, and nothing was before.

    Attributes:
        owed: whether anything may be owed: cheap to ask with each lock.
    """

    def __init__(
        self,
        leases: LeaseProtocol,
        clock: Clock,
        server_of: Callable[[str], Hashable] = lambda _: None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._server_of = server_of
        self._begin = begin
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        self.owed = False
        self._owed: dict[Hashable, collections.deque[_Stray]] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._owed.values())))

    def remember(self, lease: Lease) -> None:
        """Give this lease back when its server answers again."""
        server = self._server_of(lease.lock_id)
        strays = self._owed.setdefault(server, collections.deque(maxlen=_MOST))
        strays.append(_Stray(lease, self._clock.now() + _ARRIVAL_SECONDS))
        if not self.owed:
            self.owed = True
            self._begin()

    def collect(
        self,
        server: Hashable = None,
        *,
        most: int = _AT_ONCE,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> int:
        """Give back what is owed to a server, or some of it.

        Args:
            server: as `server_of` gives it; one that answers.
            most: how many to look after.
            may_ask: asked before the first one is given back, where it is not known whether the
                server answers; then none is, if it says no.

        Returns:
            For how many the server was asked.

        Raises:
            StoreUnavailable: it did not answer, and is owed the rest.
        """
        try:
            return self._give_back(self._owed.get(server, collections.deque()), most, may_ask)
        finally:
            self.owed = False
            if len(self):  # looked at after, so that what another thread has just added counts
                self.owed = True

    def _give_back(
        self, strays: collections.deque[_Stray], most: int, may_ask: Callable[[], bool]
    ) -> int:
        now = self._clock.now()
        asked = 0
        for _ in range(min(len(strays), most)):
            try:
                stray = strays.popleft()
            except IndexError:  # another thread took the last one
                break
            lease = stray.lease
            if now >= lease.deadline and not (lease.unsettled and now < stray.until):
                # Over by itself. A place in line is not, nor what arrives late.
                continue
            if now < stray.next_look:
                strays.append(stray)
                continue
            if not asked and not may_ask():
                strays.append(stray)
                break
            asked += 1
            try:
                outcome = self._leases.release(lease)
            except StoreUnavailable:
                strays.append(stray)
                raise
            except BaseException:
                # The thread is being stopped. (Or it is an error of ours: not everybody's at once.)
                strays.append(dataclasses.replace(stray, next_look=now + _LOOK_SECONDS))
                raise
            if lease.unsettled and isinstance(outcome, Lost) and now < stray.until:
                strays.append(dataclasses.replace(stray, next_look=now + _LOOK_SECONDS))
        return asked


_all: weakref.WeakSet[PendingReleases] = weakref.WeakSet()


def _after_fork() -> None:
    """Forget the parent's pending releases: the parent sends them."""
    for strays in list(_all):
        strays._forget()


os.register_at_fork(after_in_child=_after_fork)
