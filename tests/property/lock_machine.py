"""A Hypothesis machine: simulated processes that share locks, in any interleaving.

Hypothesis chooses who goes one step further, what happens to its next
command, when time passes, who is paused, killed or broken, and when the store
forgets. After every step, what must be true at any time is checked; at the
end the faults stop, and everybody who waits must be served.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.simulation.faults import Fault
from tests.simulation.scheduler import Actor
from tests.simulation.tenures import Tenure, Tenures
from tests.simulation.watch import PATIENCE_SECONDS, Watch
from tests.simulation.world import Process, World
from userlock import LockServiceUnavailable, LockTimeout
from userlock.lock.lease import Granted, Lease, Lost, Released
from userlock.lock.policy import LockPolicy, OutagePolicy, PriorityPolicy
from userlock.lock.store import GRACE_SECONDS
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

LOCKS = ("ann", "ann", "ben")  # most meet at one
_MOST_ACTORS = 8
_MOST_KILLS = 3

_numbers = st.integers(0, 7)
_faults = st.one_of(st.just(Fault.NONE), st.sampled_from(list(Fault)))
_skews = st.sampled_from([0.0, 0.0, 0.2, -3.0, 40.0, -86400.0])
_POLICY = LockPolicy(batch=PriorityPolicy(ages_after=5.0))


@dataclasses.dataclass
class _Call:
    """What an actor has been asked to do; `finish(result, no fault was met)` is called then."""

    actor: Actor
    process: Process
    finish: Callable[[Any, bool], None]


class LockMachine(RuleBasedStateMachine):
    """See the module. Negative controls override `make_store`."""

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

    @initialize(
        aheads=st.lists(_skews, min_size=3, max_size=3),
        walls=st.lists(_skews, min_size=3, max_size=3),
        optimistic=st.booleans(),
    )
    def begin(self, aheads: list[float], walls: list[float], optimistic: bool) -> None:
        self.outage = OutagePolicy.OPTIMISTIC if optimistic else OutagePolicy.FAIL
        for ahead, wall in zip(aheads, walls, strict=True):
            self._new_process(ahead, wall)

    def _new_process(self, ahead: float = 0.0, wall_ahead: float = 0.0) -> None:
        name = f"host/{len(self.world.processes)}"
        self.world.process(name, ahead=ahead, wall_ahead=wall_ahead, outage=self.outage)

    # --- what processes do ------------------------------------------------------------------

    @precondition(lambda self: len(self.world.scheduler.actors) < _MOST_ACTORS)
    @rule(
        process=_numbers,
        lock_id=st.sampled_from(LOCKS),
        batch=st.booleans(),
        wait=st.sampled_from([0.0, 0.4, 30.0, 30.0]),
        ttl=st.sampled_from([0.5, 2.0, 10.0]),
        fault=_faults,
        steps=st.sampled_from([0, 1, 2, 4, 100]),
    )
    def acquire(
        self,
        process: int,
        lock_id: str,
        batch: bool,
        wait: float,
        ttl: float,
        fault: Fault,
        steps: int,
    ) -> None:
        self._acquire(self._pick(process), lock_id, batch, wait, ttl)
        self._run_with(fault, steps)

    @precondition(lambda self: not self.world.scheduler.actors)
    @rule(lock_id=st.sampled_from(LOCKS), batches=st.lists(st.booleans(), min_size=2, max_size=4))
    def line_up(self, lock_id: str, batches: list[bool]) -> None:
        """Each in a process of its own, as far as there are enough."""
        for number, batch in enumerate(batches):
            self._acquire(self._pick(number), lock_id, batch, 30.0, 10.0)
            self._run(self.calls[-1].actor, 100)

    @precondition(lambda self: self.tenures.idle())
    @rule(number=_numbers, fault=_faults, steps=st.sampled_from([0, 1, 2, 100, 100]))
    def release(self, number: int, fault: Fault, steps: int) -> None:
        idle = self.tenures.idle()
        self._release(idle[number % len(idle)])
        self._run_with(fault, steps)

    @precondition(lambda self: self.tenures.idle())
    @rule(
        number=_numbers,
        seconds=st.sampled_from([0.3, 3.0]),
        fault=_faults,
        steps=st.sampled_from([0, 1, 2, 100]),
    )
    def extend(self, number: int, seconds: float, fault: Fault, steps: int) -> None:
        idle = self.tenures.idle()
        tenure = idle[number % len(idle)]
        service, lease, asked_at = tenure.process.service, tenure.lease, self.clock.now()
        if lease.degraded:
            do: Callable[[], object] = lambda: service.confirm(lease)  # noqa: E731
        else:
            do = lambda: service.extend(lease, seconds)  # noqa: E731
            tenure.believed = min(tenure.believed, tenure.process.clock.now() + seconds)
        self._call(
            tenure.process, "extend", do, lambda told, _: self._extended(tenure, told, asked_at)
        )
        tenure.busy = True
        self._run_with(fault, steps)

    @rule(process=_numbers, lock_id=st.sampled_from(LOCKS))
    def break_lock(self, process: int, lock_id: str) -> None:
        who = self._pick(process)
        self.watch.breakers.append(who)

        def do() -> None:
            with contextlib.suppress(LockServiceUnavailable):
                who.service.break_lock(lock_id, by="an operator")

        self._call(who, "break", do, lambda *_: self.watch.breakers.remove(who))
        self._run_with(Fault.NONE, 100)

    # --- who goes on, and when --------------------------------------------------------------

    @precondition(lambda self: self.world.runnable())
    @rule(number=_numbers, fault=_faults, steps=st.sampled_from([1, 1, 2, 3]))
    def step(self, number: int, fault: Fault, steps: int) -> None:
        runnable = self.world.runnable()
        actor = runnable[number % len(runnable)]
        if fault is not Fault.NONE:
            self.world.faults[actor] = fault
        self._run(actor, steps)

    @precondition(lambda self: self.world.scheduler.actors)
    @rule(seconds=st.sampled_from([0.001, 0.03, 0.1, 0.26, 0.6, 2.1, 6.0]))
    def everybody_goes_on(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([0.01, 0.26, 0.6, 2.1, 11.0, 14.0]))
    def nobody_goes_on(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(number=_numbers)
    def pause(self, number: int) -> None:
        self._pick(number).paused = True

    @precondition(lambda self: any(process.paused for process in self.world.processes))
    @rule()
    def all_continue(self) -> None:
        for process in self.world.processes:
            process.paused = False

    @precondition(lambda self: self.kills < _MOST_KILLS)
    @rule(number=_numbers)
    def kill(self, number: int) -> None:
        self._kill(self._pick(number))

    @precondition(lambda self: self.kills < _MOST_KILLS and self.world.scheduler.actors)
    @rule(lock_id=st.sampled_from(LOCKS), position=st.integers(0, 2))
    def kill_in_line(self, lock_id: str, position: int) -> None:
        owners = [self.watch.owners[token] for token in self.watch.waiting(lock_id)]
        alive = [process for process in owners if not process.dead]
        if alive:
            self._kill(alive[position % len(alive)])

    # --- what befalls the store -------------------------------------------------------------

    @rule(lock_id=st.sampled_from(LOCKS))
    def evict(self, lock_id: str) -> None:
        self.watch.forget(lock_id)

    @rule()
    def restart(self) -> None:
        self.watch.forget()

    @precondition(lambda self: self.world.late)
    @rule(number=_numbers)
    def a_late_command_arrives(self, number: int) -> None:
        self.world.late.pop(number % len(self.world.late))()

    # --- what is true at any time -----------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        try:
            self.tenures.check_exclusion()
            assert not self.watch.complaints, self.watch.complaints
            assert not self.tenures.complaints, self.tenures.complaints
        except BaseException:
            self.failed = True
            raise

    def teardown(self) -> None:
        try:
            if not self.failed and self.world.processes:
                self._calm_down()
        finally:
            self._running.close()

    def _calm_down(self) -> None:
        """No more faults, and nobody keeps a lock: everybody who waits is served, in time."""
        self.calm, self.calm_since = True, self.clock.now()
        self.world.faults.clear()
        while self.world.late:
            self.world.late.pop(0)()
        for process in self.world.processes:
            process.paused = False
        for tenure in self.tenures.idle():
            self._release(tenure)
        waiting = len(self.world.scheduler.actors)
        bound = (
            max(0.0, *(self.watch.lapses_at(lock_id) - self.clock.now() for lock_id in LOCKS))
            + GRACE_SECONDS
            # Each who is dead, and each who is passed over, is waited for once.
            + (len(self.world.processes) + 1) * PATIENCE_SECONDS * 2
            + (waiting + 2) * 0.5
        )
        self.world.pass_time(bound, until=self._all_done)
        left = self.world.scheduler.actors
        assert not left, f"after {bound:.1f} s without faults: {left}"
        self.nothing_is_wrong()

    def _all_done(self) -> bool:
        self.nothing_is_wrong()
        for lock_id in set(LOCKS):
            self._check_progress(lock_id)
        return not self.world.scheduler.actors

    def _check_progress(self, lock_id: str) -> None:
        """A free lock does not stay so for long while somebody waits who is alive."""
        idle_since = self.watch.idle_since(lock_id)
        alive = [t for t in self.watch.waiting(lock_id) if not self.watch.owners[t].dead]
        if idle_since is not None and alive and self.world.scheduler.actors:
            idle = self.clock.now() - max(idle_since, self.calm_since)
            bound = len(self.world.processes) * PATIENCE_SECONDS + 0.75
            assert idle <= bound, f"nobody takes {lock_id}, free for {idle:.1f} s: {alive}"

    # --- within -----------------------------------------------------------------------------

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
        """That many steps of one actor, if it can run; whether others can does not matter."""
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
        """Take down what has come of the calls that have ended."""
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
        tenure = Tenure(process, lease)
        self.tenures.all.append(tenure)
        if self.calm:
            self._release(tenure)

    def _release(self, tenure: Tenure) -> None:
        lease, asked_at = tenure.lease, self.clock.now()
        tenure.busy = tenure.over = True
        self._call(
            tenure.process,
            "release",
            lambda: tenure.process.service.give_back(lease),
            lambda outcome, faultless: self._released(tenure, outcome, asked_at, faultless),
        )

    def _released(self, tenure: Tenure, outcome: object, asked_at: float, faultless: bool) -> None:
        if tenure.lease.degraded:
            return
        match outcome:
            case Released():
                self.tenures.check_released(tenure.lease, asked_at, faultless=faultless)
            case Lost():
                self.tenures.check_lost(outcome, tenure.lease, tenure.process, asked_at)

    def _extended(self, tenure: Tenure, told: object, asked_at: float) -> None:
        tenure.busy = False
        match told:
            case Granted(lease):
                tenure.lease, tenure.believed = lease, math.inf
            case Lost():
                self.tenures.check_lost(told, tenure.lease, tenure.process, asked_at)
                tenure.over = True
            case _:  # a shorter lease may have been granted; as `Tenure.extend` does
                end = min(tenure.lease.deadline, tenure.believed)
                tenure.lease = tenure.lease._replace(deadline=end)
        if self.calm and not tenure.over:
            self._release(tenure)
