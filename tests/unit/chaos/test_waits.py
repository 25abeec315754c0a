"""The checker of waits finds overtaken waiters, and late results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import Asked, Span
from tests.chaos.waits import Waits

#: The delay that the store may cause, and with the margin the most that is allowed.
_STORE_SECONDS = 1.5
_MOST_SECONDS = 2.5

HOLDER = Asked("ann", "p1", False, 0.0, 5.0, granted=0.1, released=2.0, id="holder", token="t1")
INTERACTIVE = Asked(
    "ann", "p2", False, 0.5, 5.0, queued=0.6, granted=2.2, id="interactive", token="t2"
)
BATCH = Asked("ann", "p3", True, 0.8, 5.0, queued=0.9, granted=2.1, id="batch", token="t3")
#: It began to wait before the interactive request.
EARLY = dataclasses.replace(BATCH, began=0.2, queued=0.3)


def found(
    attempts: Sequence[Asked], troubles: Sequence[Span] = (), stops: Sequence[Span] = ()
) -> list[tuple[Kind, str]]:
    waits = Waits(attempts, troubles, stops, _STORE_SECONDS)
    return [(each.kind, each.about) for each in waits.findings()]


@pytest.mark.parametrize("batch", [BATCH, EARLY])
def test_batch_overtakes_an_interactive_request(batch: Asked) -> None:
    assert found([HOLDER, INTERACTIVE, batch]) == [(Kind.OVERTAKEN, "interactive")]


def test_batch_waits_behind_interactive() -> None:
    after = dataclasses.replace(BATCH, granted=2.5)
    assert found([HOLDER, dataclasses.replace(INTERACTIVE, released=2.4), after]) == []


def test_an_interactive_request_overtakes_another() -> None:
    other = dataclasses.replace(BATCH, batch=False)
    assert found([HOLDER, INTERACTIVE, other]) == [(Kind.OVERTAKEN, "interactive")]


def test_a_timed_out_waiter_was_overtaken_as_well() -> None:
    timed_out = dataclasses.replace(INTERACTIVE, granted=None, token="", failed=5.5)
    assert found([HOLDER, timed_out, BATCH]) == [(Kind.OVERTAKEN, "interactive")]


@pytest.mark.parametrize(
    ("attempts", "troubles", "stops"),
    [
        # The queue was lost, or could not be read.
        ([HOLDER, INTERACTIVE, BATCH], [Span("restart", 1.0, 1.1)], []),
        ([HOLDER, INTERACTIVE, BATCH], [Span("broken", 1.0, 1.1, locks=frozenset({"ann"}))], []),
        # It was stopped, or died.
        ([HOLDER, INTERACTIVE, BATCH], [], [Span("process stopped", 1.5, 1.9, who="p2")]),
        ([HOLDER, dataclasses.replace(INTERACTIVE, granted=None, token=""), BATCH], [], []),
        ([HOLDER, dataclasses.replace(INTERACTIVE, excused=True), BATCH], [], []),
        # A degraded request overtakes no waiter.
        ([HOLDER, INTERACTIVE, dataclasses.replace(BATCH, degraded=True)], [], []),
    ],
)
def test_waiters_that_may_be_overtaken(
    attempts: Sequence[Asked], troubles: Sequence[Span], stops: Sequence[Span]
) -> None:
    assert found(attempts, troubles, stops) == []


@pytest.mark.parametrize(
    ("troubles", "stops"),
    [
        ([Span("restart", 2.5, 2.6)], []),
        ([Span("broken", 1.0, 1.1, locks=frozenset({"bob"}))], []),
        ([], [Span("process stopped", 1.5, 1.9, who="p1")]),
    ],
)
def test_waiters_that_may_not_be_overtaken(troubles: Sequence[Span], stops: Sequence[Span]) -> None:
    attempts = [HOLDER, dataclasses.replace(INTERACTIVE, granted=2.4), BATCH]
    assert found(attempts, troubles, stops) == [(Kind.OVERTAKEN, "interactive")]


LATE = dataclasses.replace(INTERACTIVE, began=0.0, queued=0.1, granted=5.0 + _MOST_SECONDS + 1.0)


@pytest.mark.parametrize(
    "late", [LATE, dataclasses.replace(LATE, granted=None, failed=LATE.granted)]
)
def test_late_results(late: Asked) -> None:
    assert found([late]) == [(Kind.LATE, "interactive")]


def test_results_at_the_limit() -> None:
    assert found([dataclasses.replace(LATE, granted=5.0 + _MOST_SECONDS)]) == []


def test_a_stopped_process_may_be_later() -> None:
    stop = Span("process stopped", 1.0, 2.0, who="p2")
    assert found([LATE], stops=[stop]) == []
    assert found([dataclasses.replace(LATE, overslept=1.0)], stops=[stop]) == []
    halves = [dataclasses.replace(stop, ended=1.6), dataclasses.replace(stop, began=1.4)]
    assert found([LATE], stops=halves) == []
    assert found([LATE], stops=halves[:1] * 2) == [(Kind.LATE, "interactive")]
    short = dataclasses.replace(stop, ended=1.5)
    assert found([LATE], stops=[short]) == [(Kind.LATE, "interactive")]
    other = dataclasses.replace(stop, who="p1")
    assert found([LATE], stops=[other]) == [(Kind.LATE, "interactive")]
