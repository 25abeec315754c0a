"""Test the lab's orders: plans, endpoint, figures, pages. tests/system has whole runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient

import userlock
import userlock_emulator
from sample_app import create_app
from sample_app.lab.crashes import outcome, strip
from sample_app.lab.crashes.crew import DIE
from sample_app.lab.crashes.outcome import Order, figures, verdict, wrong
from sample_app.lab.desk import Desk
from sample_app.lab.plan import Between, CrashPlan, Plan, PlanError, Scenario, options_of
from sample_app.payment_provider.server import Server
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

PLAN = CrashPlan(scenario=Scenario.PAYMENTS, orders=3)

# --- plans --------------------------------------------------------------------------------------


def test_a_plan_from_text() -> None:
    plan = CrashPlan.of({"scenario": "payments", "orders": "7", "clients": "", "between": "none"})
    assert plan == CrashPlan(scenario=Scenario.PAYMENTS, orders=7)
    assert CrashPlan.of({}) == CrashPlan(scenario=Scenario.ORDERS)
    assert options_of([plan]) == [
        *("--scenario=payments", "--orders=7", "--clients=4", "--kill-percent=25"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scenario": "luck"}, "scenario is 'luck'; it is one of: orders, payments"),
        ({"orders": "0"}, "orders is 0; it is a whole number from 1 to 100"),
        ({"kill_percent": "101"}, "kill_percent is 101"),
        ({"clients": "many"}, "clients is 'many'"),
    ],
)
def test_an_invalid_plan(given: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        CrashPlan.of(given)


@pytest.mark.parametrize(("orders", "percent"), [(20, 25), (20, 0), (7, 100), (100, 3), (1, 100)])
def test_the_share_of_killed_workers(orders: int, percent: int) -> None:
    plan = CrashPlan(scenario=Scenario.ORDERS, orders=orders, kill_percent=percent)
    assert sum(map(plan.kills, range(orders))) == orders * percent // 100


# --- the endpoint -------------------------------------------------------------------------------


class Killed(BaseException):
    """A worker has died. Nothing of its code handles that."""


@pytest.fixture
def provider() -> Iterator[Server]:
    with Server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(
    provider: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlaskClient]:
    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "kill", die)
    with userlock_emulator.start() as datastore:
        app = create_app(
            {
                **datastore.env,
                "LAB_BENCH": "1",
                "LOCK_SERVICE": userlock.LockService(MemoryStore(), clock=clock),
                "CLOCK": clock,
                "OUTBOX": "inline://?threads=0",
                "PAYMENT_PROVIDER": provider.url,
            }
        )
        yield app.test_client()


CUSTOMER = "customer-with-a-long-name"
WAYS = [way for scenario in Scenario for way in scenario.ways]


def place(client: FlaskClient, way: str, **headers: str) -> Any:
    return client.post(
        f"/lab/crash/{way}/{CUSTOMER}", headers={"Idempotency-Key": CUSTOMER, **headers}
    )


def effects(client: FlaskClient, provider: Server) -> int:
    """Return how often the provider charged, when all jobs have run."""
    outbox = client.application.extensions["outbox"]
    outbox.relay()
    outbox.engines[0].run_pending()
    keys = provider.ledger.as_json()["keys"]
    return sum(each["status"] == 201 for each in keys)


@pytest.mark.parametrize("way", WAYS)
def test_an_order_has_its_effect_once_however_often_it_is_sent(
    client: FlaskClient, provider: Server, way: str
) -> None:
    for _ in range(3):
        assert place(client, way).status_code == 201
    assert client.get(f"/lab/crash/{CUSTOMER}").get_json() == {"stored": True}
    assert effects(client, provider) == 1


@pytest.mark.parametrize(
    ("way", "after"), [("told", 0), ("outbox", 1), ("charged", 2), ("once", 1)]
)
def test_a_worker_that_dies_between_the_two(
    client: FlaskClient, provider: Server, clock: ManualClock, way: str, after: int
) -> None:
    """Without the library, the effect is missing or is there twice: the control."""
    with pytest.raises(Killed):
        place(client, way, **{DIE: "yes"})
    clock.advance(120)
    assert place(client, way).status_code == 201
    assert client.get(f"/lab/crash/{CUSTOMER}").get_json() == {"stored": True}
    assert effects(client, provider) == after


def test_unknown_ways_and_names(client: FlaskClient, provider: Server) -> None:
    assert place(client, "prayer").status_code == 404
    for way in WAYS:
        assert client.post(f"/lab/crash/{way}/NO_NAME").status_code == 303, "as for a form"
    assert effects(client, provider) == 0


def test_the_site_itself_has_no_such_endpoint() -> None:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1"})
    assert app.test_client().post(f"/lab/crash/told/{CUSTOMER}").status_code == 404


# --- figures ------------------------------------------------------------------------------------


def order(effects: int = 1, *, stored: bool = True, killed: bool = False) -> Order:
    return Order(killed=killed, sent=1, confirmed=stored, stored=stored, effects=effects)


def test_figures() -> None:
    found = figures([order(), order(0, killed=True), order(3), order(1, stored=False)], 2.0)
    counts = {"orders": 4, "killed": 1, "stored": 3, "confirmed": 3, "effects": 5}
    wrongs = {"without_effect": 1, "repeated": 1, "without_order": 1}
    assert counts | wrongs == {name: found[name] for name in counts | wrongs}
    assert wrong(found) == 3


ORDERS, PAYMENTS = Scenario.ORDERS, Scenario.PAYMENTS


@pytest.mark.parametrize(
    ("scenario", "orders", "words"),
    [
        (ORDERS, [order()] * 2, "All 2 orders reached the warehouse, each once. 0 workers killed"),
        (ORDERS, [order(), order(0)], "1 of 2 orders was stored and never reached the warehouse."),
        (ORDERS, [order(2)] * 3, "3 of 3 orders reached the warehouse twice or more often."),
        (PAYMENTS, [order()] * 2, "All 2 orders were charged, each once."),
        (PAYMENTS, [order(2), order()], "1 of 2 orders was charged twice or more often."),
        (PAYMENTS, [order(1, stored=False)], "1 of 1 order was never stored, but had its effect."),
        (PAYMENTS, [order(0, stored=False), order()], "1 unconfirmed"),
    ],
)
def test_the_verdict(scenario: Scenario, orders: list[Order], words: str) -> None:
    assert words in verdict(scenario, figures(orders, 1.0))


def test_the_picture() -> None:
    orders = [order(killed=True), *[order()] * 40, order(0), order(2)]
    drawn = strip.svg(orders, '<by hand> "so"')
    root = ElementTree.fromstring(drawn)  # noqa: S314 (our own)
    told = '<by hand> "so": 41 of 43 orders with their effect once'
    assert root.get("aria-label") == told
    assert drawn.count('class="killed centred"') == 1
    assert drawn.count('class="lost"') == 3, "two, and one in the key"


# --- pages --------------------------------------------------------------------------------------

NAME = "1700000000-aaaaaa"
DOCUMENT = outcome.document(
    PLAN, {"charged": figures([order(2), order()], 3.0), "once": figures([order()], 4.0)}
)


@pytest.fixture
def pages(tmp_path: Path) -> FlaskClient:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1", "LAB_DIR": str(tmp_path)})
    return app.test_client()


def keep(folder: Path, plan: Plan | CrashPlan, *lines: object, name: str = NAME) -> None:
    entries = [{"plans": [dataclasses.asdict(plan)]}, *lines]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in entries))


def test_a_run_is_started(
    pages: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        "sample_app.lab.desk.subprocess.Popen", lambda command, **_: started.append(command)
    )
    answer = pages.post("/lab/crashes", data={"scenario": "payments", "orders": "3"})
    assert answer.status_code == 303
    assert started[0][-4:] == options_of([PLAN])
    (run,) = Desk(tmp_path).runs()
    assert run.plans == (PLAN,)


def test_errors_are_shown_beside_the_form(pages: FlaskClient) -> None:
    answer = pages.post("/lab/crashes", data={"scenario": "payments", "orders": "101"})
    assert answer.status_code == 400
    assert "orders is 101; it is a whole number from 1 to 100" in answer.text
    assert re.findall(r'value="(\w+)" checked', answer.text) == ["none", "payments"]


def test_the_result(pages: FlaskClient, tmp_path: Path) -> None:
    keep(tmp_path, PLAN, DOCUMENT)
    page = pages.get(f"/lab/runs/{NAME}").text
    assert "1 of 2 orders was charged twice or more often." in page
    assert page.count('<svg class="timeline strip"') == 2
    assert "python -m sample_app lab" in page
    assert "1 wrong without userlock, 0 with it" in pages.get("/lab/").text


def test_a_run_that_is_under_way(
    pages: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Desk, "_is_at_work", lambda *_: True)
    keep(tmp_path, PLAN, {"doing": "running", "done": 4})
    assert "4 of 6 orders confirmed" in pages.get(f"/lab/runs/{NAME}").text


def test_runs_of_the_other_game_are_no_comparison(pages: FlaskClient, tmp_path: Path) -> None:
    other = "1700000001-bbbbbb"
    keep(tmp_path, PLAN, DOCUMENT)
    keep(tmp_path, Plan(between=Between.LOCK), name=other)
    page = pages.get(f"/lab/runs/{other}?other={NAME}")
    assert page.status_code == 200
    assert NAME not in page.text
