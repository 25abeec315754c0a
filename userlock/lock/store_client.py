"""Asking the store, while it is known to answer; and tidying up once it does again."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from userlock.clock import Clock
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import StoreUnavailable
from userlock.lock.strays import PendingReleases

_P = ParamSpec("_P")
_R = TypeVar("_R")


#: How often the renewal thread looks after what is owed.
_LOOK_SECONDS = 1.0
#: How much of it at once, so that renewals do not wait for it.
_MOST_AT_A_BEAT = 100


class StoreClient:
    """The breaker-guarded access of a lock service to its store. Thread-safe.

    A ward of the renewal thread while something is owed to the store.

    Args:
        leases: what is asked.
        clock: for the time.
        renewals: gives back what is owed, where nobody asks for anything else. None for a store
            that the renewal thread's thread cannot use.

    Attributes:
        strays: the leases that are still to be given back.
    """

    def __init__(
        self, leases: LeaseProtocol, clock: Clock, renewals: RenewalThread | None = None
    ) -> None:
        self._clock = clock
        self._renewals = renewals
        self.pending = PendingReleases(leases, clock, self.breaker_of, self._begin_to_look)
        leases.late = self.pending.remember
        # One server that is down must not keep us from asking the others.
        self._shard_of = leases.store.shard_of
        self._of_shard = collections.defaultdict[int, CircuitBreaker](lambda: CircuitBreaker(clock))

    def breaker_of(self, lock_id: str) -> CircuitBreaker:
        """Return the breaker of the server that has the lock."""
        return self._of_shard[self._shard_of(lock_id)]

    def ask(self, lock_id: str, verb: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Ask the store, unless it is known not to answer.

        Raises:
            StoreUnavailable: it did not answer; the breaker knows.
        """
        breaker = self.breaker_of(lock_id)
        if not breaker.allows():
            raise StoreUnavailable(breaker.reason, sent=False)
        asked_at = self._clock.now()
        try:
            answer = verb(*args, **kwargs)
        except StoreUnavailable as trouble:
            self.failed(breaker, asked_at, trouble)
            raise
        self.answered(breaker)
        return answer

    def failed(self, breaker: CircuitBreaker, asked_at: float, trouble: StoreUnavailable) -> None:
        """The store did not answer."""
        breaker.failed(cost_seconds=self._clock.now() - asked_at, reason=trouble.reason)

    def answered(self, breaker: CircuitBreaker) -> None:
        """The store answered."""
        if not breaker.closed:
            breaker.succeeded()
        if self.pending.owed:
            self.collect(breaker)

    def collect(self, breaker: CircuitBreaker) -> None:
        """A server answers: give back some of what is owed to it."""
        asked_at = self._clock.now()
        try:
            self.pending.collect(breaker)
        except StoreUnavailable as trouble:
            self.failed(breaker, asked_at, trouble)

    # --- what is owed, where nobody asks ----------------------------------------------------

    def _begin_to_look(self) -> None:
        if self._renewals is not None:
            self._renewals.schedule(self, self._clock.now() + _LOOK_SECONDS)

    def run(self, now: float) -> float | None:
        """Give back what is owed; see `Task`. In an outage, as the one that probes."""
        more = False
        for breaker in list(self._of_shard.values()):
            asked_at = self._clock.now()
            try:
                asked = self.pending.collect(breaker, most=_MOST_AT_A_BEAT, may_ask=breaker.allows)
            except StoreUnavailable as trouble:
                self.failed(breaker, asked_at, trouble)
                continue
            if asked:
                breaker.succeeded()
            more = more or asked == _MOST_AT_A_BEAT
        if not self.pending.owed:
            return None
        return now if more else self._clock.now() + _LOOK_SECONDS  # who else is due comes first
