"""Test that texts fit, and cannot harm a terminal."""

from __future__ import annotations

import math

import pytest

from userlock.admin.snapshot import timestamp
from userlock.cli.console import Column, cut, table, time_of_day, width
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


@pytest.mark.parametrize(("text", "columns"), [("ann", 3), ("日本", 4), ("é", 1), ("e\u0301", 1)])
def test_width(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "columns", "what_fits"),
    [("abcdef", 6, "abcdef"), ("abcdef", 4, "abc…"), ("日本語", 5, "日本…"), ("日本語", 4, "日…")],
)
def test_cut(text: str, columns: int, what_fits: str) -> None:
    assert cut(text, columns) == what_fits
    assert width(cut(text, columns)) <= columns


def test_the_widest_column_is_cut_first() -> None:
    columns = [Column("A", least=3), Column("N", right=True), Column("B", least=3)]
    assert table(columns, [["a" * 30, "7", "b" * 8], ["x", "12", ""]], 24) == [
        "A            N  B",
        "aaaaaaaaa…   7  bbbbbbbb",
        "x           12",
    ]


def test_no_line_is_too_long() -> None:
    columns = [Column("A", least=3), Column("N", right=True), Column("B", least=3)]
    lines = table(columns, [["日本" * 30, "7", "b" * 80], ["x", "12", ""]], 24)
    assert all(width(line) <= 24 for line in lines)
    assert lines[1].endswith("…")


def test_a_column_that_must_not_be_cut() -> None:
    assert table([Column("NUMBER")], [["1234567890"]], 4) == ["NUMBER", "1234567890"]
