"""What is said of locks in an outage."""

from __future__ import annotations

from benchmarks.outage import CAP_SECONDS, Findings, measurements, told


def test_the_longest_counts_and_the_middle_of_those_that_follow() -> None:
    found = Findings(
        killed=[0.001, 0.003],
        first=[0.4, 0.3],
        following=[0.001, 0.002, 0.3],
        back=[0.9, 0.8],
        same_back=[1.5],
    )
    assert [(one.metric, one.value, one.at_least) for one in measurements("ours", found)] == [
        ("killed", 3.0, False),
        ("stopped: first", 400.0, False),
        ("then p50", 2.0, False),
        ("back", 900.0, False),
        ("same lock back", 1500.0, False),
    ]


def test_what_hangs_is_at_least_the_cap() -> None:
    found = Findings(killed=[0.5, None], first=[None], back=[0.5], same_back=[None])
    cap = CAP_SECONDS * 1000
    assert [(one.metric, one.value, one.at_least) for one in measurements("x", found)] == [
        ("killed", cap, True),
        ("stopped: first", cap, True),
        ("then p50", cap, True),
        ("back", 500.0, False),
        ("same lock back", cap, True),
    ]


def test_what_was_not_seen_has_no_figures() -> None:
    assert list(measurements("x", Findings())) == []


def test_the_answers_are_told_in_words() -> None:
    found = Findings()
    for how in ("degraded", "degraded", "confirmed"):
        found.note("stopped", how)
    found.note("killed", "OSError")
    assert told("x", found) == (
        "x answered, stopped: degraded (2), confirmed (1); killed: OSError (1)."
    )
