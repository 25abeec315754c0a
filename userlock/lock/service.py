"""The lock service: leases with waiting, priorities and an outage policy.

acquire ── create ──▶ version      done: one round trip
                  ├─▶ (a record)   join the queue, poll until it is our turn (`waiting`,
                  │                `queue`), time out with the holder's name
                  └─▶ (no answer)  the fallback store, or the outage policy: a degraded lease,
                                   or an error
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from random import Random, SystemRandom
from typing import Any, TypeVar

import userlock.lock.lease as leases
from userlock.arguments import check_kind
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import LockError, LockServiceUnavailable
from userlock.events import LISTENERS, Broken, Degraded, LeaseLost, Listeners, Released
from userlock.events import Unavailable as Failed
from userlock.lock.lease import Granted, Holder, Lease, Lost, Priority, PriorityName, Unavailable
from userlock.lock.local_waiters import Admission, LocalWaiters
from userlock.lock.policy import LockPolicy, OutagePolicy, PriorityPolicy
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.queue import HoldTimes
from userlock.lock.record import Record, Waiter
from userlock.lock.renewal import SYSTEM_RENEWALS, RenewalThread
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.lock.store_client import StoreClient
from userlock.lock.waiting import Attempt, Waiting
from userlock.waits import finish, run

_R = TypeVar("_R")


class LockService:
    """Grants and takes back leases. One per process is enough; thread-safe.

    Guarantees: while the store keeps its data, no two confirmed (not degraded) leases of one lock
    overlap by the holders' own clocks; callers of one priority are served in the order in which
    they began to wait, and a waiting interactive caller is not passed by a batch attempt that began
    later; and `acquire` returns or raises within its `wait_timeout` plus the store's time-outs
    (about half a second; with a fallback, for each store).

    Args:
        store: where leases live.
        policy: default lease length, wait and polling by priority; by default the platform's
            (`LockPolicy.of_platform`).
        outage: the behaviour when the store does not answer.
        fallback: another service, normally over Datastore leases, that is asked while the store
            does not answer. Its leases exclude other callers that use it, and are confirmed in
            this store when it answers again. If it does not answer either, `outage` applies.
            Its events go to this service's listeners.
        listeners: called with events; by default the process-wide list.
        clock: for the time, and for waiting.
        random: for jitter.
        renewals: what renews leases; by default the thread of the process.

    Attributes:
        requests_only: whether the store can only be used by threads that serve a request.
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
            raise TypeError("for a URL use LockService.from_url(…), not LockService(…)")
        if not isinstance(store, LeaseStore):
            raise TypeError(f"store must be a LeaseStore, not {type(store).__name__}")
        if not isinstance(policy, LockPolicy | None):
            raise TypeError(f"policy must be a LockPolicy, not {type(policy).__name__}")
        if fallback is not None:
            check_service(fallback, "fallback")  # an outage would be too late to find out
        self.store = store
        self.policy = policy or LockPolicy.of_platform()
        self.outage = OutagePolicy.of(outage)
        self.fallback = fallback
        self.listeners = LISTENERS if listeners is None else listeners
        self.clock = clock
        if renewals is None:
            own_clock = clock is not SYSTEM_CLOCK
            renewals = RenewalThread(clock, threaded=False) if own_clock else SYSTEM_RENEWALS
        self.renewals = renewals
        self.requests_only: bool = store.requests_only
        self.protocol = LeaseProtocol(store, clock, self.release_later)
        self.client = StoreClient(
            store, self.protocol.release, clock, None if self.requests_only else renewals
        )
        self.admission = Admission()
        self.local_waiters = LocalWaiters(clock, store.most_queued)
        self._hold_times = HoldTimes()
        random = random or SystemRandom()  # not seeded, so that forked workers do not poll in step
        parts = self.policy, self._hold_times, self.local_waiters
        self._waiting = Waiting(self.protocol, self.client, clock, random, *parts)

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

        `memcache://HOST:PORT,HOST:PORT?prefix=app1` for memcached, one server or several;
        `redis://HOST:PORT/DB?prefix=app1` for Redis (extra `redis`);
        `datastore://PROJECT?namespace=NS` for leases in Datastore; `appengine://?prefix=app1` for
        App Engine's bundled memcache (extra `appengine`); `memory://` for tests within one process.
        `fallback` is such a URL too. Nothing is sent yet: a server that is down does not keep a
        site from starting.

        Raises:
            ValueError: the URL names no known store, or is malformed.
            ImportError: the store's extra is not installed; the message names it.
        """
        # By name: stores import this package, and not the other way round.
        open_store = importlib.import_module("userlock.stores.urls").open_store
        other = None
        if fallback is not None:
            other = cls(open_store(fallback), policy=policy, outage="fail")
        return cls(open_store(url), policy=policy, outage=outage, fallback=other)

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | PriorityName = Priority.INTERACTIVE,
        max_waiting: int | None = None,
        request: str = "",
        holding: Iterable[Lease] = (),
    ) -> Lease:
        """Take the lock, waiting for it if need be.

        Args:
            lock_id: the lock: a string of 1 to 1,500 characters (or an int).
            wait_timeout: longest wait in seconds; 0 tries once. Default by priority.
            lock_timeout: length of the lease in seconds. Default by priority.
            priority: `interactive` or `batch`.
            max_waiting: the most callers of this process that wait for the lock, as in
                `global_lock`. Default by priority.
            request: the caller's task, for the messages of others that have to wait.
            holding: leases that the caller has already, so that a deadlock is detected.

        Returns:
            The lease; `lease.degraded` if the store did not answer and the policy is to go on.

        Raises:
            LockTimeout: the lock was not free in time; names the holder.
            TooManyWaiting: enough callers of this process wait for it. Raised at once.
            DeadlockDetected: the wait would never end, and this caller is to give up.
            LockServiceUnavailable: the store did not answer and the policy is `fail`.
            TypeError, ValueError: an argument is invalid.
        """
        lock_id, priority = leases.check_lock_id(lock_id), Priority.of(priority)
        defaults = self.policy.of(priority)
        wait = None if wait_timeout is None else leases.check_wait_timeout(wait_timeout)
        ttl = None if lock_timeout is None else leases.check_lock_timeout(lock_timeout)
        most = defaults.max_waiting
        if max_waiting is not None:
            most = leases.check_max_waiting(max_waiting)
        attempt = self.attempt(lock_id, defaults, wait, ttl, priority, most, request)
        return run(self.acquired, attempt, holding)

    def attempt(
        self,
        lock_id: str,
        defaults: PriorityPolicy,
        wait: float | None,
        ttl: float | None,
        priority: Priority,
        most: int | None,
        request: str,
    ) -> Attempt:
        """Return the facts of a call of `acquire` with valid arguments; nothing is sent yet."""
        wait = defaults.wait_timeout if wait is None else wait
        ttl = defaults.lock_timeout if ttl is None else ttl
        clock = self.clock
        claim = leases.new_claim(lock_id, priority, clock.wall(), ttl, request)
        return Attempt(claim, wait, clock, self.listeners, self.admission, most, clock.now())

    async def acquired(self, attempt: Attempt, holding: Iterable[Lease] = ()) -> Lease:
        """Return a lease as `acquire` does. After any other error than its own, none is left."""
        try:
            try:
                lease = await self._lease_for(attempt, holding)
            except StoreUnavailable as trouble:
                lease = self._without_store(attempt, trouble)
            attempt.taken = lease
            if self.listeners.watched(logging.INFO if attempt.blocked_by else logging.DEBUG):
                attempt.acquired(degraded=lease.degraded)
            return lease
        except LockError:
            attempt.settled = True
            raise
        except BaseException:
            await self.undo(attempt)
            raise

    async def undo(self, attempt: Attempt) -> None:
        """Leave the queue, or give the lock back, whatever has become of an interrupted attempt."""
        if not attempt.settled:
            lease = attempt.taken
            if lease is None:  # what the store may have: a lease, or a position in the queue
                lease = attempt.lease_without_store(unsettled=attempt.unsettled)
                lease = lease._replace(degraded=False)
            self.local_waiters.tried.pop(attempt.claim.lock_id, None)
            await finish(self.give_back, lease)
            attempt.settled = True

    def _without_store(self, attempt: Attempt, trouble: StoreUnavailable) -> Lease:
        lock_id = attempt.claim.lock_id
        lease = attempt.lease_without_store(unsettled=trouble.sent or attempt.joined)
        if self.outage is OutagePolicy.FAIL:
            if lease.unsettled:
                self.client.release_later(lease)
            attempt.failed(Failed, trouble.reason)
            raise trouble.for_callers(lock_id) from None
        self.listeners.emit(Degraded(lock_id, trouble.reason))
        return lease

    async def _lease_for(self, attempt: Attempt, holding: Iterable[Lease]) -> Lease:
        """Return a lease of this store, or a degraded one with a lease of the fallback store.

        Raises:
            StoreUnavailable: neither of them answers.
        """
        try:
            claim, local = attempt.claim, self.local_waiters
            tried = local.tried
            if not (
                (tried or local.crowds or local.released_at)
                and local.expects_queue(claim.lock_id)
                and attempt.may_queue_first
            ):
                try:
                    tried[claim.lock_id] = attempt
                    lease = await self.client.call(claim.lock_id, self.protocol.take, claim)
                except StoreUnavailable as trouble:
                    if not trouble.of_demand:  # (otherwise others want it too)
                        raise
                    lease = None
                    if trouble.sent:
                        self.client.release_later(attempt.lease_without_store(unsettled=True))
                finally:
                    tried.pop(claim.lock_id, None)
                if lease is not None:
                    return lease
                # With a token of its own from here on: a request with the first one may be late.
                attempt.claim = claim.afresh()
            attempt.unsettled = False
            return await self._waiting.lease_for(attempt, holding)
        except StoreUnavailable as trouble:
            if self.fallback is None:
                raise
            return await self._from_fallback(self.fallback, attempt, trouble)

    async def _from_fallback(
        self, fallback: LockService, attempt: Attempt, trouble: StoreUnavailable
    ) -> Lease:
        """Return a degraded lease that a lease of the fallback store backs.

        One call of `acquire` is one event, of this service's listeners.
        """
        claim = attempt.claim
        lease = attempt.lease_without_store(unsettled=trouble.sent or attempt.joined)
        clock, most = fallback.clock, attempt.max_waiting
        facts = attempt.listeners, attempt.admission, most, clock.now()
        there = Attempt(claim.afresh(), max(0.0, attempt.left), clock, *facts)
        try:
            other = await fallback._lease_for(there, ())
            attempt.attempts += there.attempts
            attempt.blocked_by = attempt.blocked_by or there.blocked_by
            lease = lease._replace(fallback=other, deadline=other.deadline)
            attempt.listeners.emit(Degraded(claim.lock_id, trouble.reason, fallback=True))
            return lease
        except StoreUnavailable as later:
            reason = f"{trouble.reason}; in the fallback store: {later.reason}"
            raise StoreUnavailable(reason, sent=trouble.sent, slow=trouble.slow) from trouble
        except LockError:  # somebody has it there
            if lease.unsettled:
                self.client.release_later(lease)
            raise
        except BaseException:
            await fallback.undo(there)
            raise

    def release(self, lease: Lease, *, held_seconds: float | None = None) -> None:
        """Release a lease as `released` does; block until then."""
        run(self.released, lease, held_seconds)

    async def released(self, lease: Lease, held_seconds: float | None = None) -> None:
        """Give the lock back if it is still ours. Never raises for trouble with the store.

        A release that the store did not confirm is sent again when it answers.
        `held_seconds`: the time since the grant; by default since the latest extension.
        """
        if held_seconds is None:
            held_seconds = self.clock.now() - (lease.deadline - lease.ttl_seconds)
        self._hold_times.latest[lease.priority].append(held_seconds)
        give_back = self.client.give_back if lease.fallback is None else self.give_back
        ended = await give_back(lease)
        if ended is leases.RELEASED_TO_QUEUE:
            self.local_waiters.expect_queue(lease.lock_id)
        match ended:
            case Lost() as lost if not lease.degraded:
                how = leases.describe_loss(lost, lease)
                self.listeners.emit(LeaseLost(lease.lock_id, held_seconds, how))
            case Unavailable():
                self.listeners.emit(Released(lease.lock_id, held_seconds, "left (not confirmed)"))
            case _ if self.listeners.watched():
                # A degraded one was never confirmed, so nothing was lost.
                outcome = "released (degraded)" if lease.degraded else "released"
                self.listeners.emit(Released(lease.lock_id, held_seconds, outcome))

    async def give_back(self, lease: Lease) -> leases.Released | Lost | Unavailable:
        """Release a lease without an event, now or when the store answers again."""
        if lease.fallback is not None and self.fallback is not None:
            await self.fallback.give_back(lease.fallback)
        return await self.client.give_back(lease)

    def release_later(self, lease: Lease) -> None:
        """Release a lease without an event, and without waiting: by the next request or so."""
        if lease.fallback is not None and self.fallback is not None:
            self.fallback.release_later(lease.fallback)
        if lease.unsettled or not lease.degraded:
            self.client.release_later(lease)

    async def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        """Return a new lease that ends `seconds` from now, if this one is still ours.

        A degraded one goes on without the store, as it was taken; a lease in the fallback store, if
        there is one, decides.
        """
        seconds = leases.check_lock_timeout(seconds)
        if self.clock.now() >= lease.deadline:
            return Lost("ran out")  # no need to ask the store
        if not lease.degraded:
            return await self._ask(self.protocol.extend, lease, seconds)
        deadline = self.clock.now() + seconds
        if lease.fallback is not None and self.fallback is not None:
            match await self.fallback.extend(lease.fallback, seconds):
                case Granted(new):
                    lease = lease._replace(fallback=new)
                    deadline = new.deadline
                case Lost("ran out", None) if self.outage is OutagePolicy.OPTIMISTIC:
                    pass  # while the fallback did not answer either; no other holder is known
                case Lost() as lost:
                    return lost
                case unavailable:
                    if self.outage is OutagePolicy.FAIL:
                        return unavailable
        return Granted(lease._replace(deadline=deadline, ttl_seconds=seconds))

    async def fence(self, lease: Lease) -> leases.Fenced | Lost | Unavailable:
        """Return the lease's fencing number; see `HeldLock.fence`."""
        if self.clock.now() >= lease.deadline:
            return Lost("ran out")
        return await self._ask(self.protocol.fence, lease)

    async def confirm(self, lease: Lease) -> Granted | leases.Held | Unavailable | None:
        """Ask for a lock that was taken while the store did not answer; None: ask again soon."""
        return await self._ask(self.protocol.confirm, lease)

    async def _ask(
        self, verb: Callable[..., Coroutine[Any, Any, _R]], lease: Lease, *args: float
    ) -> _R | Unavailable:
        try:
            return await self.client.call(lease.lock_id, verb, lease, *args)
        except StoreUnavailable as trouble:
            return Unavailable(trouble.reason, trouble.sent)

    # --- locks of others --------------------------------------------------------------------

    def look(self, lock_id: str | int) -> Record | None:
        """Return the lock's record; None if there is none.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        lock_id = leases.check_lock_id(lock_id)
        try:
            return run(self.client.call, lock_id, self.protocol.look, lock_id)
        except StoreUnavailable as trouble:
            raise trouble.for_callers(lock_id) from None

    def holder(self, lock_id: str | int) -> Holder | None:
        """Return the holder of the lock, or None. In an outage: the holder in the fallback store.

        Raises:
            LockServiceUnavailable: the store did not answer, and no holder is known.
        """
        _, record = self._look_anywhere(lock_id)
        return None if record is None or record.free else record.holder

    def waiters(self, lock_id: str | int) -> list[Waiter]:
        """Return the waiters of the lock, in the order of service; as `holder`."""
        _, record = self._look_anywhere(lock_id)
        return [] if record is None else record.waiters()

    def break_lock(
        self, lock_id: str | int, *, by: str = "", token: str | None = None
    ) -> Holder | None:
        """End the present lease of a lock. For an operator, when a holder hangs.

        The holder finds out at its next heartbeat, extension or release. Until then it goes on; its
        writes on outdated reads are refused at the commit. The first waiter gets the lock. While
        the store does not answer, a lease in the fallback store is ended.

        Args:
            lock_id: the lock.
            by: the operator's name, for the log and for the holder; by default this process.
            token: end only the lease with this token (`holder(lock_id).token`). None: any lease.

        Returns:
            The holder whose lease was ended. None if nobody had the lock, another lease than
            `token`'s had it, or it changed hands at that very moment.

        Raises:
            LockServiceUnavailable: the store did not answer, and no holder is known.
        """
        lock_id = leases.check_lock_id(lock_id)
        check_kind("by", by, str, "a str")
        by = leases.printable(by or leases.process_label())
        service, record = self._look_anywhere(lock_id)
        if record is None or record.free:
            return None
        if token is not None and record.holder.token != token:
            return None
        try:
            if not run(service.client.call, lock_id, service.protocol.break_, lock_id, record, by):
                return None
        except StoreUnavailable as trouble:
            raise trouble.for_callers(lock_id) from None
        self.listeners.emit(Broken(lock_id, record.holder.describe(), by))
        return record.holder

    def _look_anywhere(self, lock_id: str | int) -> tuple[LockService, Record | None]:
        """Return the lock's record, and its service: this one or, in an outage, the fallback."""
        try:
            return self, self.look(lock_id)
        except LockServiceUnavailable:
            if self.fallback is not None:
                with contextlib.suppress(LockServiceUnavailable):
                    record = self.fallback.look(lock_id)
                    # A free lock there says nothing of a holder here since before the outage.
                    if record is not None and not record.free:
                        return self.fallback, record
            raise

    def close(self) -> None:
        """Close the store's connections. Leases that were granted stay."""
        self.store.close()
        if self.fallback is not None:
            self.fallback.close()


def check_service(service: object, name: str = "service") -> LockService:
    """Return the service, if it is one; `TypeError` says what is expected."""
    if isinstance(service, LockService):
        return service
    raise TypeError(
        f"{name} must be a LockService, for instance "
        f"LockService.from_url('memcache://127.0.0.1:11211'), not {type(service).__name__}"
    )
