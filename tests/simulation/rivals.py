"""Simulated requests that take nested locks, and may wait for each other in a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import userlock
from tests.simulation.scheduler import Actor
from tests.simulation.world import Process, World
from userlock.lock.lease import PriorityName
from userlock.lock.record import Record


class Step(NamedTuple):
    """The next step of a request."""

    lock_id: str
    after: float = 0.0


class Rival:
    """A process with one request.

    Attributes:
        got: the locks that were granted, in order.
        error: the error instead of a lock.
        waits_for: the lock that it waits for now, or None.
        waits_since: the begin of the wait by its own wall clock; `waits_from` by the common clock.
        failed_at: the time of the error.
    """

    def __init__(
        self,
        world: World,
        name: str,
        steps: Sequence[Step],
        *,
        wall_ahead: float = 0.0,
        priority: PriorityName = "interactive",
        wait_timeout: float = 50.0,
        lock_timeout: float = 1000.0,
        work: float = 0.05,
    ) -> None:
        self.name = name
        self.world = world
        self.got: list[str] = []
        self.error: userlock.LockError | None = None
        self.waits_for: str | None = None
        self.waits_since = 0.0
        self.waits_from = 0.0
        self.failed_at = 0.0
        self._steps = steps
        self._priority = priority
        self._wait_timeout = wait_timeout
        self._lock_timeout = lock_timeout
        self._work = work
        self.process: Process = world.process(name, wall_ahead=wall_ahead)
        self.actor: Actor = world.spawn(self.process, "request", self._serve)

    def _serve(self) -> None:
        with userlock.scope(self.process.service, priority=self._priority):
            try:
                self._take(list(self._steps))
            except userlock.LockError as error:
                self.error = error
                self.failed_at = self.world.clock.now()
                self.failed()

    def failed(self) -> None:
        """Handle the end after an error, when it has released its locks. A hook for tests."""

    def _take(self, steps: list[Step]) -> None:
        clock = self.process.clock
        if not steps:
            clock.sleep(self._work)
            return
        (lock_id, after), *rest = steps
        if after:
            clock.sleep(after)
        self.waits_for, self.waits_since = lock_id, round(clock.wall(), 3)
        self.waits_from = self.world.clock.now()
        try:
            tenure = userlock.acquire_lock(
                lock_id, wait_timeout=self._wait_timeout, lock_timeout=self._lock_timeout
            )
        except userlock.LockError as error:
            self.refused(error)
            raise
        finally:
            self.waits_for = None
        with tenure:
            self.got.append(lock_id)
            self._take(rest)

    def refused(self, error: userlock.LockError) -> None:
        """Handle an error while it still holds its locks. A hook for tests."""

    @property
    def done(self) -> bool:
        return self.actor.finished

    @property
    def served(self) -> bool:
        return self.got == [step.lock_id for step in self._steps]


def chain(world: World, names: str, *, closed: bool = True, **options: Any) -> list[Rival]:
    """Return rivals that hold the lock of their own name and wait for the next one's."""
    rivals = []
    for number, name in enumerate(names):
        steps = [Step(name)]
        if number + 1 < len(names):
            steps.append(Step(names[number + 1], after=0.1 * (number + 1)))
        elif closed:
            steps.append(Step(names[0], after=0.1 * (number + 1)))
        rivals.append(Rival(world, f"host/{name}", steps, **options))
    return rivals


def run(world: World, *rivals: Rival, seconds: float = 20) -> None:
    world.pass_time(seconds, until=lambda: all(rival.done for rival in rivals))
    assert not world.watch.violations


def cycle_from(world: World, rivals: Sequence[Rival], rival: Rival) -> list[Rival]:
    """Return the cycle from `rival` back to it, by the store's data; empty if there is none."""
    by_name = {each.name: each for each in rivals}
    cycle = [rival]
    while True:
        wanted = cycle[-1].waits_for
        stored = None if wanted is None else world.watch.store.read(wanted)
        if stored is None:
            return []
        record = Record(stored)
        if record.free:
            return []
        following = by_name[record.holder.process]
        if following is rival:
            return cycle
        if following in cycle:
            return []  # a cycle further on
        cycle.append(following)
