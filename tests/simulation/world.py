"""Simulated processes that share one store: each with clocks, a connection, and a service.

Every command is a point of the scheduler, before it reaches the store and, on request, before its
reply returns. So a process can be paused or killed on either side of each command, others can act
in between, and time can pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar
from unittest import mock

from tests.simulation.faults import REPLY_TIMEOUT, Fault
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.watch import Watch
from userlock import LockService
from userlock.clock import Signal
from userlock.events import Listeners
from userlock.lock import lease as lease_module
from userlock.lock.lease import Claim
from userlock.lock.policy import LockPolicy, OutagePolicy
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.testing import ManualClock

_Answer = TypeVar("_Answer")
ROUNDING = 1e-9
_new_claim = lease_module.new_claim


class ProcessClock:
    """The clocks of one process: they run at the common rate, with offsets."""

    def __init__(
        self, scheduler: Scheduler, clock: ManualClock, ahead: float, wall_ahead: float
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._ahead = ahead
        self._wall_ahead = wall_ahead

    def now(self) -> float:
        return self._clock.now() + self._ahead

    def wall(self) -> float:
        return self._clock.wall() + self._wall_ahead

    def sleep(self, seconds: float) -> None:
        # No sleep is shorter than this, and the manual clock has no shorter times.
        self._scheduler.point("sleep", sleep_seconds=max(seconds, 1e-6))

    def wait(self, signal: Signal, seconds: float) -> None:
        if not signal.rung:
            self.sleep(seconds)


class Process:
    """One simulated process."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        label: str,
        ahead: float,
        wall_ahead: float,
        outage: OutagePolicy,
    ) -> None:
        self.name = name
        self.label = label
        self._nonce = f"{len(world.processes):024x}"
        self._count = itertools.count(1)
        self.paused = False
        self.dead = False
        self.clock = ProcessClock(world.scheduler, world.clock, ahead, wall_ahead)
        self.wire = Wire(world, self)
        self.listeners = Listeners()
        self.service = LockService(
            self.wire,
            policy=world.policy,
            outage=outage,
            listeners=self.listeners,
            clock=self.clock,
            random=Random(name),
        )

    def new_token(self) -> str:
        return f"{self._nonce}{next(self._count):x}"


class World:
    """Processes, one store, one time. Use as a context manager.

    Args:
        watch: the store.
        policy: the policy of every process's service.
        latency: returns the time of a command to the store, in seconds.
        both_ways: whether there is a point on a reply's way back, too.
    """

    def __init__(
        self,
        clock: ManualClock,
        watch: Watch,
        *,
        policy: LockPolicy | None = None,
        latency: Callable[[], float] = lambda: 0.0,
        both_ways: bool = True,
    ) -> None:
        self.clock = clock
        self.watch = watch
        self.policy = policy or LockPolicy()
        self.latency = latency
        self.both_ways = both_ways
        self.scheduler = Scheduler(clock.now)
        #: Called after each step of an actor.
        self.after_step: Callable[[], object] = lambda: None
        self.processes: list[Process] = []
        #: The faults of the actors' next commands.
        self.faults: dict[Actor, Fault] = {}
        #: The actors whose commands have met a fault.
        self.met: set[Actor] = set()
        #: Commands that are still on their way, although no caller waits for them.
        self.late: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[World]:
        """Give each simulated process a label and tokens of its own while it runs."""
        with (
            mock.patch.object(lease_module, "process_label", self._label),
            mock.patch.object(lease_module, "new_claim", self._new_claim),
            mock.patch.object(lease_module, "new_token", self._new_token),
        ):
            try:
                yield self
            finally:
                self.scheduler.close()

    def _label(self) -> str:
        return self._running_process().label

    def _new_claim(self, *facts: Any) -> Claim:
        process = self._running_process()
        claim = _new_claim(*facts)
        return dataclasses.replace(claim, token=process.new_token(), process=process.label)

    def _new_token(self) -> str:
        return self._running_process().new_token()

    def _running_process(self) -> Process:
        actor = self.scheduler.current
        assert actor is not None
        assert isinstance(actor.owner, Process)
        return actor.owner

    def process(
        self,
        name: str,
        *,
        label: str = "",
        ahead: float = 0.0,
        wall_ahead: float = 0.0,
        outage: OutagePolicy = OutagePolicy.FAIL,
    ) -> Process:
        """Return a new process, by default with its name as label; `ahead`, `wall_ahead`:
        `ProcessClock`."""
        process = Process(
            self, name, label=label or name, ahead=ahead, wall_ahead=wall_ahead, outage=outage
        )
        self.processes.append(process)
        return process

    def spawn(self, process: Process, name: str, function: Callable[[], object]) -> Actor:
        return self.scheduler.spawn(f"{process.name}: {name}", function, process)

    def kill(self, process: Process) -> None:
        process.dead = True
        for actor in self.scheduler.actors:
            if actor.owner is process:
                actor.kill()

    # --- running ----------------------------------------------------------------------------

    def alive(self) -> list[Actor]:
        """Return the actors that can run, now or later."""
        return [
            actor
            for actor in self.scheduler.actors
            if isinstance(actor.owner, Process) and not actor.owner.paused
        ]

    def runnable(self) -> list[Actor]:
        now = self.clock.now() + ROUNDING
        return [actor for actor in self.alive() if actor.wake_at <= now]

    def run(self, actor: Actor) -> None:
        actor.run()
        self.after_step()

    def settle(self, *, most_steps: int = 2000) -> None:
        """Run all actors until they sleep, or have ended."""
        for _ in range(most_steps):
            runnable = self.runnable()
            if not runnable:
                return
            for actor in runnable:
                self.run(actor)
        raise AssertionError(f"the actors never rest: {self.runnable()}")

    def pass_time(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass. Each actor that is not paused runs when its sleep ends."""
        end = self.clock.now() + seconds
        self.settle()
        while not until():
            next_one = min((actor.wake_at for actor in self.alive()), default=math.inf)
            self.clock.advance(max(0.0, min(next_one, end) - self.clock.now()))
            if next_one > end:
                return
            self.settle()


class Wire(LeaseStore):
    """One process's way to the store: a `LeaseStore` whose commands may meet a fault."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        wake_ups = world.watch.store.wake_ups
        if wake_ups is not None:  # those of a process, which are all lost
            self.wake_ups = type(wake_ups)()

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        watch, who = self._world.watch, self._process
        return self._command(
            "create", lambda: watch.create(who, lock_id, record, ttl_seconds), hurry=False
        )

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return self._command("read", lambda: self._world.watch.read(lock_id), hurry=hurry)

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        watch, who = self._world.watch, self._process
        return self._command(
            "swap", lambda: watch.swap(who, lock_id, version, record, ttl_seconds), hurry=False
        )

    def take_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        watch, who = self._world.watch, self._process
        return self._command(
            "take over",
            lambda: watch.take_over(who, lock_id, version, record, ttl_seconds),
            hurry=False,
        )

    def remove(self, lock_id: str, version: object) -> bool:
        watch, who = self._world.watch, self._process
        return self._command("remove", lambda: watch.remove(who, lock_id, version), hurry=False)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        watch, who = self._world.watch, self._process
        return self._command("append", lambda: watch.append(who, lock_id, line), hurry=False)

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _command(self, verb: str, do: Callable[[], _Answer], *, hurry: bool) -> _Answer:
        world = self._world
        actor = world.scheduler.current
        assert actor is not None
        world.scheduler.point(f"{verb}, on its way", sleep_seconds=world.latency())
        fault = world.faults.pop(actor, Fault.NONE)
        if fault is not Fault.NONE:
            world.met.add(actor)
        answer = [do()] if fault.executed else []
        if fault is Fault.LATE:
            world.late.append(do)
        if fault.slow:
            seconds = 0.1 if hurry else REPLY_TIMEOUT
            world.scheduler.point(f"{verb}, timing out", sleep_seconds=seconds)
        elif world.both_ways:
            world.scheduler.point(f"{verb}, answered")
        if fault is Fault.NONE:
            return answer[0]
        raise StoreUnavailable(
            f"{verb}: {fault.value}", sent=fault is not Fault.REFUSED, slow=fault.slow
        )
