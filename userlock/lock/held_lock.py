"""One uninterrupted holding of a lock (a tenure): its extension, fence, yield and loss.

A lock that is released and taken again is a new tenure: others may have written in between.

Blocks inside are not counted: a signal handler may raise at any line, also at the first
one of the code that leaves a lock, and then a count would be wrong. Each block has an `__exit__`
of its own, which only its `with` statement keeps (`scope.End`).

Only one of the owner and the renewal thread extends the lease at a time (`_extending`): else the
owner might believe in 60 s, and the store in the 10 s of a renewal that was sent later.

A yield releases the locks that were taken after the yielded one, and come after it
in canonical order, and takes them back. Kept, they would reverse the order:

    batch         has a and b, yields a ──────── waits for a, has b ┄┄┄┄ for ever
    interactive                    takes a ── waits for b ┄┄┄┄┄┄┄┄┄┄ for ever
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import userlock.lock.lease as leases
from userlock.arguments import check_seconds
from userlock.errors import ConfigurationError, LockNotHeld, LockServiceUnavailable
from userlock.events import Confirmed, Conflict, Extended, LeaseLost
from userlock.ids import quoted
from userlock.lock.lease import Fenced, Granted, Held, Lease, Lost, Unavailable
from userlock.lock.service import LockService
from userlock.waits import locked, run

#: The store's answer to the holder of a lease.
_Outcome = Granted | Fenced | Lost | Unavailable

#: Pause between two attempts to confirm a degraded lease, in seconds.
_CONFIRM_SECONDS = 0.25


def check_heartbeat(service: LockService) -> None:
    """Raise `ConfigurationError` if the service's store cannot be used for heartbeats."""
    if service.requests_only:
        raise ConfigurationError(
            f"heartbeat=True needs a lease store that a background thread can use; "
            f"{type(service.store).__name__} can only be used by threads that serve a "
            f"request. To fix it: ask for a longer lease, or call extend() between two steps"
        )


class HeldLock:
    """One uninterrupted holding of one lock by one scope.

    The value of `with global_lock(…) as lock`.

    Attributes:
        lock_id: the lock.
        lost: the fate of the lease, in words, once it is known to be lost; empty until then.
    """

    lost = ""
    #: The other holder, if the lock was taken while the store did not answer, and the store
    #: then named one.
    _conflict = ""
    #: To what keeps the lock after it was left, as long as it lives: a participant's.
    _kept_by: weakref.ref[Any] | None = None
    #: The thread and task that is leaving it just now, and may enter it again meanwhile.
    _leaving: tuple[int, int] | None = None
    #: Whether the renewal thread renews the lease. Otherwise it only confirms a degraded one.
    _heartbeat = False
    #: The seconds that it asks for; 0 where it has nothing to do with the lock.
    _renewed_seconds = 0.0
    #: Why the last renewal failed, if it did.
    _because = ""
    _successor: HeldLock | None = None
    _released = False
    #: Whether the lease was given back, or is known to be over.
    _returned = False
    _number: int | None = None

    def __init__(
        self,
        scope: Any,
        lease: Lease,
        owner: tuple[int, int],
        end: weakref.ref[object] | None = None,
    ) -> None:
        self.lock_id = lease.lock_id
        #: The `scope.LockScope` that holds it, which imports this module.
        self._scope = scope
        self._service: LockService = scope.service
        #: The lease that backs it now.
        self._lease = lease
        #: The thread and task that entered it; no other enters it again without waiting.
        self._owner = owner
        #: What participants want to remember about it; dropped with the release.
        self._notes: dict[str, object] = {}
        #: The ends of the blocks that have entered and not left it, and how often others have.
        self._ends = [] if end is None else [end]
        self._others = 1 if end is None else 0
        self._since = lease.deadline - lease.ttl_seconds
        #: What is done once, by the thread that removes it here: the release, and the report of the
        #: end. The owner may release the lock while the renewal thread finds it lost.
        self._once = {"release": True, "report": True}

    @property
    def held(self) -> bool:
        """Return whether the lock has not been released yet (its lease may have run out)."""
        return not self._released

    @property
    def degraded(self) -> bool:
        """Return whether the lock is degraded: taken while the store did not answer."""
        return self._lease.degraded

    @property
    def expires_in(self) -> float:
        """Return the remaining seconds of the lease, by this process's own clock; 0 when over."""
        if self._released or self.lost:
            return 0.0
        return max(0.0, self._lease.deadline - self._service.clock.now())

    def release(self) -> None:
        """Leave the lock once, now; the outermost leave releases it.

        Raises:
            LockNotHeld: it is not held.
        """
        tenure = self._latest
        if not tenure.held or not tenure._entered:
            raise LockNotHeld(f"lock {quoted(self.lock_id)} is not held", lock_id=self.lock_id)
        self._scope._leave_once(tenure)

    def extend(self, seconds: float | None = None, *, by: float | None = None) -> None:
        """Let the lease run for `seconds` from now, or for longer than it would.

        A short lease, extended between the steps of long work, frees the lock soon after a crash.
        With a heartbeat it is renewed from then on as before. A degraded lease is extended without
        the store, as it was taken.

        Args:
            seconds: the time from now, instead of the rest of the lease's time.
            by: seconds that are added to the rest of its time. Instead of `seconds`.

        Raises:
            LockNotHeld: the lock has been released, or the lease is lost; the message says how.
                An entity that was read under it must not be written.
            LockServiceUnavailable: the store did not answer. The lease is as it was, or, if
                `seconds` is less than the rest of its time, ends then.
            TypeError, ValueError: `seconds` or `by` is invalid, or both or none are given.
        """
        if seconds is not None and by is not None:
            raise TypeError("extend() takes the seconds from now, or by=: not both")
        if seconds is None and by is None:
            raise TypeError("extend() needs the seconds from now, or by= for seconds more")
        name, given = ("seconds", seconds) if by is None else ("by", by)
        wanted = check_seconds(name, given, most=leases.MAX_LEASE_SECONDS)
        outcome = self._ask("cannot be extended", partial(self._extend, wanted, by))
        self._service.listeners.emit(Extended(self.lock_id, outcome.lease.ttl_seconds))

    def _extend(self, seconds: float, by: float | None) -> _Outcome:
        if by is not None:
            words, most = "the rest of the lease and by", leases.MAX_LEASE_SECONDS
            seconds = check_seconds(words, self.expires_in + by, least=0.001, most=most)
        lease = self._lease
        # If the reply is lost, the request may have been carried out all the same.
        at_worst = self._service.clock.now() + seconds
        if at_worst < lease.deadline:
            self._lease = lease._replace(deadline=at_worst)
        outcome = run(self._service.extend, lease, seconds)
        if isinstance(outcome, Granted):
            self._lease = outcome.lease
        elif isinstance(outcome, Unavailable) and not outcome.sent:
            self._lease = lease
        return outcome

    def _ask(self, what: str, ask: Callable[[], _Outcome]) -> Granted | Fenced:
        """Return the store's answer to the holder of the lease; raise an error if there is none."""
        if self._scope._in_child:  # where the mutex may be locked for ever
            raise self._refused(what, "belongs to the process that forked this one")
        if self._successor is not None:
            raise self._refused(what, "was yielded: use what yield_to_waiters() returned")
        if self.lost:
            raise self._refused(what, f"is lost: {self.lost}")
        if self._released:
            raise self._refused(what, "has been released")
        outcome = locked(self._scope._extending, ask)
        if isinstance(outcome, Lost):
            how = leases.describe_loss(outcome, self._lease)
            self._lose(how)
            raise self._refused(what, f"is lost: {self.lost or how}")
        self._schedule_renewal()
        if isinstance(outcome, Unavailable):
            raise LockServiceUnavailable(lock_id=self.lock_id, reason=outcome.reason)
        return outcome

    def _refused(self, what: str, why: str) -> LockNotHeld:
        text = f"lock {quoted(self.lock_id)} {what}: it {why}"
        return LockNotHeld(text, lock_id=self.lock_id)

    @property
    def fence(self) -> int:
        """Return the fencing number: an integer that grows with every grant of this lock.

        For systems other than Datastore that can refuse a number which is lower
        than one they have seen: a holder that was paused for longer than its
        lease has a lower one than the holders after it. At most 63 bits.

        The first use costs one round trip; the number stays the same while the lock is held.
        docs/fencing.md has examples, and says for each store when numbers may go back.

        Raises:
            LockNotHeld: the lock was released, or its lease lost, before the number was asked for;
                the message says how.
            LockServiceUnavailable: the store did not answer, now or when the lock was taken. A
                degraded lock has no number until it is confirmed.
            ConfigurationError: the store gives no numbers (App Engine's memcache, proxies).
        """
        if self._number is None:
            store = self._service.store
            if not store.fences:
                raise ConfigurationError(
                    f"lock.fence: {type(store).__name__} gives no numbers that grow. To fix "
                    f"it: keep leases in memcached without a proxy, in Redis or in Datastore"
                )
            self._ask("has no fence", self._ask_for_fence)
            assert self._number is not None
        return self._number

    def _ask_for_fence(self) -> _Outcome:
        if self._lease.degraded:
            why = "it did not answer when the lock was taken, so there is no fence yet"
            return Unavailable(why)
        outcome = run(self._service.fence, self._lease)
        if isinstance(outcome, Fenced):
            self._lease, self._number = outcome
        return outcome

    def yield_to_waiters(self, *, wait_timeout: float | None = None) -> HeldLock:
        """Let waiting interactive requests pass, and take the lock back. For long batch work.

        Costs one round trip if nobody waits. If an interactive request (or aged batch) is queued,
        the writes begun under the lock are finished, the lock is released, and taken back in its
        turn. That is a new tenure: read again what was read before. Inside a transaction nothing
        happens; its lock stays to the end.

        Locks that were taken inside this one, and come after it in canonical order, are released
        with it and taken back with it; kept, they could end in a deadlock. So at a checkpoint under
        `global_locks`, yield each, from the first to the last:

            locks = [lock.yield_to_waiters() for lock in locks]

        Args:
            wait_timeout: longest wait to take it back, in seconds; by default as for any lock
                of this priority.

        Returns:
            The tenure that holds the lock now: this one, or the new one.

        Raises:
            LockTimeout: it could not be taken back in time; it is not held then.
            LockNotHeld: it had been released before, or another thread or task left it meanwhile.
            TypeError, ValueError: `wait_timeout` is invalid; the lock stays.
        """
        seconds = None if wait_timeout is None else leases.check_wait_timeout(wait_timeout)
        tenure: HeldLock = self._scope._yield_to_waiters(self, seconds)
        return tenure

    @property
    def _latest(self) -> HeldLock:
        """Return the tenure that has succeeded this one after a yield, or this one."""
        tenure = self
        while tenure._successor is not None:
            tenure = tenure._successor
        return tenure

    # --- entering and leaving, by its scope -------------------------------------------------

    @property
    def _entered(self) -> bool:
        """Return whether code is still inside."""
        return self._others > 0 or self._blocks > 0

    @property
    def _blocks(self) -> int:
        """Return the number of blocks inside; one that was interrupted where it left is over."""
        return sum(end() is not None for end in self._ends)

    @property
    def _postponed(self) -> bool:
        """Return whether a participant keeps the lock after it was left."""
        return self._kept_by is not None and self._kept_by() is not None

    @property
    def _ran_out(self) -> bool:
        return self._service.clock.now() >= self._lease.deadline

    @property
    def _alive(self) -> bool:
        """Return whether somebody holds the lock and will leave it: then it may be renewed."""
        if self._postponed or self._leaving:
            return True
        return self._blocks > 0 or (self._others > 0 and not self._scope._is_over)

    def _left(self) -> bool:
        """Leave the lock once, a yielded one too; return whether to release it now."""
        if self._others:
            self._others -= 1
        else:
            alive = [end for end in self._ends if end() is not None]
            if not alive:
                return False
            self._ends.remove(alive[-1])
        return not (self._entered or self._released)

    def _lose(self, how: str) -> None:
        """Report once that the lease is lost. Ignored after the release."""
        if self._released or not self._once.pop("report", False):
            return
        self.lost = how
        lost = LeaseLost(self.lock_id, held_seconds_of(self), how)
        self._service.listeners.emit(lost)

    def __repr__(self) -> str:
        state = "ran out" if self._ran_out else "held"
        state = "released" if self._released else "lost" if self.lost else state
        return f"<HeldLock of {quoted(self.lock_id)}: {state}>"

    # --- renewal ----------------------------------------------------------------------------
    #
    # A lease is renewed when a third of it has passed, so that two renewals may fail. A lock that
    # was taken while the store did not answer is confirmed as soon as it answers; until then a
    # heartbeat extends it without the store, as it was taken.

    def _begin_renewal(self, *, heartbeat: bool) -> None:
        """Have the renewal thread renew the lease, or (without `heartbeat`) only confirm it."""
        if not self._renewed_seconds:
            lease, now = self._lease, self._service.clock.now()
            self._heartbeat, self._renewed_seconds = heartbeat, lease.ttl_seconds
            due = now + _CONFIRM_SECONDS if lease.degraded else self._renewal_time
            self._service.renewals.schedule(self, due)
        elif heartbeat and not self._heartbeat:
            self._heartbeat = True
            self._schedule_renewal()

    def _schedule_renewal(self) -> None:
        """Schedule the next renewal, as the lease has changed. A degraded lease needs none."""
        if self._heartbeat and not self.degraded:
            self._service.renewals.schedule(self, self._renewal_time)

    @property
    def _renewal_time(self) -> float:
        return self._lease.deadline - self._renewed_seconds * 2 / 3

    def _when_due(self, now: float) -> float | None:
        """Renew or confirm the lease, in the renewal thread; see `renewal`."""
        if self._released or self.lost:
            return None
        if not self._alive:  # its block was interrupted where it would have left the lock
            self._scope._let_go(self)
            return None
        extending = self._scope._extending
        if not extending.acquire(blocking=False):  # it is being extended by hand right now
            return self._soon(now)
        try:
            again = self._confirm(now) if self.degraded else self._renew(now)
        finally:
            extending.release()
        # Reported outside the mutex, so that a callback may use the lock.
        if isinstance(again, str):
            self._lose(again)
            return None
        return again

    def _soon(self, now: float) -> float:
        """Return a time that leaves several attempts in the rest of a lease."""
        return now + min(self._renewed_seconds / 10, 1.0)

    # Each of these returns when to run next, None for never, or how the lease was lost.

    def _renew(self, now: float) -> float | str | None:
        if not self._heartbeat:
            return None
        if now < self._renewal_time:
            return self._renewal_time  # extended by hand meanwhile
        service = self._service
        match run(service.extend, self._lease, self._renewed_seconds):
            case Granted(new):
                self._lease = new
                self._because = ""
                if self.held and service.listeners.watched():
                    service.listeners.emit(Extended(self.lock_id, self._renewed_seconds))
                return self._renewal_time
            case Lost() as lost:
                if not self._because:
                    late = now - self._renewal_time
                    self._not_renewed(
                        f"its turn came {late:.1f} s late: the process was paused, or renews more "
                        f"leases than there is time for"
                    )
                how = leases.describe_loss(lost, self._lease)
                return f"{how}{self._because}" if lost.how == "ran out" else how
            case unavailable:
                self._not_renewed(f"the lease store did not answer ({unavailable.reason})")
                now = service.clock.now()
                return min(self._soon(now), max(now, self._lease.deadline))

    def _not_renewed(self, why: str) -> None:
        self._because = f"; it could not be renewed, because {why}"

    def _confirm(self, now: float) -> float | str | None:
        service, lease = self._service, self._lease
        if now >= lease.deadline:
            return self._renew(now)
        if self._conflict:
            return lease.deadline if self._heartbeat else None
        match run(service.confirm, lease):
            case Granted(confirmed):
                self._lease = confirmed
                if not self.held:
                    run(service.give_back, confirmed)
                    return None
                service.listeners.emit(Confirmed(self.lock_id, now - self._since))
                return self._renewal_time if self._heartbeat else None
            case Held(holder):
                self._conflict = holder.describe()
                self._because = (
                    "; it was taken while the lease store did not answer, and was another's"
                )
                service.listeners.emit(Conflict(self.lock_id, self._conflict))
                return lease.deadline if self._heartbeat else None
            case None:
                self._not_renewed("others were queued for the lock")
            case unavailable:
                self._not_renewed(f"the lease store did not answer ({unavailable.reason})")
                if unavailable.sent and not lease.unsettled:
                    # The store may have it all the same: it has to be given back.
                    self._lease = self._lease._replace(unsettled=True)
                    if not self.held:
                        service.client.release_later(self._lease)
                        return None
        now = service.clock.now()
        if self._heartbeat and now >= self._renewal_time:
            extended = self._renew(now)  # without the store, as it was taken
            if isinstance(extended, str):
                return extended
        return now + _CONFIRM_SECONDS


# --- for the participants in the release of locks -----------------------------------------------


def notes_of(lock: HeldLock) -> dict[str, object]:
    """Return what participants remember about a tenure. Dropped with the release."""
    return lock._notes


def held_seconds_of(lock: HeldLock) -> float:
    """Return the time since a lock was taken."""
    return lock._service.clock.now() - lock._since


def lease_seconds_of(lock: HeldLock) -> float:
    """Return the length of a lease."""
    return lock._lease.ttl_seconds


def was_contended(lock: HeldLock) -> bool:
    """Return whether another may have held the lock since this caller asked for it."""
    return lock._lease.contended


def lose(lock: HeldLock, how: str) -> None:
    """Let a lock find its lease lost, for a test."""
    lock._lose(how)
