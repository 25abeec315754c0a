"""People and jobs that want one lock, on a clock driven by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.scheduler import Actor
from tests.simulation.watch import Watch
from tests.simulation.world import Process, World
from userlock import LockPolicy, LockTimeout
from userlock.lock.lease import Lease
from userlock.lock.record import Record
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

LOCK = "learner-1"


class Moment(NamedTuple):
    """Something that happened.

    Attributes:
        at: seconds after the beginning.
        who: by name.
        what: "has it", "leaves" or "gave up".
    """

    at: float
    who: str
    what: str


class Crowd:
    """Everybody who wants the lock.

    Attributes:
        moments: what happened, in order.
        store: where the records are.
        world: the processes.
    """

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
        priority: str = "interactive",
        wait_timeout: float | None = None,
        lock_timeout: float = 60.0,
    ) -> Process:
        """Somebody wants the lock `after` so long, and holds it for `hold`; times in seconds.

        In a process of its own, where none is given.
        """
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

    # --- what happens -----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.world.clock.now() - self._began

    def passes(self, seconds: float) -> None:
        """Time passes."""
        self.world.pass_time(seconds)

    def ends(self, *, within: float = 1000.0) -> None:
        """Everybody has had their turn, or has given up."""
        self.world.pass_time(within, until=lambda: not self.world.alive())
        assert not self.world.alive(), f"still there: {self.world.alive()}"

    # --- what is to be seen -----------------------------------------------------------------

    @property
    def order(self) -> list[str]:
        """Who has had the lock, in order."""
        return [moment.who for moment in self.moments if moment.what == "has it"]

    def when(self, name: str, what: str = "has it") -> float:
        """When that happened, in seconds after the beginning."""
        (at,) = (moment.at for moment in self.moments if moment[1:] == (name, what))
        return at

    @property
    def line(self) -> list[str]:
        """Who stands in line."""
        stored = self.store.read(LOCK)
        return [] if stored is None else [each.request for each in Record(stored).waiters()]

    @property
    def violations(self) -> list[str]:
        """What must not have happened, as the watch has seen it."""
        return self.world.watch.violations


@contextlib.contextmanager
def gathering(clock: ManualClock, policy: LockPolicy | None = None) -> Iterator[Crowd]:
    """A crowd around one lock. Each step of each of them takes no time."""
    watch = Watch(MemoryStore(clock=clock), clock)
    with World(clock, watch, policy=policy).running() as world:
        crowd = Crowd(world)
        crowd.leases = {}
        yield crowd
