"""The lock service: waiting, priority and outage policy over a lease store.

acquire ── create ──▶ version      done: one round trip
                  ├─▶ (a record)   stand in line, look until it is our turn (`acquisition`,
                  │                `queue`), give up after wait_timeout with the holder's name
                  └─▶ (no answer)  outage policy: a degraded lease, or an error
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from random import Random, SystemRandom
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import LockServiceUnavailable
from userlock.events import (
    LISTENERS,
    Acquired,
    LeaseLost,
    Listeners,
    Released,
)
from userlock.lock.acquisition import Acquisition
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import (
    Claim,
    Granted,
    Holder,
    Lease,
    Lost,
    Priority,
    Unavailable,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
    new_token,
    process_label,
)
from userlock.lock.lease import Released as StoreReleased
from userlock.lock.leases import Leases
from userlock.lock.policy import LockPolicy, OutagePolicy
from userlock.lock.queue import HoldTimes
from userlock.lock.record import Record, Waiter
from userlock.lock.store import LeaseStore, StoreUnavailable

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Opener = Callable[[str], LeaseStore]
_OPENERS: dict[str, _Opener] = {}


def register_store(scheme: str, opener: _Opener) -> None:
    """Let `LockService.from_url` open `scheme://…` addresses with `opener(url)`."""
    _OPENERS[scheme] = opener


@dataclasses.dataclass(frozen=True, slots=True)
class _Stray:
    """A lease to give back, and when to look for it."""

    lease: Lease
    until: float
    next_look: float = 0.0


class LockService:
    """Grants and takes back leases. One per process is enough; thread-safe.

    Guarantees: while the store keeps its data, no two confirmed (not
    degraded) leases of one lock overlap by the holders' own clocks; callers of
    one priority are served in the order in which they began to wait, and a
    waiting interactive caller is not passed by a batch attempt that began
    later; and `acquire` returns or raises within its `wait_timeout` plus the
    store's time-outs (memcached: about half a second).

    Args:
        store: where leases live.
        policy: default lease length, wait and polling by priority.
        outage: what to do when the store does not answer.
        listeners: who is told what happens; by default the process-wide list.
        clock: for the time, and for waiting.
        random: for jitter.
    """

    #: How many leases that could not be given back are remembered for later.
    MAX_STRAYS = 1000
    #: For how long a command that was sent may still be carried out.
    STRAY_SECONDS = 10.0

    def __init__(
        self,
        store: LeaseStore,
        *,
        policy: LockPolicy | None = None,
        outage: OutagePolicy | str = OutagePolicy.OPTIMISTIC,
        listeners: Listeners | None = None,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        self.store = store
        self.policy = policy or LockPolicy()
        self.outage = OutagePolicy.of(outage)
        self.listeners = LISTENERS if listeners is None else listeners
        self.clock = clock
        # Not seeded, so that forked workers do not poll in step.
        self.random = random or SystemRandom()
        self.leases = Leases(store, clock)
        self.hold_times = HoldTimes()
        self._breaker = CircuitBreaker(clock)
        self._strays: collections.deque[_Stray] = collections.deque(maxlen=self.MAX_STRAYS)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        policy: LockPolicy | None = None,
        outage: OutagePolicy | str = OutagePolicy.OPTIMISTIC,
    ) -> LockService:
        """A service over the store that a URL names.

        `memcache://HOST:PORT?prefix=app1` for memcached,
        `redis://HOST:PORT/DB?prefix=app1` for Redis (extra `redis`), `memory://`
        for tests within one process. Nothing is sent yet: a server that is
        down is no reason for a site not to start.

        Raises:
            ValueError: the URL names no store that there is, or is malformed.
            ImportError: the store's extra is not installed; says which.
        """
        scheme = urlsplit(url).scheme
        opener = _OPENERS.get(scheme)
        if opener is None:
            known = ", ".join(f"{name}://" for name in sorted(_OPENERS))
            raise ValueError(f"{url!r} names no lease store: it must begin with one of {known}")
        return cls(opener(url), policy=policy, outage=outage)

    # --- acquire ----------------------------------------------------------------------------

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str = Priority.INTERACTIVE,
        request: str = "",
    ) -> Lease:
        """Take the lock, waiting for it if need be.

        Args:
            lock_id: what to lock: a non-empty string (or int) of any length.
            wait_timeout: longest wait in seconds; 0 tries once. Default by priority.
            lock_timeout: length of the lease in seconds. Default by priority.
            priority: `interactive` or `batch`.
            request: what the caller is doing, for the next one who has to wait for it.

        Returns:
            The lease; `lease.degraded` if the store did not answer and the policy is to go on.

        Raises:
            LockTimeout: somebody held it all the time; names the holder.
            LockServiceUnavailable: the store did not answer and the policy is `fail`.
            TypeError, ValueError: an argument that makes no sense.
        """
        lock_id = check_lock_id(lock_id)
        priority = Priority.of(priority)
        defaults = self.policy.of(priority)
        wait = defaults.wait_timeout if wait_timeout is None else check_wait_timeout(wait_timeout)
        ttl = defaults.lock_timeout if lock_timeout is None else check_lock_timeout(lock_timeout)
        holder = Holder(
            new_token(), priority.value, self.clock.wall(), ttl, process_label(), request[:200]
        )
        claim = Claim(lock_id, holder, holder.encode(), ttl, priority)
        started = self.clock.now()
        try:
            lease = self.ask(self.leases.take, claim)
        except StoreUnavailable as trouble:
            return Acquisition(self, claim, wait, started).unavailable(trouble)
        except BaseException:  # the thread is being stopped; it may have been granted
            Acquisition(self, claim, wait, started).abandoned()
            raise
        if lease is None:
            return Acquisition(self, claim, wait, started).contended()
        if self.listeners.watched():
            waited = self.clock.now() - started
            self.listeners.emit(Acquired(lock_id, priority.value, waited, 1, "", degraded=False))
        return lease

    def ask(self, verb: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Ask the store, unless it is known not to answer.

        Raises:
            StoreUnavailable: it did not answer; the breaker knows.
        """
        if not self._breaker.allows():
            raise StoreUnavailable(self._breaker.reason, sent=False)
        asked_at = self.clock.now()
        try:
            answer = verb(*args, **kwargs)
        except StoreUnavailable as trouble:
            cost = self.clock.now() - asked_at
            self._breaker.failed(cost_seconds=cost, reason=trouble.reason)
            raise
        self._breaker.succeeded()
        if self._strays:
            self._collect_strays()
        return answer

    # --- release ----------------------------------------------------------------------------

    def release(self, lease: Lease, *, held_seconds: float = 0.0) -> None:
        """Give the lock back if it is still ours. Never raises for trouble with the store.

        What could not be confirmed is remembered, and tried again when the
        store answers this process next; until then the lease ends by itself.
        """
        if held_seconds:
            self.hold_times.note(lease.priority, held_seconds)
        match self.give_back(lease):
            case StoreReleased():
                if self.listeners.watched():
                    outcome = "released (degraded)" if lease.degraded else "released"
                    self.listeners.emit(Released(lease.lock_id, held_seconds, outcome))
            case Unavailable():
                self.listeners.emit(Released(lease.lock_id, held_seconds, "left (not confirmed)"))
            case Lost() if lease.degraded:  # never confirmed, so nothing was lost
                self.listeners.emit(Released(lease.lock_id, held_seconds, "released (degraded)"))
            case Lost() as lost:
                self.listeners.emit(LeaseLost(lease.lock_id, held_seconds, describe(lost, lease)))

    def give_back(self, lease: Lease) -> StoreReleased | Lost | Unavailable:
        """Release a lease without a word to the listeners, and remember what is still owed."""
        if lease.degraded and not lease.unsettled:
            return Lost("forgotten")  # the store was never asked for it
        outcome: StoreReleased | Lost | Unavailable
        try:
            outcome = self.ask(self.leases.release, lease)
        except StoreUnavailable as trouble:
            outcome = Unavailable(trouble.reason, trouble.sent)
        except BaseException:  # the thread is being stopped
            self.remember_stray(lease)
            raise
        if isinstance(outcome, Unavailable) or lease.unsettled:
            self.remember_stray(lease)
        return outcome

    def remember_stray(self, lease: Lease) -> None:
        """Give this lease back when the store answers again."""
        self._strays.append(_Stray(lease, self.clock.now() + self.STRAY_SECONDS))

    def _collect_strays(self) -> None:
        """Give back what could not be given back while the store was away.

        this process              memcached
        ms key (a lease) ──────▶  (stopped: the command waits in its socket)
        times out, goes on
        without the lock
                                  (continued: the command is carried out;
                                   the key is now there, for a whole lease,
                                   and nobody holds it)
        later answers: delete it, if the token is still ours

        A lease that was not there yet is looked for again, once a second, for
        as long as a command may take to arrive.
        """
        now = self.clock.now()
        for _ in range(min(len(self._strays), 4)):
            try:
                stray = self._strays.popleft()
            except IndexError:  # another thread took the last one
                return
            lease = stray.lease
            if now >= lease.deadline:
                continue  # over by itself
            if now < stray.next_look:
                self._strays.append(stray)
                continue
            try:
                outcome = self.leases.release(lease)
            except StoreUnavailable:
                self._strays.append(stray)
                return
            if lease.unsettled and isinstance(outcome, Lost) and now < stray.until:
                self._strays.append(dataclasses.replace(stray, next_look=now + 1.0))

    # --- the rest ---------------------------------------------------------------------------

    def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        """A new lease that ends `seconds` from now, if this one is still ours."""
        seconds = check_lock_timeout(seconds)
        try:
            return self.ask(self.leases.extend, lease, seconds)
        except StoreUnavailable as trouble:
            return Unavailable(trouble.reason, trouble.sent)

    def holder(self, lock_id: str | int) -> Holder | None:
        """Who holds the lock now, or None.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        record = self.look(lock_id)
        return None if record is None or record.free else record.holder

    def waiters(self, lock_id: str | int) -> list[Waiter]:
        """Who waits for the lock now, in the order in which they will be served.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        record = self.look(lock_id)
        return [] if record is None else record.waiters()

    def look(self, lock_id: str | int) -> Record | None:
        """The lock's record as it is now; None when there is none.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        lock_id = check_lock_id(lock_id)
        try:
            return self.ask(self.leases.look, lock_id)
        except StoreUnavailable as trouble:
            raise LockServiceUnavailable(lock_id=lock_id, reason=trouble.reason) from trouble

    def close(self) -> None:
        """Give up the store's connections. Leases that are out stay out."""
        self.store.close()


def describe(lost: Lost, lease: Lease) -> str:
    """What became of a lease, in words."""
    match lost.how:
        case "ran out":
            how = f"its lease of {lease.ttl_seconds:g} s ran out"
        case "broken":
            return f"it was broken by {lost.by}"
        case "taken":
            how = "the store forgot it (evicted, flushed or restarted)"
        case _:
            how = "the store forgot it (evicted, flushed or restarted)"
    return how if lost.holder is None else f"{how}; it is now held by {lost.holder.describe()}"
