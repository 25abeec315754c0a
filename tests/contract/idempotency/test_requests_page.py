"""The examples in docs/requests.md."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.idempotency.conftest import KEY
from tests.documents import Page

PAGE = Page("docs/requests.md")
APP = PAGE.take("python", "create_ride")
FUNCTION = PAGE.take("python", "def refund_payment")


@pytest.fixture
def names(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the page's module."""
    monkeypatch.setattr(ndb.Model, "_kind_map", {**ndb.Model._kind_map})
    monkeypatch.setitem(sys.modules, "rides", types.ModuleType("rides"))
    monkeypatch.setenv("USERLOCK_STORE", "memory:")
    return APP.run({"__name__": "rides"})


def test_a_ride_is_begun_once(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    client = names["app"].test_client()

    def send() -> Any:
        headers = {"Idempotency-Key": KEY}
        return client.post("/users/ann/rides", json={"to": "home"}, headers=headers)

    first, again = send(), send()
    assert (first.status_code, again.status_code, first.data) == (201, 201, again.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    with ndb_client.context():
        (ride,) = names["Ride"].query()
    assert ride.charge.startswith("charge-")


def test_a_refund_is_made_once(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    found = FUNCTION.run(names)
    with names["app"].test_request_context():
        names["app"].preprocess_request()
        assert found["refund_payment"]() == found["refund_payment"]()
