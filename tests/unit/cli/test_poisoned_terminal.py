"""Test values under a lock's key that could harm a terminal: none of them does."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.poison import TEXTS, unhurried, values
from tests.unit.cli.terminal import Terminal
from userlock.admin import locks, rendering
from userlock.lock import lease
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim

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
