"""A lock service that records its requests and results."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import threading
from collections.abc import Callable, Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from tests.chaos.record import Recorder
from userlock.clock import SYSTEM_CLOCK, Signal, SystemClock
from userlock.events import Contended, Event, Listeners
from userlock.lock.lease import Granted, Held, Lease, Lost, Priority, Unavailable
from userlock.lock.policy import LockPolicy, OutagePolicy
from userlock.lock.renewal import SYSTEM_RENEWALS
from userlock.lock.service import LockService
from userlock.lock.waiting import Attempt
from userlock.stores.urls import open_store

#: A delay beyond this time, in seconds, is a pause of the process or the thread: waiters behind may
#: take it for dead. It is shorter than their patience.
_PAUSE_SECONDS = 0.1

#: Of jobs. Operations name their own times.
_POLICY = LockPolicy(heartbeat_lock_timeout=1.0)

_OFFSET = struct.Struct("d")


class WallClockOffset:
    """The error of the wall clock in seconds: one number that processes share.

    Args:
        skew: the factor for this process. No two machines have the same error.
    """

    def __init__(self, path: Path, skew: float = 1.0) -> None:
        self._path = path
        self._skew = skew
        if not path.exists():
            self.set(0.0)

    def set(self, seconds: float) -> None:
        """Set the error."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(_OFFSET.pack(seconds))  # one write, of eight bytes

    def reader(self) -> Callable[[], float]:
        """Return a function that returns the present error here."""
        with self._path.open("rb") as file:
            mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        return lambda: float(_OFFSET.unpack_from(mapped)[0]) * self._skew


class WatchedClock(SystemClock):
    """The machine's clocks, with a wrong wall clock.

    It also detects pauses of a thread that waits for a lock.
    """

    def __init__(self, present: Present, offset: WallClockOffset) -> None:
        self._present = present
        self._offset = offset.reader()

    def wall(self) -> float:
        return SYSTEM_CLOCK.wall() + self._offset()

    def now(self) -> float:
        now = SYSTEM_CLOCK.now()
        self._present.seen(now)
        return now

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._present.slept(seconds, SYSTEM_CLOCK.now())

    def wait(self, signal: Signal, seconds: float) -> None:
        super().wait(signal, seconds)
        self._present.slept(seconds, SYSTEM_CLOCK.now())


class Present(threading.local):
    """The present attempt of this thread.

    Attributes:
        id: the attempt's id; empty if there is none.
        excused: whether it was paused for a moment.
        overslept: total time that sleeps took longer than requested, in seconds.
    """

    id = ""
    excused = False
    overslept = 0.0
    _last = 0.0

    def begins(self, attempt_id: str) -> None:
        self.id = attempt_id
        self.excused, self.overslept = False, 0.0
        self._last = SYSTEM_CLOCK.now()

    def seen(self, now: float) -> None:
        """Record that the thread runs."""
        if self.id and now - self._last > _PAUSE_SECONDS:
            self.excused = True
        self._last = now

    def slept(self, seconds: float, now: float) -> None:
        """Record a sleep of the thread."""
        over = now - self._last - seconds
        if self.id and over > _PAUSE_SECONDS:
            self.excused = True
            self.overslept += over
        self._last = now


class WatchedService(LockService):
    """A lock service that records its requests and results.

    Args:
        fallback: the URL of the fallback store; empty if there is none.
    """

    def __init__(
        self,
        url: str,
        *,
        fallback: str,
        outage: str,
        name: str,
        recorder: Recorder,
        offset: WallClockOffset,
    ) -> None:
        self._present = Present()
        clock = WatchedClock(self._present, offset)
        other = None
        if fallback:
            other = LockService(
                open_store(fallback),
                outage=OutagePolicy.FAIL,
                clock=clock,
                renewals=SYSTEM_RENEWALS,
                listeners=Listeners(),
            )
        super().__init__(
            open_store(url),
            outage=outage,
            fallback=other,
            policy=_POLICY,
            clock=clock,
            renewals=SYSTEM_RENEWALS,
            listeners=Listeners([self._hear]),
        )
        self._name = name
        self._recorder = recorder
        self._numbers = itertools.count(1)

    @property
    def has_pending_releases(self) -> bool:
        """Return whether there are pending releases."""
        services = [self] if self.fallback is None else [self, self.fallback]
        return any(service.client.pending for service in services)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Contended) and self._present.id:
            self._recorder.note("queued", id=self._present.id)

    async def acquired(self, attempt: Attempt, holding: Iterable[Lease] = ()) -> Lease:
        claim = attempt.claim
        name = f"{self._name}/{next(self._numbers)}"
        self._recorder.note(
            "asked",
            id=name,
            lock_id=claim.lock_id,
            who=self._name,
            batch=claim.priority is Priority.BATCH,
            timeout=attempt.wait_seconds,
        )
        self._present.begins(name)
        if not claim.request:
            attempt.claim = dataclasses.replace(claim, request=name)
        try:
            lease = await super().acquired(attempt, holding)
        except BaseException as error:
            self._ends("failed", error=type(error).__name__)
            raise
        self._ends(
            "granted",
            token=lease.token,
            deadline=lease.deadline,
            degraded=lease.degraded,
            backed_until=_backed_until(lease),
        )
        return lease

    def _ends(self, how: str, **facts: object) -> None:
        present = self._present
        self._recorder.note(
            how, id=present.id, overslept=present.overslept, excused=present.excused, **facts
        )
        present.id = ""

    async def released(self, lease: Lease, held_seconds: float | None = None) -> None:
        self._recorder.note("releasing", token=lease.token)
        await super().released(lease, held_seconds)

    async def give_back(self, lease: Lease) -> Any:
        self._recorder.note("releasing", token=lease.token)
        return await super().give_back(lease)

    async def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        at_worst = self.clock.now() + seconds
        if at_worst < lease.deadline:  # the holder's belief without a reply
            self._runs(lease, at_worst)
        outcome = await super().extend(lease, seconds)
        if isinstance(outcome, Granted):
            self._runs(outcome.lease, outcome.lease.deadline)
        return outcome

    def _runs(self, lease: Lease, deadline: float) -> None:
        backed_until = _backed_until(lease)
        self._recorder.note(
            "extended", token=lease.token, deadline=deadline, backed_until=backed_until
        )

    async def confirm(self, lease: Lease) -> Granted | Held | Unavailable | None:
        outcome = await super().confirm(lease)
        if isinstance(outcome, Granted):
            self._recorder.note("confirmed", token=lease.token, deadline=outcome.lease.deadline)
        return outcome


def _backed_until(lease: Lease) -> float | None:
    """Return the end of the lease in the fallback store, if there is one."""
    return None if lease.fallback is None else lease.fallback.deadline
