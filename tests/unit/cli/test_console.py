"""Test that texts cannot harm a terminal, and tables."""

from __future__ import annotations

import math

import pytest

from userlock.admin.rendering import Column, table, time_of_day, timestamp
from userlock.words import escaped


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("ann", "ann"),
        ("日本 é", "日本 é"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("\x9b2J", "\\x9b2J"),
    ],
)
def test_escaped(text: str, safe: str) -> None:
    assert escaped(text) == safe
    assert escaped(text).isprintable()


@pytest.mark.parametrize("wall", [math.nan, math.inf, -1e300, 1e300])
def test_impossible_moments(wall: float) -> None:
    assert time_of_day(wall) == "?"
    assert timestamp(wall) is None


def test_timestamps_are_utc() -> None:
    assert timestamp(0.25) == "1970-01-01T00:00:00.250Z"


def test_tables() -> None:
    columns = [Column("a", "a", most=7), Column("n", "n", "count"), Column("b", "b")]
    rows = [{"a": "a" * 30, "n": 7, "b": "b" * 80}, {"a": "x", "n": 1200, "b": ""}]
    assert table(columns, rows) == [
        "A             N  B",
        f"aaaaaaa…      7  {'b' * 80}",
        "x         1,200",
    ]
