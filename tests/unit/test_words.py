"""Test numbers and durations in words."""

from __future__ import annotations

import math

import pytest

import sample_app.words
from userlock.words import counted, span


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 keys"), (1, "1 key"), (2, "2 keys"), (1204, "1,204 keys")]
)
def test_one_has_no_s(number: int, words: str) -> None:
    assert counted(number, "key") == words
    assert sample_app.words.counted(number, "key") == words.replace(",", "")


@pytest.mark.parametrize(
    ("seconds", "short"),
    [
        (0, "0ms"),
        (-5, "0ms"),
        (0.44, "440ms"),
        (0.9996, "1.0s"),
        (2.81, "2.8s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (3599.9, "1h00m"),
        (7500, "2h05m"),
        (360000, "4d04h"),
        (math.nan, "?"),
        (math.inf, "?"),
        (1e300, "?"),
    ],
)
def test_span(seconds: float, short: str) -> None:
    assert span(seconds) == short
