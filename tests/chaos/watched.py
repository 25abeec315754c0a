"""A lock service that notes what it is asked and what it answers."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path

from tests.chaos.record import Recorder
from userlock.clock import SYSTEM_CLOCK, SystemClock
from userlock.events import Contended, Event, Listeners
from userlock.lock.lease import Granted, Held, Lease, Lost, Priority, Unavailable
from userlock.lock.renewal import SYSTEM_RENEWALS
from userlock.lock.service import LockService
from userlock.stores.registry import open_store

#: What takes so much longer than it should, in seconds, is a pause of the process or the thread:
#: those behind may take it for dead. It is less than the patience that they have.
_PAUSE_SECONDS = 0.1

_OFFSET = struct.Struct("d")


class WallClockOffset:
    """By how much the wall clock is wrong, in seconds: one number that processes share.

    Args:
        path: of the file that it is in; made if there is none.
        skew: how many times that it is here. No two machines are wrong by the same.
    """

    def __init__(self, path: Path, skew: float = 1.0) -> None:
        self._path = path
        self._skew = skew
        if not path.exists():
            self.set(0.0)

    def set(self, seconds: float) -> None:
        """From now on it is wrong by so much."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(_OFFSET.pack(seconds))  # one write, of eight bytes

    def reader(self) -> Callable[[], float]:
        """Tells by how much it is wrong here, at any moment."""
        with self._path.open("rb") as file:
            mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        return lambda: float(_OFFSET.unpack_from(mapped)[0]) * self._skew


class WatchedClock(SystemClock):
    """The machine's clocks, with a wall clock that is set wrong on purpose.

    It also notices when a thread that waits for a lock was not let run.
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


class Present(threading.local):
    """The attempt that this thread makes at present.

    Attributes:
        id: of the attempt; empty while there is none.
        excused: it was not let run for a moment.
        overslept: for how long altogether it slept beyond what it asked for, in seconds.
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
        """It runs."""
        if self.id and now - self._last > _PAUSE_SECONDS:
            self.excused = True
        self._last = now

    def slept(self, seconds: float, now: float) -> None:
        """It has slept."""
        over = now - self._last - seconds
        if self.id and over > _PAUSE_SECONDS:
            self.excused = True
            self.overslept += over
        self._last = now


class WatchedService(LockService):
    """See the module.

    Args:
        url: of the store.
        outage: what to do when it does not answer.
        name: of the process; no other process has it.
        recorder: is told.
        offset: by how much the wall clock is wrong.
    """

    def __init__(
        self, url: str, *, outage: str, name: str, recorder: Recorder, offset: WallClockOffset
    ) -> None:
        self._present = Present()
        super().__init__(
            open_store(url),
            outage=outage,
            clock=WatchedClock(self._present, offset),
            renewals=SYSTEM_RENEWALS,
            listeners=Listeners([self._hear]),
        )
        self._name = name
        self._recorder = recorder
        self._numbers = itertools.count(1)

    @property
    def owes(self) -> bool:
        """Whether there are leases that could not be given back."""
        return self._access.pending.owed

    def _hear(self, event: Event) -> None:
        if isinstance(event, Contended) and self._present.id:
            self._recorder.note("stands", id=self._present.id)

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str = Priority.INTERACTIVE,
        request: str = "",
        holding: Iterable[Lease] = (),
    ) -> Lease:
        attempt = f"{self._name}/{next(self._numbers)}"
        priority = Priority.of(priority)
        defaults = self.policy.of(priority)
        self._recorder.note(
            "asks",
            id=attempt,
            lock_id=lock_id,
            who=self._name,
            batch=priority is Priority.BATCH,
            timeout=defaults.wait_timeout if wait_timeout is None else wait_timeout,
        )
        self._present.begins(attempt)
        try:
            lease = super().acquire(
                lock_id,
                wait_timeout=wait_timeout,
                lock_timeout=lock_timeout,
                priority=priority,
                request=request or attempt,
                holding=holding,
            )
        except BaseException as error:
            self._ends("gave up", error=type(error).__name__)
            raise
        self._ends("granted", token=lease.token, deadline=lease.deadline, degraded=lease.degraded)
        return lease

    def _ends(self, how: str, **facts: object) -> None:
        present = self._present
        self._recorder.note(
            how, id=present.id, overslept=present.overslept, excused=present.excused, **facts
        )
        present.id = ""

    def release(self, lease: Lease, *, held_seconds: float | None = None) -> None:
        self._recorder.note("releasing", token=lease.token)
        super().release(lease, held_seconds=held_seconds)

    def give_back(self, lease: Lease) -> object:  # type: ignore[override]
        self._recorder.note("releasing", token=lease.token)
        return super().give_back(lease)

    def extend(self, lease: Lease, seconds: float) -> Granted | Lost | Unavailable:
        at_worst = self.clock.now() + seconds
        if at_worst < lease.deadline:  # as its holder will believe if no answer comes
            self._runs(lease, at_worst)
        outcome = super().extend(lease, seconds)
        if isinstance(outcome, Granted):
            self._runs(outcome.lease, outcome.lease.deadline)
        return outcome

    def extend_many(
        self, leases: Sequence[tuple[Lease, float]]
    ) -> list[Granted | Lost | Unavailable]:
        outcomes = super().extend_many(leases)
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self._runs(outcome.lease, outcome.lease.deadline)
        return outcomes

    def _runs(self, lease: Lease, deadline: float) -> None:
        self._recorder.note("extended", token=lease.token, deadline=deadline)

    def confirm(self, lease: Lease) -> Granted | Held | Unavailable | None:
        outcome = super().confirm(lease)
        if isinstance(outcome, Granted):
            self._recorder.note("confirmed", token=lease.token, deadline=outcome.lease.deadline)
        return outcome
