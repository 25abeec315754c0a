"""Breaker-guarded calls of the store, and the releases that it still has to get.

A release that the store did not answer is sent again later:

    this process              memcached
    ms key (a record) ──────▶ (stopped: the command waits in its socket)
    times out, goes on
    without the lock
                              (continued: the command is carried out;
                               the record is there, for a whole lease,
                               and nobody holds the lock)
    later it answers: release the lock, if it is still ours

A lease that is not found yet is looked for again, once a second, for as long
as a command may take to arrive. Any request to a server that answers sends
some of its pending releases; the renewal thread does if there are no requests.
Of several servers only the one that has just answered is asked: another may
still hang.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, ParamSpec, TypeVar

from userlock.clock import Clock
from userlock.fork import reset_in_child
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import Lease, Lost, Released, Unavailable
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore, NoConnection, StoreUnavailable
from userlock.waits import run

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Most pending releases of one server. The oldest are dropped first: their leases end anyway.
_MOST = 1000
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


#: Releases a lease; raises `StoreUnavailable`.
Release = Callable[[Lease], Coroutine[Any, Any, Released | Lost]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Pending:
    """A lease to release, the time until it may arrive, and the time of the next attempt."""

    lease: Lease
    until: float
    next_try: float = 0.0
    refusals: int = 0

    def refused(self, now: float) -> _Pending | None:
        """Return the next attempt after the server refused its record; None after the last one."""
        refusals = self.refusals + 1
        if refusals == _MOST_REFUSALS:
            return None
        pause = _RETRY_SECONDS * 2**self.refusals
        return dataclasses.replace(self, next_try=now + pause, refusals=refusals)


class PendingReleases:
    """The releases that the servers of one store still have to get. Thread-safe; survives fork.

    Args:
        release: sends one.
        clock: for the time.

    Attributes:
        any: whether there may be any: cheap to ask at each request.
    """

    def __init__(self, release: Release, clock: Clock) -> None:
        self._release = release
        self._clock = clock
        self._forget()
        reset_in_child(self._forget)

    def _forget(self) -> None:
        """Drop all. In a forked child: the parent sends them."""
        self.any = False
        self._queues: dict[Hashable, collections.deque[_Pending]] = {}
        #: One entry for each thread that has taken some and may put them back.
        self._sending: set[object] = set()

    def __len__(self) -> int:
        return sum(map(len, list(self._queues.values())))

    @property
    def left(self) -> bool:
        """Return whether there are any, those included that another thread sends just now.

        a request's thread           the renewal thread
        takes the only one
                                     finds none: not its last run
        is answered "not there yet"
        puts it back
        """
        return bool(self._sending) or len(self) > 0

    def add(self, lease: Lease, server: Hashable = None) -> bool:
        """Release this lease when its server answers again. Return whether it is the first one."""
        queue = self._queues.setdefault(server, collections.deque(maxlen=_MOST))
        queue.append(_Pending(lease, self._clock.now() + _ARRIVAL_SECONDS))
        first, self.any = not self.any, True  # read afterwards, as `send` counts afterwards
        return first

    async def send(
        self,
        server: Hashable = None,
        most: int = _MOST_PER_REQUEST,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> int:
        """Send a server some of its pending releases; return how many it was asked for.

        Args:
            server: as in `add`.
            most: how many to look at.
            may_ask: called before the first request to a server that may be down; none is sent
                if it returns False.

        Raises:
            StoreUnavailable: the server did not answer. The rest stays pending.
        """
        me = object()
        self._sending.add(me)
        try:
            return await self._send(self._queues.get(server, collections.deque()), most, may_ask)
        finally:
            self._sending.discard(me)
            self.any = False
            if self.left:  # looked at afterwards: another thread may have added one just now
                self.any = True

    async def _send(
        self, queue: collections.deque[_Pending], most: int, may_ask: Callable[[], bool]
    ) -> int:
        now = self._clock.now()
        asked = 0
        for _ in range(min(len(queue), most)):
            try:
                pending = queue.popleft()
            except IndexError:  # another thread took the last one
                break
            lease = pending.lease
            if now >= lease.deadline and not (lease.unsettled and now < pending.until):
                continue  # over by itself, unlike a position in a queue or a late command
            if now < pending.next_try:
                queue.append(pending)
                continue
            if not asked and not may_ask():
                queue.append(pending)
                break
            asked += 1
            later = dataclasses.replace(pending, next_try=now + _RETRY_SECONDS)
            try:
                outcome = await self._release(lease)
            except StoreUnavailable as trouble:
                if not trouble.serves_others:
                    queue.append(pending)
                    raise
                again = pending.refused(now)
                if again is not None:
                    queue.append(again)
                continue
            except BaseException:
                # The thread is being stopped. (Or it is an error of ours: not everybody's at once.)
                queue.append(later)
                raise
            if lease.unsettled and isinstance(outcome, Lost) and now < pending.until:
                queue.append(later)
        return asked


class StoreClient:
    """The guarded access of a lock service to its store. Thread-safe.

    A task of the renewal thread while releases are pending.

    Args:
        store: the store.
        release: releases a lease in it.
        clock: for the time.
        renewals: sends pending releases when there are no requests. None for a store that a
            background thread cannot use.

    Attributes:
        pending: the releases that the store still has to get.
        wake_ups: wakes waiters, in a store that can.
    """

    def __init__(
        self,
        store: LeaseStore,
        release: Release,
        clock: Clock,
        renewals: RenewalThread | None = None,
    ) -> None:
        self.wake_ups = store.wake_ups
        self._release = release
        self._clock = clock
        self._renewals = renewals
        self.pending = PendingReleases(release, clock)
        # One server that is down must not keep requests from the others.
        self._shard_of = store.shard_of
        self._only = CircuitBreaker(clock) if type(store).shard_of is LeaseStore.shard_of else None
        self._of_shard = collections.defaultdict[int, CircuitBreaker](lambda: CircuitBreaker(clock))

    def breaker_of(self, lock_id: str) -> CircuitBreaker:
        """Return the breaker of the server that has the lock."""
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
        breaker = self._only or self._of_shard[self._shard_of(lock_id)]
        if not breaker.closed and not breaker.allows():
            raise StoreUnavailable(breaker.reason, sent=False)
        asked_at = self._clock.now()
        try:
            answer = await verb(*args, **kwargs)
        except StoreUnavailable as trouble:
            if breaker.answered_one_of > asked_at:
                trouble.serves_others = True
            if trouble.serves_others:
                await self.answered(breaker)
            else:
                self.failed(breaker, asked_at, trouble)
            raise
        if asked_at > breaker.answered_one_of:
            breaker.answered_one_of = asked_at
        if self.pending.any or not breaker.closed:
            await self.answered(breaker)
        return answer

    def failed(self, breaker: CircuitBreaker, asked_at: float, trouble: StoreUnavailable) -> None:
        """Note that a server did not answer."""
        if not isinstance(trouble, NoConnection):  # which tells nothing of the server
            cost_seconds = self._clock.now() - asked_at
            breaker.failed(cost_seconds=cost_seconds, reason=trouble.reason)

    async def answered(self, breaker: CircuitBreaker) -> None:
        """Note that a server answered, and send it some pending releases."""
        if not breaker.closed:
            breaker.succeeded()
        if self.pending.any:
            asked_at = self._clock.now()
            try:
                await self.pending.send(breaker)
            except StoreUnavailable as trouble:
                self.failed(breaker, asked_at, trouble)

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
            self.release_later(lease)
        return outcome

    def release_later(self, lease: Lease) -> None:
        """Release this lease when its server answers again."""
        first = self.pending.add(lease, self.breaker_of(lease.lock_id))
        if first and self._renewals is not None:
            self._renewals.schedule(self, self._clock.now() + _RETRY_SECONDS)

    def run(self, now: float) -> float | None:
        """Send pending releases; see `renewal.Task`. In an outage this is the probe."""
        more = False
        for breaker in [self._only] if self._only else list(self._of_shard.values()):
            asked_at = self._clock.now()
            try:
                asked = run(self.pending.send, breaker, _MOST_PER_RUN, breaker.allows)
            except StoreUnavailable as trouble:
                self.failed(breaker, asked_at, trouble)
                continue
            if asked:
                breaker.succeeded()
            more = more or asked == _MOST_PER_RUN
        if not self.pending.left:
            return None
        return now if more else self._clock.now() + _RETRY_SECONDS  # other due tasks run first
