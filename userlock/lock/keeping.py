"""Keeping a lock: its heartbeat, and its confirmation after an outage.

A heartbeat renews the lease when a third of it has passed, so two renewals
may fail before it is over:

    granted          renewed          renewed
    |── a third ──▶ |── a third ──▶ (the store is down) ··· tried again ··· renewed

A lock that was taken while the store did not answer is asked for again until
the store says whose it is.
"""

from __future__ import annotations

import weakref

from userlock.events import Confirmed, Conflict, Extended
from userlock.lock.lease import Granted, Held, Lost, Unavailable, describe_loss
from userlock.lock.service import LockService
from userlock.lock.tenure import Tenure

#: How often a degraded lease is asked for again, in seconds.
_CONFIRM_SECONDS = 0.25


class Keeping:
    """Looks after one tenure, from a heart's thread.

    Args:
        tenure: kept by a weak reference; a scope that is dropped ends its heartbeats.
        service: where its lease comes from.
        heartbeat: whether to renew the lease; otherwise only to confirm it.

    Attributes:
        heartbeat: as given.
    """

    def __init__(self, tenure: Tenure, service: LockService, *, heartbeat: bool) -> None:
        self._tenure = weakref.ref(tenure)
        self._service = service
        self.heartbeat = heartbeat
        self._ttl_seconds = tenure.lease.ttl_seconds
        self._since = service.clock.now()

    def begin(self) -> None:
        """Have the service's heart look after the tenure from now on."""
        tenure = self._tenure()
        if tenure is not None:
            tenure._keeping = self
            pause = _CONFIRM_SECONDS if tenure.degraded else self._ttl_seconds / 3
            self._service.heart.look_after(self, self._since + pause)

    def beat(self, now: float) -> float | None:
        """What is due; see `Ward`."""
        tenure = self._tenure()
        if tenure is None or not tenure.held or tenure.lost:
            return None
        if tenure.degraded:
            return self._confirm(tenure, now)
        return self._renew(tenure, now) if self.heartbeat else None

    def _renew(self, tenure: Tenure, now: float) -> float | None:
        lease = tenure.lease
        due = lease.deadline - self._ttl_seconds * 2 / 3
        if now < due:
            return due  # extended by hand meanwhile
        match self._service.extend(lease, self._ttl_seconds):
            case Granted(new):
                if tenure.lease is lease:
                    tenure.lease = new
                self._service.listeners.emit(Extended(tenure.lock_id, self._ttl_seconds))
                return tenure.lease.deadline - self._ttl_seconds * 2 / 3
            case Lost() as lost:
                if tenure.lease is lease:
                    tenure.lose(describe_loss(lost, lease))
                return None
            case Unavailable(reason):
                return self._not_renewed(tenure, reason)

    def _not_renewed(self, tenure: Tenure, reason: str) -> float | None:
        now = self._service.clock.now()
        left = tenure.lease.deadline - now
        if left <= 0:
            tenure.lose(
                f"its lease of {self._ttl_seconds:g} s ran out; it could not be renewed, "
                f"because the lease store did not answer ({reason})"
            )
            return None
        # Often enough for several tries in what is left.
        return now + min(self._ttl_seconds / 10, 1.0, left)

    def _confirm(self, tenure: Tenure, now: float) -> float | None:
        if now >= tenure.lease.deadline:
            return None  # over anyway
        match self._service.confirm(tenure.lease):
            case Granted(lease):
                tenure.lease = lease
                self._service.listeners.emit(Confirmed(tenure.lock_id, now - self._since))
                return self._service.clock.now() + lease.ttl_seconds / 3
            case Held(holder):
                tenure.conflict = "others in line" if holder is None else holder.describe()
                self._service.listeners.emit(Conflict(tenure.lock_id, tenure.conflict))
                return None
            case Unavailable():
                if self.heartbeat:  # it goes on, as the outage policy says
                    tenure.lease = tenure.lease._replace(deadline=now + self._ttl_seconds)
                return self._service.clock.now() + _CONFIRM_SECONDS
