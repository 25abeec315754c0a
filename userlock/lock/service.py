"""The lock service: waiting, priority and outage policy over a lease store.

acquire ── create ──▶ version      done: one round trip
                  ├─▶ (a record)   stand in line, look until it is our turn (`acquisition`,
                  │                `queue`), give up after wait_timeout with the holder's name
                  └─▶ (no answer)  outage policy: a degraded lease, or an error
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from random import Random, SystemRandom

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.events import (
    LISTENERS,
    Acquired,
    LeaseLost,
    Listeners,
    Released,
)
from userlock.lock import degraded
from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import (
    RELEASED,
    Granted,
    Held,
    Lease,
    Lost,
    Priority,
    Unavailable,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
    claim_of,
    describe_loss,
    encode_holder,
    new_token,
    process_label,
)
from userlock.lock.lease import Released as StoreReleased
from userlock.lock.operators import ForOperators
from userlock.lock.policy import LockPolicy, OutagePolicy
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.queue import HoldTimes
from userlock.lock.renewal import SYSTEM_RENEWALS, RenewalThread
from userlock.lock.renewals import extend_many
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.lock.store_client import StoreClient
from userlock.lock.waiting import Wait


class LockService(ForOperators):
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
        fallback: another service, normally over Datastore leases, that is asked while the store
            does not answer. What it grants excludes those who ask it too, and is asked for again
            here when the store answers; if it does not answer either, `outage` says what then.
            This one's listeners are told of it, once.
        listeners: who is told what happens; by default the process-wide list.
        clock: for the time, and for waiting.
        random: for jitter.
        renewals: what renews leases; by default the one of the process.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        policy: LockPolicy | None = None,
        outage: OutagePolicy | str = OutagePolicy.OPTIMISTIC,
        fallback: LockService | None = None,
        listeners: Listeners | None = None,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
        renewals: RenewalThread | None = None,
    ) -> None:
        if isinstance(store, str):
            raise TypeError(
                f"for a URL use LockService.from_url(…), not LockService({store!r:.80})"
            )
        if not isinstance(policy, LockPolicy | None):
            raise TypeError(f"policy must be a LockPolicy, not {policy!r:.80}")
        if fallback is not None:
            check_service(fallback, "fallback")  # an outage is too late to find out
        self.store = store
        self.policy = policy or LockPolicy()
        self.outage = OutagePolicy.of(outage)
        self.listeners = LISTENERS if listeners is None else listeners
        self.clock = clock
        # Not seeded, so that forked workers do not poll in step.
        self.random = random or SystemRandom()
        self.fallback = fallback
        if renewals is None:
            renewals = (
                SYSTEM_RENEWALS if clock is SYSTEM_CLOCK else RenewalThread(clock, threaded=False)
            )
        self.renewals = renewals
        #: Whether some leases are renewed unless their caller says otherwise.
        self.heartbeats = self.policy.interactive.heartbeat or self.policy.batch.heartbeat
        #: Whether the store can only be used by threads that serve a request.
        self.requests_only: bool = store.requests_only
        self.leases = LeaseProtocol(store, clock)
        self.hold_times = HoldTimes()
        self._access = StoreClient(self.leases, clock, None if self.requests_only else renewals)
        self.ask = self._access.ask

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        policy: LockPolicy | None = None,
        outage: OutagePolicy | str = OutagePolicy.OPTIMISTIC,
        fallback: str | None = None,
    ) -> LockService:
        """Return a service over the store that a URL names.

        `memcache://HOST:PORT,HOST:PORT?prefix=app1` for memcached, one server
        or several; `redis://HOST:PORT/DB?prefix=app1` for Redis (extra
        `redis`); `datastore://PROJECT?namespace=NS` for leases in Datastore;
        `appengine://?prefix=app1` for App Engine's bundled memcache (extra
        `appengine`); `memory://` for tests within one process. `fallback` is
        such a URL too. Nothing is sent yet: a server that is down is no reason
        for a site not to start.

        Raises:
            ValueError: the URL names no store that there is, or is malformed.
            ImportError: the store's extra is not installed; says which.
        """
        # By name: stores import this package, and not the other way round.
        open_store = importlib.import_module("userlock.stores.registry").open_store
        other = (
            None if fallback is None else cls(open_store(fallback), policy=policy, outage="fail")
        )
        return cls(open_store(url), policy=policy, outage=outage, fallback=other)

    # --- acquire ----------------------------------------------------------------------------

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str = Priority.INTERACTIVE,
        request: str = "",
        holding: Iterable[Lease] = (),
    ) -> Lease:
        """Take the lock, waiting for it if need be.

        Args:
            lock_id: what to lock: a non-empty string (or int) of any length.
            wait_timeout: longest wait in seconds; 0 tries once. Default by priority.
            lock_timeout: length of the lease in seconds. Default by priority.
            priority: `interactive` or `batch`.
            request: what the caller is doing, for the next one who has to wait for it.
            holding: leases that the caller has already, so that a deadlock is seen.

        Returns:
            The lease; `lease.degraded` if the store did not answer and the policy is to go on.

        Raises:
            LockTimeout: somebody held it all the time; names the holder.
            DeadlockDetected: the wait would never end, and this caller is to give way.
            LockServiceUnavailable: the store did not answer and the policy is `fail`.
            TypeError, ValueError: an argument that makes no sense.
        """
        if type(lock_id) is not str or not lock_id:
            lock_id = check_lock_id(lock_id)
        if type(priority) is not Priority:
            priority = Priority.of(priority)
        policy = self.policy
        defaults = policy.batch if priority is Priority.BATCH else policy.interactive
        wait = defaults.wait_timeout if wait_timeout is None else check_wait_timeout(wait_timeout)
        ttl = defaults.lock_timeout if lock_timeout is None else check_lock_timeout(lock_timeout)
        clock = self.clock
        token = new_token()
        said = priority._value_  # without the property's frame
        record = encode_holder(token, said, clock.wall(), ttl, process_label(), request)
        # What `ask` does, without its two calls: this is the way that nearly every lock takes.
        access = self._access
        breaker = access.breaker_of(lock_id)
        started = clock.now()
        if not breaker.closed and not breaker.allows():
            acquisition = Wait(self, claim_of(lock_id, record, ttl), wait, started)
            return acquisition.unavailable(StoreUnavailable(breaker.reason, sent=False))
        try:
            lease = self.leases.take_at(started, lock_id, token, record, ttl, said)
            access.answered(breaker)
            if lease is not None:
                if self.listeners.watched():
                    waited = clock.now() - started
                    self.listeners.emit(Acquired(lock_id, said, waited, 1, "", degraded=False))
                return lease
        except StoreUnavailable as trouble:
            access.failed(breaker, started, trouble)
            acquisition = Wait(self, claim_of(lock_id, record, ttl), wait, started)
            return acquisition.unavailable(trouble)
        except BaseException:  # the thread is being stopped; it may have been granted
            Wait(self, claim_of(lock_id, record, ttl), wait, started).abandoned()
            raise
        # With a token of its own: what was sent with the first one may be late.
        claim = claim_of(lock_id, record, ttl).afresh()
        return Wait(self, claim, wait, started, holding).contended()

    # --- release ----------------------------------------------------------------------------

    def release(self, lease: Lease, *, held_seconds: float | None = None) -> None:
        """Give the lock back if it is still ours. Never raises for trouble with the store.

        What could not be confirmed is remembered, and tried again when the
        store answers next, by the renewal thread if by nobody else; until then the
        lease ends by itself.
        """
        if held_seconds is None:  # since it was granted or extended
            held_seconds = self.clock.now() - (lease.deadline - lease.ttl_seconds)
        self.hold_times.note(lease.priority, held_seconds)
        breaker = self._access.breaker_of(lease.lock_id)
        outcome: StoreReleased | Lost | Unavailable
        if breaker.closed and lease.version is not None and not lease.unsettled:
            outcome = self._give_back_at_once(lease, breaker)
        else:
            outcome = self.give_back(lease)
        if outcome is RELEASED:  # nearly always
            if self.listeners.watched():
                how = "released (degraded)" if lease.degraded else "released"
                self.listeners.emit(Released(lease.lock_id, held_seconds, how))
            return
        match outcome:
            case Unavailable():
                self.listeners.emit(Released(lease.lock_id, held_seconds, "left (not confirmed)"))
            case Lost() if lease.degraded:  # never confirmed, so nothing was lost
                self.listeners.emit(Released(lease.lock_id, held_seconds, "released (degraded)"))
            case Lost() as lost:
                self.listeners.emit(
                    LeaseLost(lease.lock_id, held_seconds, describe_loss(lost, lease))
                )

    def give_back(self, lease: Lease) -> StoreReleased | Lost | Unavailable:
        """Release a lease without a word to the listeners, and remember what is still owed."""
        if lease.also is not None:
            also, origin = lease.also
            origin.give_back(also)
        if lease.degraded and not lease.unsettled:
            return Lost("forgotten")  # the store was never asked for it
        outcome: StoreReleased | Lost | Unavailable
        try:
            outcome = self.ask(lease.lock_id, self.leases.release, lease)
        except StoreUnavailable as trouble:
            outcome = Unavailable(trouble.reason, trouble.sent)
        except BaseException:  # the thread is being stopped
            self.release_later(lease)
            raise
        if isinstance(outcome, Unavailable) or lease.unsettled:
            self.release_later(lease)
        return outcome

    def _give_back_at_once(
        self, lease: Lease, breaker: CircuitBreaker
    ) -> StoreReleased | Lost | Unavailable:
        """Release a confirmed lease while all is well: the common path of `give_back`."""
        if lease.also is not None:
            also, origin = lease.also
            origin.give_back(also)
        asked_at = self.clock.now()
        try:
            outcome = self.leases.release(lease)
        except StoreUnavailable as trouble:
            self._access.failed(breaker, asked_at, trouble)
            self.release_later(lease)
            return Unavailable(trouble.reason, trouble.sent)
        except BaseException:  # the thread is being stopped
            self.release_later(lease)
            raise
        if self._access.pending.owed:
            self._access.collect(breaker)
        return outcome

    def release_later(self, lease: Lease) -> None:
        """Give this lease back when the store answers again."""
        self._access.pending.remember(lease)

    # --- the rest ---------------------------------------------------------------------------

    def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        """Return a new lease that ends `seconds` from now, if this one is still ours.

        A degraded one goes on without the store's word, as it was taken.
        """
        seconds = check_lock_timeout(seconds)
        if lease.degraded:
            return degraded.extended(lease, seconds, self.clock.now(), self.outage)
        if self.clock.now() >= lease.deadline:
            return Lost("ran out")  # the store need not be asked
        try:
            return self.ask(lease.lock_id, self.leases.extend, lease, seconds)
        except StoreUnavailable as trouble:
            return Unavailable(trouble.reason, trouble.sent)

    def extend_many(
        self, leases: Sequence[tuple[Lease, float]]
    ) -> list[Granted | Lost | Unavailable]:
        """`extend` for each of these leases and its seconds, in few round trips where the store
        can do that; what becomes of each, in their order."""
        return extend_many(self, self._access, leases)

    def confirm(self, lease: Lease) -> Granted | Held | Unavailable | None:
        """Ask again for a lock that was taken while the store did not answer.

        Granted, if it is ours now; held, by whom; None, if it is free and others come first: ask
        again in a moment.
        """
        try:
            return self.ask(lease.lock_id, degraded.confirm, self.leases, lease, self.clock)
        except StoreUnavailable as trouble:
            return Unavailable(trouble.reason, trouble.sent)

    def say_lost(self, lock_id: str, held_seconds: float, how: str) -> None:
        """Tell the listeners that a lease is lost."""
        self.listeners.emit(LeaseLost(lock_id, held_seconds, how))

    def close(self) -> None:
        """Give up the store's connections. Leases that are out stay out."""
        self.store.close()
        if self.fallback is not None:
            self.fallback.close()


def check_service(service: object, name: str = "service") -> LockService:
    """Return the service, if it is one; `TypeError` says what is wanted."""
    if isinstance(service, LockService):
        return service
    raise TypeError(
        f"{name} must be a LockService, for instance "
        f"LockService.from_url('memcache://127.0.0.1:11211'), not {service!r:.200}"
    )
