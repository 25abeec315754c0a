"""Test that no value under a lock's key harms a terminal: how texts, times, tables are printed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.poison import TEXTS, unhurried, values
from tests.unit.cli.terminal import Terminal
from userlock.admin import locks, rendering
from userlock.admin.rendering import Column, table, time_of_day, timestamp
from userlock.lock import lease
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.words import escaped

#: The commands of an operator who looks at a lock, and then breaks it.
COMMANDS = [("holder", "ann"), ("locks",), ("break", "ann", "--yes")]
SURROGATE = b'["4f01","interactive",1,60,"web","GET /"]\n! 4f01 ["\\ud800",1,"4f05"]'


def terminal_on(value: bytes, lock_id: str = "ann") -> Terminal:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.create(lock_id, value, 60.0)
    return Terminal(store, clock)


@unhurried
@given(values)
@example(SURROGATE)
def test_the_output_is_text_and_documents_are_ascii(value: bytes) -> None:
    text, documents = terminal_on(value), terminal_on(value)
    for command in COMMANDS:
        outcome, found = text.run(*command), documents.run(*command, "--json")
        assert outcome.is_printable
        assert found.is_printable
        assert found.out.isascii()
        assert found.document is not None
        assert outcome.code == found.code in (0, 1)


@given(st.sampled_from(TEXTS))
def test_lock_ids_are_harmless(lock_id: str) -> None:
    assert terminal_on(b"", lock_id).run("locks").is_printable
    assert terminal_on(b"").run("holder", lock_id).is_printable
    assert terminal_on(b"").run("break", lock_id, "--yes").is_printable


def test_unescaped_values_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control, with all protections off."""
    claim = make_claim("ann", request="\x1b[2J")
    record = json.dumps([*claim.holder[:5], "\x1b[2J"]).encode()
    commands = COMMANDS[:2]
    assert all(terminal_on(record).run(*command).is_printable for command in commands)
    monkeypatch.setattr(lease, "printable", str)
    assert all(terminal_on(record).run(*command).is_printable for command in commands)
    for module in (locks, rendering):
        monkeypatch.setattr(module, "escaped", str)
    monkeypatch.setattr("userlock.ids.show_request", str)
    assert not any(terminal_on(record).run(*command).is_printable for command in commands)


# --- texts, times, tables -------------------------------------------------------------------------


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
