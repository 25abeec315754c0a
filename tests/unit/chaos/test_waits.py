"""The checker of waits finds who was passed, and who was told too late."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import Asked, Span
from tests.chaos.waits import LATE_SECONDS, Waits

HOLDER = Asked("ann", "p1", False, 0.0, 5.0, granted=0.1, released=2.0, id="holder", token="t1")
PERSON = Asked("ann", "p2", False, 0.5, 5.0, stood=0.6, granted=2.2, id="person", token="t2")
BATCH = Asked("ann", "p3", True, 0.8, 5.0, stood=0.9, granted=2.1, id="batch", token="t3")
#: It began to wait before the person came.
EARLY = dataclasses.replace(BATCH, began=0.2, stood=0.3)


def found(
    attempts: Sequence[Asked], troubles: Sequence[Span] = (), stops: Sequence[Span] = ()
) -> list[tuple[Kind, str]]:
    waits = Waits(attempts, troubles, stops)
    return [(each.kind, each.about) for each in waits.findings()]


@pytest.mark.parametrize("batch", [BATCH, EARLY])
def test_batch_passes_a_person(batch: Asked) -> None:
    assert found([HOLDER, PERSON, batch]) == [(Kind.OVERTAKEN, "person")]


def test_batch_stands_back() -> None:
    after = dataclasses.replace(BATCH, granted=2.5)
    assert found([HOLDER, dataclasses.replace(PERSON, released=2.4), after]) == []


def test_a_person_passes_another() -> None:
    other = dataclasses.replace(BATCH, batch=False)
    assert found([HOLDER, PERSON, other]) == [(Kind.OVERTAKEN, "person")]


def test_who_gave_up_was_passed_as_well() -> None:
    in_vain = dataclasses.replace(PERSON, granted=None, token="", gave_up=5.5)
    assert found([HOLDER, in_vain, BATCH]) == [(Kind.OVERTAKEN, "person")]


@pytest.mark.parametrize(
    ("attempts", "troubles", "stops"),
    [
        # The line was lost, or could not be seen.
        ([HOLDER, PERSON, BATCH], [Span("restart", 1.0, 1.1)], []),
        ([HOLDER, PERSON, BATCH], [Span("broken", 1.0, 1.1, lock="ann")], []),
        # It stood still, or died.
        ([HOLDER, PERSON, BATCH], [], [Span("process stopped", 1.5, 1.9, who="p2")]),
        ([HOLDER, dataclasses.replace(PERSON, granted=None, token=""), BATCH], [], []),
        ([HOLDER, dataclasses.replace(PERSON, excused=True), BATCH], [], []),
        # Who goes on without the store's word passes nobody.
        ([HOLDER, PERSON, dataclasses.replace(BATCH, degraded=True)], [], []),
    ],
)
def test_who_may_be_passed(
    attempts: Sequence[Asked], troubles: Sequence[Span], stops: Sequence[Span]
) -> None:
    assert found(attempts, troubles, stops) == []


@pytest.mark.parametrize(
    ("troubles", "stops"),
    [
        ([Span("restart", 2.5, 2.6)], []),
        ([Span("broken", 1.0, 1.1, lock="bob")], []),
        ([], [Span("process stopped", 1.5, 1.9, who="p1")]),
    ],
)
def test_who_may_not_be_passed_for_all_that(
    troubles: Sequence[Span], stops: Sequence[Span]
) -> None:
    attempts = [HOLDER, dataclasses.replace(PERSON, granted=2.4), BATCH]
    assert found(attempts, troubles, stops) == [(Kind.OVERTAKEN, "person")]


LATE = dataclasses.replace(PERSON, began=0.0, stood=0.1, granted=5.0 + LATE_SECONDS + 1.0)


@pytest.mark.parametrize(
    "late", [LATE, dataclasses.replace(LATE, granted=None, gave_up=LATE.granted)]
)
def test_who_was_told_too_late(late: Asked) -> None:
    assert found([late]) == [(Kind.LATE, "person")]


def test_what_is_late_enough() -> None:
    assert found([dataclasses.replace(LATE, granted=5.0 + LATE_SECONDS)]) == []


def test_a_process_that_stood_still_may_be_later() -> None:
    stop = Span("process stopped", 1.0, 2.0, who="p2")
    assert found([LATE], stops=[stop]) == []
    assert found([dataclasses.replace(LATE, overslept=1.0)], stops=[stop]) == []
    halves = [dataclasses.replace(stop, ended=1.6), dataclasses.replace(stop, began=1.4)]
    assert found([LATE], stops=halves) == []
    assert found([LATE], stops=halves[:1] * 2) == [(Kind.LATE, "person")]
    short = dataclasses.replace(stop, ended=1.5)
    assert found([LATE], stops=[short]) == [(Kind.LATE, "person")]
    other = dataclasses.replace(stop, who="p1")
    assert found([LATE], stops=[other]) == [(Kind.LATE, "person")]
