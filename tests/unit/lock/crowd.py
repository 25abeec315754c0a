"""Interactive requests and batch jobs that contend for one lock, on a clock driven by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.scheduler import Actor
from tests.simulation.watch import Watch
from tests.simulation.world import Process, World
from userlock import LockPolicy, LockTimeout
from userlock.lock.lease import Lease, PriorityName
from userlock.lock.record import Record
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

LOCK = "learner-1"


class Moment(NamedTuple):
    """One event."""

    at: float
    who: str
    what: str


class Crowd:
    """The callers that contend for the lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = world.watch.store
        self.moments: list[Moment] = []
        self._began = world.clock.now()
        self._actors: dict[str, Actor] = {}
        self._interrupts: dict[str, BaseException] = {}

    def comes(
        self,
        name: str,
        *,
        after: float = 0.0,
        hold: float = 0.02,
        process: Process | None = None,
        priority: PriorityName = "interactive",
        wait_timeout: float | None = None,
        lock_timeout: float = 60.0,
    ) -> Process:
        """Start a caller that takes the lock after `after` seconds and holds it for `hold`."""
        process = process or self.world.process(name)
        clock = process.clock

        def request() -> None:
            if after:
                clock.sleep(after)
            try:
                lease = process.service.acquire(
                    LOCK,
                    wait_timeout=wait_timeout,
                    lock_timeout=lock_timeout,
                    priority=priority,
                    request=name,
                )
            except LockTimeout:
                self._note(name, "gave up")
                return
            self._note(name, "has it")
            self.leases[name] = lease
            clock.sleep(hold)
            self._note(name, "leaves")
            process.service.release(lease, held_seconds=hold)

        self._actors[name] = self.world.spawn(process, name, request)
        return process

    leases: dict[str, Lease]

    def _note(self, name: str, what: str) -> None:
        self.moments.append(Moment(self.now, name, what))

    # --- actions ----------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.world.clock.now() - self._began

    def passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    def ends(self, *, within: float = 1000.0) -> None:
        """Run until each caller has had its turn, or has timed out."""
        self.world.pass_time(within, until=lambda: not self.world.alive())
        assert not self.world.alive(), f"still there: {self.world.alive()}"

    # --- observations -----------------------------------------------------------------------

    @property
    def order(self) -> list[str]:
        """Return the callers that have held the lock, in order."""
        return [moment.who for moment in self.moments if moment.what == "has it"]

    def when(self, name: str, what: str = "has it") -> float:
        (at,) = (moment.at for moment in self.moments if moment[1:] == (name, what))
        return at

    @property
    def queue(self) -> list[str]:
        stored = self.store.read(LOCK)
        return [] if stored is None else [each.request for each in Record(stored).waiters()]

    @property
    def violations(self) -> list[str]:
        return self.world.watch.violations


@contextlib.contextmanager
def gathering(
    clock: ManualClock, policy: LockPolicy | None = None, *, wakes: bool = False
) -> Iterator[Crowd]:
    """Yield a crowd around one lock. The steps of its callers take no time.

    `wakes`: the store wakes waiters, but all its wake-ups are lost.
    """
    watch = Watch(MemoryStore(clock=clock, wakes=wakes), clock)
    with World(clock, watch, policy=policy).running() as world:
        crowd = Crowd(world)
        crowd.leases = {}
        yield crowd
