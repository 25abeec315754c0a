"""Back-off, token buckets and throttling; the queues that share a dispatcher."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.clock import NEVER
from userlock_emulator.tasks.lanes import Lane
from userlock_emulator.tasks.protos import Queue
from userlock_emulator.tasks.schedule import Retry, Throttle, TokenBucket, burst_of
from userlock_emulator.tasks.validation import complete_queue

SECOND = 1_000_000


def retry(
    attempts: int = 100, duration: int = 0, low: float = 10, high: float = 300, doublings: int = 3
) -> Retry:
    return Retry(
        max_attempts=attempts,
        max_duration=duration * SECOND,
        min_backoff=int(low * SECOND),
        max_backoff=int(high * SECOND),
        max_doublings=doublings,
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (retry(), [10, 20, 40, 80, 160, 240, 300, 300, 300]),  # of the reference
        (retry(low=0.1, high=3600, doublings=16), [0.1, 0.2, 0.4, 0.8, 1.6]),
        (retry(doublings=0), [10, 20, 30, 40, 50]),
        (retry(doublings=1), [10, 20, 40, 60, 80]),
        (retry(low=5, high=5), [5, 5, 5, 5, 5]),
        (retry(low=1, high=10, doublings=2**31 - 1), [1, 2, 4, 8, 10]),
    ],
)
def test_series(settings: Retry, expected: list[float]) -> None:
    intervals = [settings.interval(number) / SECOND for number in range(1, len(expected) + 1)]
    assert intervals == pytest.approx(expected)


@given(
    low=st.integers(1, 10**9),
    more=st.integers(0, 10**12),
    doublings=st.integers(0, 2**31 - 1),
    number=st.integers(1, 2**31 - 1),
)
def test_intervals_grow_within_their_bounds(
    low: int, more: int, doublings: int, number: int
) -> None:
    settings = Retry(
        max_attempts=1,
        max_duration=0,
        min_backoff=low,
        max_backoff=low + more,
        max_doublings=doublings,
    )
    assert low <= settings.interval(number) <= settings.interval(number + 1) <= low + more


@given(
    rate=st.floats(0.01, 500),
    burst=st.integers(1, 100),
    steps=st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60),
)
def test_no_window_has_more_than_the_burst_and_the_rate(
    rate: float, burst: int, steps: list[int]
) -> None:
    bucket = TokenBucket(rate, burst, 0)
    taken = [now for now in itertools.accumulate(steps) if bucket.take(now)]
    for first, last in itertools.combinations_with_replacement(range(len(taken)), 2):
        window = (taken[last] - taken[first]) / SECOND
        assert last - first + 1 <= burst + rate * window + 1e-6


@given(rate=st.floats(0.01, 500), burst=st.integers(1, 20), now=st.integers(0, 10**9))
def test_a_token_is_there_when_it_was_promised(rate: float, burst: int, now: int) -> None:
    bucket = TokenBucket(rate, burst, now)
    while bucket.take(now):
        pass
    ready = bucket.ready(now)
    assert now < ready <= now + SECOND / rate + 2
    assert bucket.take(ready)


def test_a_clock_that_is_set_back_takes_and_gives_nothing() -> None:
    bucket = TokenBucket(1, 2, 10 * SECOND)
    assert bucket.take(10 * SECOND)
    assert bucket.take(5 * SECOND)
    assert not bucket.take(5 * SECOND)
    assert bucket.take(6 * SECOND)


def test_a_rate_that_is_next_to_nothing_ends_at_never() -> None:
    bucket = TokenBucket(5e-324, 1, 0)
    assert bucket.take(0)
    assert bucket.ready(0) == NEVER


def test_a_changed_rate_keeps_the_tokens() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.change(1, 3, 0)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]
    bucket.drain(SECOND)
    assert bucket.ready(SECOND) == pytest.approx(2 * SECOND, abs=2)


def test_throttling_is_bounded_and_ends_with_success() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.slow_down()
    assert throttle.factor == 1 / 64
    for _ in range(6):
        throttle.speed_up()
    assert throttle.factor == 1
    throttle.speed_up()
    assert throttle.factor == 1


@pytest.mark.parametrize(
    ("rate", "burst"), [(500, 100), (100, 100), (10, 10), (1.5, 2), (1, 1), (0.01, 1)]
)
def test_burst(rate: float, burst: int) -> None:
    assert burst_of(rate) == burst


def lane(rate: float = 500, concurrent: int = 1000, state: Any = Queue.RUNNING) -> Lane:
    queue = Queue(name="projects/p/locations/l/queues/q", state=state)
    queue.rate_limits.max_dispatches_per_second = rate
    queue.rate_limits.max_concurrent_dispatches = concurrent
    complete_queue(queue)
    return Lane(1, queue, 0)


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
