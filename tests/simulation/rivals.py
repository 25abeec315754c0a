"""Simulated requests that take locks one inside the other, and may so wait in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import userlock
from tests.simulation.scheduler import Actor
from tests.simulation.world import Process, World
from userlock.lock.record import Record


class Step(NamedTuple):
    """What a request does next.

    Attributes:
        lock_id: the lock that it takes, inside those that it has.
        after: for how long it works before that, in seconds.
    """

    lock_id: str
    after: float = 0.0


class Rival:
    """A process with one request.

    Attributes:
        got: the locks that it has had, in order.
        error: what it has got instead of a lock.
        waits_for: the lock that it waits for now, or None.
        waits_since: by its own wall clock; and at `waits_from`, by everybody's.
        failed_at: when it got the error.
    """

    def __init__(
        self,
        world: World,
        name: str,
        steps: Sequence[Step],
        *,
        wall_ahead: float = 0.0,
        priority: str = "interactive",
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
        """It has got an error, and has given back what it had. For those who look closer."""

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
        """It gets an error just now, and still has what it had. For those who look closer."""

    @property
    def done(self) -> bool:
        return self.actor.finished

    @property
    def served(self) -> bool:
        """Whether it has had all its locks."""
        return self.got == [step.lock_id for step in self._steps]


def chain(world: World, names: str, *, closed: bool = True, **options: Any) -> list[Rival]:
    """Each holds the lock of its own name and waits for the next one's, the last one at last."""
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
    """Until all of them have come to their end."""
    world.pass_time(seconds, until=lambda: all(rival.done for rival in rivals))
    assert not world.watch.complaints


def circle_from(world: World, rivals: Sequence[Rival], rival: Rival) -> list[Rival]:
    """Who waits for whom, from `rival` back to it, by what the store has; empty if it does not."""
    by_name = {each.name: each for each in rivals}
    circle = [rival]
    while True:
        wanted = circle[-1].waits_for
        stored = None if wanted is None else world.watch.store.read(wanted)
        if stored is None:
            return []
        record = Record(stored)
        if record.free:
            return []
        following = by_name[record.holder.process]
        if following is rival:
            return circle
        if following in circle:
            return []  # a circle further on
        circle.append(following)
