"""`userlock bench`."""

from __future__ import annotations

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.cli.entry import main
from userlock.testing import ManualClock


def test_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    # In real time: threads hand a lock to one another.
    assert main(["--store", "memory://", "bench", "--seconds", "0.2"]) == 0
    out = capsys.readouterr().out
    for line in ("round trip", "acquire and release", "hand-off"):
        assert line in out


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["--store", "memory://", "bench", "--seconds", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for figure in ("round_trip", "uncontended", "hand_off"):
        assert found[figure]["measured"] > 0
        assert 0 < found[figure]["p50_ms"] <= found[figure]["p99_ms"]


def test_nothing_is_left_behind(terminal: Terminal, clock: ManualClock) -> None:
    from userlock.cli.bench import uncontended
    from userlock.clock import SYSTEM_CLOCK
    from userlock.events import Listeners
    from userlock.lock.service import LockService

    memory = terminal.memory()
    service = LockService(memory, listeners=Listeners(), clock=SYSTEM_CLOCK)
    assert uncontended(service, 0.01).rounds > 0
    assert list(memory.lock_ids(10)) == []


def test_the_store_does_not_answer(terminal: Terminal) -> None:
    terminal.memory().go_down()
    code, out, err = terminal.run("bench")
    assert (code, out) == (3, "")
    assert err == "userlock bench: the store does not answer: the store is down\n"
