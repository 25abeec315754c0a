"""A tenure: one uninterrupted holding of one lock by one scope.

Released and taken again is a new tenure: others may have written in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from userlock.errors import LockNotHeld, LockServiceUnavailable
from userlock.lock.lease import Granted, Lease, Lost, describe_loss
from userlock.lock.order import Taken

if TYPE_CHECKING:
    from userlock.lock.keeping import Keeping
    from userlock.lock.scope import LockScope

log = logging.getLogger(__name__)


def running_code() -> tuple[int, int]:
    """What is running now: the thread, and the asyncio task if there is one.

    A scope may be seen by several (`asyncio.to_thread` and new tasks copy
    context variables). Each enters a lock on its own account.
    """
    task = 0
    if asyncio._get_running_loop() is not None:
        task = id(asyncio.current_task())
    return threading.get_ident(), task


class Tenure:
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
    _loss_callbacks: tuple[Callable[[Tenure], object], ...] = ()
    _keeping: Keeping | None = None
    #: The tenure in which the lock was taken back after it had been yielded.
    _successor: Tenure | None = None
    _postponed = False
    _released = False

    def __init__(self, scope: LockScope, lease: Lease, taken_by: Taken = None) -> None:
        self.lock_id = lease.lock_id
        self.scope = scope
        #: The lease that backs it now.
        self.lease = lease
        #: What participants want to remember about it; gone with the tenure.
        self.notes: dict[str, object] = {}
        self._since = lease.deadline - lease.ttl_seconds
        #: Which thread and task entered it; only that one enters it again without waiting.
        self.owner = running_code()
        #: The code that took it, as a code object and an instruction in it.
        self.taken_by = taken_by
        self._depth = 1

    @property
    def held(self) -> bool:
        """Whether the lock has not been released yet (its lease may have run out)."""
        return not self._released

    @property
    def degraded(self) -> bool:
        """Whether the lock was taken without the store's word, because it did not answer."""
        return self.lease.degraded

    @property
    def ran_out(self) -> bool:
        """Whether the lease is over by this process's own clock."""
        return self.scope.service.clock.now() >= self.lease.deadline

    @property
    def remaining_seconds(self) -> float:
        """How long the lease has to run; 0 when it is over."""
        return max(0.0, self.lease.deadline - self.scope.service.clock.now())

    @property
    def held_seconds(self) -> float:
        """How long ago the lock was taken."""
        return self.scope.service.clock.now() - self._since

    # --- keeping it -------------------------------------------------------------------------

    def extend(self, seconds: float) -> None:
        """Let the lease run for `seconds` from now, instead of what it had left.

        As in the seed `dynamically-extended-lock.txt`: a short lease, pushed
        out between the steps of long work, frees the lock soon after a crash.

        Raises:
            LockNotHeld: the lock has been released, or the lease is lost; says what became of
                it. What was read under it must not be written.
            LockServiceUnavailable: the store did not answer; the lease is as it was.
            TypeError, ValueError: `seconds` makes no sense.
        """
        if self._released or self.lost:
            why = f"is lost: {self.lost}" if self.lost else "has been released"
            raise LockNotHeld(
                f"lock {self.lock_id!r} cannot be extended, it {why}", lock_id=self.lock_id
            )
        match self.scope.service.extend(self.lease, seconds):
            case Granted(lease):
                self.lease = lease
            case Lost() as lost:
                self.lose(describe_loss(lost, self.lease))
                raise LockNotHeld(
                    f"lock {self.lock_id!r} cannot be extended, it is lost: {self.lost}",
                    lock_id=self.lock_id,
                )
            case unavailable:
                raise LockServiceUnavailable(lock_id=self.lock_id, reason=unavailable.reason)

    def yield_to_waiters(self) -> Tenure:
        """A checkpoint for long batch work: let a waiting person pass, and take the lock back.

        Costs one round trip when nobody waits. When an interactive request
        (or batch that ranks with them by now) stands in line, the writes
        begun under the lock are finished, the lock is released, and taken
        back when it is this caller's turn: that is a new tenure, and what was
        read before must be read again. Inside a transaction nothing happens:
        its lock stays to the end.

        Returns:
            The tenure that holds the lock now: this one, or the new one.

        Raises:
            LockTimeout: it could not be taken back in time; nothing is held then.
            LockNotHeld: it had been released before.
        """
        return self.scope.yield_to_waiters(self)

    def on_lost(self, callback: Callable[[Tenure], object]) -> None:
        """Call `callback(tenure)` when the lease turns out lost while it is held.

        From the thread that finds out, which may be the heartbeat's. At once
        if it is lost already. What it raises is logged.
        """
        self._loss_callbacks = (*self._loss_callbacks, callback)
        if self.lost:
            self._call_back(callback)

    def lose(self, how: str) -> None:
        """The lease is not ours any more. Said once; ignored after the release."""
        if self.lost or self._released:
            return
        self.lost = how
        self.scope.service.say_lost(self.lock_id, self.held_seconds, how)
        for callback in self._loss_callbacks:
            self._call_back(callback)

    def _call_back(self, callback: Callable[[Tenure], object]) -> None:
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
        return f"<Tenure of {self.lock_id!r}: {state}>"


class Participant(Protocol):
    """Who has a say when locks are left. The model layer is one."""

    def leaving(self, tenure: Tenure) -> None:
        """The lock is about to be released: finish what was begun under it.

        What this raises reaches the code that leaves the lock, after the
        release.
        """
        ...

    def holds(self, tenure: Tenure) -> bool:
        """Whether the lock has to stay held for now."""
        ...

    def postpone(self, tenure: Tenure, release: Callable[[], None]) -> None:
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
