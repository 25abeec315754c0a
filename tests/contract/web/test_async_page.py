"""The examples in docs/async.md."""

from __future__ import annotations

import asyncio
from typing import Any

import fastapi
import pytest
from google.cloud import ndb

import userlock
from tests.contract.web.test_asgi import Serve, serve  # noqa: F401  (a fixture)
from tests.documents import Page
from userlock.contrib.asgi import UserLockMiddleware
from userlock.events import Listeners
from userlock.stores import MemoryStore

PAGE = Page("docs/async.md")
COROUTINE = PAGE.take("python", "asyncio.to_thread(save")
APP = PAGE.take("python", "add_middleware")


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ndb.Model, "_kind_map", dict(ndb.Model._kind_map))

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
    ask = serve(names["app"])
    assert [ask("/exercises/ann").json for _ in range(2)] == [10, 20]
    lease = service.acquire("ann")
    assert ask("/exercises/bob").json == 10
    service.release(lease)
