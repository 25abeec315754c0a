"""The examples in docs/requests.md."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import requests
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from sample_app.stack import ports
from tests.contract.idempotency.conftest import KEY
from tests.contract.outbox.engines.test_whole_way import served
from tests.documents import Page

PAGE = Page("docs/requests.md")
APP = PAGE.take("python", "create_ride")
CLIENT = PAGE.take("python", "def order_ride")
FORM = PAGE.take("python", "def tip")
COMPLETABLE = PAGE.take("python", "def refund_ride")
FUNCTION = PAGE.take("python", "def refund_payment")


@pytest.fixture
def names(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the page's module."""
    monkeypatch.setitem(sys.modules, "rides", types.ModuleType("rides"))
    monkeypatch.setenv("USERLOCK_STORE", "memory:")
    found = APP.run({"__name__": "rides"})
    found["app"].secret_key = "test"
    return found


def signed_in(names: dict[str, Any], user_id: str = "ann") -> FlaskClient:
    client: FlaskClient = names["app"].test_client()
    with client.session_transaction() as session:
        session["user_id"] = user_id
    return client


def test_a_ride_is_begun_once(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    client = signed_in(names)

    def send() -> Any:
        headers = {"Idempotency-Key": KEY}
        return client.post("/rides", json={"to": "home"}, headers=headers)

    first, again = send(), send()
    assert (first.status_code, again.status_code, first.data) == (201, 201, again.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    with ndb_client.context():
        (ride,) = names["Ride"].query()
        (audit,) = names["Audit"].query()
    assert ride.charge.startswith("charge-")
    assert (audit.action, audit.entity) == ("ride", ride.key)
    headers, ride = {"Idempotency-Key": KEY}, {"to": "home"}
    stranger = names["app"].test_client()
    assert stranger.post("/rides", json=ride, headers=headers).status_code == 401
    other = signed_in(names, "ben").post("/rides", json=ride, headers=headers)
    assert "Idempotent-Replayed" not in other.headers, "ben's own request, with ann's key"


def test_a_client_sends_it_again(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    """The answer to its first request is lost."""
    sent: list[int] = []

    def site(environ: Any, start_response: Any) -> Any:
        answer = names["app"](environ, start_response)
        sent.append(len(sent))
        if len(sent) == 1:
            raise ConnectionError("the connection breaks")
        return answer

    order_ride, port = CLIENT.run({})["order_ride"], ports.any_free()
    cookie = signed_in(names).get_cookie("session")
    assert cookie is not None
    browser = requests.Session()
    browser.cookies.set("session", cookie.value)
    with served(site, port):
        answers = [order_ride(f"http://127.0.0.1:{port}", "order-17", browser) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201]
    assert len(sent) == 3
    with ndb_client.context():
        assert names["Ride"].query().count() == 1


def test_a_form_is_sent_twice(names: dict[str, Any]) -> None:
    client = signed_in(FORM.run(names))
    first, again = (client.post("/tips", data={"request": KEY}) for _ in range(2))
    assert (first.status_code, first.data) == (again.status_code, again.data)
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_refund_is_made_once(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    found = FUNCTION.run(names)
    with names["app"].test_request_context():
        names["app"].preprocess_request()
        assert found["refund_payment"]() == found["refund_payment"]()


def test_a_refund_is_completed_by_the_server(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    found = COMPLETABLE.run(names)
    reached = names["charge_card"]

    def unreachable(cents: int, key: str) -> str:
        raise RuntimeError("the process dies here")

    def send() -> Any:
        headers = {"Idempotency-Key": KEY}
        return signed_in(names).post("/refunds/17", json={"cents": 5}, headers=headers)

    names["charge_card"] = unreachable
    assert send().status_code == 500
    names["charge_card"] = reached
    with ndb_client.context(), userlock.scope(names["service"]):
        ((asked, answer),) = names["flows"].complete(older_than=0)
    assert asked.arguments == {"payment": "17"}
    assert send().data == answer.body
    assert list(found["outbox"].jobs) == ["userlock.complete_request"]
