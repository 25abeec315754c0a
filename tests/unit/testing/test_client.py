"""A client that sends a request until it has an answer that counts."""

from __future__ import annotations

import email.utils
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import pytest

from userlock.contrib.client import send_once
from userlock.testing import ManualClock


class Answer(NamedTuple):
    """As of `requests` and `httpx`."""

    status_code: int
    headers: Mapping[str, str] = MappingProxyType({})


OK, RUNNING = Answer(201), Answer(409, {"Retry-After": "7"})
LOST = ConnectionResetError("lost")


class Site:
    """Answers in turn; then with the last one."""

    def __init__(self, clock: ManualClock, *answers: Answer | Exception) -> None:
        self.clock = clock
        self.answers: Iterator[Answer | Exception] = iter(answers)
        self.last: Answer | Exception = OK
        self.keys: list[str] = []
        self.at: list[float] = []

    def __call__(self, headers: dict[str, str]) -> Answer:
        self.keys.append(headers["Idempotency-Key"])
        self.at.append(self.clock.now())
        self.last = next(self.answers, self.last)
        if isinstance(self.last, Exception):
            raise self.last
        return self.last


@pytest.mark.parametrize(
    ("answers", "sent"),
    [
        ([OK], 1),
        ([Answer(422)], 1),
        ([Answer(402)], 1),
        ([RUNNING, OK], 2),
        ([Answer(409), Answer(409, {"Idempotent-Replayed": "true"})], 2),
        ([LOST, Answer(503), Answer(429), Answer(500), OK], 5),
    ],
)
def test_until_it_has_an_answer_that_counts(
    clock: ManualClock, answers: list[Answer | Exception], sent: int
) -> None:
    site = Site(clock, *answers)
    assert send_once(site, transient=OSError, clock=clock) is answers[-1]
    assert len(site.keys) == sent
    assert len(set(site.keys)) == 1, "by one key"
    assert len(site.keys[0]) == 36


def test_pauses(clock: ManualClock) -> None:
    site = Site(clock, RUNNING, LOST, LOST, OK)
    send_once(site, key="order-7", clock=clock)
    assert set(site.keys) == {"order-7"}
    first, second, third = (after - before for before, after in pairwise(site.at))
    assert first == pytest.approx(7)
    assert 0.5 <= second <= 1
    assert 1 <= third <= 2


@pytest.mark.parametrize(("after", "pause"), [(20, 20), (-20, 0.5), (None, 0.5)])
def test_a_pause_until_a_date(clock: ManualClock, after: float | None, pause: float) -> None:
    """To the second. One that has passed, or is none, is as no date."""
    text = "Mon, 30 Nov 0000 00:00:00 GMT"
    if after is not None:
        text = email.utils.formatdate(clock.wall() + after, usegmt=True)
    site = Site(clock, Answer(503, {"Retry-After": text}), OK)
    send_once(site, clock=clock)
    assert site.at[1] - site.at[0] == pytest.approx(pause, abs=1)


@pytest.mark.parametrize("seconds", ["61", "1000000000", "9" * 5_000])
def test_a_pause_that_is_too_long(clock: ManualClock, seconds: str) -> None:
    site = Site(clock, Answer(503, {"Retry-After": seconds}))
    assert send_once(site, seconds=60, clock=clock).status_code == 503
    assert len(site.keys) == 1


@pytest.mark.parametrize("last", [LOST, RUNNING, Answer(503, {"Retry-After": "soon"})])
def test_not_for_ever(clock: ManualClock, last: Answer | Exception) -> None:
    site = Site(clock, last)
    if isinstance(last, Exception):
        with pytest.raises(ConnectionResetError):
            send_once(site, seconds=60, clock=clock)
    else:
        assert send_once(site, seconds=60, clock=clock) is last
    assert len(site.keys) > 2
    assert site.at[-1] - site.at[0] <= 60


def test_another_error_is_raised_at_once(clock: ManualClock) -> None:
    site = Site(clock, ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        send_once(site, clock=clock)
    assert len(site.keys) == 1
