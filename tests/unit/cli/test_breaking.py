"""Test `userlock break`."""

from __future__ import annotations

import getpass
import socket

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.events import LISTENERS, Broken, Event, log_event
from userlock.lock.lease import Lost


def test_it_breaks_the_lease_that_it_showed(terminal: Terminal) -> None:
    lease = terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    code, out, err = terminal.run("break", "ann", typed="y\n")
    assert code == 0
    assert "POST /answers" in err
    assert "GET /badges" in err
    assert err.endswith("Break the lock? The holder continues until it notices. [y/N] ")
    assert "ann: broken; it was held by" in out
    assert "Next is web-p/7 GET /badges." in out
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert terminal.service.give_back(lease) == Lost("broken", None, me)


def test_it_is_an_event_and_a_log_line_as_with_break_lock(
    terminal: Terminal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    monkeypatch.setattr(LISTENERS, "_listeners", (log_event, heard.append))
    lease = terminal.hold("ann", "POST /answers")
    terminal.run("break", "ann", typed="n\n")
    assert (heard, caplog.messages) == ([], [])
    holder = terminal.service.holder("ann")
    assert holder is not None
    terminal.run("break", "ann", "--yes", "--by", "ol\x1bga")
    assert heard == [Broken("ann", holder.describe(), "ol?ga")]
    line = f"lock 'ann' broken by ol?ga; it was held by {holder.describe()}"
    assert caplog.messages == [line]
    assert terminal.service.give_back(lease) == Lost("broken", None, "ol?ga")

    caplog.clear()
    terminal.run("break", "ann", "--yes")  # nobody has it
    assert (len(heard), caplog.messages) == (1, [])


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "no\n", "yellow\n"])
def test_anything_but_yes_is_no(terminal: Terminal, typed: str) -> None:
    terminal.hold("ann")
    code, out, _ = terminal.run("break", "ann", typed=typed)
    assert (code, out) == (1, "ann: nothing broken: you said no\n")
    assert terminal.service.holder("ann") is not None


def test_without_a_terminal_it_needs_yes(terminal: Terminal) -> None:
    terminal.hold("ann")
    code, out, err = terminal.run("break", "ann")
    assert (code, out) == (2, "")
    assert err == (
        "userlock break: cannot ask: standard input is not a terminal. To fix it: pass --yes\n"
    )
    assert terminal.service.holder("ann") is not None


def test_yes_and_by(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    assert terminal.run("break", "ann", "--yes", "--by", "olga").err == ""
    assert terminal.service.give_back(lease) == Lost("broken", None, "olga")


def test_the_json_document(terminal: Terminal) -> None:
    terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    found = terminal.run("break", "ann", "--yes", "--json", "--by", "olga").document
    assert found["broken"] is True
    assert found["by"] == "olga"
    assert found["holder"]["request"] == "POST /answers"
    assert [each["request"] for each in found["waiters"]] == ["GET /badges"]
    again = terminal.run("break", "ann", "--yes", "--json")
    assert again.code == 1
    assert again.document["broken"] is False


def test_with_json_the_question_is_not_part_of_the_answer(terminal: Terminal) -> None:
    terminal.hold("ann")
    found = terminal.run("break", "ann", "--json", typed="y\n")
    assert found.document["broken"] is True
    assert "[y/N]" in found.err


def test_nobody_holds_it(terminal: Terminal) -> None:
    assert terminal.run("break", "ann", "--yes") == (
        1,
        "ann: nothing broken: nobody holds it\n",
        "",
    )


def test_the_next_holder_is_not_hit(terminal: Terminal) -> None:
    """The lock changes hands while the operator thinks."""
    lease = terminal.hold("ann")

    def change_hands() -> None:
        terminal.service.release(lease)
        terminal.hold("ann", "GET /innocent")

    code, out, _ = terminal.run("break", "ann", typed="y\n", while_asked=change_hands)
    assert code == 1
    assert "nothing broken: it changed hands" in out
    holder = terminal.service.holder("ann")
    assert holder is not None
    assert holder.request == "GET /innocent"


def test_breaking_any_holder_would_hit_the_next_one(terminal: Terminal) -> None:
    """The negative control: break the lock, not the lease that was shown."""
    lease = terminal.hold("ann")
    terminal.service.release(lease)
    terminal.hold("ann", "GET /innocent")
    hit = terminal.service.break_lock("ann")
    assert hit is not None
    assert hit.request == "GET /innocent"


def test_it_was_released_meanwhile(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    code, out, _ = terminal.run(
        "break", "ann", typed="y\n", while_asked=lambda: terminal.service.release(lease)
    )
    assert code == 1
    assert "nothing broken" in out


def test_released_with_waiters_is_not_called_broken(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    code, _, _ = terminal.run(
        "break", "ann", typed="y\n", while_asked=lambda: terminal.service.release(lease)
    )
    assert code == 1


def test_a_foreign_value_is_removed(terminal: Terminal) -> None:
    terminal.store.create("ann", b"\x1b[2J", 60)
    code, out, _ = terminal.run("break", "ann", "--yes")
    assert (code, out) == (0, "ann: removed something that userlock did not write\n")
    assert terminal.store.read("ann") is None


def test_another_foreign_value_than_the_one_shown_stays(terminal: Terminal) -> None:
    version = terminal.store.create("ann", b"one", 60)
    code, _, _ = terminal.run(
        "break",
        "ann",
        typed="y\n",
        while_asked=lambda: terminal.store.swap("ann", version, b"two", 60),
    )
    assert code == 1
    assert terminal.store.read("ann") is not None


def test_the_store_goes_down_while_the_operator_thinks(terminal: Terminal) -> None:
    terminal.hold("ann")
    code, out, err = terminal.run(
        "break", "ann", typed="y\n", while_asked=terminal.memory().go_down
    )
    assert (code, out) == (3, "")
    assert err.endswith("the store does not answer: the store is down\n")


def test_ctrl_c_at_the_question(terminal: Terminal) -> None:
    terminal.hold("ann")

    def interrupt() -> None:
        raise KeyboardInterrupt

    code, out, _ = terminal.run("break", "ann", typed="", while_asked=interrupt)
    assert (code, out) == (130, "")
    assert terminal.service.holder("ann") is not None
