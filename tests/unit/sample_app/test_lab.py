"""Test the contention lab: plans, bench, figures, pictures. tests/system has whole runs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient

import userlock
import userlock_emulator
from sample_app import create_app
from sample_app.lab import crew, outcome, timeline, waits
from sample_app.lab.crew import Visit
from sample_app.lab.outcome import Outcome, lost_visits, milliseconds, verdict
from sample_app.lab.plan import Between, Plan, PlanError
from sample_app.stack import ports
from userlock.stores import MemoryStore

# --- plans --------------------------------------------------------------------------------------


def test_a_plan_from_text() -> None:
    plan = Plan.of({"between": "transaction", "mode": "optimistic", "clients": "4", "hold_ms": ""})
    assert plan == Plan(between=Between.TRANSACTION, mode="optimistic", clients=4)
    assert Plan.of({}) == Plan(between=Between.LOCK)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"between": "luck"}, "between is 'luck'; it is one of: none, transaction, lock"),
        ({"mode": "hopeful"}, "mode is 'hopeful'; it is one of: pessimistic"),
        ({"clients": "many"}, "clients is 'many'; it is a whole number"),
        ({"clients": "0"}, "clients is 0; it is a whole number from 1 to 32"),
        ({"requests": "201"}, "requests is 201"),
        ({"hold_ms": "501"}, "hold_ms is 501"),
        ({"batch_percent": "101"}, "batch_percent is 101"),
        ({"hold_ms": "-1"}, "hold_ms is '-1'"),
    ],
)
def test_an_invalid_plan(given: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.of(given)


@pytest.mark.parametrize(
    ("clients", "percent", "batch"), [(8, 25, 2), (8, 0, 0), (8, 100, 8), (3, 50, 2)]
)
def test_the_share_of_batch(clients: int, percent: int, batch: int) -> None:
    plan = Plan(between=Between.LOCK, clients=clients, batch_percent=percent)
    assert plan.batch_clients == batch


# --- the bench ----------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def datastore() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(concurrency_mode="optimistic") as datastore:
        yield datastore


@pytest.fixture
def client(store: MemoryStore, datastore: userlock_emulator.Emulator) -> FlaskClient:
    app = create_app(
        {**datastore.env, "LAB_BENCH": "1", "LOCK_SERVICE": userlock.LockService(store)}
    )
    return app.test_client()


@pytest.mark.parametrize("way", ["none", "transaction", "lock"])
def test_each_way_adds_one(client: FlaskClient, way: str) -> None:
    for number in range(3):
        answer = client.post(f"/lab/bench/{way}/a")
        assert answer.status_code == 200
        facts = answer.get_json()
        assert (facts["accepted"], facts["attempts"], facts["degraded"]) == (True, 1, False)
        assert facts["count"] == number + 1
        assert facts["asked"] <= facts["began"] <= facts["ended"]
    assert client.get(f"/lab/bench/{way}/a").get_json() == {"count": 3}


def test_without_memcached_it_is_degraded(client: FlaskClient, store: MemoryStore) -> None:
    store.go_down()
    assert client.post("/lab/bench/lock/a").get_json()["degraded"] is True


def test_a_transaction_that_is_aborted_each_time_is_refused(
    client: FlaskClient, datastore: userlock_emulator.Emulator
) -> None:
    datastore.faults.abort(count=None, kind="LabPlainCounter")
    answer = client.post("/lab/bench/transaction/a")
    assert answer.status_code == 409
    assert answer.get_json()["attempts"] == 4
    datastore.faults.clear()
    assert client.get("/lab/bench/transaction/a").get_json() == {"count": 0}


def test_an_unknown_protection(client: FlaskClient) -> None:
    assert client.post("/lab/bench/prayer/a").status_code == 404


def test_the_site_itself_has_no_bench() -> None:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1"})
    assert app.test_client().post("/lab/bench/none/a").status_code == 404


# --- figures ------------------------------------------------------------------------------------


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


VISITS = [
    visit(0),
    visit(1, asked=0.1, began=0.4, ended=0.5, attempts=3),
    visit(2, began=None, ended=1.0, attempts=0, status=503, accepted=False, batch=True),
    visit(3, status=409, accepted=False, degraded=True),
]


def test_the_figures() -> None:
    found = Outcome.of(VISITS, stored=1)
    assert dataclasses.asdict(found) == {
        "requests": 4,
        "accepted": 2,
        "refused": 1,
        "timed_out": 1,
        "failed": 0,
        "stored": 1,
        "lost": 1,
        "retries": 2,
        "degraded": 1,
        "seconds": 1.0,
        "per_second": 2.0,
        "wait_p50": 100.0,
        "wait_p99": 1000.0,
        "wait_longest": 1000.0,
        "interactive_p99": pytest.approx(300.0),
        "batch_p99": 1000.0,
    }


def test_a_request_without_an_answer_has_failed() -> None:
    plan = Plan(between=Between.LOCK, clients=2, requests=3)
    visits = crew.send(plan, f"127.0.0.1:{ports.any_free()}", "a")
    found = Outcome.of(visits, stored=0)
    assert (found.requests, found.failed, found.lost) == (6, 6, 0)


def test_a_run_is_a_document() -> None:
    plan = Plan(between=Between.LOCK)
    found = json.loads(json.dumps(outcome.document(plan, VISITS, Outcome.of(VISITS, 2))))
    assert found["plan"]["between"] == "lock"
    assert [Visit(**each) for each in found["visits"]] == VISITS


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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"accepted": 80, "lost": 0},
            "No update was lost: all 80 accepted ones are in the counter. "
            "The longest wait was 1.9 s.",
        ),
        (
            {"accepted": 80, "lost": 68, "stored": 12},
            "68 of 80 accepted updates were lost: the counter says 12. The longest wait was 1.9 s.",
        ),
        (
            {"accepted": 1, "lost": 0, "refused": 1, "degraded": 5, "wait_longest": 12.0},
            "No update was lost: the accepted one is in the counter. The longest wait was 12 ms; "
            "1 request refused; 5 requests without an answer from memcached.",
        ),
    ],
)
def test_the_verdict(changes: dict[str, Any], says: str) -> None:
    figures = dataclasses.asdict(Outcome.of(VISITS, stored=1))
    usual = {"refused": 0, "timed_out": 0, "degraded": 0, "wait_longest": 1900.0}
    assert verdict({**figures, **usual, **changes}) == says


@pytest.mark.parametrize(
    ("value", "text"), [(0.4, "0 ms"), (999.4, "999 ms"), (999.6, "1.0 s"), (4871.0, "4.9 s")]
)
def test_times_in_units_that_people_read(value: float, text: str) -> None:
    assert milliseconds(value) == text


# --- pictures -----------------------------------------------------------------------------------


def test_the_timeline_shows_each_visit() -> None:
    picture = ElementTree.fromstring(timeline.svg(VISITS, 'a <title> & "more"'))  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar.get("class") for bar in picture.iter(f"{space}rect")]
    legend = 6
    shown = bars[: len(bars) - legend]
    assert shown.count("waits") == 4
    assert shown.count("of-interactive") == 2
    assert shown.count("of-interactive refused degraded") == 1
    assert shown.count("of-batch") == 0, "it never was inside"
    assert picture.get("aria-label") == 'a <title> & "more"'
    lanes = [text.text for text in picture.iter(f"{space}text") if text.get("class") == "lane"]
    assert lanes == ["interactive 1", "interactive 2", "batch 3", "interactive 4"]


def test_lost_updates_and_the_kill_are_drawn() -> None:
    drawn = timeline.svg(VISITS, "a run", lost=[True, False, False, False], killed_at=0.9)
    picture = ElementTree.fromstring(drawn)  # noqa: S314 (our own)
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar.get("class") for bar in picture.iter(f"{space}rect")]
    assert bars.count("of-interactive lost") == 2, "a visit, and the key"
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert "memcached killed" in texts
    assert "memcached killed" not in timeline.svg(VISITS, "a run")


def test_the_waits_of_people_and_batch_are_plotted() -> None:
    drawn = waits.svg(VISITS, "user lock", 2.0)
    picture = ElementTree.fromstring(drawn)  # noqa: S314 (our own)
    assert picture.get("aria-label") == (
        "Waits, user lock: people: half within 100 ms, all within 300 ms; "
        "batch: half within 1.0 s, all within 1.0 s"
    )
    curves = list(picture.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [each.get("class") for each in curves] == ["curve of-interactive", "curve of-batch"]
    people = [
        tuple(map(float, point.split(","))) for point in (curves[0].get("points") or "").split()
    ]
    assert people == sorted(people, key=lambda point: point[0])
    without_batch = waits.svg(VISITS[:1], "user lock", 0.0)
    assert without_batch.count("<polyline") == 1
