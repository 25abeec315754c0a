"""One user's lock: its holder, its queue, and the commands sent to memcached. No I/O.

Follows docs/protocol.md step by step, each step with its duration:

    asks ── create ─┬▶ granted ── section ── remove
                    └▶ refused ── append "+" ── poll … poll ── swap ── section ── append "="

A create, a swap and a remove succeed only if the record is unchanged since it was read. The library
itself decides the time of each poll (`userlock.lock.queue.delay`) and the order of the queue. Not
modelled: processes that die, evictions, outages, lost replies, and clocks that differ.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tools.traffic.profile import Profile
from tools.traffic.users import Arrival
from userlock.lock.policy import LockPolicy, Polling, PriorityPolicy
from userlock.lock.queue import delay


class Served(NamedTuple):
    """The outcome of an arrival.

    Attributes:
        at: its time, in seconds after midnight.
        batch: whether it is batch work.
        waited: the wait until the grant or the timeout, in seconds.
        refused: whether the lock was held at first.
        granted: whether it got the lock.
        seconds: the time until its release or its timeout.
        operations: number of commands sent to memcached.
        yields: how often it yielded to interactive requests.
    """

    at: float
    batch: bool
    waited: float
    refused: bool
    granted: bool
    seconds: float
    operations: int
    yields: int = 0


class SimulatedLock:
    """The lock of one user at a time.

    Args:
        profile: the durations.
        random: for jitter.
        policy: priorities, waits, polling.
        poll_delay: as `userlock.lock.queue.delay`.

    Attributes:
        record_seconds: the total lifetime of records.
    """

    def __init__(
        self,
        profile: Profile,
        random: Random,
        *,
        policy: LockPolicy | None = None,
        poll_delay: Callable[[int, float, float, Polling], float] = delay,
    ) -> None:
        self.round_trip = profile.round_trip
        self.typical = {False: profile.typical_section, True: profile.typical_sweep}
        self.random = random
        self.policy = policy or LockPolicy()
        self.poll_delay = poll_delay
        self.record_seconds = 0.0

    def serve(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """Return the outcomes of one user's arrivals, which are in order of time."""
        served: list[Served] = []
        trip = self.round_trip
        index, count = 0, len(arrivals)
        while index < count:
            at, seconds, steps, batch = arrivals[index]
            kept = seconds + steps * trip  # from the create to the remove
            if index + 1 == count or arrivals[index + 1].at > at + kept:
                # No other request arrives meanwhile. This is by far the most frequent case, so it
                # has a fast path.
                self.record_seconds += kept
                done = trip + kept
                served.append(Served(at, batch, trip, False, True, done, 1 + steps))
                index += 1
            else:
                episode = _Episode(self, arrivals, index)
                index = episode.run()
                self.record_seconds += episode.record_seconds
                served += episode.served
        return served


class _Request:
    """A request that waits for the lock, or holds it."""

    __slots__ = (
        *("arrival", "asked_at", "contended", "first_wait", "operations", "policy", "refused"),
        *("since", "steps_left", "urgent", "version", "yielding", "yields"),
    )

    def __init__(self, arrival: Arrival, policy: PriorityPolicy) -> None:
        self.arrival = arrival
        self.policy = policy
        self.asked_at = arrival.at
        self.urgent = not arrival.batch
        self.steps_left = arrival.steps
        self.operations = 0
        self.yields = 0
        self.refused = False
        self.first_wait: float | None = None
        #: Whether it is currently yielding to interactive requests.
        self.yielding = False
        #: While it holds the lock: the time and version of the grant, and whether others waited
        #: then.
        self.since = 0.0
        self.version = 0
        self.contended = False


class _Seen(NamedTuple):
    """A record as a client has read it."""

    version: int
    free: bool
    position: int
    typical: float
    since: float


class _Episode:
    """The time from a first grant until the lock is free without waiters."""

    def __init__(self, lock: SimulatedLock, arrivals: Sequence[Arrival], index: int) -> None:
        self._lock = lock
        self._half = lock.round_trip / 2
        self._arrivals = arrivals
        self._next = index
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = itertools.count()
        # The record, which exists while there is a holder.
        self._holder: _Request | None = None
        self._free = False
        self._version = 0
        self._waiting: list[_Request] = []
        self._created_at = 0.0
        self.record_seconds = 0.0
        self.served: list[Served] = []

    def run(self) -> int:
        """Simulate the episode and return the index of the first arrival after it."""
        events, arrivals = self._events, self._arrivals
        self._arrive()
        while events:
            now = events[0][0]
            if self._next < len(arrivals) and arrivals[self._next].at + self._half <= now:
                self._arrive()
                continue
            _, _, happens, what = heapq.heappop(events)
            happens(now, *what)
        return self._next

    def _arrive(self) -> None:
        arrival = self._arrivals[self._next]
        self._next += 1
        policy = self._lock.policy
        request = _Request(arrival, policy.batch if arrival.batch else policy.interactive)
        self._at(arrival.at + self._half, self._create, request)

    def _at(self, time: float, happens: Callable[..., None], *what: object) -> None:
        heapq.heappush(self._events, (time, next(self._count), happens, what))

    # --- at the server: `now` is the time of the command's execution ------------------------

    def _create(self, now: float, request: _Request) -> None:
        request.operations += 1
        if self._holder is not None:
            if request.first_wait is None:  # not when it retakes the lock after a yield
                request.refused = True
            self._at(now + 2 * self._half, self._join, request)
            return
        self._created_at = now
        self._hold(now, request, contended=False)

    def _join(self, now: float, request: _Request) -> None:
        request.operations += 2  # append and read
        if self._holder is None:
            self._at(now + 2 * self._half, self._create, request)
            return
        self._waiting.append(request)
        self._version += 1
        self._at(now + self._half, self._decide, request, self._seen_by(request))

    def _poll(self, now: float, request: _Request) -> None:
        ages_after = request.policy.ages_after
        waited = now - self._half - request.asked_at
        if not request.urgent and ages_after is not None and waited >= ages_after:
            request.operations += 2
            request.urgent = True
            self._version += 1
            self._at(now + 2 * self._half, self._poll, request)
            return
        request.operations += 1
        self._at(now + self._half, self._decide, request, self._seen_by(request))

    def _claim(self, now: float, request: _Request, version: int) -> None:
        request.operations += 1
        if version != self._version:
            self._at(now + 2 * self._half, self._poll, request)
            return
        self._waiting.remove(request)
        self._hold(now, request, contended=True)

    def _hold(self, now: float, request: _Request, *, contended: bool) -> None:
        self._holder = request
        self._free = False
        self._version += 1
        request.version, request.contended = self._version, contended
        request.since = now - self._half
        self._at(now + self._half, self._granted, request)

    def _check(self, now: float, request: _Request) -> None:
        """Check between two steps whether an interactive request waits."""
        request.operations += 1
        if any(each.urgent for each in self._waiting):
            request.yielding = True
            self._at(now + 2 * self._half, self._release, request)
        else:
            self._at(now + self._half, self._granted, request)

    def _release(self, now: float, request: _Request) -> None:
        if request.contended:
            self._end(now, request)
            return
        request.operations += 1
        if request.version == self._version:
            self._gone(now)
            self._at(now + self._half, self._left, request)
        else:
            self._at(now + 2 * self._half, self._end, request)

    def _end(self, now: float, request: _Request) -> None:
        request.operations += 2  # append and read
        self._free = True
        self._version += 1
        if self._waiting:
            self._at(now + self._half, self._left, request)
        else:
            self._at(now + 2 * self._half, self._remove, request, self._version)

    def _remove(self, now: float, request: _Request, version: int) -> None:
        request.operations += 1
        if version == self._version:
            self._gone(now)
        self._at(now + self._half, self._left, request)

    def _leave(self, now: float, request: _Request) -> None:
        request.operations += 2  # append and read
        self._waiting.remove(request)
        self._version += 1
        self._note(now + self._half, request, granted=False)

    def _gone(self, now: float) -> None:
        self._holder = None
        self.record_seconds += now - self._created_at

    def _seen_by(self, request: _Request) -> _Seen:
        holder = self._holder
        assert holder is not None, "the record stays while there are waiters"
        # Interactive requests and aged ones first, each group in the order of joining.
        in_order = sorted(self._waiting, key=lambda each: not each.urgent)
        ahead = in_order.index(request)
        typical = self._lock.typical[holder.arrival.batch]
        return _Seen(self._version, self._free, ahead, typical, holder.since)

    # --- at the client: `now` is the time of the reply -------------------------------------

    def _granted(self, now: float, request: _Request) -> None:
        """Hold the lock for one more step."""
        if request.first_wait is None:
            request.first_wait = now - request.asked_at
        request.steps_left -= 1
        done = now + request.arrival.seconds / request.arrival.steps + self._half
        self._at(done, self._check if request.steps_left else self._release, request)

    def _decide(self, now: float, request: _Request, seen: _Seen) -> None:
        if seen.free and seen.position == 0:
            self._at(now + self._half, self._claim, request, seen.version)
            return
        left = request.policy.wait_timeout - (now - request.asked_at)
        if left <= 0:
            if request.first_wait is None:
                request.first_wait = now - request.asked_at
            self._at(now + self._half, self._leave, request)
            return
        held, polling = now - seen.since, request.policy.polling
        seconds = self._lock.poll_delay(seen.position, seen.typical, held, polling)
        if seen.position:
            seconds *= self._lock.random.uniform(0.8, 1.0)
        self._at(now + min(seconds, left) + self._half, self._poll, request)

    def _left(self, now: float, request: _Request) -> None:
        if not request.yielding:
            self._note(now, request, granted=True)
            return
        request.yielding = False
        request.yields += 1
        request.asked_at = now
        request.urgent = False
        self._at(now + self._half, self._create, request)

    def _note(self, now: float, request: _Request, *, granted: bool) -> None:
        assert request.first_wait is not None
        self.served.append(
            Served(
                request.arrival.at,
                request.arrival.batch,
                request.first_wait,
                request.refused,
                granted,
                now - request.arrival.at,
                request.operations,
                request.yields,
            )
        )
