"""Test the Flask extension: scope, priority and release of each request, and answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from userlock.contrib.flask import UserLock
from userlock.events import LISTENERS, log_event


class Account(userlock.UserModel):
    """One user's account, locked by its key's name."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service, batch_prefixes=["/tasks/"])

    @app.post("/users/<user_id>/points")
    def add_points(user_id: str) -> dict[str, int]:
        with userlock.global_lock(user_id, wait_timeout=1):
            account = Account.get_by_id(user_id) or Account(id=user_id)
            account.points += 5
            account.put()
        return {"points": account.points}

    @app.post("/no-lock")
    def no_lock() -> str:
        Account(id="ann").put()
        return "written"

    return app


@pytest.fixture
def client(app: flask.Flask) -> FlaskClient:
    return app.test_client()


def test_a_violation_is_raised_in_tests(app: flask.Flask) -> None:
    app.testing = True
    with pytest.raises(userlock.CreatedWithoutLock):
        app.test_client().post("/no-lock")


def test_a_violation_that_no_listener_logs_is_logged_with_its_text(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    LISTENERS.remove(log_event)
    try:
        client.post("/no-lock")
    finally:
        LISTENERS.add(log_event)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert caplog.text.count("CreatedWithoutLock:") == 1


def test_a_violation_that_the_app_drops_is_in_the_log(
    app: flask.Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    @app.post("/dropped")
    def dropped() -> str:
        with contextlib.suppress(Exception):
            app.view_functions["no_lock"]()
        return "fine"

    assert client.post("/dropped").text == "fine"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("CreatedWithoutLock: ")


def test_a_client_that_is_made_by_a_function_is_made_once(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(1)
        return ndb_client

    app = flask.Flask(__name__)
    extension = UserLock(client=make, service=service)
    extension.init_app(app)
    app.get("/")(lambda: "hello")
    assert made == []
    for _ in range(3):
        assert app.test_client().get("/").text == "hello"
    assert made == [1]


def test_an_earlier_before_request_may_answer(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    app = flask.Flask(__name__)
    app.before_request(lambda: ("go away", 403))
    UserLock(app, client=ndb_client, service=service)
    assert app.test_client().get("/").status_code == 403
    assert userlock.current_scope() is None


def test_without_a_service_it_says_how_to_get_one() -> None:
    app = flask.Flask(__name__)
    app.testing = True
    UserLock(app)
    app.get("/")(lambda: "hello")
    with pytest.raises(userlock.NoService, match=r"userlock\.configure"):
        app.test_client().get("/")


def test_an_address_is_no_service() -> None:
    """The error comes when the app starts, not in its first request."""
    with pytest.raises(TypeError, match="must be a LockService"):
        UserLock(service="memcache://127.0.0.1:11211")  # type: ignore[arg-type]


def test_a_stream_that_needs_a_scope_is_told_where_it_is(app: flask.Flask) -> None:
    @app.get("/stream")
    def stream() -> Any:
        def steps() -> Iterator[bytes]:
            yield b"begin"
            userlock.acquire_lock("ann")

        return flask.Response(flask.stream_with_context(steps()))

    answer = app.test_client().get("/stream")
    with pytest.raises(userlock.NoScope, match="Flask and Django end it"):
        answer.get_data()
