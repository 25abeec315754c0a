"""Breaker-guarded calls of the store, and the releases that it still has to get.

A command that waits in the socket of a stopped server is carried out when the server goes on, and
may grant a lock to nobody. So a release that was not answered is sent again later. A lease that is
not found yet is looked for again, once a second, for as long as a command may take to arrive. A
request to a server that answers sends some of its pending releases; the renewal thread does if
there are no requests.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from userlock.clock import Clock
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import Lease, Lost, Released, Unavailable
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore, NoConnection, StoreUnavailable
from userlock.waits import run

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Most pending releases of one server: as many as tasks of one process may end at once. The oldest
#: are dropped first: their leases end anyway.
_MOST = 50_000
#: How long a command that was sent may still be carried out, in seconds.
_ARRIVAL_SECONDS = 10.0
#: How often a release is sent whose record the server refuses. The lease ends by itself.
_MOST_REFUSALS = 5
#: Pause before a lease that was not found is looked for again, and between two runs of the
#: renewal thread, in seconds.
_RETRY_SECONDS = 1.0
#: How many pending releases one request sends, so that none pays for all of them.
_MOST_PER_REQUEST = 4
#: How many the renewal thread sends at once, so that renewals do not wait.
_MOST_PER_RUN = 100


@dataclasses.dataclass(slots=True, eq=False)
class _Pending:
    """A lease to release, the time until it may arrive, the time of the next attempt, and whether
    the store has answered one.
    """

    lease: Lease
    until: float
    answered: bool
    next_try: float = 0.0
    refusals: int = 0


class Server(CircuitBreaker):
    """One server of a store: whether it may be asked, and the releases that it still has to get."""

    def _begin(self) -> None:
        super()._begin()
        self.pending: dict[_Pending, None] = {}  # a parent process sends its own


class StoreClient:
    """The guarded access of a lock service to its store. Thread-safe.

    A task of the renewal thread while releases are pending (`renewals`; None for a
    store that a background thread cannot use).
    """

    def __init__(
        self,
        store: LeaseStore,
        release: Callable[..., Coroutine[Any, Any, Released | Lost]],
        clock: Clock,
        renewals: RenewalThread | None = None,
    ) -> None:
        self.wake_ups = store.wake_ups
        self._release = release
        self._clock = clock
        self._renewals = renewals
        # One server that is down must not keep requests from the others.
        self._shard_of = store.shard_of
        self._only = Server(clock) if type(store).shard_of is LeaseStore.shard_of else None
        self._of_shard = collections.defaultdict[int, Server](lambda: Server(clock))

    def _servers(self) -> list[Server]:
        return [self._only] if self._only else list(self._of_shard.values())

    @property
    def pending(self) -> list[Lease]:
        """Return the leases that the servers still have to release."""
        return [each.lease for server in self._servers() for each in list(server.pending)]

    def server_of(self, lock_id: str) -> Server:
        """Return the server that has the lock."""
        return self._only or self._of_shard[self._shard_of(lock_id)]

    async def call(
        self,
        lock_id: str,
        verb: Callable[_P, Coroutine[Any, Any, _R]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Call the store, unless its server is known not to answer.

        Raises:
            StoreUnavailable: it did not answer; the breaker knows.
        """
        server = self._only or self._of_shard[self._shard_of(lock_id)]
        if not server.closed and not server.allows():
            raise StoreUnavailable(server.reason, sent=False)
        asked_at = self._clock.now()
        try:
            answer = await verb(*args, **kwargs)
        except StoreUnavailable as trouble:
            if server.answered_one_of > asked_at:
                trouble.serves_others = True
            if trouble.serves_others:
                await self._answered(server)
            else:
                self._failed(server, asked_at, trouble)
            raise
        if asked_at > server.answered_one_of:
            server.answered_one_of = asked_at
        if server.pending or not server.closed:
            await self._answered(server)
        return answer

    def _failed(self, server: Server, asked_at: float, trouble: StoreUnavailable) -> None:
        if not isinstance(trouble, NoConnection):  # which tells nothing of the server
            cost_seconds = self._clock.now() - asked_at
            server.failed(cost_seconds=cost_seconds, reason=trouble.reason)

    async def _answered(self, server: Server) -> None:
        server.succeeded()
        await self.send_pending(server, _MOST_PER_REQUEST)

    async def send_pending(
        self, server: Server, most: int, may_ask: Callable[[], bool] = lambda: True
    ) -> int:
        """Send a server some of its pending releases, if it may be asked; return how many.

        If it does not answer, the rest stays pending.
        """
        now, asked = self._clock.now(), 0
        due = (each for each in list(server.pending) if each.next_try <= now)
        for pending in itertools.islice(due, most):
            lease = pending.lease
            may_arrive = lease.unsettled and now < pending.until
            if now >= lease.deadline and not may_arrive:
                # Over by itself, unlike a position in a queue or a late command.
                server.pending.pop(pending, None)
                continue
            if not asked and not may_ask():
                break
            asked, asked_at = asked + 1, self._clock.now()
            pending.next_try = now + _RETRY_SECONDS  # others leave it alone meanwhile
            try:
                outcome = await self._release(lease, again=pending.answered)
            except StoreUnavailable as trouble:
                if not trouble.serves_others:
                    pending.next_try = now
                    self._failed(server, asked_at, trouble)
                    break
                pending.next_try = now + _RETRY_SECONDS * 2**pending.refusals
                pending.refusals += 1
                may_arrive = pending.refusals < _MOST_REFUSALS
            else:
                server.succeeded()
                pending.answered = True
                may_arrive = may_arrive and isinstance(outcome, Lost)
            if not may_arrive:
                server.pending.pop(pending, None)
        return asked

    async def give_back(self, lease: Lease) -> Released | Lost | Unavailable:
        """Release a lease now, or later if the store does not answer."""
        if lease.degraded and not lease.unsettled:
            return Lost("forgotten")  # it was never sent to the store
        try:
            outcome = await self.call(lease.lock_id, self._release, lease)
        except BaseException as error:  # also: the thread is being stopped, the task was cancelled
            self.release_later(lease)
            if isinstance(error, StoreUnavailable):
                return Unavailable(error.reason, error.sent)
            raise
        if lease.unsettled:
            self.release_later(lease, answered=True)
        return outcome

    def release_later(self, lease: Lease, *, answered: bool = False) -> None:
        """Release this lease when its server answers again; `answered`: it has answered once."""
        pending = self.server_of(lease.lock_id).pending
        pending[_Pending(lease, self._clock.now() + _ARRIVAL_SECONDS, answered)] = None
        while len(pending) > _MOST:
            pending.pop(next(iter(pending)), None)
        if self._renewals is not None and self not in self._renewals:
            self._renewals.schedule(self, self._clock.now() + _RETRY_SECONDS)

    def _when_due(self, now: float) -> float | None:
        """Send pending releases; see `renewal`. In an outage this is the probe."""
        more = False
        for server in self._servers():
            asked = run(self.send_pending, server, _MOST_PER_RUN, server.allows)
            more = more or asked == _MOST_PER_RUN
        if not self.pending:
            return None
        return now if more else self._clock.now() + _RETRY_SECONDS  # other due tasks run first
