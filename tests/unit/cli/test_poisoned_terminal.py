"""Whatever stands under a lock's key: nothing of it does anything to a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.poison import TEXTS, unhurried, values
from tests.unit.cli.terminal import Outcome, Terminal
from userlock.cli import locks, watch
from userlock.lock import lease
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim

#: As an operator would look at a lock, and then break it.
COMMANDS = [("holder", "ann"), ("watch", "--once", "--all"), ("break", "ann", "--yes")]
SURROGATE = b'["4f01","interactive",1,60,"web","GET /"]\n! 4f01 ["\\ud800",1,"4f05"]'


def terminal_on(value: bytes, lock_id: str = "ann") -> Terminal:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.create(lock_id, value, 60.0)
    return Terminal(store, clock)


def printed(outcome: Outcome) -> bool:
    """Whether each line is text and nothing else; none of it what a traceback is made of."""
    text = outcome.out + outcome.err
    return "Traceback" not in text and all(line.isprintable() for line in text.split("\n"))


@unhurried
@given(values)
@example(SURROGATE)
def test_what_is_printed_is_text(value: bytes) -> None:
    terminal = terminal_on(value)
    for command in COMMANDS:
        outcome = terminal.run(*command)
        assert printed(outcome)
        assert outcome.code in (0, 1)


@unhurried
@given(values)
@example(SURROGATE)
def test_drawn_in_place_only_what_draws_is_no_text(value: bytes) -> None:
    outcome = terminal_on(value).run("watch", "--once", "--all", tty=True)
    body = outcome.out.removesuffix("\x1b[J").replace("\x1b[K\n", "\n")
    assert printed(outcome._replace(out=body))


@unhurried
@given(values)
@example(SURROGATE)
def test_the_documents_are_ascii(value: bytes) -> None:
    terminal = terminal_on(value)
    for command in COMMANDS:
        outcome = terminal.run(*command, "--json")
        assert outcome.document is not None
        assert outcome.out.isascii()
        assert printed(outcome)


@given(st.sampled_from(TEXTS))
def test_nor_do_the_ids_of_locks(lock_id: str) -> None:
    assert printed(terminal_on(b"", lock_id).run("watch", "--once", "--all"))
    assert printed(terminal_on(b"").run("holder", lock_id))
    assert printed(terminal_on(b"").run("break", lock_id, "--yes"))


def test_written_as_it_is_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with both protections off."""
    claim = make_claim("ann", request="\x1b[2J")
    record = json.dumps([*claim.holder[:5], "\x1b[2J"]).encode()
    commands = COMMANDS[:2]
    assert all(printed(terminal_on(record).run(*command)) for command in commands)
    monkeypatch.setattr(lease, "printable", str)
    assert all(printed(terminal_on(record).run(*command)) for command in commands)
    for module in (locks, watch):
        monkeypatch.setattr(module, "shown", str)
    assert not any(printed(terminal_on(record).run(*command)) for command in commands)
