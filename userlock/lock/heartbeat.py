"""The renewal and the confirmation of one lease, in the renewal thread.

A heartbeat renews the lease when a third of it has passed, so two renewals
may fail before it is over:

    granted          renewed          renewed
    |── a third ──▶ |── a third ──▶ (the store is down) ··· tried again ··· renewed

A lock that was taken while the store did not answer is confirmed as soon as
the store answers. Until then a heartbeat extends it without the store, as it
was taken.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from userlock.events import Confirmed, Conflict, Extended
from userlock.lock.lease import Granted, Held, Lease, Lost, describe_loss
from userlock.lock.service import LockService
from userlock.waits import run

#: Pause between two attempts to confirm a degraded lease, in seconds.
_CONFIRM_SECONDS = 0.25


class Tenure(Protocol):
    """The holding of a lock; see `held_lock.HeldLock`."""

    lock_id: str
    lost: str
    _lease: Lease
    _conflict: str

    @property
    def held(self) -> bool:
        """Return whether the lock has not been released yet."""
        ...

    @property
    def degraded(self) -> bool:
        """Return whether the lock is degraded."""
        ...

    @property
    def _alive(self) -> bool:
        """Return whether somebody holds the lock and will leave it."""
        ...

    @property
    def _scope(self) -> Scope:
        """Return the scope that holds it."""
        ...

    def _lose(self, how: str) -> None:
        """Report once that the lease is lost."""
        ...


class Scope(Protocol):
    """The scope that holds a lock; see `scope.LockScope`."""

    extending: threading.Lock

    def drop(self, tenure: Any) -> None:
        """Let go of a lock that nobody will leave."""
        ...


class Renewal:
    """Renews and confirms the lease of one tenure, in the renewal thread.

    Args:
        tenure: kept by a weak reference: the renewals of a dropped scope end.
        service: the source of its lease.
        heartbeat: whether to renew the lease; otherwise only to confirm it.

    Attributes:
        ttl_seconds: length of the lease.
    """

    def __init__(self, tenure: Tenure, service: LockService, *, heartbeat: bool) -> None:
        self._tenure = weakref.ref(tenure)
        self._service = service
        self.heartbeat = heartbeat
        self.ttl_seconds = tenure._lease.ttl_seconds
        self._since = service.clock.now()
        #: The failure of the last renewal, if it failed.
        self._trouble = ""

    def begin(self, tenure: Tenure) -> None:
        """Schedule the first renewal or confirmation."""
        due = self._since + _CONFIRM_SECONDS if tenure.degraded else self._renewal_time(tenure)
        self._service.renewals.schedule(self, due)

    def extended(self, tenure: Tenure) -> None:
        """Schedule the next renewal after an extension by hand. A degraded lease needs none."""
        if self.heartbeat and not tenure.degraded:
            self._service.renewals.schedule(self, self._renewal_time(tenure))

    def _renewal_time(self, tenure: Tenure) -> float:
        """Return when to renew: two thirds of the lease before its end, as time for retries."""
        return tenure._lease.deadline - self.ttl_seconds * 2 / 3

    # --- runs of the renewal thread; see `renewal.Task` -------------------------------------

    def run(self, now: float) -> float | None:
        """Do the work that is due."""
        tenure = self._tenure()
        if tenure is None or not tenure.held or tenure.lost:
            return None
        if not tenure._alive:  # its block was interrupted where it would have left the lock
            tenure._scope.drop(tenure)
            return None
        if not tenure._scope.extending.acquire(blocking=False):
            return now + self._soon()  # it is being extended by hand right now
        try:
            again = self._confirm(tenure, now) if tenure.degraded else self._renew(tenure, now)
        finally:
            tenure._scope.extending.release()
        # Reported outside the mutex, so that a callback may use the lock.
        if isinstance(again, str):
            tenure._lose(again)
            return None
        return again

    def _soon(self) -> float:
        """Return a pause that leaves several attempts in the rest of a lease, in seconds."""
        return min(self.ttl_seconds / 10, 1.0)

    # Each of these returns when to run next, None for never, or how the lease was lost.

    def _renew(self, tenure: Tenure, now: float) -> float | str | None:
        if not self.heartbeat:
            return None
        due = self._renewal_time(tenure)
        if now < due:
            return due  # extended by hand meanwhile
        return self._extend(tenure, now) or self._renewal_time(tenure)

    def _extend(self, tenure: Tenure, now: float) -> float | str | None:
        """Extend the lease; return None if that was done."""
        if now >= tenure._lease.deadline:
            return self._ran_out(tenure)
        match run(self._service.extend, tenure._lease, self.ttl_seconds):
            case Granted(new):
                tenure._lease = new
                self._trouble = ""
                if tenure.held and self._service.listeners.watched():
                    self._service.listeners.emit(Extended(tenure.lock_id, self.ttl_seconds))
                return None
            case Lost() as lost:
                how = describe_loss(lost, tenure._lease)
                return how + self._because() if lost.how == "ran out" else how
            case unavailable:
                self._trouble = _no_answer(unavailable.reason)
                now = self._service.clock.now()
                return min(now + self._soon(), max(now, tenure._lease.deadline))

    def _ran_out(self, tenure: Tenure) -> str:
        how = f"its lease of {tenure._lease.ttl_seconds:g} s ran out"
        if tenure._conflict:
            return f"{how}; it was taken while the lease store did not answer, and was another's"
        return how + self._because()

    def _because(self) -> str:
        return f"; it could not be renewed, because {self._trouble}" if self._trouble else ""

    def _confirm(self, tenure: Tenure, now: float) -> float | str | None:
        lease = tenure._lease
        if now >= lease.deadline:
            return self._ran_out(tenure) if self.heartbeat else None
        if tenure._conflict:
            return lease.deadline if self.heartbeat else None
        match run(self._service.confirm, lease):
            case Granted(confirmed):
                tenure._lease = confirmed
                if not tenure.held:
                    run(self._service.give_back, confirmed)
                    return None
                self._service.listeners.emit(Confirmed(tenure.lock_id, now - self._since))
                return self._renewal_time(tenure) if self.heartbeat else None
            case Held(holder):
                tenure._conflict = holder.describe()
                self._service.listeners.emit(Conflict(tenure.lock_id, tenure._conflict))
                return lease.deadline if self.heartbeat else None
            case None:
                return self._not_confirmed(tenure, False, "others were queued for the lock")
            case unavailable:
                why = _no_answer(unavailable.reason)
                return self._not_confirmed(tenure, unavailable.sent, why)

    def _not_confirmed(self, tenure: Tenure, sent: bool, why: str) -> float | str | None:
        if sent and not tenure._lease.unsettled:
            # The store may have it all the same: it has to be given back.
            tenure._lease = tenure._lease._replace(unsettled=True)
            if not tenure.held:
                self._service.client.release_later(tenure._lease)
                return None
        self._trouble = why
        now = self._service.clock.now()
        if self.heartbeat and now >= self._renewal_time(tenure):
            lost = self._extend(tenure, now)  # without the store, as it was taken
            if isinstance(lost, str):
                return lost
        return now + _CONFIRM_SECONDS


def _no_answer(reason: str) -> str:
    return f"the lease store did not answer ({reason})"
