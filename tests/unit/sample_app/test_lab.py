"""Test the contention lab: the lost updates, one run at a time. tests/system has whole runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sample_app import create_app
from sample_app.lab.crew import Visit
from sample_app.lab.desk import Busy, Desk
from sample_app.lab.outcome import lost_visits
from sample_app.lab.plan import Between, Plan
from tests.leases import existing


def test_the_site_itself_has_no_bench() -> None:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1"})
    for path in ("bench/none", "crash/told"):
        assert app.test_client().post(f"/lab/{path}/a").status_code == 404


def visit(client: int = 0, **facts: Any) -> Visit:
    usual: dict[str, Any] = {
        "batch": False,
        "asked": 0.0,
        "began": 0.1,
        "ended": 0.2,
        "attempts": 1,
        "status": 200,
        "accepted": True,
        "degraded": False,
    }
    return Visit(client=client, **{**usual, **facts})


def test_the_lost_ones_are_found() -> None:
    """A and B read 0; B writes last. C reads B's 1; D read it too, and is overwritten by C."""
    visits = [
        visit(0, began=0.0, ended=0.2, count=1),
        visit(1, began=0.1, ended=0.3, count=1),
        visit(2, began=0.4, ended=0.6, count=2),
        visit(3, began=0.35, ended=0.5, count=2),
        visit(4, began=None, status=503, accepted=False),
    ]
    assert lost_visits(visits, stored=2) == [True, False, False, True, False]
    assert lost_visits(visits[:1], stored=1) == [False]
    assert lost_visits([visit(count=None)], stored=1) == [True], "of a run without counts"


def test_a_run_is_under_way_as_long_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process keeps the lock that the worker has taken; the worker may end before it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(_: object, **how: Any) -> None:
        read = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        started.append(popen(read, **{**how, "stdin": subprocess.PIPE}))

    popen = subprocess.Popen
    monkeypatch.setattr("sample_app.lab.desk.subprocess.Popen", start)
    plan, desk = Plan(between=Between.LOCK), Desk(tmp_path)
    name = desk.start(plan)
    with started[0] as process:
        assert not existing(desk.find(name)).over
        with pytest.raises(Busy):
            desk.start(plan)
        process.communicate()
    assert "stopped before its end" in existing(desk.find(name)).trouble
