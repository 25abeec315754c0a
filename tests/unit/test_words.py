"""Test numbers and durations in words."""

from __future__ import annotations

import math

import pytest

import sample_app.words
from userlock.words import counted, span, text_of


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
        (59.6, "60s"),
        (60, "60s"),
        (90, "1m30s"),
        (119.6, "2m"),
        (200, "3m20s"),
        (300, "5m"),
        (3599.9, "1h"),
        (7500, "2h05m"),
        (360000, "4d04h"),
        (math.nan, "?"),
        (math.inf, "?"),
        (1e300, "?"),
    ],
)
def test_span(seconds: float, short: str) -> None:
    assert span(seconds) == short


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (ValueError("no such day"), "no such day"),
        (KeyError("points"), "KeyError: 'points'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_text_of_an_error(error: Exception, words: str) -> None:
    assert text_of(error) == words
