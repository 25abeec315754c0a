"""Percentiles, ratios, and figures from interleaved times."""

from __future__ import annotations

import pytest

from benchmarks.figures import Ratio, compared, jain, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 2.0), (50, 3.0), (90, 4.6), (99, 4.96), (100, 5.0)]
)
def test_percentiles_are_interpolated(percent: float, expected: float) -> None:
    assert percentile([5, 1, 4, 2, 3], percent) == pytest.approx(expected)


def test_percentiles_of_a_single_value_are_that_value() -> None:
    assert percentile([7], 50) == percentile([7], 99) == 7


def test_percentiles_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was twice as slow in the second half; the ratio is unaffected.
    ratio = Ratio.of([15, 15, 30, 30], "floor", [10, 10, 20, 20])
    assert (ratio.value, ratio.p10, ratio.p90) == (1.5, 1.5, 1.5)


def test_ratios_need_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Ratio.of([1, 2], "floor", [1])


def test_the_spread_of_ratios_is_from_the_tenth_to_the_ninetieth_percentile() -> None:
    ratio = Ratio.of(list(range(100, 201)), "floor", [100] * 101)
    assert (ratio.value, ratio.p10, ratio.p90) == pytest.approx((1.5, 1.1, 1.9))


def test_times_become_microseconds_with_a_baseline() -> None:
    floor, ours = compared(
        {"floor": [10_000, 20_000, 30_000], "ours": [15_000, 30_000, 45_000]},
        metric="pair",
        baseline="floor",
    )
    assert (floor.contender, floor.value, floor.unit, floor.ratio) == ("floor", 20.0, "us", None)
    assert (ours.contender, ours.value, ours.samples) == ("ours", 30.0, 3)
    assert ours.ratio is not None
    assert (ours.ratio.baseline, ours.ratio.value) == ("floor", 1.5)


def test_the_addition_is_the_median_of_the_rounds_differences() -> None:
    # Not the difference of the medians, which may be of different rounds.
    figures = compared(
        {"plain": [1000, 5000, 3000], "ours": [2000, 5500, 6000]},
        metric="entity",
        baseline="plain",
        added=True,
    )
    assert [(figure.contender, figure.metric, figure.value) for figure in figures] == [
        ("plain", "entity", 3.0),
        ("ours", "entity", 5.5),
        ("ours", "added", 1.0),
    ]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([3, 3, 3, 3], 1.0), ([8, 0, 0, 0], 0.25), ([2, 1], 0.9), ([5], 1.0), ([1, 1, 0, 0], 0.5)],
)
def test_jains_index(shares: list[float], expected: float) -> None:
    assert jain(shares) == pytest.approx(expected)


@pytest.mark.parametrize("shares", [[], [0, 0]])
def test_shares_of_nothing_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="nobody"):
        jain(shares)
