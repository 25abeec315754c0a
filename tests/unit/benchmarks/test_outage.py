"""The figures and remarks on locks in an outage."""

from __future__ import annotations

from benchmarks.outage import CAP_SECONDS, Findings, described, measurements


def test_the_longest_counts_and_the_median_of_later_ones() -> None:
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
        ("then median", 2.0, False),
        ("server back", 900.0, False),
        ("same lock back", 1500.0, False),
    ]


def test_a_hanging_attempt_is_at_least_the_cap() -> None:
    found = Findings(killed=[0.5, None], first=[None], back=[0.5], same_back=[None])
    cap = CAP_SECONDS * 1000
    assert [(one.metric, one.value, one.at_least) for one in measurements("x", found)] == [
        ("killed", cap, True),
        ("stopped: first", cap, True),
        ("then median", cap, True),
        ("server back", 500.0, False),
        ("same lock back", cap, True),
    ]


def test_missing_observations_have_no_figures() -> None:
    assert list(measurements("x", Findings())) == []


def test_the_results_are_described_in_words() -> None:
    found = Findings()
    for how in ("degraded", "degraded", "confirmed"):
        found.note("stopped", how)
    found.note("killed", "OSError")
    assert described("x", found) == (
        "x: stopped: degraded (2), confirmed (1); killed: OSError (1)."
    )
