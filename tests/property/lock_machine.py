"""A Hypothesis machine: simulated processes that share locks, in any interleaving.

Hypothesis chooses the next actor, the fault of its next command, the passing of time, pauses, kills
and breaks, and losses of the store's data. After every step the invariants are checked. At the end
the faults stop, and every waiter must be served.
"""

from __future__ import annotations

import contextlib
import math

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.property.lock_calls import LONG_BYTES, LockCalls
from tests.simulation.faults import Fault
from tests.simulation.tenures import HeldLock
from tests.simulation.watch import PATIENCE_SECONDS
from userlock import LockServiceUnavailable
from userlock.lock.policy import OutagePolicy
from userlock.lock.store import GRACE_SECONDS

LOCKS = ("ann", "ann", "ben")  # most calls contend for one
_MOST_ACTORS = 8
_MOST_KILLS = 3
#: The first one may find a reservation, the second one a later waiter that has died.
_MOST_TRIES = 3

_numbers = st.integers(0, 7)
_faults = st.one_of(st.just(Fault.NONE), st.sampled_from(list(Fault)))
_skews = st.sampled_from([0.0, 0.0, 0.2, -3.0, 40.0, -86400.0])


class LockMachine(LockCalls):
    """The machine: see the module. Negative controls override `make_store`."""

    @initialize(
        aheads=st.lists(_skews, min_size=3, max_size=3),
        walls=st.lists(_skews, min_size=3, max_size=3),
        optimistic=st.booleans(),
        room=st.sampled_from([math.inf, math.inf, LONG_BYTES, 2 * LONG_BYTES]),
    )
    def begin(self, aheads: list[float], walls: list[float], optimistic: bool, room: float) -> None:
        self.watch.store.room = room
        self.outage = OutagePolicy.OPTIMISTIC if optimistic else OutagePolicy.FAIL
        for ahead, wall in zip(aheads, walls, strict=True):
            self._new_process(ahead, wall)

    # --- what processes do ------------------------------------------------------------------

    @precondition(lambda self: len(self.world.scheduler.actors) < _MOST_ACTORS)
    @rule(
        process=_numbers,
        lock_id=st.sampled_from(LOCKS),
        batch=st.booleans(),
        wait=st.sampled_from([0.0, 0.1, 0.4, 30.0, 30.0]),
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
    def queue_callers(self, lock_id: str, batches: list[bool]) -> None:
        """Queue callers, each in a process of its own, as far as there are enough."""
        for number, batch in enumerate(batches):
            self._acquire(self._pick(number), lock_id, batch, 30.0, 10.0)
            self._run(self.calls[-1].actor, 100)

    @rule(
        lock_id=st.sampled_from(LOCKS),
        callers=st.integers(1, 6),
        wait=st.sampled_from([0.0, 0.02, 0.1]),
        apart=st.sampled_from([0.0, 0.05, 0.3]),
    )
    def impatient_callers(self, lock_id: str, callers: int, wait: float, apart: float) -> None:
        """Run callers one after the other, each in a process of its own."""
        for number in range(callers):
            self._acquire(self._pick(number), lock_id, False, wait, 2.0)
            self.world.pass_time(wait + apart)

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
        self._extend(idle[number % len(idle)], seconds)
        self._run_with(fault, steps)

    @precondition(lambda self: self._degraded())
    @rule(times=st.integers(1, 5))
    def confirm_degraded(self, times: int) -> None:
        """Confirm repeatedly, as renewals do."""
        for _ in range(times):
            for tenure in self._degraded():
                self._extend(tenure, 0.0)
            self.world.pass_time(0.26)

    def _degraded(self) -> list[HeldLock]:
        return [tenure for tenure in self.tenures.idle() if tenure.lease.degraded]

    @rule(process=_numbers, lock_id=st.sampled_from(LOCKS))
    def break_lock(self, process: int, lock_id: str) -> None:
        who = self._pick(process)
        self.watch.breakers.append(who)

        def do() -> None:
            with contextlib.suppress(LockServiceUnavailable):
                who.service.break_lock(lock_id, by="an operator")

        self._call(who, "break", do, lambda *_: self.watch.breakers.remove(who))
        self._run_with(Fault.NONE, 100)

    # --- the next step ----------------------------------------------------------------------

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
    def everyone_continues(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([0.01, 0.26, 0.6, 2.1, 11.0, 14.0]))
    def no_one_continues(self, seconds: float) -> None:
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
    def kill_waiter(self, lock_id: str, position: int) -> None:
        owners = [self.watch.owners[token] for token in self.watch.waiting(lock_id)]
        alive = [process for process in owners if not process.dead]
        if alive:
            self._kill(alive[position % len(alive)])

    # --- accidents of the store --------------------------------------------------------------

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

    # --- invariants --------------------------------------------------------------------------

    @invariant()
    def invariants_hold(self) -> None:
        try:
            self.tenures.check_exclusion()
            assert not self.watch.violations, self.watch.violations
            assert not self.tenures.violations, self.tenures.violations
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
        """Stop all faults and release every lock at once: every waiter is served, in time."""
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
            # Each dead waiter, and each one that is overtaken, costs one patience.
            + (len(self.world.processes) + 1) * PATIENCE_SECONDS * 2
            + (waiting + 2) * 0.5
        )
        self.world.pass_time(bound, until=self._all_done)
        left = self.world.scheduler.actors
        assert not left, f"after {bound:.1f} s without faults: {left}"
        for lock_id in set(LOCKS):
            self._check_impatient_callers(lock_id)
        self.invariants_hold()

    def _all_done(self) -> bool:
        self.invariants_hold()
        for lock_id in set(LOCKS):
            self._check_progress(lock_id)
        return not self.world.scheduler.actors

    def _check_progress(self, lock_id: str) -> None:
        """Check that a free lock with a live waiter is soon taken."""
        idle_since = self.watch.idle_since(lock_id)
        alive = [t for t in self.watch.waiting(lock_id) if not self.watch.owners[t].dead]
        if idle_since is not None and alive and self.world.scheduler.actors:
            idle = self.clock.now() - max(idle_since, self.calm_since)
            bound = len(self.world.processes) * PATIENCE_SECONDS + 0.75
            assert idle <= bound, f"no waiter takes {lock_id}, free for {idle:.1f} s: {alive}"

    def _check_impatient_callers(self, lock_id: str) -> None:
        """Check that dead waiters do not keep a free lock from callers that do not wait."""
        self.world.pass_time(self.watch.lapses_at(lock_id) - self.clock.now() + 0.001)
        for _ in range(_MOST_TRIES):
            self._new_process()  # a process without knowledge of earlier ones
            self._acquire(self.world.processes[-1], lock_id, False, 0.0, 2.0)
            dead = len(self.watch.waiting(lock_id))
            self.world.pass_time(0, until=lambda: not self.world.scheduler.actors)
            if self.tenures.all[-1:] and self.tenures.all[-1].process is self.world.processes[-1]:
                return
            self.world.pass_time((dead + 1) * PATIENCE_SECONDS)
        raise AssertionError(f"{lock_id} is free, but refused to a caller that does not wait")
