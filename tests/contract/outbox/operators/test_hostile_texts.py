"""Test owners, arguments, errors and names that could harm a terminal or tell too much."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from tests.contract.outbox.operators.conftest import Shop
from tests.poison import TEXTS
from tests.unit.cli.terminal import Terminal
from userlock import ids
from userlock.admin import jobs as reading
from userlock.admin import rendering
from userlock.outbox import Outbox
from userlock.outbox.rows import JobRow

pytestmark = pytest.mark.slow

FORMS = ["plain", "masked", "hashed"]
MARK = "zoe.marker+7@example.org"
LONG = ["x" * 250_000, "\x1b[2J" * 20_000, "🔒" * 60_000]


def actions(key: str, owner: str = "") -> Iterator[list[str]]:
    named = ["--owner", owner] if owner else []
    yield ["status", "--late", "1"]
    yield ["list"]
    yield ["list", "--dead"]
    yield ["list", "--owner", owner or "ann"]
    yield ["list", "--cause", "no such cause"]
    yield ["show", key, *named]
    yield ["run", key, *named]
    yield ["redrive", key, *named]
    yield ["run", key, *named]
    yield ["redrive", "--all"]
    yield ["purge", key, "--yes", "7", *named]
    yield ["purge", "--all", "--yes", "1"]


def run_all(shop: Shop, terminal: Terminal, key: str, owner: str = "") -> str:
    """Run all actions, for people and for programs. Return their output."""
    output = ""
    for action in actions(key, owner):
        shop.error = RuntimeError(f"{owner} no \x1b[2J \u202e\n")
        if action[0] == "purge":
            shop.deliver()
        for json in ([], ["--json"]):
            outcome = terminal.run("outbox", *action, *json)
            assert outcome.code in (0, 1), outcome
            assert outcome.is_printable, (action, outcome)
            assert not json or outcome.out.isascii()
            assert len(outcome.out) < 200_000
            output += outcome.out + outcome.err
    return output


@pytest.mark.parametrize("text", [*TEXTS, *LONG], ids=lambda text: repr(text)[:20])
def test_nothing_raw_reaches_the_terminal(shop: Shop, terminal: Terminal, text: str) -> None:
    error = RuntimeError(text.encode("utf-8", "backslashreplace").decode())
    shop.kill(shop.pay, text[:1500], text, error=error)
    key = shop.kill(shop.pay, "ann", text, {text: [text]}, error=error)
    shop.stage(shop.pay, "ann", text)
    shop.clock.advance(60)
    run_all(shop, terminal, key)


def test_broken_arguments_are_shown_as_such(shop: Shop, terminal: Terminal) -> None:
    shop.put_dead(["ann"])
    with shop.outbox.context():
        (row,) = JobRow.query().fetch(use_cache=False)
        letter = reading.read(row.key)
        assert letter is not None
        for broken in (b"", b"\xff", b"[1]", b"[{},[]]", b"9" * 10_000, b"[" * 100_000):
            assert reading.call_of(letter._replace(arguments=broken)) == "pay(…)"


def test_the_control_unescaped_texts_are_found(
    shop: Shop, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("userlock.outbox.worker.legible", lambda text, most: text)
    key = shop.kill(shop.pay, "ann", error=RuntimeError("\x1b[2J"))
    assert terminal.run("outbox", "show", key).is_printable
    monkeypatch.setattr(reading, "legible", lambda text, most: text)
    monkeypatch.setattr(rendering, "escaped", str)
    assert not terminal.run("outbox", "show", key).is_printable


# --- hidden -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_hidden_owners_are_shown_nowhere(shop: Shop, terminal: Terminal, form: str) -> None:
    terminal.environ["USERLOCK_SHOW_IDS"] = form
    terminal.environ[ids.KEY_VARIABLE] = "a secret"
    key = shop.kill(shop.pay, MARK, 7, error=RuntimeError(f"no mail for {MARK}"))
    shop.stage(shop.close_books, MARK)
    shop.clock.advance(60)
    part = str(shop.row(key).key.id())
    output = run_all(shop, terminal, part, MARK)
    assert (MARK in output) is (form == "plain"), "plain is the control"
    assert (key in output) is (form == "plain"), "a key contains the owner"
    assert part in output


@pytest.mark.parametrize("form", FORMS[1:])
def test_a_job_is_found_by_its_part_of_the_key_and_its_owner(
    shop: Shop, terminal: Terminal, form: str
) -> None:
    terminal.environ["USERLOCK_SHOW_IDS"] = form
    terminal.environ[ids.KEY_VARIABLE] = "a secret"
    shop.kill(shop.pay, MARK)
    listed = terminal.run("outbox", "list", "--dead", "--json").document["jobs"]
    assert [each["key"] for each in listed] == [None]
    name = listed[0]["name"]
    assert terminal.run("outbox", "show", name).code == 2
    assert terminal.run("outbox", "show", name, "--owner", "somebody else").code == 1
    shown = terminal.run("outbox", "show", name, "--owner", MARK, "--json")
    assert shown.document["owner"] == listed[0]["owner"] != MARK
    assert terminal.run("outbox", "redrive", name, "--owner", MARK).code == 0


def test_the_form_that_the_app_has_configured_counts_unless_the_operator_says_another(
    shop: Shop, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class App(types.ModuleType):
        """Configures when it is used, as other apps do when they are imported."""

        @property
        def outbox(self) -> Outbox:
            ids.use(ids.form_of("masked"))
            return shop.outbox

    monkeypatch.setitem(sys.modules, "configured", App("configured"))
    terminal.environ["USERLOCK_OUTBOX"] = "configured:outbox"
    shop.kill(shop.pay, MARK)
    assert MARK not in terminal.run("outbox", "list", "--dead").out
    terminal.environ["USERLOCK_SHOW_IDS"] = "plain"
    assert MARK in terminal.run("outbox", "list", "--dead").out
