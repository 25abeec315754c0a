"""Test the Flask extension: scope, priority and release of each request, and answers."""

from __future__ import annotations

import contextlib
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
import userlock_emulator
from userlock.contrib.flask import UserLock
from userlock.events import LISTENERS, log_event
from userlock.stores import MemoryStore


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

    @app.get("/scope")
    @app.get("/tasks/scope")
    def tell_scope() -> dict[str, str]:
        scope = userlock.current_scope()
        assert scope is not None
        return {"priority": scope.priority.value, "request": scope.request}

    @app.post("/leave-it-locked")
    def leave_it_locked() -> str:
        userlock.acquire_lock("ann")
        return "locked"

    @app.post("/fail-locked")
    def fail_locked() -> str:
        userlock.acquire_lock("ann")
        raise ZeroDivisionError

    @app.post("/forget-the-future")
    def forget_the_future() -> str:
        userlock.acquire_lock("ann")
        account = Account.get_by_id("ann")
        with userlock.scope(service), userlock.suppress("another process, without the lock"):
            other = account.key.get(use_cache=False)
            other.points += 1
            other.put()
        account.put_async()
        return "fine"

    @app.post("/forget-the-future-and-time-out")
    def forget_and_time_out() -> str:
        forget_the_future()
        raise userlock.LockTimeout(lock_id="bob", waited_seconds=1, holder=None)

    @app.post("/no-lock")
    def no_lock() -> str:
        Account(id="ann").put()
        return "written"

    return app


@pytest.fixture
def client(app: flask.Flask) -> FlaskClient:
    return app.test_client()


def test_a_handler_locks_gets_modifies_and_puts(client: FlaskClient) -> None:
    assert client.post("/users/ann/points").get_json() == {"points": 5}
    assert client.post("/users/ann/points").get_json() == {"points": 10}


@pytest.mark.parametrize(
    ("path", "headers", "priority"),
    [
        ("/scope", {}, "interactive"),
        ("/tasks/scope", {}, "batch"),
        ("/scope", {"X-AppEngine-QueueName": "default"}, "batch"),
        ("/scope", {"X-Appengine-Cron": "true"}, "batch"),
        ("/scope", {"X-CloudTasks-QueueName": "nightly"}, "batch"),
        ("/scope", {"X-CloudScheduler": "true"}, "batch"),
    ],
)
def test_the_request_says_the_priority(
    client: FlaskClient, path: str, headers: dict[str, str], priority: str
) -> None:
    answer = client.get(path, headers=headers).get_json()
    assert answer == {"priority": priority, "request": f"GET {path}"}


@pytest.mark.parametrize("path", ["/leave-it-locked", "/fail-locked"])
def test_locks_that_a_request_leaves_are_released_at_its_end(
    client: FlaskClient, service: userlock.LockService, path: str
) -> None:
    client.post(path)
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_a_lock_that_is_not_to_be_had_is_503_with_retry_after(
    client: FlaskClient, service: userlock.LockService
) -> None:
    service.acquire("ann", request="POST /elsewhere")
    answer = client.post("/users/ann/points")
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert answer.mimetype == "application/problem+json"
    body = answer.get_json()
    assert (body["title"], body["status"]) == ("Service Unavailable", 503)
    assert body["error"] == "LockTimeout"
    assert body["lock_id"] == "ann"
    assert body["waited_seconds"] == pytest.approx(1)
    assert "elsewhere" not in answer.text, "who holds it is for the log, not for the client"


def test_an_outage_with_policy_fail_is_503(ndb_client: ndb.Client, store: MemoryStore) -> None:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=userlock.LockService(store, outage="fail"))

    @app.post("/")
    @userlock.global_lock("ann")
    def handler() -> str:
        return "locked"

    store.go_down("connection refused at 10.0.0.7")
    answer = app.test_client().post("/")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.get_json()["error"] == "LockServiceUnavailable"
    assert "10.0.0.7" not in answer.text


def test_a_refused_write_that_the_handler_did_not_wait_for_is_409(client: FlaskClient) -> None:
    client.post("/users/ann/points")
    answer = client.post("/forget-the-future")
    assert answer.status_code == 409
    body = answer.get_json()
    assert body["error"] == "StaleWriteError"
    assert ".py" not in answer.text, "code places are for the log"


@pytest.mark.parametrize("transactional", [False, True])
def test_a_write_in_doubt_is_not_to_be_sent_again(
    app: flask.Flask,
    client: FlaskClient,
    datastore: userlock_emulator.Emulator,
    transactional: bool,
) -> None:
    """The write has landed: a client that repeats the request would add the points twice."""

    @app.post("/transaction")
    @userlock.global_lock("ann")
    def transact() -> str:
        def add() -> None:
            account = Account.get_by_id("ann")
            account.points += 5
            account.put()

        ndb.transaction(add)
        return "fine"

    client.post("/users/ann/points")
    path = "/transaction" if transactional else "/users/ann/points"
    datastore.faults.drop_reply(kind="Account")
    answer = client.post(path)
    assert answer.status_code == 500
    assert "Retry-After" not in answer.headers
    assert answer.get_json()["error"] in ("StaleWriteError", "CommitInDoubt")
    assert client.post("/users/ann/points").get_json() == {"points": 15}


def test_an_answer_that_is_an_error_already_is_kept(
    client: FlaskClient, service: userlock.LockService, caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/users/ann/points")
    answer = client.post("/forget-the-future-and-time-out")
    assert (answer.status_code, answer.get_json()["error"]) == (503, "LockTimeout")
    assert "StaleWriteError" in caplog.text
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_the_status_for_contention_can_be_chosen(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service, contention_status=409)
    app.post("/")(userlock.global_lock("ann", wait_timeout=0)(lambda: "locked"))
    service.acquire("ann")
    answer = app.test_client().post("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
    with pytest.raises(ValueError, match="must be 503 or 409"):
        UserLock(contention_status=500)


def test_a_violation_is_a_bug_of_the_app(
    app: flask.Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post("/no-lock")
    assert answer.status_code == 500
    assert "Account" not in answer.text
    assert caplog.text.count("CreatedWithoutLock:") == 1
    assert __file__ in caplog.text
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


def test_enforcement_and_fencing_can_be_set_for_the_app(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service, enforcement="off", fencing=False)

    @app.post("/")
    def handler() -> str:
        Account(id="ann").put()
        Account(id="ann").put()
        return "written"

    assert app.test_client().post("/").status_code == 200


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


def test_pages_that_do_not_exist_are_404(client: FlaskClient) -> None:
    assert client.get("/nothing-here").status_code == 404
    assert userlock.current_scope() is None


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


def test_one_string_of_prefixes_is_refused() -> None:
    with pytest.raises(TypeError, match="a list of paths"):
        UserLock(batch_prefixes="/tasks/")


class TestRequestsWithinRequests:
    @pytest.fixture
    def nested(self, app: flask.Flask) -> FlaskClient:
        @app.get("/inner")
        def inner() -> str:
            assert userlock.current_scope() is not None
            return "inner"

        @app.get("/outer")
        def outer() -> dict[str, object]:
            scope = userlock.current_scope()
            with userlock.global_lock("ann") as lock:
                inside = app.test_client().get("/inner")
                return {
                    "inner": inside.status_code,
                    "same scope": userlock.current_scope() is scope,
                    "held": lock.held,
                    "readable": Account.get_by_id("ann") is None,
                }

        return app.test_client()

    def test_an_inner_request_leaves_the_outer_ones_lock_alone(
        self, nested: FlaskClient, service: userlock.LockService
    ) -> None:
        assert nested.get("/outer").get_json() == {
            "inner": 200,
            "same scope": True,
            "held": True,
            "readable": True,
        }
        assert service.holder("ann") is None
        assert userlock.current_scope() is None


def test_a_context_that_is_open_already_is_used(
    ndb_client: ndb.Client, client: FlaskClient
) -> None:
    with ndb_client.context():
        assert client.post("/users/ann/points").get_json() == {"points": 5}
        assert Account.get_by_id("ann", use_cache=False).points == 5


def test_an_address_is_no_service() -> None:
    """The error comes when the app starts, not in its first request."""
    with pytest.raises(TypeError, match="must be a LockService"):
        UserLock(service="memcache://127.0.0.1:11211")  # type: ignore[arg-type]
