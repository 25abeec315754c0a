"""One uninterrupted holding of a lock (a tenure): its extension, fence, yield and loss.

A lock that is released and taken again is a new tenure: others may have written
in between.

The lock may be extended by hand, and released, at any moment meanwhile:

    its owner                 the renewal thread        the store
    reads its lease
                              reads its lease
    extend by 60 s ───────────────────────────────────▶ 60 s to go
                              extend by 10 s ─────────▶ 10 s to go
    believes in 60 s: so only one of them extends at a time (`extending`)

    release: no request
    to a store that was
    never asked               confirm ────────────────▶ stored, and nobody holds it:
                              so a confirmed lease is given back if the lock was released

Yielding. Batch work lets interactive waiters pass at a checkpoint:

    batch         ▐▀▀ step 1 ▀▀▌           ▐▀▀ step 2 ▀▀▀▀▀▀▌
    interactive       comes ▐▀▀ served ▀▀▌

Locks that were taken after the yielded one, and come after it in canonical
order, are released with it and taken back with it. Kept, they would reverse
the order:

    batch         has a and b, yields a ──────── waits for a, has b ┄┄┄┄ for ever
    interactive                    takes a ── waits for b ┄┄┄┄┄┄┄┄┄┄ for ever
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from userlock.errors import ConfigurationError, LockNotHeld, LockServiceUnavailable
from userlock.events import Extended
from userlock.ids import quoted
from userlock.lock.heartbeat import Renewal
from userlock.lock.lease import (
    MAX_LEASE_SECONDS,
    Fenced,
    Granted,
    Lease,
    Lost,
    Unavailable,
    describe_loss,
)
from userlock.lock.service import LockService
from userlock.lock.tasks import running_code
from userlock.numbers import check_seconds

log = logging.getLogger(__name__)


def check_heartbeat(service: LockService) -> None:
    """Raise `ConfigurationError` if the service's store cannot be used for heartbeats."""
    if service.requests_only:
        raise ConfigurationError(
            f"heartbeat=True needs a lease store that a background thread can use; "
            f"{type(service.store).__name__} can only be used by threads that serve a "
            f"request. To fix it: ask for a longer lease, or call extend() between two steps"
        )


class Owner(Protocol):
    """The scope that holds a lock; see `scope.LockScope`."""

    service: LockService

    @property
    def in_child(self) -> bool:
        """Return whether this process is a fork of the one that took the lock."""
        ...

    def leave(self, tenure: HeldLock, *, failing: bool = False) -> None:
        """Leave a lock once."""
        ...

    def release(self, lock_id: str | int) -> None:
        """Leave a lock once, by its id."""
        ...

    def yield_to_waiters(self, tenure: HeldLock, *, wait_timeout: float | None = None) -> HeldLock:
        """Let interactive waiters pass."""
        ...


class HeldLock:
    """One uninterrupted holding of one lock by one scope.

    The value of `with global_lock(…) as lock`.

    Attributes:
        lock_id: the lock.
        scope: the scope that holds it.
        lease: the lease that backs it now.
        owner: the thread and task that entered it; no other enters it again without waiting.
        notes: what participants want to remember about the tenure; dropped with the release.
        lost: the fate of the lease, in words, once it is known to be lost; empty until then.
        conflict: the other holder, if the lock was taken while the store did not answer, and
            the store then named one.
        postponed: whether a participant keeps the lock after it was left.
        blocks: the number of blocks inside, which leave the lock by themselves.
        extending: the mutex of changes of the lease, by its owner or by the renewal thread.
        beneath: the tenure of this lock whose lease ended before the lock was taken again inside.
    """

    def __init__(self, scope: Owner, lease: Lease) -> None:
        self.lock_id = lease.lock_id
        self.scope = scope
        self.lease = lease
        self.owner = running_code()
        self.notes: dict[str, object] = {}
        self.lost = ""
        self.conflict = ""
        self.postponed = False
        self.blocks = 0
        self.beneath: HeldLock | None = None
        self.extending = threading.Lock()
        self._since = lease.deadline - lease.ttl_seconds
        self._depth = 1
        self._renewal: Renewal | None = None
        self._successor: HeldLock | None = None
        self._released = False
        self._fence: int | None = None
        self._callbacks: list[Callable[[HeldLock], object]] = []
        #: Taken for good by the first to end the tenure, who reports its end. The owner may release
        #: it while the renewal thread finds it lost.
        self._end = threading.Lock()

    @property
    def held(self) -> bool:
        """Return whether the lock has not been released yet (its lease may have run out)."""
        return not self._released

    @property
    def degraded(self) -> bool:
        """Return whether the lock is degraded: taken while the store did not answer."""
        return self.lease.degraded

    @property
    def ran_out(self) -> bool:
        """Return whether the lease is over by this process's own clock."""
        return self.scope.service.clock.now() >= self.lease.deadline

    @property
    def remaining_seconds(self) -> float:
        """Return the remaining time of the lease; 0 when it is over."""
        return max(0.0, self.lease.deadline - self.scope.service.clock.now())

    @property
    def held_seconds(self) -> float:
        """Return the time since the lock was taken."""
        return self.scope.service.clock.now() - self._since

    # --- extension --------------------------------------------------------------------------

    def extend(self, seconds: float | None = None, *, by: float | None = None) -> None:
        """Let the lease run for `seconds` from now, or for longer than it would.

        As in the seed `dynamically-extended-lock.txt`: a short lease, extended
        between the steps of long work, frees the lock soon after a crash. With
        a heartbeat it is renewed from then on as before. A degraded lease is
        extended without the store, as it was taken.

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
        wanted = check_seconds(name, given, most=MAX_LEASE_SECONDS)
        if self.scope.in_child:  # where the mutex may be locked for ever
            raise self._cannot_extend("belongs to the process that forked this one")
        with self.extending:
            if self._successor is not None:
                raise self._cannot_extend("was yielded: use what yield_to_waiters() returned")
            if self._released or self.lost:
                raise self._cannot_extend(
                    f"is lost: {self.lost}" if self.lost else "has been released"
                )
            if by is not None:
                rest = self.remaining_seconds
                wanted = check_seconds("by", rest + by, most=MAX_LEASE_SECONDS)
            outcome = self._extend(wanted)
        match outcome:
            case Granted():
                self._reschedule()
                self.scope.service.listeners.emit(Extended(self.lock_id, wanted))
            case Lost() as lost:
                how = describe_loss(lost, self.lease)
                self.lose(how)
                raise self._cannot_extend(f"is lost: {self.lost or how}")
            case unavailable:
                self._reschedule()
                raise LockServiceUnavailable(lock_id=self.lock_id, reason=unavailable.reason)

    def _extend(self, seconds: float) -> Granted | Lost | Unavailable:
        service = self.scope.service
        lease = self.lease
        # If the reply is lost, the request may have been carried out all the same.
        at_worst = service.clock.now() + seconds
        if at_worst < lease.deadline:
            self.lease = lease._replace(deadline=at_worst)
        outcome = service.extend(lease, seconds)
        if isinstance(outcome, Granted):
            self.lease = outcome.lease
        elif isinstance(outcome, Unavailable) and not outcome.sent:
            self.lease = lease
        return outcome

    def _reschedule(self) -> None:
        if self._renewal is not None:
            self._renewal.extended(self)

    def _cannot_extend(self, why: str) -> LockNotHeld:
        return LockNotHeld(
            f"lock {quoted(self.lock_id)} cannot be extended, it {why}", lock_id=self.lock_id
        )

    # --- fencing ----------------------------------------------------------------------------

    @property
    def fence(self) -> int:
        """Return the fencing number: an integer that grows with every grant of this lock.

        For systems other than Datastore that can refuse a number which is lower
        than one they have seen: a holder that was paused for longer than its
        lease has a lower one than the holders after it. At most 63 bits.

        The first use costs one round trip; the number stays the same while the
        lock is held. docs/fencing.md has examples, and says for each
        store when numbers may go back.

        Raises:
            LockNotHeld: the lock was released, or its lease lost, before the number was asked for;
                the message says how.
            LockServiceUnavailable: the store did not answer, now or when the lock was taken. A
                degraded lock has no number until it is confirmed.
            ConfigurationError: the store gives no numbers (App Engine's memcache, proxies).
        """
        number = self._fence
        if number is not None:
            return number
        service = self.scope.service
        if not service.store.fences:
            raise ConfigurationError(
                f"lock.fence: {type(service.store).__name__} gives no numbers that grow. To fix "
                f"it: keep leases in memcached without a proxy, in Redis or in Datastore"
            )
        if self.scope.in_child:
            raise self._has_no_fence("it belongs to the process that forked this one")
        with self.extending:
            if self._released or self.lost:
                why = f"it is lost: {self.lost}" if self.lost else "it has been released"
                raise self._has_no_fence(why)
            if self.lease.degraded:
                raise LockServiceUnavailable(
                    lock_id=self.lock_id,
                    reason="it did not answer when the lock was taken, so there is no fence yet",
                )
            outcome = service.fence(self.lease)
            if isinstance(outcome, Fenced):
                self.lease, self._fence = outcome
        match outcome:
            case Fenced():
                return outcome.number
            case Lost() as lost:
                how = describe_loss(lost, self.lease)
                self.lose(how)
                raise self._has_no_fence(f"it is lost: {self.lost or how}")
            case unavailable:
                raise LockServiceUnavailable(lock_id=self.lock_id, reason=unavailable.reason)

    def _has_no_fence(self, why: str) -> LockNotHeld:
        return LockNotHeld(f"lock {quoted(self.lock_id)} has no fence: {why}", lock_id=self.lock_id)

    # --- yielding ---------------------------------------------------------------------------

    def yield_to_waiters(self, *, wait_timeout: float | None = None) -> HeldLock:
        """Let waiting interactive requests pass, and take the lock back. For long batch work.

        Costs one round trip if nobody waits. If an interactive request (or
        aged batch) is queued, the writes begun under the lock are finished,
        the lock is released, and taken back in its turn. That is a new tenure:
        read again what was read before. Inside a transaction nothing happens;
        its lock stays to the end.

        Locks that were taken inside this one, and come after it in canonical
        order, are released with it and taken back with it; kept, they could
        end in a deadlock. So at a checkpoint under `global_locks`, yield each,
        from the first to the last:

            locks = [lock.yield_to_waiters() for lock in locks]

        Args:
            wait_timeout: longest wait to take it back, in seconds; by default as for any lock
                of this priority.

        Returns:
            The tenure that holds the lock now: this one, or the new one.

        Raises:
            LockTimeout: it could not be taken back in time; it is not held then.
            LockNotHeld: it had been released before, or another thread or task left it meanwhile.
        """
        return self.scope.yield_to_waiters(self, wait_timeout=wait_timeout)

    @property
    def latest(self) -> HeldLock:
        """Return the tenure that has succeeded this one after a yield, or this one."""
        tenure = self
        while tenure._successor is not None:
            tenure = tenure._successor
        return tenure

    def succeeded_by(self, tenure: HeldLock) -> None:
        """Hand the entries over to the tenure in which the lock is taken back."""
        tenure._depth, tenure.owner, tenure.blocks = self._depth, self.owner, self.blocks
        self._successor = tenure

    def hand_on_callbacks(self) -> None:
        """Have the callbacks for a loss called for the latest tenure. It may be lost already."""
        for callback in tuple(self._callbacks):
            self.latest.on_lost(callback)

    def not_yielded(self, why: str) -> LockNotHeld:
        """Return the error of a yield."""
        return LockNotHeld(
            f"lock {quoted(self.lock_id)} cannot be yielded: it {why}", lock_id=self.lock_id
        )

    # --- entering and leaving, by its scope -------------------------------------------------

    @property
    def entered(self) -> bool:
        """Return whether a block is still inside."""
        return self._depth > 0

    def and_beneath(self) -> Iterator[HeldLock]:
        """Yield this tenure, and those beneath, the latest first."""
        tenure: HeldLock | None = self
        while tenure is not None:
            yield tenure
            tenure = tenure.beneath

    def enter(self) -> None:
        """Enter the lock once more."""
        self._depth += 1

    def left(self, *, entirely: bool = False) -> bool:
        """Leave the lock once, or entirely; return whether it is to be released now.

        Leaving counts for a yielded lock, too: it is not taken back then.
        """
        if self._depth == 0 and not entirely:
            return False
        self._depth = 0 if entirely else self._depth - 1
        return self._depth == 0 and not self._released

    def ends_with_scope(self, me: tuple[int, int]) -> bool:
        """Return whether the end of the scope releases it, and neither a block nor a transaction.

        Args:
            me: the thread and task that ends the scope.
        """
        if self.owner == me:
            return self.entered or not self.postponed
        return self.entered and not self.blocks

    def end(self) -> bool:
        """End the tenure; return False if it has ended already. `give_back` ends the lease."""
        first, self._released = not self._released, True
        return first

    def give_back(self) -> None:
        """Give the lease back. Its end is reported once, here or by the renewal thread."""
        if self.lost or (self._renewal is not None and not self._end.acquire(blocking=False)):
            self.scope.service.give_back(self.lease)
            return
        self.scope.service.release(self.lease, held_seconds=self.held_seconds)

    # --- heartbeat --------------------------------------------------------------------------

    @property
    def heartbeat(self) -> bool:
        """Return whether the lease is renewed in the background."""
        return self._renewal is not None and self._renewal.heartbeat

    @property
    def lock_timeout(self) -> float:
        """Return the length that the lease was asked for with, in seconds."""
        return self.lease.ttl_seconds if self._renewal is None else self._renewal.ttl_seconds

    def begin_renewal(self, *, heartbeat: bool) -> None:
        """Have the renewal thread renew the lease, or (without `heartbeat`) only confirm it."""
        if self._renewal is None:
            self._renewal = Renewal(self, self.scope.service, heartbeat=heartbeat)
            self._renewal.begin(self)
        elif heartbeat and not self._renewal.heartbeat:
            self._renewal.heartbeat = True
            self._renewal.extended(self)

    # --- loss -------------------------------------------------------------------------------

    def on_lost(self, callback: Callable[[HeldLock], object]) -> None:
        """Call `callback(tenure)`, once, when the lease is found lost while it is held.

        It is called in the thread that finds out, which may be the renewal
        thread: it must be quick, because the renewals of all locks of the
        process wait for it. It is called at once if the lease is lost already.
        Its errors are logged.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r:.100}")
        self._callbacks.append(callback)
        if self.lost:
            self._call_back()

    def lose(self, how: str) -> None:
        """Report once that the lease is lost. Ignored after the release."""
        if self._released or not self._end.acquire(blocking=False):
            return
        self.lost = how
        self.scope.service.report_lost(self.lock_id, self.held_seconds, how)
        self._call_back()

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread took the last one
                break
            try:
                callback(self)
            except Exception:
                log.exception("a callback for the loss of lock %s failed", quoted(self.lock_id))

    def __repr__(self) -> str:
        state = "ran out" if self.ran_out else "held"
        state = "released" if self._released else "lost" if self.lost else state
        return f"<HeldLock of {quoted(self.lock_id)}: {state}>"


class Participant(Protocol):
    """A participant in the release of locks. The model layer is one."""

    def leaving(self, tenure: HeldLock) -> None:
        """Finish the writes that were begun under the lock, before it is released.

        An error reaches the code that leaves the lock, after the release.
        """
        ...

    def holds(self, tenure: HeldLock) -> bool:
        """Return whether the lock has to stay held for now."""
        ...

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        """Keep the lock for now, and call `release` later. Called only if `holds` returns True.

        A lock that is entered again meanwhile is left again, and postponed
        again; `release` does nothing until the last time.
        """
        ...


#: The participants in this process.
participants: list[Participant] = []


def register_participant(participant: Participant) -> None:
    """Add a participant, in this process, from now on."""
    participants.append(participant)


def find_participants() -> None:
    """Load the model layer if the process has imported ndb. By name: this package needs neither.

    Asked whenever a lock is taken, left or yielded: also ndb that is imported under a lock may
    have an open transaction when the lock is left, which then has to stay until the commit.
    """
    if not participants and "google.cloud.ndb" in sys.modules:
        importlib.import_module("userlock.ndb")
