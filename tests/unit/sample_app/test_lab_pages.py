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
from sample_app.lab.plan import Between, Plan, options_of, with_each
from tests.unit.sample_app.test_lab import VISITS, visit

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
LOST = outcome.document(
    Plan(between=Between.NOTHING), [visit(), visit(1)], Outcome.of([visit(), visit(1)], stored=1)
)
FIRST, SECOND = "1700000000-aaaaaa", "1700000001-bbbbbb"


def test_a_site_without_a_folder_has_no_lab() -> None:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1"})
    assert app.test_client().get("/lab/").status_code == 404


def test_the_form_offers_each_protection_and_mode(client: FlaskClient) -> None:
    page = client.get("/lab/").text
    for value in (*Between, "pessimistic", "optimistic-with-entity-groups"):
        assert value in page
    assert "No runs yet" in page


def test_errors_are_shown_beside_the_form(client: FlaskClient) -> None:
    answer = client.post("/lab/runs", data={"between": "lock", "clients": "99"})
    assert answer.status_code == 400
    assert "clients is 99; it is a whole number from 1 to 32" in answer.text


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


def test_the_form_begins_with_defaults(client: FlaskClient) -> None:
    page = client.get("/lab/").text
    assert re.findall(r'value="(\w+)" checked', page) == ["none", "orders"]
    assert re.findall(r"<option selected>([^<]+)<", page) == ["pessimistic"]


def test_a_run_that_is_over(client: FlaskClient, tmp_path: Path) -> None:
    keep(tmp_path, FIRST, PLAN, {"doing": "running", "done": 8}, OVER)
    page = client.get(f"/lab/runs/{FIRST}").text
    assert "<svg" in page
    assert "user lock" in page
    assert client.get(f"/lab/runs/{FIRST}.json").get_json()["results"] == [OVER]
    assert "0 of 2 lost" in client.get("/lab/").text


def test_two_runs_side_by_side(client: FlaskClient, tmp_path: Path) -> None:
    keep(tmp_path, FIRST, PLAN, OVER)
    keep(tmp_path, SECOND, Plan(between=Between.NOTHING), LOST)
    page = client.get(f"/lab/runs/{SECOND}?other={FIRST}").text
    assert page.count('<svg class="timeline"') == 2
    assert "No protection vs. user lock" in page
    assert '<dd class="lost">' in page


def test_all_four(client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        "sample_app.lab.desk.subprocess.Popen", lambda command, **_: started.append(command)
    )
    answer = client.post("/lab/runs", data={"between": "none", "clients": "3", "all": "yes"})
    assert answer.status_code == 303
    (command,) = started
    wanted = [f"--between={between}" for between in Between]
    assert [each for each in command if each.startswith("--between")] == wanted
    (name,) = [file.stem for file in tmp_path.glob("*.jsonl")]
    run = Desk(tmp_path).find(name)
    assert run is not None
    assert run.plans == tuple(with_each(Plan(between=Between.NOTHING, clients=3)))


def test_the_comparison_of_all_four(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = with_each(PLAN)
    keep(tmp_path, FIRST, plans, LOST, OVER, {"doing": "running", "done": 8})
    monkeypatch.setattr(Desk, "_is_at_work", lambda *_: True)
    page = client.get(f"/lab/runs/{FIRST}").text
    assert "168 of 320 requests answered" in page
    assert page.count('<svg class="timeline"') == 2, "the results so far"
    keep(tmp_path, FIRST, plans, LOST, OVER, OVER, OVER)
    page = client.get(f"/lab/runs/{FIRST}").text
    assert (
        page.count('<svg class="timeline"') == page.count('<svg class="timeline waits-plot"') == 4
    )
    assert "1 of 2 accepted updates was lost: the counter says 1." in page
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)<', page)
    assert heads[:4] == ["Protection", "Lost updates", "Accepted", "Longest wait"]
    assert "1 of 4 lose updates" in client.get("/lab/").text


def test_each_field_is_explained(client: FlaskClient) -> None:
    page = client.get("/lab/").text
    described = re.findall(r'aria-describedby="([^"]+)"', page)
    assert len(described) == 7
    for each in described:
        assert f'id="{each}"' in page


def test_side_by_side_runs_are_described_and_have_one_scale(
    client: FlaskClient, tmp_path: Path
) -> None:
    short = Plan(between=Between.NOTHING, clients=2, requests=1)
    keep(tmp_path, FIRST, PLAN, OVER)  # a second
    keep(tmp_path, SECOND, short, LOST)  # a fifth of a second
    assert ">1 s</text>" not in client.get(f"/lab/runs/{SECOND}").text
    page = client.get(f"/lab/runs/{SECOND}?other={FIRST}").text
    assert page.count(">1 s</text>") == 2
    words = re.sub("</?span[^>]*>", "", page)
    for plan in (short, PLAN):
        assert f"python -m sample_app lab {' '.join(options_of([plan]))}<" in words


def test_a_run_that_is_under_way(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Desk, "_is_at_work", lambda *_: True)
    keep(tmp_path, FIRST, PLAN, {"doing": "running", "done": 24})
    assert "24 of 80 requests answered" in client.get(f"/lab/runs/{FIRST}").text
    state = client.get(f"/lab/runs/{FIRST}.json").get_json()
    assert (state["over"], state["done"], state["of"]) == (False, 24, 80)
    answer = client.post("/lab/runs", data={"between": "none"})
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/lab/runs/{FIRST}"
    with pytest.raises(Busy):
        Desk(tmp_path).start(PLAN)


@pytest.mark.parametrize(
    ("last", "trouble"),
    [
        ("error: memcached did not start", "memcached did not start"),
        ({"doing": "running", "done": 3}, "The run was stopped before its end."),
    ],
)
def test_a_run_that_failed(client: FlaskClient, tmp_path: Path, last: object, trouble: str) -> None:
    keep(tmp_path, FIRST, PLAN, last)
    page = client.get(f"/lab/runs/{FIRST}").text
    assert trouble in page
    assert client.get(f"/lab/runs/{FIRST}.json").get_json()["over"] is True


def test_a_run_that_ends_while_it_is_looked_up(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process writes the outcome and ends between the two questions: that is no failure."""
    keep(tmp_path, FIRST, PLAN, {"doing": "running", "done": 79})

    def end(*_: object) -> bool:
        keep(tmp_path, FIRST, PLAN, OVER)
        return False

    monkeypatch.setattr(Desk, "_is_at_work", end)
    assert "The run was stopped" not in client.get(f"/lab/runs/{FIRST}").text


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


@pytest.mark.parametrize("name", ["1700000000-cccccc", "..", "nothing", "..%2F..%2Fetc"])
def test_there_is_no_such_run(client: FlaskClient, name: str) -> None:
    assert client.get(f"/lab/runs/{name}").status_code == 404


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(25):
        keep(tmp_path, f"17000000{number:02}-aaaaaa", PLAN, OVER)
    monkeypatch.setattr("sample_app.lab.desk.subprocess.Popen", lambda *_, **__: None)
    name = Desk(tmp_path).start(PLAN)
    kept = [run.name for run in Desk(tmp_path).runs()]
    assert len(kept) == 20
    assert kept[0] == name
