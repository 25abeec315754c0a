"""Test the lab's orders: plans, endpoint, figures, pages. tests/system has whole runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

import userlock
import userlock_emulator
from sample_app import create_app
from sample_app.lab.crashes.outcome import Order, figures, verdict, wrong
from sample_app.lab.plan import Scenario
from sample_app.payment_provider.server import Server
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

# --- plans --------------------------------------------------------------------------------------


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


def effects(client: FlaskClient, provider: Server) -> int:
    """Return how often the provider charged, when all jobs have run."""
    outbox = client.application.extensions["outbox"]
    outbox.relay()
    outbox.engines[0].run_pending()
    keys = provider.ledger.as_json()["keys"]
    return sum(each["status"] == 201 for each in keys)


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


# --- pages --------------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path: Path) -> FlaskClient:
    app = create_app({"DATASTORE_EMULATOR_HOST": "127.0.0.1:1", "LAB_DIR": str(tmp_path)})
    return app.test_client()
