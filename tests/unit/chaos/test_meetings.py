"""The locks, waits and writes that the faults of a run have met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.chaos.history import Asked, History, Span
from tests.chaos.meetings import OUTLIVED, meetings
from tests.chaos.record import Outcome, Write

HOLDER = Asked(
    "ann", "p1", False, 0.0, 5.0, granted=1.0, released=2.0, id="1", token="t1", deadline=1.8
)
WAITER = Asked("ann", "p2", True, 0.5, 5.0, queued=0.6, granted=3.0, id="2", deadline=9.0)
KILLED = Asked("ann", "p3", False, 0.5, 5.0, queued=0.6, id="3")


def met(*spans: Span, losses: Sequence[Span] = (), writes: Sequence[Write] = ()) -> dict[str, int]:
    history = History(
        {write.id: write for write in writes},
        {each.id: each for each in (HOLDER, WAITER, KILLED)},
        spans=list(spans),
    )
    return {what: count for what, count in meetings(history, losses).items() if count}


def test_a_lease_that_ended_before_its_release() -> None:
    assert met() == {OUTLIVED: 1}


@pytest.mark.parametrize(
    ("who", "began", "ended", "what"),
    [
        ("p1", 1.5, 1.6, ["interactive holder"]),
        ("p1", 1.5, 1.9, ["interactive holder", "interactive holder, past its lease"]),
        ("p1", 0.5, 1.6, []),  # it did not hold the lock yet, and did not have to wait
        ("p1", 1.9, 2.5, []),  # its lease had ended
        ("p2", 0.7, 0.8, ["batch waiter"]),
        ("p2", 0.5, 0.8, []),
        ("p2", 4.0, 5.0, ["batch holder"]),
        ("p3", 0.7, 0.8, ["interactive waiter"]),
        ("p3", 6.0, 7.0, []),  # long after its timeout
        ("p4", 1.5, 1.6, []),
    ],
)
def test_a_process_is_stopped(who: str, began: float, ended: float, what: list[str]) -> None:
    expected = {f"process stopped: {each}": 1 for each in what}
    assert met(Span("process stopped", began, ended, who=who)) == expected | {OUTLIVED: 1}


@pytest.mark.parametrize(("who", "what"), [("p1", "holder"), ("p3", "waiter")])
def test_a_process_is_killed(who: str, what: str) -> None:
    found = met(Span("process killed", 1.5, 9.0, who=who))
    assert found == {f"process killed: interactive {what}": 1, OUTLIVED: 1}


def test_other_faults_do_not_count() -> None:
    assert met(Span("process starved", 1.5, 9.0, who="p1"), Span("packets late", 0, 9)) == met()


@pytest.mark.parametrize(
    ("loss", "leases", "waits"),
    [
        (Span("memcached restarted", 1.5, 1.6), 1, 2),
        (Span("memcached restarted", 2.5, 2.6), 0, 2),
        (Span("broken", 1.5, 1.6, locks=frozenset({"ann"})), 1, 2),
        (Span("broken", 1.5, 1.6, locks=frozenset({"bob"})), 0, 0),
        # The loss may have come later.
        (Span("flushed", 1.5, 6.5), 0, 0),
        (Span("flushed", 1.5, math.inf), 0, 0),
    ],
)
def test_the_store_has_lost_something(loss: Span, leases: int, waits: int) -> None:
    found = met(losses=[loss])
    assert found.get("leases lost by the store while they were held", 0) == leases
    assert found.get("waits in a queue that the store lost", 0) == waits


@pytest.mark.parametrize(("reported", "count"), [(1.2, 1), (0.9, 0), (None, 0)])
def test_the_emulator_is_killed(reported: float | None, count: int) -> None:
    write = Write("1", "o", "e", None, outcome=Outcome.UNKNOWN, made=0.5, reported=reported)
    found = met(Span("emulator killed", 1.0, 2.0), writes=[write])
    assert found.get("writes in progress when the emulator was killed", 0) == count
