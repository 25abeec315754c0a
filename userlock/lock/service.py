"""The lock service: waiting, priority and outage policy over a lease store.

Sees only the `LeaseStore` protocol. A store answers "granted", "held" or
"unavailable"; what follows from each answer is decided here.

    acquire ── add ──▶ Granted      done: one round trip
                  ├──▶ Held         announce that we wait, poll with growing jittered delays,
                  │                 give up after wait_timeout with the holder's name
                  ├──▶ Yielded      (batch only) a person waits: poll, and let them pass
                  └──▶ Unavailable  outage policy: a degraded lease, or an error
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from random import Random, SystemRandom
from urllib.parse import urlsplit

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import LockServiceUnavailable
from userlock.events import (
    LISTENERS,
    LeaseLost,
    Listeners,
    Released,
)
from userlock.lock.acquisition import Acquisition
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import (
    Claim,
    Free,
    Granted,
    Held,
    Holder,
    Lease,
    LeaseStore,
    Lost,
    Priority,
    Unavailable,
    Yielded,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
    new_token,
    process_label,
)
from userlock.lock.lease import Released as StoreReleased
from userlock.lock.policy import LockPolicy, OutagePolicy

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


def _is_gone(outcome: object) -> bool:
    return isinstance(outcome, Lost) and outcome.holder is None


class LockService:
    """Grants and takes back leases. One per process is enough; thread-safe.

    Guarantees: while the store keeps its data, no two confirmed (not
    degraded) leases of one lock overlap by the holders' own clocks; a waiting
    interactive caller is not passed by a batch attempt that began later (where
    several wait, the others announce themselves again within one poll of the
    first one's grant); and `acquire` returns or raises within its `wait_timeout`
    plus the store's timeouts (memcached: about half a second).

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
            token=new_token(),
            priority=priority.value,
            since=self.clock.wall(),
            lock_timeout=ttl,
            process=process_label(),
            request=request[:200],
        )
        claim = Claim(lock_id=lock_id, holder=holder, ttl_seconds=ttl, priority=priority)
        return Acquisition(self, claim, wait).run()

    def ask(self, claim: Claim, *, announce: bool) -> Granted | Held | Yielded | Unavailable:
        """One attempt, unless the breaker is open."""
        if not self._breaker.allows():
            return Unavailable(self._breaker.reason, sent=False)
        asked_at = self.clock.now()
        outcome = self.store.add(claim, announce=announce)
        self._note(outcome, asked_at)
        return outcome

    def _note(self, outcome: object, asked_at: float) -> None:
        """Tell the breaker how it went, and use a working store to tidy up."""
        if isinstance(outcome, Unavailable):
            cost = self.clock.now() - asked_at
            self._breaker.failed(cost_seconds=cost, reason=outcome.reason)
        else:
            self._breaker.succeeded()
            if self._strays:
                self._collect_strays()

    # --- release ----------------------------------------------------------------------------

    def release(self, lease: Lease, *, held_seconds: float = 0.0) -> None:
        """Give the lock back if it is still ours. Never raises for trouble with the store.

        What could not be confirmed is remembered, and tried again when the
        store answers this process next; until then the lease ends by itself.
        """
        given_back = self.give_back(lease)
        match given_back:
            case StoreReleased():
                if self.listeners.watched():
                    outcome = "released (degraded)" if lease.degraded else "released"
                    self.listeners.emit(Released(lease.lock_id, held_seconds, outcome))
            case Unavailable():
                self.listeners.emit(Released(lease.lock_id, held_seconds, "left (not confirmed)"))
            case Lost() if lease.degraded:  # never confirmed, so nothing was lost
                self.listeners.emit(Released(lease.lock_id, held_seconds, "released (degraded)"))
            case Lost(holder):
                if self.clock.now() >= lease.deadline:
                    how = f"its lease of {lease.ttl_seconds:g} s ran out"
                else:
                    how = "the store forgot it (evicted, flushed or restarted)"
                if holder is not None:
                    how += f"; it is now held by {holder.describe()}"
                self.listeners.emit(LeaseLost(lease.lock_id, held_seconds, how))

    def give_back(self, lease: Lease) -> StoreReleased | Lost | Unavailable:
        """Release a lease without a word to the listeners, and remember what is still owed."""
        if lease.degraded and not lease.unsettled:
            return Lost(None)  # the store was never asked for it
        outcome: StoreReleased | Lost | Unavailable
        try:
            if self._breaker.allows():
                asked_at = self.clock.now()
                outcome = self.store.release(lease)
                self._note(outcome, asked_at)
            else:
                outcome = Unavailable(self._breaker.reason, sent=False)
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
            outcome = self.store.release(lease)
            if isinstance(outcome, Unavailable):
                self._strays.append(stray)
                return
            if lease.unsettled and _is_gone(outcome) and now < stray.until:
                self._strays.append(dataclasses.replace(stray, next_look=now + 1.0))

    # --- the rest ---------------------------------------------------------------------------

    def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        """A new lease that ends `seconds` from now, if this one is still ours."""
        seconds = check_lock_timeout(seconds)
        if not self._breaker.allows():
            return Unavailable(self._breaker.reason, sent=False)
        asked_at = self.clock.now()
        outcome = self.store.extend(lease, seconds)
        self._note(outcome, asked_at)
        return outcome

    def holder(self, lock_id: str | int) -> Holder | None:
        """Who holds the lock now, or None.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        lock_id = check_lock_id(lock_id)
        match self.look(lock_id):
            case Held(holder):
                return holder
            case Free():
                return None
            case Unavailable(reason):
                raise LockServiceUnavailable(lock_id=lock_id, reason=reason)

    def look(self, lock_id: str) -> Held | Free | Unavailable:
        """Who holds the lock now, as the store says, unless it is known not to answer."""
        if not self._breaker.allows():
            return Unavailable(self._breaker.reason, sent=False)
        asked_at = self.clock.now()
        outcome = self.store.read(lock_id)
        self._note(outcome, asked_at)
        return outcome

    def close(self) -> None:
        """Give up the store's connections. Leases that are out stay out."""
        self.store.close()
