"""Calls that may block for long, within a time limit."""

from __future__ import annotations

import queue

import pytest

from tests.waiting import wait_until
from userlock.stores import timed_calls
from userlock.stores.timed_calls import TimedCall, TooLate
from userlock.waits import run

SOON, LONG = 0.01, 20.0


class Slow:
    """A function whose answers, or errors, are given by hand."""

    def __init__(self) -> None:
        self.answers: queue.Queue[str | Exception] = queue.Queue()
        self.given = 0
        self.timed = TimedCall(self.ask, "slow", "the answer")

    def ask(self) -> str:
        answer = self.answers.get(timeout=LONG)
        self.given += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def late(self, answer: str | Exception) -> None:
        """Let a caller go without an answer, which comes then."""
        given = self.given
        with pytest.raises(TooLate, match=r"the answer takes over 0.01 s"):
            run(self.timed.result, SOON)
        self.answers.put(answer)
        wait_until(lambda: self.given > given and self.timed._running[0].done())  # type: ignore[index]


@pytest.fixture
def slow() -> Slow:
    return Slow()


def test_a_late_answer_is_given_to_the_next_caller(slow: Slow) -> None:
    slow.late("first")
    slow.answers.put("second")
    assert [run(slow.timed.result, LONG) for _ in range(2)] == ["first", "second"]


def test_a_late_error_is_not(slow: Slow) -> None:
    slow.late(OSError("the name server is down"))
    slow.answers.put("second")
    assert run(slow.timed.result, LONG) == "second"


def test_an_answer_that_came_long_ago_is_not(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token may have ended since, or the server has moved."""
    slow.late("first")
    monkeypatch.setattr(timed_calls, "_GOOD_SECONDS", -1.0)
    slow.answers.put("second")
    assert run(slow.timed.result, LONG) == "second"


def test_all_fail_at_once_while_a_call_is_late(slow: Slow) -> None:
    with pytest.raises(TooLate):
        run(slow.timed.result, SOON)
    with pytest.raises(TooLate):
        run(slow.timed.result, LONG)  # at once, as it is late
    assert slow.given == 0
    slow.answers.put("first")
