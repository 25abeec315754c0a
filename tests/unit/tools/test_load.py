"""The load test's criteria for a leak, and for an intended response."""

from __future__ import annotations

import json
import random

import pytest

from tools.load.answers import Answers, intended
from tools.load.browser import Answer
from tools.load.memory import LEAK_BYTES, Sample, leak_bytes
from userlock import LockTimeout, StaleWriteError, UserLockError
from userlock.contrib.problems import problem_of


def samples(each_leaves: float, *, settles: int = 0) -> list[Sample]:
    """Return a run of 2,000 requests in which the heap varies by up to 200 kB."""
    noise = random.Random(1)
    return [
        Sample(
            answers,
            int(
                100_000
                + each_leaves * answers / 1024
                + min(answers, 800) * settles
                + noise.uniform(-200, 200)
            ),
        )
        for answers in range(0, 2000, 20)
    ]


def test_a_flat_run_is_no_leak() -> None:
    assert abs(leak_bytes(samples(0))) < LEAK_BYTES / 4


def test_growth_at_the_beginning_alone_is_no_leak() -> None:
    assert abs(leak_bytes(samples(0, settles=20))) < LEAK_BYTES / 4


@pytest.mark.parametrize("each", [2 * LEAK_BYTES, 16 * LEAK_BYTES])
def test_a_leak_is_measured(each: float) -> None:
    assert leak_bytes(samples(each)) == pytest.approx(each, abs=LEAK_BYTES / 4)


def test_a_run_that_is_too_short_has_no_result() -> None:
    with pytest.raises(ValueError, match="too few"):
        leak_bytes(samples(0)[:6])


def answer(status: int, text: str = "") -> Answer:
    return Answer("GET /", status, 0.1, text)


@pytest.mark.parametrize("status", [200, 201, 303])
def test_success_is_intended(status: int) -> None:
    assert intended(answer(status))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LockTimeout(lock_id="ada", waited_seconds=5.0, holder=None), 503),
        (
            StaleWriteError(
                key="ada",
                lock_id="ada",
                read_version=1,
                found_version=2,
                read_at=None,
                put_at=None,
            ),
            409,
        ),
    ],
)
def test_contention_is_intended_and_nothing_else_of_that_status(
    error: UserLockError, status: int
) -> None:
    assert intended(answer(status, problem_of(error).body.decode()))
    assert not intended(answer(status, json.dumps({"error": "datastore_unavailable"})))
    assert not intended(answer(status, "<h1>One moment, please</h1>"))
    assert not intended(answer(500, problem_of(error).body.decode()))


@pytest.mark.parametrize("status", [0, 400, 401, 403, 404, 429, 500, 502])
def test_other_responses_are_kept_for_the_report(status: int) -> None:
    answers = Answers()
    answers.add(answer(200), answer(status))
    assert [each.status for each in answers.unintended] == [status]
    assert answers.count == 2
    (row,) = answers.table()
    assert row["statuses"] == {200: 1, status: 1}
