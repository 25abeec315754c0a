"""Simulated processes' calls on locks, and their records: a machine without rules."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from tests.simulation.faults import Fault
from tests.simulation.scheduler import Actor
from tests.simulation.tenures import HeldLock, Tenures
from tests.simulation.watch import Watch
from tests.simulation.world import Process, World
from userlock import LockServiceUnavailable, LockTimeout
from userlock.lock.lease import Granted, Lease, Lost, Released
from userlock.lock.policy import LockPolicy, OutagePolicy, PriorityPolicy
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock.waits import run

#: The length of a record after three or four waiters have timed out, in bytes.
LONG_BYTES = 400
_POLICY = LockPolicy(batch=PriorityPolicy(ages_after=5.0))


@dataclasses.dataclass
class _Call:
    """A call of an actor; `finish(result, no fault was met)` is called at its end."""

    actor: Actor
    process: Process
    finish: Callable[[Any, bool], None]


class LockCalls(RuleBasedStateMachine):
    """Processes that can take, extend and release locks."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.watch = Watch(self.make_store(self.clock), self.clock)
        self.world = World(self.clock, self.watch, policy=_POLICY)
        self.tenures = Tenures(self.watch)
        self.world.after_step = self._collect
        self.calls: list[_Call] = []
        self.kills = 0
        self.calm, self.calm_since = False, 0.0
        self.failed = False
        self._running = contextlib.ExitStack()
        self._running.enter_context(self.world.running())

    def make_store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock=clock)

    outage = OutagePolicy.FAIL

    def _new_process(self, ahead: float = 0.0, wall_ahead: float = 0.0) -> None:
        name = f"host/{len(self.world.processes)}"
        self.world.process(
            name,
            label="container/1",  # they recognise each other nevertheless
            ahead=ahead,
            wall_ahead=wall_ahead,
            outage=self.outage,
        )

    def _kill(self, process: Process) -> None:
        self.kills += 1
        self.world.kill(process)
        self._new_process()

    def _pick(self, number: int) -> Process:
        alive = [process for process in self.world.processes if not process.dead]
        return alive[number % len(alive)]

    def _call(
        self,
        process: Process,
        name: str,
        do: Callable[[], object],
        finish: Callable[[Any, bool], None],
    ) -> None:
        self.calls.append(_Call(self.world.spawn(process, name, do), process, finish))

    def _run(self, actor: Actor, steps: int) -> None:
        """Run that many steps of one actor, if it can run, whatever the others can."""
        for _ in range(steps):
            if actor not in self.world.runnable():
                break
            self.world.run(actor)

    def _run_with(self, fault: Fault, steps: int) -> None:
        """Begin the latest call; the fault happens to its first command."""
        actor = self.calls[-1].actor
        if fault is not Fault.NONE:
            self.world.faults[actor] = fault
        self._run(actor, steps)

    def _collect(self) -> None:
        if not any(call.actor.finished for call in self.calls):
            return
        ended = [call for call in self.calls if call.actor.finished]
        self.calls = [call for call in self.calls if not call.actor.finished]
        for call in ended:
            if not call.actor.killed:
                call.finish(call.actor.result, call.actor not in self.world.met)

    def _acquire(
        self, process: Process, lock_id: str, batch: bool, wait: float, ttl: float
    ) -> None:
        def do() -> Lease | None:
            try:
                return process.service.acquire(
                    lock_id,
                    wait_timeout=wait,
                    lock_timeout=ttl,
                    priority="batch" if batch else "interactive",
                )
            except (LockTimeout, LockServiceUnavailable):
                return None

        self._call(process, "acquire", do, lambda lease, _: self._acquired(process, lease))

    def _acquired(self, process: Process, lease: Lease | None) -> None:
        if lease is None:
            return
        tenure = HeldLock(process, lease)
        self.tenures.all.append(tenure)
        if self.calm:
            self._release(tenure)

    def _release(self, tenure: HeldLock) -> None:
        lease, asked_at = tenure.lease, self.clock.now()
        tenure.busy = tenure.over = True
        self._call(
            tenure.process,
            "release",
            lambda: run(tenure.process.service.give_back, lease),
            lambda outcome, faultless: self._released(tenure, outcome, asked_at, faultless),
        )

    def _extend(self, tenure: HeldLock, seconds: float) -> None:
        """Extend a lease. A degraded one is confirmed instead."""
        service, lease, asked_at = tenure.process.service, tenure.lease, self.clock.now()
        if lease.degraded:
            do: Callable[[], object] = lambda: run(service.confirm, lease)  # noqa: E731
        else:
            do = lambda: run(service.extend, lease, seconds)  # noqa: E731
            tenure.believed = min(tenure.believed, tenure.process.clock.now() + seconds)
        tenure.busy = True
        self._call(
            tenure.process, "extend", do, lambda result, _: self._extended(tenure, result, asked_at)
        )

    def _released(
        self, tenure: HeldLock, outcome: object, asked_at: float, faultless: bool
    ) -> None:
        if tenure.lease.degraded:
            return
        match outcome:
            case Released():
                self.tenures.check_released(tenure.lease, asked_at, faultless=faultless)
            case Lost():
                self.tenures.check_lost(outcome, tenure.lease, tenure.process, asked_at)

    def _extended(self, tenure: HeldLock, result: object, asked_at: float) -> None:
        tenure.busy = False
        match result:
            case Granted(lease):
                tenure.lease, tenure.believed = lease, math.inf
            case Lost():
                self.tenures.check_lost(result, tenure.lease, tenure.process, asked_at)
                tenure.over = True
            case _:  # a shorter lease may have been granted; as in `HeldLock.extend`
                end = min(tenure.lease.deadline, tenure.believed)
                tenure.lease = tenure.lease._replace(deadline=end)
        if self.calm and not tenure.over:
            self._release(tenure)
