"""Test commands on a terminal, in a pipe, and interrupted."""

from __future__ import annotations

import signal

from tests.contract.cli.conftest import Scene
from userlock.lock.lease import Lost
from userlock.waits import run


def test_follow_appends_lists_until_ctrl_c(on_memcached: Scene) -> None:
    with on_memcached.cli.start("locks", "--follow", "--interval", "0.1") as process:
        assert process.stdout is not None
        for _ in range(2):
            assert "0 held, 0 contended" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (130, "\n")


def test_the_reader_may_stop(on_memcached: Scene) -> None:
    for line in ("userlock locks --follow --interval 0.1 | head -1", "userlock --help | head -0"):
        outcome = on_memcached.cli.shell(line)
        assert outcome.code in (0, 141)
        assert outcome.err == ""
    assert on_memcached.cli.shell("userlock locks --follow --interval 0.1 | head -1").code == 141


def test_output_that_cannot_be_written_is_not_an_answer(on_memcached: Scene) -> None:
    outcome = on_memcached.cli.shell("userlock holder ann >/dev/full")
    assert outcome.code == 70
    assert "No space left on device" in outcome.err
    assert "Traceback" not in outcome.err


def test_break_asks_on_a_terminal(on_memcached: Scene) -> None:
    lease = on_memcached.hold("ann", "POST /answers")
    with on_memcached.cli.on_terminal("break", "ann", "--by", "olga") as screen:
        screen.read_until("[y/N]")
        assert "POST /answers" in screen.text
        screen.type("n\n")
        assert screen.end() == 1
    with on_memcached.cli.on_terminal("break", "ann", "--by", "olga") as screen:
        screen.read_until("[y/N]")
        screen.type("y\n")
        assert screen.end() == 0
    assert "ann: broken" in screen.text
    assert run(on_memcached.service.give_back, lease) == Lost("broken", None, "olga")
