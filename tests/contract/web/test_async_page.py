"""The examples in docs/async.md."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import itsdangerous
import pytest
from google.cloud import ndb

import userlock
from tests.contract.web.test_asgi import Serve, serve  # noqa: F401  (a fixture)
from tests.documents import Page
from userlock import idempotency  # noqa: F401  (its kinds stay when those of the page go)
from userlock.events import Listeners
from userlock.stores import MemoryStore

PAGE = Page("docs/async.md")
COROUTINE = PAGE.take("python", "asyncio.to_thread(save")
APP = PAGE.take("python", "add_middleware")
RIDES = PAGE.take("python", "def create_ride")


SECRET = "test"


def cookie_of(user_id: str) -> dict[str, str]:
    """Return the header of a session, as Starlette signs it."""
    session = base64.b64encode(json.dumps({"user_id": user_id}).encode())
    return {"Cookie": f"session={itsdangerous.TimestampSigner(SECRET).sign(session).decode()}"}


@pytest.fixture
def service() -> userlock.LockService:
    service = userlock.LockService(MemoryStore(), listeners=Listeners())
    userlock.configure(service=service)
    return service


def test_a_coroutine(service: userlock.LockService) -> None:
    saved: list[tuple[str, bool]] = []

    def save(user_id: str) -> None:
        saved.append((user_id, service.holder(user_id) is not None))

    names: Any = COROUTINE.run({"userlock": userlock, "asyncio": asyncio, "save": save})
    asyncio.run(names["finish_exercise"]("ann"))
    assert saved == [("ann", True)]
    assert service.holder("ann") is None


@pytest.fixture
def site(
    service: userlock.LockService, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Provide the page's `main.py`; its store and Datastore are the test's."""
    monkeypatch.setattr(ndb.Model, "_kind_map", {**ndb.Model._kind_map})
    monkeypatch.setattr(userlock.LockService, "from_url", staticmethod(lambda *_: service))
    monkeypatch.setattr(ndb, "Client", lambda: ndb_client)
    monkeypatch.setenv("SECRET_KEY", SECRET)
    return RIDES.run(APP.run({"__name__": "main"}))


def test_fastapi(
    site: dict[str, Any],
    service: userlock.LockService,
    serve: Serve,  # noqa: F811
) -> None:
    ask = serve(site["app"])
    assert [ask("/exercises", headers=cookie_of("ann")).json for _ in range(2)] == [10, 20]
    lease = service.acquire("ann")
    assert ask("/exercises", headers=cookie_of("bob")).json == 10
    assert ask("/exercises").status == 401
    service.release(lease)


def test_a_ride_is_paid_once(
    site: dict[str, Any],
    serve: Serve,  # noqa: F811
    ndb_client: ndb.Client,
) -> None:
    charges: list[int] = []

    def charge_card(cents: int, key: str) -> str:
        charges.append(cents)
        return f"charge-{len(charges)}"

    site["charge_card"] = charge_card
    ask = serve(site["app"])
    headers = {"Content-Type": "application/json", "Idempotency-Key": "order-17"}
    headers |= cookie_of("ann")
    body = json.dumps({"to": "home", "cents": 2000}).encode()
    first, again = (ask("/rides", headers=headers, body=body) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json == {"to": "home", "charge": "charge-1"}
    assert again.headers["idempotent-replayed"] == "true"
    assert charges == [2000]
    with ndb_client.context():
        assert site["Rides"].get_by_id("ann").charges == ["charge-1"]
    assert ask("/rides", headers=headers, body=b"{}").status == 422
