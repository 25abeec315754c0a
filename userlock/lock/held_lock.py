"""A tenure: one uninterrupted holding of one lock by one scope.

Released and taken again is a new tenure: others may have written in between.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from userlock.errors import LockNotHeld, LockServiceUnavailable
from userlock.events import Extended
from userlock.lock.lease import (
    MAX_LEASE_SECONDS,
    Granted,
    Lease,
    Lost,
    Unavailable,
    check_seconds,
    describe_loss,
)

if TYPE_CHECKING:
    from userlock.lock.keeping import Keeping
    from userlock.lock.scope import LockScope

log = logging.getLogger(__name__)


def running_code() -> tuple[int, int]:
    """Return the running thread, and the asyncio task if there is one.

    A scope may be seen by several (`asyncio.to_thread` and new tasks copy
    context variables). Each enters a lock on its own account.
    """
    task = 0
    if asyncio._get_running_loop() is not None:
        task = id(asyncio.current_task())
    return threading.get_ident(), task


class HeldLock:
    """One uninterrupted holding of one lock by one scope.

    What `with global_lock(…) as lock` gives.

    Attributes:
        lock_id: what is locked.
        scope: who holds it.
    """

    # Defaults of what few tenures ever change. Kept in the class: one is made for each lock.
    #: What became of the lease, in words, once it is known to be lost; empty until then.
    lost = ""
    #: Who holds the lock as well, when it was taken while the store did not answer.
    conflict = ""
    _keeping: Keeping | None = None
    #: The tenure in which the lock was taken back after it had been yielded.
    _successor: HeldLock | None = None
    _postponed = False
    _released = False

    def __init__(self, scope: LockScope, lease: Lease) -> None:
        self.lock_id = lease.lock_id
        self.scope = scope
        #: The lease that backs it now.
        self.lease = lease
        #: What participants want to remember about it; gone with the tenure.
        self.notes: dict[str, object] = {}
        self._since = lease.deadline - lease.ttl_seconds
        #: Which thread and task entered it; only that one enters it again without waiting.
        self.owner = running_code()
        self._depth = 1

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

    # --- keeping it -------------------------------------------------------------------------

    @property
    def extending(self) -> threading.Lock:
        """Held by whoever is giving the lease another end: its owner or the renewal thread."""
        lock: threading.Lock = self.__dict__.setdefault("_extending", threading.Lock())
        return lock

    def extend(self, seconds: float) -> None:
        """Let the lease run for `seconds` from now, instead of what it had left.

        As in the seed `dynamically-extended-lock.txt`: a short lease, pushed
        out between the steps of long work, frees the lock soon after a crash.
        With a heartbeat it is renewed from then on as ever. A degraded lease
        goes on without the store's word, as it was taken.

        Raises:
            LockNotHeld: the lock has been released, or the lease is lost; says what became of
                it. What was read under it must not be written.
            LockServiceUnavailable: the store did not answer. The lease is as it was, or, if
                `seconds` is less than it had left, ends then.
            TypeError, ValueError: `seconds` makes no sense.
        """
        seconds = check_seconds("seconds", seconds, least=0.001, most=MAX_LEASE_SECONDS)
        if self.scope._in_a_fork:  # where `extending` may be locked for ever
            raise self._cannot_extend("belongs to the process that forked this one")
        with self.extending:
            if self._successor is not None:
                raise self._cannot_extend("was yielded: use what yield_to_waiters() returned")
            if self._released or self.lost:
                raise self._cannot_extend(
                    f"is lost: {self.lost}" if self.lost else "has been released"
                )
            outcome = self._extend(seconds)
        service = self.scope.service
        match outcome:
            case Granted():
                if self._keeping is not None:
                    self._keeping.extended(self)
                service.listeners.emit(Extended(self.lock_id, seconds))
            case Lost() as lost:
                how = describe_loss(lost, self.lease)
                self.lose(how)
                raise self._cannot_extend(f"is lost: {self.lost or how}")
            case unavailable:
                if self._keeping is not None:
                    self._keeping.extended(self)
                raise LockServiceUnavailable(lock_id=self.lock_id, reason=unavailable.reason)

    def _extend(self, seconds: float) -> Granted | Lost | Unavailable:
        service = self.scope.service
        lease = self.lease
        # If no answer comes, it may have been done all the same.
        at_worst = service.clock.now() + seconds
        if at_worst < lease.deadline:
            self.lease = lease._replace(deadline=at_worst)
        outcome = service.extend(lease, seconds)
        if isinstance(outcome, Granted):
            self.lease = outcome.lease
        elif isinstance(outcome, Unavailable) and not outcome.sent:
            self.lease = lease
        return outcome

    def _cannot_extend(self, why: str) -> LockNotHeld:
        return LockNotHeld(
            f"lock {self.lock_id!r} cannot be extended, it {why}", lock_id=self.lock_id
        )

    def yield_to_waiters(self, *, wait_timeout: float | None = None) -> HeldLock:
        """A checkpoint for long batch work: let a waiting person pass, and take the lock back.

        Costs one round trip when nobody waits. When an interactive request
        (or batch that ranks with them by now) stands in line, the writes
        begun under the lock are finished, the lock is released, and taken
        back when it is this caller's turn: that is a new tenure, and what was
        read before must be read again. Inside a transaction nothing happens:
        its lock stays to the end.

        Locks that were taken inside this one, and come after it in canonical
        order, are given up with it and taken back with it: kept, they could
        end in a deadlock with the person. So at a checkpoint under
        `global_locks`, yield each, from the first to the last:

            locks = [lock.yield_to_waiters() for lock in locks]

        Args:
            wait_timeout: longest wait to take it back, in seconds; by default as for any lock
                of this priority.

        Returns:
            The tenure that holds the lock now: this one, or the new one.

        Raises:
            LockTimeout: it could not be taken back in time; nothing of it is held then.
            LockNotHeld: it had been released before.
        """
        return self.scope.yield_to_waiters(self, wait_timeout=wait_timeout)

    def on_lost(self, callback: Callable[[HeldLock], object]) -> None:
        """Call `callback(tenure)`, once, when the lease turns out lost while it is held.

        From the thread that finds out, which may be the heartbeat's: it must be
        quick, because the renewals of all locks of the process wait for it. At
        once if it is lost already. What it raises is logged.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r:.100}")
        self._callbacks.append(callback)
        if self.lost:
            self._call_back()

    def lose(self, how: str) -> None:
        """The lease is not ours any more. Said once; ignored after the release."""
        if self._released or not self.first_to_end():
            return
        self.lost = how
        self.scope.service.say_lost(self.lock_id, self.held_seconds, how)
        self._call_back()

    def first_to_end(self) -> bool:
        """True for the first who asks: the one who is to say how the lease has ended.

        Its owner releases it while the renewal thread finds it lost: one of them tells.
        """
        me = object()
        return self.__dict__.setdefault("_ended_by", me) is me

    @property
    def _callbacks(self) -> collections.deque[Callable[[HeldLock], object]]:
        callbacks: collections.deque[Callable[[HeldLock], object]]
        callbacks = self.__dict__.setdefault("_loss_callbacks", collections.deque())
        return callbacks

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                callback(self)
            except Exception:
                log.exception("a callback for the loss of lock %r failed", self.lock_id)

    def __repr__(self) -> str:
        state = (
            "released"
            if self._released
            else "lost"
            if self.lost
            else "ran out"
            if self.ran_out
            else "held"
        )
        return f"<HeldLock of {self.lock_id!r}: {state}>"


class Participant(Protocol):
    """A participant in the release of locks. The model layer is one."""

    def leaving(self, tenure: HeldLock) -> None:
        """The lock is about to be released: finish what was begun under it.

        What this raises reaches the code that leaves the lock, after the
        release.
        """
        ...

    def holds(self, tenure: HeldLock) -> bool:
        """Return whether the lock has to stay held for now."""
        ...

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        """Keep the lock for now, and call `release` later. Only called when `holds` says so.

        A lock that is entered again meanwhile is left again, and postponed again;
        `release` does nothing then until the last time.
        """
        ...


#: Everybody who has a say, in this process.
participants: list[Participant] = []


def register_participant(participant: Participant) -> None:
    """Give `participant` a say from now on, in this process."""
    participants.append(participant)
