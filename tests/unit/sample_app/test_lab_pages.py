"""Test the contention lab's pages, with runs as files. tests/system has whole runs."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from sample_app import create_app
from sample_app.lab import outcome
from sample_app.lab.desk import Busy, Desk
from sample_app.lab.outcome import Outcome
from sample_app.lab.plan import Between, Plan
from tests.unit.sample_app.test_lab import VISITS

PLAN = Plan(between=Between.LOCK)


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1", "LAB_DIR": str(tmp_path)})
    return app.test_client()


def keep(folder: Path, name: str, plan: Plan | list[Plan], *lines: object) -> None:
    plans = plan if isinstance(plan, list) else [plan]
    entries = [{"plans": [dataclasses.asdict(each) for each in plans]}, *lines]
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in entries)
    (folder / f"{name}.jsonl").write_text(text + "\n")


OVER = outcome.document(PLAN, VISITS, Outcome.of(VISITS, stored=2))


def test_a_form_that_is_refused_keeps_its_values(client: FlaskClient) -> None:
    typed = {"between": "transaction", "mode": "optimistic", "clients": "99", "requests": "7"}
    page = client.post("/lab/runs", data={**typed, "hold_ms": "", "batch_percent": '"><b>'}).text
    assert re.findall(r'value="(\w+)" checked', page) == ["transaction", "orders"]
    assert re.findall(r"<option selected>([^<]+)<", page) == ["optimistic"]
    fields = dict(re.findall(r'<input id="(\w+)" [^>]* value="([^"]*)"', page))
    assert fields == {
        "clients": "99",
        "requests": "7",
        "hold_ms": "",
        "batch_percent": "&#34;&gt;&lt;b&gt;",
        "orders": "20",
        "kill_percent": "25",
    }


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
    desk = Desk(tmp_path)
    name = desk.start(PLAN)
    with started[0] as process:
        begun = desk.find(name)
        assert begun is not None
        assert not begun.over
        with pytest.raises(Busy):
            desk.start(PLAN)
        process.communicate()
    ended = desk.find(name)
    assert ended is not None
    assert "stopped before its end" in ended.trouble


def test_a_failed_run_shows_its_error_and_runs_again(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = (
        "error: gunicorn did not answer within 60 s.",
        "Its last output:",
        f"[INFO] {'x' * 200}",
    )
    keep(tmp_path, "1700000000-dddddd", [PLAN, PLAN], OVER, *said)
    page = client.get("/lab/runs/1700000000-dddddd").text
    assert "This run failed: gunicorn did not answer within 60 s.<" in page
    assert "<details>" in page
    assert "[INFO]" not in client.get("/lab/").text
    started: list[list[str]] = []
    monkeypatch.setattr(
        "sample_app.lab.desk.subprocess.Popen", lambda command, **_: started.append(command)
    )
    answer = client.post("/lab/runs/1700000000-dddddd/again")
    assert answer.status_code == 303
    assert " ".join(started[0]).count("--between") == 2


def test_there_is_no_such_run(client: FlaskClient) -> None:
    for name in ("1700000000-cccccc", "..", "nothing", "..%2F..%2Fetc"):
        assert client.get(f"/lab/runs/{name}").status_code == 404


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(25):
        keep(tmp_path, f"17000000{number:02}-aaaaaa", PLAN, OVER)
    monkeypatch.setattr("sample_app.lab.desk.subprocess.Popen", lambda *_, **__: None)
    name = Desk(tmp_path).start(PLAN)
    kept = [run.name for run in Desk(tmp_path).runs()]
    assert len(kept) == 20
    assert kept[0] == name
