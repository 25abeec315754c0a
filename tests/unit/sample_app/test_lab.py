"""Test the contention lab: plans, bench, figures, pictures. tests/system has whole runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

import userlock
import userlock_emulator
from sample_app import create_app
from sample_app.lab.crew import Visit
from sample_app.lab.outcome import Outcome, lost_visits, verdict
from sample_app.lab.plan import Plan, PlanError
from userlock.stores import MemoryStore

# --- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"between": "luck"}, "between is 'luck'; it is one of: none, transaction, lock"),
        ({"clients": "many"}, "clients is 'many'; it is a whole number"),
        ({"clients": "0"}, "clients is 0; it is a whole number from 1 to 32"),
        ({"batch_percent": "101"}, "batch_percent is 101"),
        ({"hold_ms": "-1"}, "hold_ms is '-1'"),
    ],
)
def test_an_invalid_plan(given: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.of(given)


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


def test_the_site_itself_has_no_bench() -> None:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1"})
    for path in ("bench/none", "crash/told"):
        assert app.test_client().post(f"/lab/{path}/a").status_code == 404


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
