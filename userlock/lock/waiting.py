"""One call of `acquire` that was not granted at once: standing in line, or going without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from userlock.errors import DeadlockDetected, LockServiceUnavailable, LockTimeout
from userlock.events import Acquired, Contended, Deadlock, Degraded, TimedOut, Unavailable
from userlock.lock.deadlock import DeadlockWatch
from userlock.lock.fallback import FallbackClaim
from userlock.lock.lease import Claim, Holder, Lease, Priority
from userlock.lock.policy import OutagePolicy
from userlock.lock.queue import MEMORY_SECONDS, Decision, Look, Turn, delay
from userlock.lock.record import Record, aged
from userlock.lock.store import StoreUnavailable
from userlock.lock.upkeep import is_wordy, offer, shorten

if TYPE_CHECKING:
    from userlock.lock.service import LockService


class Wait:
    """One call of `acquire`, from its first answer to a lease or an error.

    Args:
        service: whose.
        claim: what is asked for.
        wait_seconds: for how long to wait at most.
        started: when the call began, on the service's clock.
        holding: what the caller holds already.
    """

    def __init__(
        self,
        service: LockService,
        claim: Claim,
        wait_seconds: float,
        started: float,
        holding: Iterable[Lease] = (),
    ) -> None:
        self._service = service
        self._leases = service.leases
        self._claim = claim
        self._wait_seconds = wait_seconds
        self._started = started
        self._attempts = 1
        self._holder: Holder | None = None
        self._blocked_by = ""
        self._seen: Record | None = None
        self._seen_at = started
        #: Before which and after which look the present holder got the lock, if we saw it change.
        self._began: tuple[float, float] | None = None
        self._looked = self._looked_before = started
        self._joined = False
        self._aged = False
        self._circle = DeadlockWatch(service, claim, holding) if holding else None

    # --- from the first answer on -----------------------------------------------------------

    def contended(self) -> Lease:
        """Somebody has the lock: wait for it.

        Raises:
            LockTimeout: somebody had it all the time.
            LockServiceUnavailable: the store stopped answering and the policy is to fail.
        """
        try:
            lease = self._stand_in_line() if self._wait_seconds > 0 else self._try_once()
            if lease is not None:
                self._acquired(degraded=False)
                return lease
        except StoreUnavailable as trouble:
            return self.unavailable(trouble)
        except DeadlockDetected as error:
            self._leave()
            cycle = ", ".join(f"{lock_id!r} is held by {who}" for lock_id, who in error.cycle)
            self._service.listeners.emit(Deadlock(*self._facts_without_a_lease(), cycle))
            raise
        except BaseException:
            # The thread is being stopped (KeyboardInterrupt, a signal handler
            # that raises): it stands in line no longer, and if it was granted
            # the lock all the same, gives it back.
            self.abandoned()
            raise
        self._give_up()
        raise self._timed_out()

    def _give_up(self) -> None:
        """Stand in line no longer; and see to it that a free lock does not lie there for ever."""
        if self._seen is not None:
            with contextlib.suppress(StoreUnavailable):
                if self._offered(self._seen, leaving=True):
                    return
        if self._joined:
            self._leave()

    def _offered(self, record: Record, *, leaving: bool) -> bool:
        """Reserve the free lock for the first waiters in the queue; return whether it was."""
        claim = self._claim
        return record.can_be_offered_by(claim.token) and self._service.ask(
            claim.lock_id, offer, self._leases.store, claim, record, leaving=leaving
        )

    def _leave(self) -> None:
        try:
            self._service.ask(
                self._claim.lock_id, self._leases.leave, self._claim.lock_id, self._claim.token
            )
        except StoreUnavailable:
            self._service.release_later(self._lease_without_the_store(unsettled=True))

    def abandoned(self) -> None:
        """Take back whatever was asked for."""
        self._service.give_back(self._lease_without_the_store(unsettled=True))

    def unavailable(self, trouble: StoreUnavailable) -> Lease:
        """The store does not answer: what the outage policy says."""
        service = self._service
        lease = self._lease_without_the_store(unsettled=trouble.sent or self._joined)
        reason = trouble.reason
        if service.fallback is not None:
            stand_in = FallbackClaim(service.fallback, service.listeners)
            other = self._from_fallback(stand_in, lease)
            if other is not None:
                lease = lease._replace(also=(other, service.fallback), deadline=other.deadline)
                service.listeners.emit(Degraded(self._claim.lock_id, reason, fallback=True))
                self._acquired(degraded=True)
                return lease
            reason += f"; in the fallback store: {stand_in.reason}"
        if service.outage is OutagePolicy.FAIL:
            if lease.unsettled:
                service.release_later(lease)
            service.listeners.emit(Unavailable(*self._facts_without_a_lease(), reason))
            raise LockServiceUnavailable(lock_id=self._claim.lock_id, reason=reason) from trouble
        service.listeners.emit(Degraded(self._claim.lock_id, reason))
        self._acquired(degraded=True)
        return lease

    def _from_fallback(self, stand_in: FallbackClaim, lease: Lease) -> Lease | None:
        """Return a lease of the service that stands in; None if it does not answer either."""
        try:
            other = stand_in.acquire(self._claim, max(0.0, self._wait_seconds - self._elapsed()))
        except BaseException:
            # Somebody has it there, or the thread is being stopped.
            if lease.unsettled:
                self._service.release_later(lease)
            raise
        self._attempts += stand_in.attempts
        self._blocked_by = self._blocked_by or stand_in.blocked_by
        return other

    # --- waiting ----------------------------------------------------------------------------

    def _try_once(self) -> Lease | None:
        """The record may stand there although nobody has the lock, and nobody waits."""
        record = self._service.ask(self._claim.lock_id, self._leases.look, self._claim.lock_id)
        if record is None:
            return self._service.ask(self._claim.lock_id, self._leases.take, self._claim)
        self._note_holder(record)
        self._seen = record
        return self._claimed(record) if record.is_turn_of(self._claim.token) else None

    def _claimed(self, record: Record) -> Lease | None:
        """Return the lock, free as it was read, past those ahead; None if others were faster."""
        return self._service.ask(
            self._claim.lock_id, self._leases.claim, self._claim, record, passing=True
        )

    def _stand_in_line(self) -> Lease | None:
        """Wait; and say in what is held that we do, for as long as it takes."""
        try:
            return self._wait()
        finally:
            if self._circle is not None:
                self._circle.end()

    def _wait(self) -> Lease | None:
        """Stand in line until the lock is ours or the wait is over."""
        service, claim = self._service, self._claim
        turn = Turn(claim.token)
        record = self._join()
        while True:
            now = service.clock.now()
            decision = turn.decide(record, now)
            lease: Lease | None = None
            match decision:
                case Decision.CLAIM | Decision.PASS:
                    assert record is not None
                    lease = service.ask(
                        self._claim.lock_id,
                        self._leases.claim,
                        claim,
                        record,
                        passing=decision is Decision.PASS,
                    )
                case Decision.CREATE:
                    # Who knows of nobody for long now begins alone: whoever waited then has begun
                    # again, or has gone, and would keep those who came since from the lock.
                    seen = self._seen if now - self._seen_at < MEMORY_SECONDS else None
                    lease = service.ask(self._claim.lock_id, self._leases.begin, claim, seen)
                case Decision.REJOIN:
                    # Unless it is ours: a command that was late. It came after the look before.
                    assert record is not None
                    lease = self._leases.granted(claim, record, self._looked_before)
                    if lease is None:
                        record = self._join()
                        if record is None or record.position_of(claim.token) is not None:
                            continue
                        # What stands there cannot be appended to: not one of
                        # ours, or there is no room.
                        if record.is_turn_of(claim.token):
                            lease = self._claimed(record)
                        elif not self._offered(record, leaving=False) and not self._pause():
                            return None
                case Decision.WAIT:
                    left = self._wait_seconds - (now - self._started)
                    if left <= 0:
                        return None
                    if self._circle is not None and record is not None:
                        left = min(left, self._circle.look(record))
                    self._sleep(turn, record, now, left)
            if lease is not None:
                return lease
            if decision is not Decision.WAIT and self._elapsed() >= self._wait_seconds:
                return None  # others were faster, perhaps all the time
            record = self._look(decision)

    def _look(self, decision: Decision) -> Record | None:
        """See how things stand now; and be seen, if we are in no record yet."""
        if decision is Decision.CREATE:
            return self._join()  # somebody else has created it
        self._attempts += 1
        if self._ages_now():
            self._aged = True
            self._service.ask(
                self._claim.lock_id,
                self._leases.write_line,
                self._claim.lock_id,
                aged(self._claim.token),
            )
        lock_id = self._claim.lock_id
        self._about_to_look()
        record = self._service.ask(lock_id, self._leases.look, lock_id, seen=self._seen)
        self._see(record)
        return record

    def _join(self) -> Record | None:
        self._attempts += 1
        self._aged = False  # said in the record that we were in, and to be said again
        self._about_to_look()
        record = self._service.ask(
            self._claim.lock_id, self._leases.join, self._claim, again=self._joined
        )
        if record is not None:
            if not self._blocked_by:
                self._note_holder(record)
                self._service.listeners.emit(
                    Contended(self._claim.lock_id, self._claim.priority.value, self._blocked_by)
                )
            if not self._joined:
                self._joined = record.position_of(self._claim.token) is not None
            self._see(record)
            if is_wordy(record):
                self._shorten(record)
        return record

    def _shorten(self, record: Record) -> None:
        lock_id = self._claim.lock_id
        with contextlib.suppress(StoreUnavailable):  # the wait will find out
            self._service.ask(lock_id, shorten, self._leases.store, lock_id, record)

    def _about_to_look(self) -> None:
        self._looked_before, self._looked = self._looked, self._service.clock.now()

    def _see(self, record: Record | None) -> None:
        if record is None:
            return
        if self._seen is not None and self._seen.holder.token != record.holder.token:
            self._began = (self._looked_before, self._service.clock.now())
        self._seen, self._seen_at = record, self._looked

    def _pause(self) -> bool:
        """Sleep where nothing can be told about whose turn it is. False when the wait is over."""
        left = self._wait_seconds - self._elapsed()
        if left <= 0:
            return False
        polling = self._service.policy.of(self._claim.priority).polling
        self._service.clock.sleep(min(polling.most_seconds, left))
        return True

    def _sleep(self, turn: Turn, record: Record | None, now: float, left: float) -> None:
        service = self._service
        polling = service.policy.of(self._claim.priority).polling
        if record is None:
            seconds = polling.most_seconds
        else:
            typical = service.hold_times.typical(record.holder.priority)
            seconds = delay(Look(turn.position, typical, self._held(record, typical, now)), polling)
            if turn.position:
                seconds *= service.random.uniform(0.8, 1.0)  # not all at once
        if turn.patience_ends is not None:
            seconds = min(seconds, max(turn.patience_ends - now, 0.0) + 0.0001)
        service.clock.sleep(min(seconds, left))

    def _held(self, record: Record, typical: float, now: float) -> float:
        """For how long the holder has had the lock, as far as can be told."""
        said = self._service.clock.wall() - record.holder.since
        if self._began is not None:
            # Between two of our looks; within that its own word is taken.
            earliest, latest = self._began
            return now - min(max(now - said, earliest), latest)
        watched = now - self._started
        if 0 <= said <= record.holder.lock_timeout:
            return max(watched, said)
        return max(watched, typical)  # its clock is not ours

    def _ages_now(self) -> bool:
        """Return whether this batch job has waited long enough to rank as interactive."""
        after = self._service.policy.of(self._claim.priority).ages_after
        return (
            after is not None
            and not self._aged
            and self._claim.priority is Priority.BATCH
            and self._elapsed() >= after
        )

    # --- what is said about it --------------------------------------------------------------

    def _elapsed(self) -> float:
        return self._service.clock.now() - self._started

    def _note_holder(self, record: Record) -> None:
        if record.free:
            others = [each for each in record.waiters() if each.token != self._claim.token]
            self._blocked_by = (
                f"{others[0].request or others[0].process} (next in line)"
                if others
                else "a holder that had just left"
            )
        else:
            self._holder = record.holder
            self._blocked_by = record.holder.describe()

    def _acquired(self, *, degraded: bool) -> None:
        if not self._blocked_by and not self._service.listeners.watched():
            return
        self._service.listeners.emit(
            Acquired(
                self._claim.lock_id,
                self._claim.priority.value,
                self._elapsed(),
                self._attempts,
                self._blocked_by,
                degraded,
            )
        )

    def _timed_out(self) -> LockTimeout:
        if self._seen is not None and not self._seen.free:
            self._holder = self._seen.holder
        told = TimedOut(*self._facts_without_a_lease())
        self._service.listeners.emit(told)
        return LockTimeout(
            lock_id=self._claim.lock_id, waited_seconds=told.waited_seconds, holder=self._holder
        )

    def _facts_without_a_lease(self) -> tuple[str, str, float, str]:
        """Return the facts about an attempt without a lease: lock, requester, wait, and reason."""
        blocked_by = self._blocked_by if self._holder is None else self._holder.describe()
        return self._claim.lock_id, self._claim.priority.value, self._elapsed(), blocked_by

    def _lease_without_the_store(self, *, unsettled: bool) -> Lease:
        """Return a lease from now on, without the store's word for it."""
        claim = self._claim
        return Lease(
            lock_id=claim.lock_id,
            token=claim.token,
            deadline=self._service.clock.now() + claim.ttl_seconds,
            ttl_seconds=claim.ttl_seconds,
            degraded=True,
            unsettled=unsettled,
            record=claim.record,
            priority=claim.holder.priority,
        )
