"""The rate and the concurrency of a queue, and what queues leave to each other."""

from __future__ import annotations

from typing import Any

import pytest

from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.clock import NEVER
from userlock_emulator.tasks.lanes import Lane
from userlock_emulator.tasks.protos import Queue
from userlock_emulator.tasks.validation import complete_queue

SECOND = 1_000_000


def lane(rate: float = 500, concurrent: int = 1000, state: Any = Queue.RUNNING) -> Lane:
    queue = Queue(name="projects/p/locations/l/queues/q", state=state)
    queue.rate_limits.max_dispatches_per_second = rate
    queue.rate_limits.max_concurrent_dispatches = concurrent
    complete_queue(queue)
    return Lane(1, queue, 0)


def drained(rate: float) -> Lane:
    full = lane(rate)
    while full.take(0):
        pass
    return full


def test_queues_that_take_all_they_can_leave_some_to_others() -> None:
    """However many queues hang, another one can still begin an attempt."""
    most = 1000
    lanes = [lane() for _ in range(6)]
    taken = []
    for subject in lanes:
        while subject.open(most - sum(each.running for each in lanes)):
            subject.running += 1
        taken.append(subject.running)
    assert taken[0] == 500
    assert all(number > 0 for number in taken)
    assert taken == sorted(taken, reverse=True)


def test_without_that_rule_the_first_takes_all() -> None:
    """The negative control."""
    subject = lane()
    while subject.open(10**9):
        subject.running += 1
    assert subject.running == 1000


@pytest.mark.parametrize("state", [Queue.PAUSED, Queue.DISABLED])
def test_a_queue_that_does_not_run(state: Any) -> None:
    subject = lane(state=state)
    assert not subject.open(1000)
    assert subject.next_time(0, 1000) == NEVER


class TestThrottling:
    @pytest.mark.parametrize(
        ("status", "app_engine", "slower"),
        [
            (503, False, True), (429, False, True), (503, True, True), (429, True, False),
            (500, False, False), (404, False, False), (None, False, False),
        ],
    )  # fmt: skip
    def test_answers(self, status: int | None, app_engine: bool, slower: bool) -> None:
        subject = lane(10)
        subject.note(Answer(status=status), app_engine, 0)
        if slower:  # half the rate, and no token left
            assert subject.ready(0) == pytest.approx(SECOND / 5, abs=2)
        else:
            assert subject.ready(0) == 0
