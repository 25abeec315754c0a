"""The examples in docs/async.md."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from typing import Any

import fastapi
import itsdangerous
import pydantic
import pytest
from google.cloud import ndb
from starlette.middleware.sessions import SessionMiddleware

import userlock
from tests.contract.web.test_asgi import Serve, serve  # noqa: F401  (a fixture)
from tests.documents import Page
from userlock.contrib.asgi import Flows, UserLockMiddleware
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


def test_fastapi(
    service: userlock.LockService,
    serve: Serve,  # noqa: F811
    ndb_client: ndb.Client,
) -> None:

    class Learner(userlock.UserModel):
        _lock_id_from_key = userlock.key_id
        points = ndb.IntegerProperty(default=0)

    names: Any = APP.run(
        {
            "fastapi": fastapi,
            "userlock": userlock,
            "UserLockMiddleware": UserLockMiddleware,
            "service": service,
            "ndb_client": ndb_client,
            "Learner": Learner,
        }
    )
    ask = serve(SessionMiddleware(names["app"], SECRET))
    assert [ask("/exercises", headers=cookie_of("ann")).json for _ in range(2)] == [10, 20]
    lease = service.acquire("ann")
    assert ask("/exercises", headers=cookie_of("bob")).json == 10
    assert ask("/exercises").status == 401
    service.release(lease)


class Ride(pydantic.BaseModel):
    """The body of a request."""

    to: str
    cents: int


def test_a_ride_is_paid_once(
    service: userlock.LockService,
    serve: Serve,  # noqa: F811
    ndb_client: ndb.Client,
) -> None:
    charges: list[int] = []

    class Rides(userlock.UserModel):
        _lock_id_from_key = userlock.key_id
        charges = ndb.StringProperty(repeated=True)

    def charge_card(cents: int, key: str) -> str:
        charges.append(cents)
        return f"charge-{len(charges)}"

    app = fastapi.FastAPI()
    app.add_middleware(UserLockMiddleware, service=service)
    signed_in = APP.text[APP.text.index("def signed_in") : APP.text.index("@app.post")]
    RIDES.run(
        {
            **dataclasses.replace(APP, text=signed_in).run({"fastapi": fastapi}),
            "app": app,
            "Flows": Flows,
            "ndb_client": ndb_client,
            "Ride": Ride,
            "Rides": Rides,
            "charge_card": charge_card,
            "__name__": "rides",
        }
    )
    ask = serve(SessionMiddleware(app, SECRET))
    headers = {"Content-Type": "application/json", "Idempotency-Key": "order-17"}
    headers |= cookie_of("ann")
    body = json.dumps({"to": "home", "cents": 2000}).encode()
    first, again = (ask("/rides", headers=headers, body=body) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json == {"to": "home", "charge": "charge-1"}
    assert again.headers["idempotent-replayed"] == "true"
    assert charges == [2000]
    with ndb_client.context():
        assert Rides.get_by_id("ann").charges == ["charge-1"]
    assert ask("/rides", headers=headers, body=b"{}").status == 422
