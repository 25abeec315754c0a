"""One call of `acquire`, from its first attempt to a lease or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.events import Acquired, Contended, Degraded, TimedOut
from userlock.lock.lease import (
    Claim,
    Granted,
    Held,
    Holder,
    Lease,
    Unavailable,
    Yielded,
)
from userlock.lock.policy import OutagePolicy

if TYPE_CHECKING:
    from userlock.lock.service import LockService


class Acquisition:
    """One call of `acquire`, from its first attempt to a lease or an error."""

    def __init__(self, service: LockService, claim: Claim, wait_seconds: float) -> None:
        self._service = service
        self._claim = claim
        self._wait_seconds = wait_seconds
        self._started = service.clock.now()
        self._attempts = 0
        self._holder: Holder | None = None
        self._in_the_way = ""
        self._maybe_stored = False

    def run(self) -> Lease:
        try:
            outcome = self._attempt(announce=False)
            if isinstance(outcome, (Held, Yielded)) and self._wait_seconds > 0:
                outcome = self._wait_in_line(outcome)
            if isinstance(outcome, Granted):
                self._acquired(degraded=False)
                return outcome.lease
            match outcome:
                case Unavailable(reason):
                    return self._unavailable(reason)
                case _:
                    raise self._timed_out()
        except (LockTimeout, LockServiceUnavailable):
            raise
        except BaseException:
            # The thread is being stopped (KeyboardInterrupt, a signal handler
            # that raises): the attempt may have been granted all the same.
            self._maybe_stored = True
            self._service.give_back(self._degraded_lease())
            raise

    def _wait_in_line(self, first: Held | Yielded) -> Granted | Held | Yielded | Unavailable:
        """Make it known that we wait, wait, and take it back."""
        self._contended(first)
        outcome: Granted | Held | Yielded | Unavailable = first
        try:
            outcome = self._wait()
        finally:
            # A store that has just gone away would cost another timeout; what
            # was announced ends by itself.
            if not isinstance(outcome, Unavailable):
                self._service.store.withdraw(self._claim)
        return outcome

    def _attempt(self, *, announce: bool) -> Granted | Held | Yielded | Unavailable:
        self._attempts += 1
        outcome = self._service.ask(self._claim, announce=announce)
        if isinstance(outcome, Unavailable) and outcome.sent:
            self._maybe_stored = True
        return outcome

    def _wait(self) -> Granted | Held | Yielded | Unavailable:
        """Poll until the lock is ours, the wait is over, or the store goes away.

        The first poll follows at once: it is the one that announces that
        somebody waits, and from then on batch stands back.
        """
        service = self._service
        backoff = service.policy.of(self._claim.priority).backoff
        for delay in backoff.delays(service.random):
            outcome = self._attempt(announce=True)
            if isinstance(outcome, Granted | Unavailable):
                return outcome
            left = self._wait_seconds - self._elapsed()
            if left <= 0:
                return outcome
            service.clock.sleep(min(delay, left))
        raise AssertionError("backoff delays do not end")

    def _elapsed(self) -> float:
        return self._service.clock.now() - self._started

    def _contended(self, outcome: Held | Yielded) -> None:
        self._look_who(outcome)
        self._service.listeners.emit(
            Contended(self._claim.lock_id, self._claim.priority.value, self._in_the_way)
        )

    def _look_who(self, outcome: Held | Yielded) -> None:
        if isinstance(outcome, Yielded):
            self._in_the_way = "a waiting interactive request"
            return
        seen = self._service.look(self._claim.lock_id)
        if isinstance(seen, Held) and seen.holder is not None:
            self._holder = seen.holder
            self._in_the_way = seen.holder.describe()
        elif not self._in_the_way:
            self._in_the_way = "a holder that was gone at the second look"

    def _acquired(self, *, degraded: bool) -> None:
        if not self._in_the_way and not self._service.listeners.watched():
            return
        self._service.listeners.emit(
            Acquired(
                self._claim.lock_id,
                self._claim.priority.value,
                self._elapsed(),
                self._attempts,
                self._in_the_way,
                degraded,
            )
        )

    def _unavailable(self, reason: str) -> Lease:
        service = self._service
        if service.outage is OutagePolicy.FAIL:
            if self._maybe_stored:
                service.remember_stray(self._degraded_lease())
            raise LockServiceUnavailable(lock_id=self._claim.lock_id, reason=reason)
        service.listeners.emit(Degraded(self._claim.lock_id, reason))
        self._acquired(degraded=True)
        return self._degraded_lease()

    def _timed_out(self) -> LockTimeout:
        self._look_who(Held(None))
        waited = self._elapsed()
        self._service.listeners.emit(
            TimedOut(self._claim.lock_id, self._claim.priority.value, waited, self._in_the_way)
        )
        return LockTimeout(lock_id=self._claim.lock_id, waited_seconds=waited, holder=self._holder)

    def _degraded_lease(self) -> Lease:
        """A lease from now on, without the store's word for it."""
        claim = self._claim
        return Lease(
            lock_id=claim.lock_id,
            token=claim.token,
            deadline=self._service.clock.now() + claim.ttl_seconds,
            ttl_seconds=claim.ttl_seconds,
            degraded=True,
            unsettled=self._maybe_stored,
        )
