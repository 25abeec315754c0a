"""Ten simulated minutes of interactive requests and batch jobs that share locks, served fairly.

`tests.history` checks the history, independently of the lock's implementation. Times are simulated:
a command takes about a millisecond, clocks differ, and think and work times are random.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from tests.history import Attempt, Unfair, check
from tests.simulation.scheduler import Actor
from tests.simulation.watch import Watch
from tests.simulation.world import Process, World
from userlock import LockTimeout
from userlock.events import Contended, Event
from userlock.lock.policy import LockPolicy, PriorityPolicy
from userlock.lock.record import Record
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

#: No command takes longer, in seconds.
MOST_LATENCY = 0.003
AGES_AFTER = 30.0


@dataclasses.dataclass(frozen=True)
class Day:
    """The parameters of a day. Times in seconds, means of exponential ones."""

    minutes: float
    seed: int
    locks: int = 1
    interactive: int = 6
    jobs: int = 3
    interactive_thinks: float = 2.0
    interactive_holds: float = 0.15
    job_thinks: float = 2.0
    job_holds: float = 0.4


class Simulation:
    """One day. `history` has its attempts."""

    def __init__(self, day: Day, policy: LockPolicy | None = None) -> None:
        self.day = day
        self.history: list[Attempt] = []
        self.clock = ManualClock()
        self.watch = Watch(MemoryStore(clock=self.clock), self.clock)
        random = Random(day.seed)
        self.world = World(
            self.clock,
            self.watch,
            policy=policy,
            latency=lambda: random.uniform(0.0002, MOST_LATENCY),
            both_ways=False,
        )
        self._random = random
        self._end = self.clock.now() + 60 * day.minutes
        self._present: dict[Actor | None, Attempt] = {}

    def run(self) -> list[Attempt]:
        with self.world.running():
            for number in range(self.day.interactive + self.day.jobs):
                # Two threads per process.
                if number % 2 == 0:
                    self.world.process(
                        f"host/{number}",
                        ahead=self._random.uniform(0, 1000),
                        wall_ahead=self._random.uniform(-5, 5),
                    ).listeners.add(self._note)
                batch = number >= self.day.interactive
                self._employ(self.world.processes[-1], batch, Random(self._random.random()))
            # No attempt begins after the end, and the longest wait is a minute.
            self.world.pass_time(60 * self.day.minutes + 120)
        assert not self.watch.violations, self.watch.violations
        return self.history

    def _note(self, event: Event) -> None:
        if isinstance(event, Contended):
            attempt = self._present[self.world.scheduler.current]
            attempt.queued = self.clock.now()

    def _employ(self, process: Process, batch: bool, random: Random) -> None:
        day = self.day
        thinks = day.job_thinks if batch else day.interactive_thinks
        holds = day.job_holds if batch else day.interactive_holds

        def work() -> None:
            while self.clock.now() < self._end:
                process.clock.sleep(random.expovariate(1 / thinks))
                self._attempt(process, batch, random, random.expovariate(1 / holds))

        self.world.spawn(process, "batch" if batch else "person", work)

    def _attempt(self, process: Process, batch: bool, random: Random, hold: float) -> None:
        lock_id = f"lock {random.randrange(self.day.locks)}"
        timeout = random.choice([0.0, 0.5, 10.0, 10.0]) if not batch else 60.0
        attempt = Attempt(lock_id, process.name, batch, self.clock.now(), timeout)
        self.history.append(attempt)
        self._present[self.world.scheduler.current] = attempt
        try:
            lease = process.service.acquire(
                lock_id, wait_timeout=timeout, priority="batch" if batch else "interactive"
            )
        except LockTimeout:
            attempt.failed = self.clock.now()
            return
        attempt.granted = self.clock.now()
        process.clock.sleep(hold)
        attempt.released = self.clock.now()
        process.service.release(lease, held_seconds=hold)


def _check(history: list[Attempt]) -> None:
    check(history, store_seconds=6 * MOST_LATENCY, ages_after=AGES_AFTER)


def _rush(minutes: float, seed: int) -> Day:
    """Return a day with too many interactive requests: batch is served only if it ages."""
    return Day(minutes, seed, interactive=10, interactive_thinks=0.1, interactive_holds=0.3)


def test_a_minute() -> None:
    history = Simulation(Day(1, seed=1)).run()
    _check(history)
    assert sum(attempt.queued is not None for attempt in history) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("locks", [1, 3])
def test_ten_minutes(seed: int, locks: int) -> None:
    history = Simulation(Day(10, seed, locks=locks, interactive_thinks=1.0)).run()
    _check(history)
    waits = [a.waited for a in history if a.queued is not None and a.granted is not None]
    print(f"\n{len(history)} attempts, {len(waits)} waited, the longest {max(waits):.2f} s")
    assert len(waits) > 100


@pytest.mark.slow
def test_batch_is_served_in_a_rush_that_lasts_for_ten_minutes() -> None:
    """Batch waits behind interactive for `ages_after`; later requests cannot overtake it then."""
    history = Simulation(_rush(10, seed=0)).run()
    _check(history)
    waits = [a.waited for a in history if a.batch and a.granted is not None]
    print(f"\n{len(waits)} batch attempts were served, the longest wait {max(waits):.2f} s")
    assert sum(wait >= AGES_AFTER for wait in waits) > 10, "there was no rush"
    # Requests that are queued when it ages go first, and batch that has aged before.
    assert max(waits) < AGES_AFTER + 15


# --- the negative controls ----------------------------------------------------------------------


def test_batch_that_ranks_as_interactive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, "_ranks_as_batch", lambda *_: False)
    simulation = Simulation(Day(0.5, seed=1, interactive_thinks=0.5))
    with pytest.raises(AssertionError):
        simulation.run()  # the watch reports violations
    with pytest.raises(Unfair, match=r"batch .* was granted the lock .* before interactive"):
        _check(simulation.history)


def test_interactive_requests_in_no_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process takes the lock as soon as it is free."""
    monkeypatch.setattr(Record, "position_of", lambda *_: 0)
    simulation = Simulation(Day(0.5, seed=1, interactive_thinks=0.5))
    with pytest.raises(AssertionError):
        simulation.run()
    with pytest.raises(Unfair, match="was granted the lock"):
        _check(simulation.history)


@pytest.mark.slow
def test_batch_that_never_ages_is_found() -> None:
    policy = LockPolicy(batch=PriorityPolicy(wait_timeout=60, ages_after=None))
    simulation = Simulation(_rush(3, seed=0), policy)
    with pytest.raises(Unfair, match=r"interactive .* was granted the lock .* before batch"):
        _check(simulation.run())
