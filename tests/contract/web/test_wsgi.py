"""Test the WSGI middleware: scope, priority and release around any app, and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from google.cloud import ndb
from werkzeug.test import Client, run_wsgi_app
from werkzeug.test import create_environ as environ_of

import userlock
from userlock.contrib.wsgi import UserLockMiddleware

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Purse(userlock.UserModel):
    """One user's purse, locked by its key's name."""

    _lock_id_from_key = userlock.key_id
    coins = ndb.IntegerProperty(default=0)


@pytest.fixture
def wrapped(
    ndb_client: ndb.Client, service: userlock.LockService
) -> Callable[[App], UserLockMiddleware]:
    return lambda app: UserLockMiddleware(
        app, client=ndb_client, service=service, batch_prefixes=["/tasks/"]
    )


Wrapped = Callable[[App], UserLockMiddleware]


def test_headers_of_an_answer_that_is_replaced_are_not_sent(wrapped: Wrapped) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Set-Cookie", "a=b")])
        Purse(id="ann").put()
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
    assert app.closed
    assert app.held == []
    assert service.holder("ann") is None
