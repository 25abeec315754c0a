"""Test that texts fit a terminal and cannot harm it, and that colours are for terminals."""

from __future__ import annotations

import math
import re

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.admin.tables import Column, timestamp
from userlock.cli.console import cut, table, time_of_day, width
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


@pytest.mark.parametrize(
    ("text", "columns", "what_fits"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 4, "abc…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301", 1, "e\u0301"),
    ],
)
def test_cut(text: str, columns: int, what_fits: str) -> None:
    assert cut(text, columns) == what_fits
    assert width(cut(text, columns)) <= columns


@pytest.mark.parametrize(
    ("rows", "most", "lines"),
    [
        (
            [{"a": "a" * 30, "n": 7, "b": "b" * 8}, {"a": "x", "n": 1200, "b": ""}],
            24,
            ["A             N  B", "aaaaaaa…      7  bbbbbb…", "x         1,200"],
        ),
        (
            [{"a": "日本語" * 9, "n": None, "b": "b" * 80}],
            16,
            ["A       N  B", "日本…      bbbb…"],
        ),
        ([{"a": "aaaa", "n": 1234567890, "b": "bbb"}], 4, None),
    ],
    ids=["the widest is cut first", "wide characters", "no room"],
)
def test_tables(rows: list[dict[str, object]], most: int, lines: list[str] | None) -> None:
    columns = [Column("a", "a", least=3), Column("n", "n", "count"), Column("b", "b", least=3)]
    found = table(columns, rows, most)
    if lines is None:
        assert "1,234,567,890" in found[1], "numbers are not cut"
        return
    assert all(width(line) <= most for line in found)
    assert found == lines


# --- colours ------------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("environ", "tty", "painted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),  # as no-color.org says
        ({"TERM": "dumb"}, True, False),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "arguments", [("holder", "ann"), ("holder", "ben"), ("locks",), ("doctor",)], ids=" ".join
)
def test_colours_are_for_terminals(
    terminal: Terminal,
    arguments: tuple[str, ...],
    environ: dict[str, str],
    tty: bool,
    painted: bool,
) -> None:
    terminal.hold("ann")
    terminal.wait("ann", "w", "GET /badges")
    terminal.environ |= environ
    assert bool(COLOUR.search(terminal.run(*arguments, tty=tty).out)) is painted


def test_the_text_is_the_same(terminal: Terminal) -> None:
    terminal.hold("ann")
    plain = terminal.run("holder", "ann").out
    assert COLOUR.sub("", terminal.run("holder", "ann", tty=True).out) == plain
    assert "\x1b" not in terminal.run("holder", "ann", "--json", tty=True).out
