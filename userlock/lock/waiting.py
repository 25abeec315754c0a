"""One contended acquire: queueing, polling, time-outs, deadlocks, and the fallback."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, ParamSpec, TypeVar

from userlock.clock import Clock
from userlock.errors import DeadlockDetected, EventLoopBlocked, LockTimeout, TooManyWaiting
from userlock.events import Acquired, Contended, Deadlock, Event, Listeners, Rejected, TimedOut
from userlock.ids import quoted, show_request
from userlock.lock.deadlock import DeadlockWatch
from userlock.lock.lease import Claim, Holder, Lease, Priority
from userlock.lock.local_waiters import Admission, LocalWaiters, Reading, Rejection
from userlock.lock.policy import LockPolicy, PriorityPolicy
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.queue import LED_SECONDS, Decision, HoldTimes, Turn, delay
from userlock.lock.record import PATIENCE_SECONDS, Record, aged
from userlock.lock.store import Stored, StoreUnavailable, waiting_attempt
from userlock.lock.store_client import StoreClient
from userlock.waits import Bell, blocks_event_loop, finish, pause

#: Longest pause before a change that others have prevented is tried again.
_MOST_PAUSE_SECONDS = 0.25

#: With more waiters (ten thousand tasks may wait) each of them wakes up less often: those that poll
#: by the number of locks, and those that another one leads by the number of all, every ten
#: seconds at least.
_MANY_WAITERS = 100
_MOST_SLEEP_SECONDS = 10.0

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Verb = Callable[_P, Coroutine[Any, Any, _R]]

#: The most seconds after which a rejected caller is told to try again.
_MOST_RETRY_SECONDS = 60


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class Attempt:
    """The facts of one call of `acquire`, and its events.

    Attributes:
        admission: the waiters of this process; those in a fallback store are among them.
        attempts: the number of requests to the store.
        blocked_by: the first holder met, described; empty if the lock was free.
        holder: the last holder met.
        joined: whether the claim may be in the queue.
        taken: the lease, once it is known.
        unsettled: whether a request for it may still reach the store.
        settled: whether it has left nothing behind, or is over.
    """

    claim: Claim
    wait_seconds: float
    clock: Clock
    listeners: Listeners
    admission: Admission
    max_waiting: int | None
    started: float
    attempts: int = 1
    blocked_by: str = ""
    holder: Holder | None = None
    joined: bool = False
    taken: Lease | None = None
    unsettled: bool = True
    settled: bool = False

    @property
    def may_queue_first(self) -> bool:
        """Return whether it may queue up before it has tried to take the lock."""
        most = self.max_waiting
        has_room = most is None or self.admission.waiting(self.claim.lock_id) < most
        return self.wait_seconds > 0 and has_room

    @property
    def elapsed(self) -> float:
        """Return the time since the call, in seconds."""
        return self.clock.now() - self.started

    @property
    def left(self) -> float:
        """Return the rest of the wait, in seconds."""
        return self.wait_seconds - self.elapsed

    def met(self, record: Record) -> None:
        """Note the holder of a record."""
        if not record.free:
            self.holder = record.holder
            self.blocked_by = record.holder.describe()
            return
        first = record.next_besides(self.claim.token)
        if first is not None:
            name = show_request(first.request) or first.process
            self.blocked_by = f"{name} (next in the queue)"
        else:
            self.blocked_by = "a holder that had just left"

    def lease_without_store(self, *, unsettled: bool) -> Lease:
        """Return a degraded lease from now on."""
        lease = self.claim.lease(self.clock.now(), self.claim.record, None, unsettled=unsettled)
        return lease._replace(degraded=True)

    # --- events -----------------------------------------------------------------------------

    def acquired(self, *, degraded: bool) -> None:
        """Report the lease."""
        facts = self.claim.lock_id, self.claim.priority._value_, self.elapsed
        self.listeners.emit(Acquired(*facts, self.attempts, self.blocked_by, degraded))

    def failed(self, event: Callable[..., Event], *more: object) -> float:
        """Report the end without a lease, as an event of a kind; return the time since the call."""
        blocked_by = self.blocked_by if self.holder is None else self.holder.describe()
        facts = self.claim.lock_id, self.claim.priority.value, (elapsed := self.elapsed)
        self.listeners.emit(event(*facts, blocked_by, *more))
        return elapsed

    def timed_out(self) -> LockTimeout:
        """Report the time-out, unless it was only tried once; return the error."""
        waited = self.failed(TimedOut) if self.wait_seconds > 0 else self.elapsed
        return LockTimeout(lock_id=self.claim.lock_id, waited_seconds=waited, holder=self.holder)

    def rejected(self, rejection: Rejection, typical_seconds: float) -> TooManyWaiting:
        """Report that there were too many waiters; return the error."""
        self.holder = rejection.holder
        self.blocked_by = "a holder that is not known"
        waited = self.failed(Rejected, rejection.waiting, rejection.times)
        turns = rejection.waiting + 1  # the holder's, and theirs
        return TooManyWaiting(
            lock_id=self.claim.lock_id,
            waiting=rejection.waiting,
            waited_seconds=waited,
            holder=self.holder,
            retry_after=min(max(math.ceil(typical_seconds * turns), 1), _MOST_RETRY_SECONDS),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """The parts of a lock service that its waiters use."""

    protocol: LeaseProtocol
    client: StoreClient
    clock: Clock
    random: Random
    policy: LockPolicy
    hold_times: HoldTimes
    local: LocalWaiters

    async def lease_for(self, attempt: Attempt, holding: Iterable[Lease]) -> Lease:
        """Wait for a lock that somebody has, as `LockService.acquire` says."""
        lock_id, admission, holding = attempt.claim.lock_id, attempt.admission, tuple(holding)
        if attempt.wait_seconds <= 0 or blocks_event_loop():
            # It tries once. The lock may be free, with its record still there.
            lease = await _Wait(self, attempt, holding).run()
            if lease is None and attempt.wait_seconds > 0:
                raise EventLoopBlocked(lock_id=lock_id)
            if lease is None:
                raise attempt.timed_out()
            return lease
        claim, wake_ups, bell, left = attempt.claim, self.client.wake_ups, Bell(), False
        try:
            try:
                rejection = admission.enter(lock_id, attempt, attempt.max_waiting)
                if rejection is not None:
                    typical = self.hold_times.typical(claim.priority.value)
                    raise attempt.rejected(rejection, typical)
                # A caller with other locks queues if it can: others may be waiting for it.
                turn = self.local.enter(claim, bell, at_once=bool(holding))
                attempt.settled = not turn  # nothing was sent for this claim
                lease = None
                if turn or await self.turn_comes(attempt, bell):
                    courtesy = self.local.courtesy(lock_id)
                    if courtesy:
                        await pause(self.clock, min(courtesy, attempt.wait_seconds))
                    attempt.settled = False
                    if wake_ups is not None:
                        await wake_ups.begin(claim.lock_id, claim.token, bell)
                        bell.listen = wake_ups.wait
                    lease = await _Wait(self, attempt, holding, bell).run()
            finally:
                self._leave(attempt, claim)
                left = True
        finally:
            if not left:  # it was interrupted there
                self._leave(attempt, claim)
        if lease is None:
            raise attempt.timed_out()
        return lease

    async def turn_comes(self, attempt: Attempt, bell: Bell) -> bool:
        """Wait for the turn to queue; return whether it has come."""
        turn = False
        while not turn and attempt.left > 0:
            await self.local.rest(bell, attempt.left)
            bell.answer()
            turn = self.local.may_queue(attempt.claim)
        return turn

    def _leave(self, attempt: Attempt, claim: Claim) -> None:
        wake_ups = self.client.wake_ups
        if wake_ups is not None:
            wake_ups.end(claim.token)
        first = self.local.leave(claim)
        attempt.admission.leave(claim.lock_id, attempt)
        woken = wake_ups is not None and wake_ups.come and len(self.local.queued) < _MANY_WAITERS
        if first is not None and not woken:
            first.ring()


class _Wait:
    __slots__ = (
        *("_age", "_aged", "_attempt", "_began", "_bell", "_claim", "_clock", "_deadlocks"),
        *("_met", "_parts", "_policy", "_polled_at", "_polled_before", "_prevented", "_protocol"),
        *("_since", "_tried", "_wake_ups"),
    )

    def __init__(
        self, parts: Waiting, attempt: Attempt, holding: Iterable[Lease], bell: Bell | None = None
    ) -> None:
        self._parts = parts
        self._attempt = attempt
        self._claim = claim = attempt.claim
        self._clock = parts.clock
        self._protocol = parts.protocol
        self._policy: PriorityPolicy = parts.policy.of(claim.priority)
        self._wake_ups = parts.client.wake_ups
        self._bell = bell
        #: The record as it was read by a caller that tries once.
        self._tried: Record | None = None
        #: The times before and after which the record was last read.
        self._polled_at = self._polled_before = self._since = parts.clock.now()
        #: The token of the holder that was met last.
        self._met = ""
        #: The age of the record that was decided on, if another waiter of this process read it.
        self._age = 0.0
        #: The polls between which the present holder got the lock, if we saw it change.
        self._began: tuple[float, float] | None = None
        self._aged = False
        #: Changes in a row that others have prevented.
        self._prevented = 0
        self._deadlocks: DeadlockWatch | None = None
        if holding:
            self._deadlocks = DeadlockWatch(claim, holding, self._read, self._append, parts.clock)

    async def run(self) -> Lease | None:
        """Wait; return the lease, or None when the wait is over, and leave nothing behind."""
        around = waiting_attempt.get()
        try:
            try:
                if self._bell is None:
                    lease = await self._try_once()
                else:
                    waiting_attempt.set(weakref.ref(self._attempt))
                    lease = await self._wait()
            finally:
                waiting_attempt.set(around)
                if self._deadlocks is not None:
                    await finish(self._deadlocks.end)
            if lease is not None:
                return lease
        except DeadlockDetected as error:
            await self._leave()
            cycle = ", ".join(f"{quoted(each)} is held by {holder}" for each, holder in error.cycle)
            self._attempt.failed(Deadlock, cycle)
            raise
        await self._give_up()
        return None

    async def _give_up(self) -> None:
        """Leave the queue, and leave no lock behind that is free for ever."""
        seen = self._tried or self._seen
        if seen is not None:
            with contextlib.suppress(StoreUnavailable):
                if await self._reserved(seen, leaving=True):
                    return
        if self._attempt.joined:
            await self._leave()

    @property
    def _seen(self) -> Record | None:
        """Return the record as a waiter of this process has read it last.

        Kept once for all of them: the records of ten thousand waiters take much memory.
        """
        return self._parts.local.seen(self._claim.lock_id).record

    async def _leave(self) -> None:
        try:
            await self._ask(self._protocol.leave, self._claim.lock_id, self._claim.token)
        except StoreUnavailable:
            self._parts.client.release_later(self._attempt.lease_without_store(unsettled=True))

    async def _reserved(self, record: Record, *, leaving: bool) -> bool:
        """Reserve the free lock for the queue; return whether it was."""
        claim = self._claim
        return record.can_be_reserved_by(claim.token) and bool(
            await self._ask_among_others(self._protocol.reserve, claim, record, leaving=leaving)
        )

    async def _ask(self, verb: _Verb[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        attempt = self._attempt
        before, attempt.unsettled = attempt.unsettled, True
        answer = await self._parts.client.call(self._claim.lock_id, verb, *args, **kwargs)
        attempt.unsettled = before
        return answer

    async def _ask_among_others(
        self, verb: _Verb[_P, _R | None], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R | None:
        """Ask for a change that others may prevent; None, after a pause, if they did.

        None also if it is in doubt: it is taken back with the position in the queue.
        """
        try:
            answer = await self._ask(verb, *args, **kwargs)
        except StoreUnavailable as trouble:
            if not trouble.of_demand:
                raise
            self._attempt.joined = self._attempt.joined or trouble.sent
            await self._stand_back()
            return None
        self._prevented = 0
        return answer

    async def _stand_back(self) -> None:
        """Pause: not for as long as others, and longer each time."""
        self._prevented += 1
        most = self._policy.polling.most_seconds * 2 ** min(self._prevented, 10)
        await self._pause(min(most, _MOST_PAUSE_SECONDS) * self._parts.random.uniform(0.5, 1.0))

    async def _read(self, lock_id: str) -> Record | None:
        return await self._parts.client.call(lock_id, self._protocol.look, lock_id)

    async def _append(self, lock_id: str, entry: bytes) -> object:
        return await self._parts.client.call(lock_id, self._protocol.append, lock_id, entry)

    async def _try_once(self) -> Lease | None:
        """Claim a free lock whose record is still there, if nobody else is queued."""
        try:
            record = await self._read(self._claim.lock_id)
        except StoreUnavailable as trouble:
            if not trouble.of_demand:
                raise
            return None
        if record is None:
            return await self._ask_among_others(self._protocol.take, self._claim)
        self._attempt.met(record)
        self._tried = record
        return await self._claimed(record) if record.is_turn_of(self._claim.token) else None

    async def _claimed(self, record: Record, *, passing: bool = True) -> Lease | None:
        """Claim a free lock as it was read; None if others were faster."""
        claim = self._protocol.claim
        return await self._ask_among_others(claim, self._claim, record, passing=passing)

    async def _wait(self) -> Lease | None:
        """Poll until the lock is ours; None when the wait is over."""
        claim, bell, local = self._claim, self._bell, self._parts.local
        assert bell is not None
        turn = Turn(claim.token)
        record = await self._join()
        while True:
            now = self._clock.now()
            led = record is not None and local.is_woken(claim, record)
            decision = turn.decide(record, now, led=led)
            lease: Lease | None = None
            match decision:
                case Decision.CLAIM | Decision.PASS:
                    assert record is not None
                    lease = await self._claimed(record, passing=decision is Decision.PASS)
                case Decision.CREATE:
                    # A queue that it did not just stand in may have been served since: it was
                    # passed, and the last waiter has removed the record.
                    assert turn.gone_since is not None
                    seen, seen_at = local.seen(claim.lock_id)
                    age = turn.gone_since - seen_at
                    if seen and (age >= PATIENCE_SECONDS or seen.position_of(claim.token) is None):
                        seen = None
                    lease = await self._ask_among_others(self._protocol.begin, claim, seen)
                case Decision.REJOIN:
                    assert record is not None
                    # It may be ours: a late command of before the poll has arrived.
                    lease = self._protocol.granted(claim, record, self._polled_before)
                    if lease is None:
                        record = await self._join(record)
                        if record is None or record.position_of(claim.token) is not None:
                            continue
                        # The record takes no entry: another program's, or no room.
                        if record.is_turn_of(claim.token):
                            lease = await self._claimed(record)
                        elif not (record.room or self._deadlocks) and local.step_out(claim, bell):
                            record = None
                            if not await self._parts.turn_comes(self._attempt, bell):
                                return None
                            record = await self._join()
                            continue
                        elif not await self._reserved(
                            record, leaving=False
                        ) and not await self._pause(self._policy.polling.most_seconds):
                            return None
                case Decision.WAIT:
                    left = self._attempt.wait_seconds - (now - self._attempt.started)
                    if left <= 0:
                        return None
                    if self._deadlocks is not None and record is not None:
                        left = min(left, await self._deadlocks.check(record))
                    seconds = min(left, self._delay(turn, record, now, led=led))
                    if turn.patience_ends is not None:
                        seconds = min(seconds, max(turn.patience_ends - now, 0.0) + 0.0001)
                    record = None  # see `_seen`
                    await local.rest(bell, seconds, self._wake_ups)
            if lease is not None:
                return lease
            if decision is not Decision.WAIT and self._attempt.left <= 0:
                return None  # others were faster, perhaps all the time
            match decision:
                case Decision.CREATE:
                    record = await self._join()
                case Decision.WAIT:
                    record = await self._next()
                case _:
                    record = await self._poll()

    async def _next(self) -> Record | None:
        """Return a record that another waiter of this process has read meanwhile, or poll."""
        assert self._bell is not None
        woken, news = self._bell.answer()
        if isinstance(news, Stored):  # since the latest poll: it may have been long on its way
            told = Record(news, self._seen)
            self._have_read(told)
            return told
        reading = self._parts.local.latest(self._claim.lock_id)
        if woken or reading is None or reading.asked_at <= self._polled_at or self._ages_in() <= 0:
            record = await self._poll()
            if self._wake_ups is None or woken or record is None or not record.released:
                return record
            if record.next_token() == self._claim.token:
                self._wake_ups.missed()
            return record
        self._about_to_decide_on(reading.asked_at)
        self._age = self._clock.now() - reading.asked_at
        self._see(reading.record)
        return reading.record

    async def _poll(self) -> Record | None:
        """Read the record; let a batch claim age first, if it is time."""
        self._attempt.attempts += 1
        if self._ages_in() <= 0:
            append, entry = self._protocol.append, aged(self._claim.token)
            record = await self._ask_among_others(append, self._claim.lock_id, entry)
            self._aged = record is not None
        return await self._look()

    async def _look(self) -> Record | None:
        self._about_to_decide_on(self._clock.now())
        lock_id = self._claim.lock_id
        try:
            record = await self._ask(self._protocol.look, lock_id, known=self._seen)
        except StoreUnavailable as trouble:
            if not trouble.of_demand:
                raise
            await self._stand_back()
            return self._seen
        self._have_read(record)
        return record

    async def _join(self, found: Record | None = None) -> Record | None:
        """Join the queue, or join it again after the record that was `found` has lost us."""
        attempt = self._attempt
        attempt.attempts += 1
        self._aged = False  # it was noted in the record that is lost
        self._about_to_decide_on(self._clock.now())
        record = None
        if found is None or found.room:
            join = self._protocol.join
            record = await self._ask_among_others(join, self._claim, again=attempt.joined)
        if record is None and (found is not None or self._prevented):
            # It is gone or full, or in such demand that this entry did not get in.
            record = await self._look()
        if record is not None:
            if not attempt.blocked_by:
                attempt.met(record)
                if attempt.listeners.watched():
                    facts = self._claim.lock_id, self._claim.priority.value, attempt.blocked_by
                    attempt.listeners.emit(Contended(*facts))
            if not attempt.joined:
                attempt.joined = record.position_of(self._claim.token) is not None
            self._have_read(record)
        return record

    def _about_to_decide_on(self, asked_at: float) -> None:
        self._polled_before, self._polled_at = self._polled_at, asked_at

    def _have_read(self, record: Record | None) -> None:
        self._age = 0.0
        self._see(record)
        self._parts.local.tell(self._claim, Reading(record, self._polled_at))

    def _see(self, record: Record | None) -> None:
        if record is None:
            return
        if self._met and self._met != record.holder.token:
            self._began = (self._polled_before, self._clock.now())
        self._met = record.holder.token
        if not record.free:
            self._attempt.holder = record.holder

    async def _pause(self, seconds: float) -> bool:
        """Sleep without a position in the queue; return whether there was time left."""
        left = self._attempt.left
        if left <= 0 or self._bell is None:
            return False
        await pause(self._clock, min(seconds, left))
        return True

    def _delay(self, turn: Turn, record: Record | None, now: float, *, led: bool) -> float:
        polling, local = self._policy.polling, self._parts.local
        if record is None:
            return polling.most_seconds
        woken = self._wake_ups is not None and self._wake_ups.come
        # (Where the store wakes, a waiter of few that leaves rings nobody; a wake-up may be lost.)
        if led and not woken:
            seconds = LED_SECONDS
        else:
            typical = self._parts.hold_times.typical(record.holder.priority)
            held = self._held(turn, record, typical, now)
            # If the lock is free, one of those ahead is about to have it.
            ahead = turn.position - (turn.free_since is not None)
            seconds = delay(ahead, typical, held, polling, woken=woken)
        if turn.position:
            seconds *= self._parts.random.uniform(0.8, 1.0)  # not all at once
        many = len(local.queued if led else local.crowds)
        seconds = min(seconds * max(1.0, many / _MANY_WAITERS), _MOST_SLEEP_SECONDS)
        return max(min(seconds, self._ages_in()) - self._age, polling.least_seconds)

    def _held(self, turn: Turn, record: Record, typical: float, now: float) -> float:
        """Return the time since the holder got the lock, as far as is known, in seconds."""
        if turn.free_since is not None:  # the next hold begins just now, however long the last was
            return now - turn.free_since
        said = self._clock.wall() - record.holder.since
        if self._began is not None:
            # Between two of our polls; within that, its own clock counts.
            earliest, latest = self._began
            return now - min(max(now - said, earliest), latest)
        watched = now - self._since
        if 0 <= said <= record.holder.lock_timeout:
            return max(watched, said)
        return max(watched, typical)  # its clock differs from ours

    def _ages_in(self) -> float:
        """Return the time until this batch claim ranks as interactive, and has to note it."""
        after = self._policy.ages_after
        if after is None or self._aged or self._claim.priority is not Priority.BATCH:
            return math.inf
        return after - self._attempt.elapsed
