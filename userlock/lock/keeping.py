"""Keeping a lock: its heartbeat, and its confirmation after an outage.

A heartbeat renews the lease when a third of it has passed, so two renewals
may fail before it is over:

    granted          renewed          renewed
    |── a third ──▶ |── a third ──▶ (the store is down) ··· tried again ··· renewed

A lock that was taken while the store did not answer is asked for again until
the store says whose it is. Until then a heartbeat lets it go on without the
store's word, as it began.

The lock may be extended by hand, and released, at any moment meanwhile:

    its owner                 the renewal thread                 the store
    reads its lease
                              reads its lease
    extend by 60 s ───────────────────────────────────▶ 60 s to go
                              extend by 10 s ─────────▶ 10 s to go
    believes in 60 s: so there is one at a time (`HeldLock.extending`)

    release: nothing to say
    to a store that was
    never asked               confirm ────────────────▶ stored, and nobody holds it:
                              so whoever confirms looks afterwards whether it is still held
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from userlock.errors import ConfigurationError
from userlock.events import Confirmed, Conflict, Extended
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import Granted, Held, Lost, Unavailable, describe_loss
from userlock.lock.service import LockService

#: How often a degraded lease is asked for again, in seconds.
_CONFIRM_SECONDS = 0.25


def check_heartbeat(service: LockService) -> None:
    """Raise `ConfigurationError` if the service's store cannot be used for heartbeats."""
    if service.requests_only:
        raise ConfigurationError(
            f"heartbeat=True needs a lease store that a background thread can use; "
            f"{type(service.store).__name__} can only be used by threads that serve a "
            f"request. Ask for a longer lease instead, or call extend() in between"
        )


class Keeping:
    """Looks after one tenure, from a renewal thread's thread.

    Args:
        tenure: kept by a weak reference; a scope that is dropped ends its heartbeats.
        service: where its lease comes from.
        heartbeat: whether to renew the lease; otherwise only to confirm it.

    Attributes:
        heartbeat: as given.
        batch_key: those of one service are renewed together, where its store can do that; None
            where it cannot.
    """

    def __init__(self, tenure: HeldLock, service: LockService, *, heartbeat: bool) -> None:
        self._tenure = weakref.ref(tenure)
        self._service = service
        self.batch_key = service if service.store.batches else None
        self.heartbeat = heartbeat
        self._ttl_seconds = tenure.lease.ttl_seconds
        self._since = service.clock.now()
        #: Why the last renewal failed, if it did.
        self._trouble = ""

    def begin(self) -> None:
        """Have the service's heart look after the tenure from now on."""
        tenure = self._tenure()
        if tenure is not None:
            tenure._keeping = self
            due = self._since + _CONFIRM_SECONDS if tenure.degraded else self._renewal(tenure)
            self._service.renewals.schedule(self, due)

    def extended(self, tenure: HeldLock) -> None:
        """The lease was given another end, by hand: it may have to be renewed sooner than before.

        A degraded one is looked after all the time anyway.
        """
        if self.heartbeat and not tenure.degraded:
            self._service.renewals.schedule(self, self._renewal(tenure))

    def _renewal(self, tenure: HeldLock) -> float:
        """Return when to renew the lease: two thirds of it before its end, as time for retries."""
        return tenure.lease.deadline - self._ttl_seconds * 2 / 3

    def run(self, now: float) -> float | None:
        """Do the work that is due; see `Task`."""
        tenure = self._tenure()
        if tenure is None or not tenure.held or tenure.lost:
            return None
        if not tenure.extending.acquire(blocking=False):
            return now + self._soon()  # it is being extended by hand right now
        try:
            again = self._confirm(tenure, now) if tenure.degraded else self._renew(tenure, now)
        finally:
            tenure.extending.release()
        # Said outside, so that a callback may do with the lock what it likes.
        if isinstance(again, str):
            tenure.lose(again)
            return None
        return again

    def run_with(self, others: Sequence[Keeping], now: float) -> list[float | None]:
        """Do the work that is due for several; see `BatchedTask`. Renewals are sent together."""
        keepings = [self, *others]
        renewing: dict[Keeping, HeldLock] = {}
        try:
            for keeping in keepings:
                tenure = keeping._to_renew(now)
                if tenure is not None:
                    renewing[keeping] = tenure
            outcomes = self._service.extend_many(
                [(tenure.lease, keeping._ttl_seconds) for keeping, tenure in renewing.items()]
            )
            settled = {
                keeping: keeping._settle(tenure, outcome)
                for (keeping, tenure), outcome in zip(renewing.items(), outcomes, strict=True)
            }
        finally:
            for tenure in renewing.values():
                tenure.extending.release()
        return [
            keeping._tell(renewing[keeping], settled[keeping])
            if keeping in renewing
            else keeping.run(now)
            for keeping in keepings
        ]

    def _to_renew(self, now: float) -> HeldLock | None:
        """Return the tenure, if a renewal is all that is due. Nobody else extends it then."""
        tenure = self._tenure()
        if tenure is None or not tenure.held or tenure.lost or not self.heartbeat:
            return None
        if not tenure.extending.acquire(blocking=False):
            return None
        if not tenure.degraded and self._renewal(tenure) <= now < tenure.lease.deadline:
            return tenure
        tenure.extending.release()
        return None

    def _tell(self, tenure: HeldLock, settled: float | str | None) -> float | None:
        """Say what became of a renewal, and when to come again."""
        if isinstance(settled, str):
            tenure.lose(settled)
            return None
        if settled is None:
            self._say_extended(tenure)
            return self._renewal(tenure)
        return settled

    def _soon(self) -> float:
        """Often enough for several tries in the rest of a lease, in seconds."""
        return min(self._ttl_seconds / 10, 1.0)

    # Each of these says when to come again, or never, or what became of the lease.

    def _renew(self, tenure: HeldLock, now: float) -> float | str | None:
        if not self.heartbeat:
            return None
        due = self._renewal(tenure)
        if now < due:
            return due  # extended by hand meanwhile
        return self._extend(tenure, now) or self._renewal(tenure)

    def _extend(self, tenure: HeldLock, now: float) -> float | str | None:
        """None if it was extended."""
        lease = tenure.lease
        if now >= lease.deadline:
            return self._ran_out(tenure)
        settled = self._settle(tenure, self._service.extend(lease, self._ttl_seconds))
        if settled is None:
            self._say_extended(tenure)
        return settled

    def _settle(
        self, tenure: HeldLock, outcome: Granted | Lost | Unavailable
    ) -> float | str | None:
        match outcome:
            case Granted(new):
                tenure.lease = new
                self._trouble = ""
                return None
            case Lost() as lost:
                how = describe_loss(lost, tenure.lease)
                return how + self._because() if lost.how == "ran out" else how
            case unavailable:
                self._trouble = _no_answer(unavailable.reason)
                now = self._service.clock.now()
                return min(now + self._soon(), max(now, tenure.lease.deadline))

    def _say_extended(self, tenure: HeldLock) -> None:
        if tenure.held and self._service.listeners.watched():
            self._service.listeners.emit(Extended(tenure.lock_id, self._ttl_seconds))

    def _ran_out(self, tenure: HeldLock) -> str:
        how = f"its lease of {tenure.lease.ttl_seconds:g} s ran out"
        if tenure.conflict:
            return f"{how}; it was taken while the lease store did not answer, and was another's"
        return how + self._because()

    def _because(self) -> str:
        return f"; it could not be renewed, because {self._trouble}" if self._trouble else ""

    def _confirm(self, tenure: HeldLock, now: float) -> float | str | None:
        lease = tenure.lease
        if now >= lease.deadline:
            return self._ran_out(tenure) if self.heartbeat else None
        if tenure.conflict:
            return lease.deadline if self.heartbeat else None
        match self._service.confirm(lease):
            case Granted(confirmed):
                tenure.lease = confirmed
                if not tenure.held:
                    self._service.give_back(confirmed)
                    return None
                self._service.listeners.emit(Confirmed(tenure.lock_id, now - self._since))
                return self._renewal(tenure) if self.heartbeat else None
            case Held(holder):
                tenure.conflict = holder.describe()
                self._service.listeners.emit(Conflict(tenure.lock_id, tenure.conflict))
                return lease.deadline if self.heartbeat else None
            case None:
                return self._not_confirmed(tenure, False, "others stood in line for the lock")
            case unavailable:
                why = _no_answer(unavailable.reason)
                return self._not_confirmed(tenure, unavailable.sent, why)

    def _not_confirmed(self, tenure: HeldLock, sent: bool, why: str) -> float | str | None:
        if sent and not tenure.lease.unsettled:
            # It may have been stored all the same: there is something to give back.
            tenure.lease = tenure.lease._replace(unsettled=True)
            if not tenure.held:
                self._service.release_later(tenure.lease)
                return None
        self._trouble = why
        now = self._service.clock.now()
        if self.heartbeat and now >= self._renewal(tenure):
            lost = self._extend(tenure, now)  # as it began, without the store's word
            if isinstance(lost, str):
                return lost
        return now + _CONFIRM_SECONDS


def _no_answer(reason: str) -> str:
    return f"the lease store did not answer ({reason})"
