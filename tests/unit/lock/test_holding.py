"""Many locks, one inside the other: what it costs, and that nothing of their order is missed."""

from __future__ import annotations

import itertools
import random
import time

import pytest

import userlock
from userlock import LockService
from userlock.events import Event, OutOfOrder
from userlock.lock.order import OrderGraph, Taken, describe
from userlock.lock.scope import LockScope
from userlock.lock.tenure import Tenure

#: How far a lock's cost may grow with the number of those that are held: machines are noisy. It
#: was more than a hundred.
SLACK = 25.0


def place(number: int) -> Taken:
    """A place in the code, made up."""
    return describe.__code__, number


def reached(graph: OrderGraph, start: str) -> set[str]:
    return set(graph._reached_from(start))


class TestCost:
    """In processor time of this thread, so that what else runs here does not count."""

    def seconds_a_lock(self, service: LockService, count: int, *, descending: bool) -> float:
        ids = [f"learner-{number:05}" for number in range(count)]
        if descending:
            ids.reverse()
        with userlock.scope(service) as scope:
            began = time.thread_time()
            for lock_id in ids:
                scope.acquire(lock_id, taken=place(0))
            for lock_id in reversed(ids):
                scope.release(lock_id)
            return (time.thread_time() - began) / count

    @pytest.mark.parametrize("descending", [False, True])
    def test_a_lock_costs_the_same_however_many_are_held(
        self, service: LockService, descending: bool
    ) -> None:
        """Before: 0.03 ms with a hundred, 3.8 ms with three thousand."""
        few = min(self.seconds_a_lock(service, 100, descending=descending) for _ in range(5))
        many = min(self.seconds_a_lock(service, 3000, descending=descending) for _ in range(2))
        assert many < SLACK * few

    def test_whoever_looks_at_what_is_held_keeps_what_it_saw(self, service: LockService) -> None:
        """The price of not copying it each time must not be that pictures change."""
        with userlock.scope(service) as scope:
            pictures = [scope.held]
            for number in range(50):
                scope.acquire(str(number))
                pictures.append(scope.held)
            for number in range(50):
                scope.release(str(number))
                pictures.append(scope.held)
        assert [len(picture) for picture in pictures] == [*range(51), *reversed(range(50))]


class Program:
    """Takes and leaves locks as chance has it, and notes what should be known of their order."""

    def __init__(self, service: LockService, seed: int) -> None:
        self._random = random.Random(seed)
        self._service = service
        self._scopes: list[LockScope] = []
        self._held: list[tuple[LockScope, Tenure]] = []
        self.taken_inside: set[tuple[str, str]] = set()
        self.against: set[tuple[Taken, Taken]] = set()

    def run(self, steps: int) -> None:
        with userlock.scope(self._service) as outer, userlock.scope(self._service) as inner:
            self._scopes = [outer, inner]
            for _ in range(steps):
                if self._held and self._random.random() < 0.4:
                    self._leave()
                else:
                    self._take()

    def _leave(self) -> None:
        scope, tenure = self._held.pop(self._random.randrange(len(self._held)))
        scope.leave(tenure)

    def _take(self) -> None:
        lock_id = f"{self._random.randrange(40):02}"
        waits = self._random.random() < 0.7
        if any(tenure.lock_id == lock_id for _, tenure in self._held):
            return
        # Most are taken in the inner one. What it holds is nothing to the outer one's.
        inner = self._random.random() < 0.8
        scope = self._scopes[inner]
        taken = place(self._random.randrange(6))
        seen = [tenure for where, tenure in self._held if inner or where is scope]
        tenure = scope.acquire(lock_id, wait_timeout=None if waits else 0, taken=taken)
        self._held.append((scope, tenure))
        if waits:
            self.taken_inside |= {(other.lock_id, lock_id) for other in seen}
            self.against |= {(other.taken_by, taken) for other in seen if other.lock_id > lock_id}


@pytest.fixture(params=range(20))
def program(request: pytest.FixtureRequest, service: LockService) -> Program:
    program = Program(service, request.param)
    program.run(80)
    return program


class TestNothingIsMissed:
    """With few edges in the order graph, and few locks looked at."""

    def test_ways_lead_from_all_that_was_held_to_what_was_taken(
        self, service: LockService, program: Program
    ) -> None:
        assert len(program.taken_inside) > 30
        for first, second in program.taken_inside:
            assert second in reached(service.order, first) | {first}

    def test_each_pair_of_places_against_the_order_is_reported(
        self, events: list[Event], program: Program
    ) -> None:
        reports = [event for event in events if isinstance(event, OutOfOrder)]
        told = {(report.held_at, report.taken_at) for report in reports}
        assert told == {(describe(held), describe(taken)) for held, taken in program.against}

    def test_no_way_leads_along_what_did_not_wait(
        self, service: LockService, program: Program
    ) -> None:
        """Each edge is of a lock that was waited for while the other one was held."""
        assert set(service.order._edges) <= program.taken_inside

    def test_edges_are_few(self, service: LockService) -> None:
        with userlock.scope(service) as scope:
            for number in range(500):
                scope.acquire(f"{number:03}")
        chain = {
            (f"{first:03}", f"{second:03}") for first, second in itertools.pairwise(range(500))
        }
        assert set(service.order._edges) == chain
