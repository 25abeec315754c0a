"""The figures of contests, and remarks on locks that failed."""

from __future__ import annotations

import pytest

from benchmarks import crowd, fairness
from benchmarks.contest import Contest, Diary, ExclusionViolated, Refusal, Visit
from benchmarks.crew import JobFailed
from benchmarks.locks import KINDS
from benchmarks.racers import Outcome

OURS, THEIRS = KINDS["userlock"], KINDS["redis-py"]


def outcome(*diaries: Diary, requests: int = 12) -> Outcome:
    return Outcome(Contest(0.0, 1.0, diaries), requests, cpu_seconds=0.5)


def in_turn() -> Outcome:
    """Two waiters, three visits each, of which each takes a tenth of the window."""
    visits = [Visit(number / 10 - 0.05, number / 10, (number + 1) / 10) for number in range(6)]
    return outcome(Diary(visits[::2]), Diary(visits[1::2]))


def overlapping() -> Outcome:
    return outcome(Diary([Visit(0, 0.1, 0.3)]), Diary([Visit(0, 0.2, 0.4)]))


def test_the_figures_of_a_game() -> None:
    figures = {one.metric: one for one in fairness.measurements("ours", [in_turn(), in_turn()])}
    assert {name: pytest.approx(one.value) for name, one in figures.items()} == {
        "share": 60,
        "Jain": 1,
        "p50": 50,
        "p99": 50,
        "longest wait": 50,
        "timed out": 0,
        "requests": 2,
    }


def test_the_index_is_that_of_the_worst_round() -> None:
    # In another round the other waiter has everything: together the rounds would look fair.
    alone = Diary([Visit(0, 0.1, 0.2)])
    rounds = [outcome(alone, Diary()), outcome(Diary(), alone)]
    (index,) = (one for one in fairness.measurements("x", rounds) if one.metric == "Jain")
    assert index.value == 0.5


def test_a_game_in_which_nobody_got_the_lock_has_no_figures() -> None:
    assert fairness.measurements("x", [outcome(Diary())]) == ()
    assert fairness.measurements("x", []) == ()


def test_a_lock_of_ours_that_does_not_exclude_ends_the_run() -> None:
    with pytest.raises(ExclusionViolated, match="userlock VIOLATED MUTUAL EXCLUSION"):
        fairness.remarks(OURS, [in_turn(), overlapping()])


def test_a_foreign_lock_that_does_not_exclude_is_reported() -> None:
    (note,) = fairness.remarks(THEIRS, [in_turn(), overlapping()])
    assert note.startswith("redis-py VIOLATED MUTUAL EXCLUSION")
    assert "1 times" in note
    assert "100.00 ms" in note


def test_a_good_game_has_no_remarks() -> None:
    assert fairness.remarks(OURS, [in_turn()]) == []


def test_errors_of_foreign_locks_are_reported_and_ours_end_the_run() -> None:
    failed = outcome(Diary(error="OSError: gone"))
    assert fairness.remarks(THEIRS, [failed]) == [
        "redis-py raised in 1 waiters, which then stopped: OSError: gone"
    ]
    with pytest.raises(JobFailed, match="gone"):
        fairness.remarks(OURS, [failed])


def test_starved_waiters_are_reported() -> None:
    forgotten = outcome(Diary(refusals=[Refusal(0, 16)], stuck=True))
    (note,) = fairness.remarks(THEIRS, [forgotten])
    assert "1 waiters were never served" in note


def test_the_figures_of_a_crowd() -> None:
    found = outcome(Diary([Visit(0, 0.1, 0.2)] * 3), Diary(refusals=[Refusal(0, 5)]), requests=90)
    figures = {one.metric: one.value for one in crowd.measurements("ours", found)}
    assert figures == {
        "requests": 90,
        "CPU": 0.5,
        "share": pytest.approx(30),
        "Jain": 0.5,
        "longest wait": 5,
        "not served": 1,
        "timed out": 1,
    }
