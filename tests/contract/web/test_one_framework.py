"""Rules of one integration each. `test_integrations` has those of all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flask
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from flask.testing import FlaskClient
from google.cloud import ndb
from werkzeug.test import Client, run_wsgi_app
from werkzeug.test import create_environ as environ_of

import userlock
from tests.contract.web.djangos import django_client
from tests.contract.web.sites import site
from userlock.contrib import django, wsgi
from userlock.contrib.flask import UserLock
from userlock.errors import PutWithoutLock
from userlock.events import LISTENERS, log_event
from userlock.lock.configuration import defaults


class Account(userlock.UserModel):
    """One user's account, locked by its key's name."""

    _lock_id_from_key = userlock.key_id


def take_for_a_block() -> None:
    with userlock.global_lock("ann"):
        pass


# --- Flask --------------------------------------------------------------------------------------


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service)

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
    UserLock(client=make, service=service).init_app(app)
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


def test_a_teardown_function_that_raises(app: flask.Flask, service: userlock.LockService) -> None:
    @app.teardown_request
    def fail(error: object) -> None:
        raise RuntimeError("the session is gone")

    app.post("/take/<user>")(lambda user: str(userlock.acquire_lock(user)))
    with pytest.raises(RuntimeError, match="is gone") as kept:  # as a server's thread keeps it
        app.test_client().post("/take/ann")
    assert (service.holder("ann"), kept.type) == (None, RuntimeError)


def test_an_earlier_teardown_function_runs_after_the_scope(service: userlock.LockService) -> None:
    app = flask.Flask(__name__)
    scopes: list[object] = []
    app.teardown_request(lambda error: scopes.append(userlock.current_scope()))
    UserLock(app, service=service)
    app.test_client().get("/")
    assert scopes == [None]


def test_without_a_service_it_says_how_to_get_one() -> None:
    app = flask.Flask(__name__)
    app.testing = True
    UserLock(app)
    app.get("/")(lambda: "hello")
    with pytest.raises(userlock.NoService, match=r"userlock\.configure"):
        app.test_client().get("/")
    with pytest.raises(TypeError, match="must be a LockService"):  # when the app starts
        UserLock(service="memcache://127.0.0.1:11211")  # type: ignore[arg-type]


# --- Django -------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
def test_a_violation_is_raised_while_debugging(service: userlock.LockService, debug: bool) -> None:
    def view(path: str) -> str:
        raise PutWithoutLock(key=None, kind="User", lock_id="ann", read_at=None, put_at=None)

    with site("django", view, service=service) as ask, override_settings(DEBUG=debug):
        answer = ask("/")
    assert answer.status == 500
    assert ("application/problem+json" in str(answer.headers)) is not debug


@pytest.mark.parametrize(
    "wrong", [{"contention_status": 500}, {"batch_prefixes": "/tasks/"}, {"nonsense": 1}]
)
def test_a_setting_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    refused = pytest.raises(ImproperlyConfigured, match="USERLOCK: ")
    with django_client(USERLOCK=wrong), refused:
        django.UserLockMiddleware(lambda request: HttpResponse())


# --- streams of both, which end their requests before them ---------------------------------------


def steps(take: Callable[[], object]) -> Iterator[bytes]:
    yield b"begin"
    take()


@pytest.mark.parametrize("framework", ["flask", "django"])
@pytest.mark.parametrize(
    ("take", "error"),
    [
        (lambda: userlock.acquire_lock("ann"), userlock.NoScope),
        (take_for_a_block, userlock.NoService),
    ],
    ids=["until-the-scope-ends", "for-a-block"],
)
def test_a_stream_that_needs_a_scope_is_told_where_it_is(
    app: flask.Flask,
    service: userlock.LockService,
    framework: str,
    take: Callable[[], object],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "service", None)

    def in_django(request: HttpRequest) -> StreamingHttpResponse:
        take()  # here there is one
        return StreamingHttpResponse(steps(take))

    told = pytest.raises(error, match=r"Flask\s+and\s+Django\s+end")
    if framework == "flask":
        app.get("/")(lambda: flask.Response(flask.stream_with_context(steps(take))))
        answer = app.test_client().get("/")
        with told:
            answer.get_data()
        return
    names = ["userlock.contrib.django.UserLockMiddleware"]
    urls, options = (path("", in_django),), {"service": service}
    with django_client(ROOT_URLCONF=urls, MIDDLEWARE=names, USERLOCK=options) as browser:
        answer = browser.get("/")
        assert answer.status_code == 200
        with told:
            b"".join(answer)


# --- WSGI ---------------------------------------------------------------------------------------

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Wrapped = Callable[[App], wsgi.UserLockMiddleware]


@pytest.fixture
def wrapped(ndb_client: ndb.Client, service: userlock.LockService) -> Wrapped:
    return lambda app: wsgi.UserLockMiddleware(app, client=ndb_client, service=service)


def test_headers_of_an_answer_that_is_replaced_are_not_sent(wrapped: Wrapped) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Set-Cookie", "a=b")])
        Account(id="ann").put()
        return [b"never sent"]

    answer = Client(wrapped(app)).post("/")
    assert answer.status_code == 500
    assert "Set-Cookie" not in answer.headers


class Stream:
    """A streamed response."""

    def __init__(self, service: userlock.LockService, *, fails_after: int | None = None) -> None:
        self.service = service
        self.fails_after = fails_after
        self.held: list[bool] = []
        self.closed = False

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Stream:
        start_response("200 OK", [])
        userlock.acquire_lock("ann")
        return self

    def __iter__(self) -> Iterator[bytes]:
        for number in range(3):
            if number == self.fails_after:
                raise userlock.LockTimeout(lock_id="ben", waited_seconds=1, holder=None)
            self.held.append(self.service.holder("ann") is not None)
            yield b"piece "

    def close(self) -> None:
        self.closed = True


def test_a_stream_runs_within_its_scope(wrapped: Wrapped, service: userlock.LockService) -> None:
    stream = Stream(service)
    answer = Client(wrapped(stream)).get("/")
    assert answer.text == "piece piece piece "
    answer.close()
    assert stream.held == [True, True, True]
    assert stream.closed
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_a_stream_that_has_not_begun_may_still_be_answered_otherwise(
    wrapped: Wrapped, service: userlock.LockService
) -> None:
    answer = Client(wrapped(Stream(service, fails_after=0))).get("/")
    assert answer.status_code == 503
    answer.close()
    assert service.holder("ann") is None


def test_an_error_in_the_middle_of_a_stream_reaches_the_server(
    wrapped: Wrapped, service: userlock.LockService
) -> None:
    app = wrapped(Stream(service, fails_after=2))
    chunks, _, _ = run_wsgi_app(app, environ_of("/"), buffered=False)
    with pytest.raises(userlock.LockTimeout):
        list(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_a_response_is_closed_if_a_write_has_failed(
    wrapped: Wrapped, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("userlock.contrib.request_scope.finish_writes", fail)
    app = Stream(service)
    with pytest.raises(ZeroDivisionError):
        Client(wrapped(app)).get("/")
    assert (app.closed, app.held) == (True, [])
    assert service.holder("ann") is None


def test_an_app_has_one(app: flask.Flask, service: userlock.LockService) -> None:
    with pytest.raises(userlock.ConfigurationError, match=r"attached to <Flask .* already"):
        UserLock(app, service=service)
