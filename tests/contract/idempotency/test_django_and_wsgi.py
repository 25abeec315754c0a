"""Requests with an idempotency key to Django and WSGI apps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
import werkzeug.test
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY
from tests.contract.web.djangos import django_client
from userlock.contrib import django, wsgi
from userlock.idempotency import Flow

#: Sends a request to a path, with a key and a body; returns status, headers and body.
Send = Callable[..., tuple[int, dict[str, str], bytes]]


def ran(flow: Flow) -> dict[str, Any]:
    """Count the runs of a request, in a phase."""
    return {"attempt": flow.attempt, "params": flow.params}


@pytest.fixture(params=["django", "wsgi"])
def send(
    request: pytest.FixtureRequest, ndb_client: ndb.Client, service: userlock.LockService
) -> Iterator[Send]:
    if request.param == "django":
        yield from _django(ndb_client, service)
    else:
        yield _wsgi(ndb_client, service)


def _django(client: ndb.Client, service: userlock.LockService) -> Iterator[Send]:
    flows = django.Flows()

    @flows.idempotent(user=lambda request: request.headers["X-User"])
    def rides(request: HttpRequest, flow: Flow) -> HttpResponse:
        body = json.dumps(flow.phase("ride", lambda: ran(flow)))
        response = HttpResponse(body, status=201, content_type="application/json")
        response.set_cookie("session", "secret")
        return response

    @flows.idempotent(user=lambda request: "ann")
    def last(request: HttpRequest, flow: Flow) -> HttpResponse:
        with flow.last() as end:
            end.respond({"last": True}, 202)
        return HttpResponse("not this")

    @flows.idempotent(user=lambda request: "ann")
    def stream(request: HttpRequest, flow: Flow) -> Any:
        return StreamingHttpResponse(iter([b"a"]))

    @flows.idempotent(user=lambda request: "ann", key=lambda request: request.POST.get("request"))
    def form(request: HttpRequest, flow: Flow) -> HttpResponse:
        return HttpResponse(request.POST["text"])

    module = type("urls", (), {"urlpatterns": [
        path("rides", rides), path("last", last), path("stream", stream), path("form", form)
    ]})  # fmt: skip
    with django_client(
        ROOT_URLCONF=module,
        MIDDLEWARE=["userlock.contrib.django.UserLockMiddleware"],
        USERLOCK={"client": client, "service": service},
    ) as browser:

        def call(where: str, key: str | None, body: Any, **how: Any) -> Any:
            headers = {"X-User": "ann", **({} if key is None else {"Idempotency-Key": key})}
            how.setdefault("content_type", "application/json")
            answer = browser.post(f"/{where}", body, headers=headers, **how)
            return answer.status_code, dict(answer.items()), answer.content

        yield call


def _wsgi(client: ndb.Client, service: userlock.LockService) -> Send:
    flows = wsgi.Flows()

    @flows.idempotent(user=lambda environ: "ann")
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        flow: Flow = environ["userlock.flow"]
        if environ["PATH_INFO"] == "/last":
            with flow.last() as end:
                end.respond({"last": True}, 202)
            start_response("200 OK", [])
            return [b"not this"]
        assert json.loads(environ["wsgi.input"].read() or b"{}") is not None
        body = json.dumps(flow.phase("ride", lambda: ran(flow)))
        headers = [("Content-Type", "application/json"), ("Set-Cookie", "session=secret")]
        start_response("201 Created", headers)
        return [body.encode()]

    browser = werkzeug.test.Client(wsgi.UserLockMiddleware(app, client=client, service=service))

    def call(where: str, key: str | None, body: Any, **how: Any) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        data = body if isinstance(body, bytes) else json.dumps(body)
        answer = browser.post(
            f"/{where}", data=data, headers=headers, content_type="application/json"
        )
        found = answer.status_code, dict(answer.headers), answer.data
        answer.close()
        return found

    return call


def test_a_replay(send: Send) -> None:
    first, again = send("rides", KEY, {"to": "home"}), send("rides", KEY, {"to": "home"})
    assert (first[0], again[0], first[2]) == (201, 201, again[2])
    assert json.loads(first[2]) == {"attempt": 1, "params": {"to": "home"}}
    assert again[1]["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first[1]
    assert "Set-Cookie" not in again[1]


def test_the_answer_of_the_last_transaction(send: Send) -> None:
    for _ in range(2):
        status, _, body = send("last", KEY, {})
        assert (status, json.loads(body)) == (202, {"last": True})


def test_problems(send: Send) -> None:
    assert send("rides", None, {})[0] == 400
    assert send("rides", "short", {})[0] == 400
    send("rides", KEY, {"to": "home"})
    assert send("rides", KEY, {"to": "work"})[0] == 422


def test_streams_of_django(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    for send in _django(ndb_client, service):
        assert send("stream", KEY, {})[0] == 500


def test_forms_of_django(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    """Their fields count, not the boundaries between them."""
    from django.test.client import MULTIPART_CONTENT

    for send in _django(ndb_client, service):
        for text, status in (("x", 201), ("x", 201), ("y", 422)):
            form = {"text": text}
            assert send("rides", KEY, form, content_type=MULTIPART_CONTENT)[0] == status


def test_the_key_in_a_form_of_django(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    from django.test.client import MULTIPART_CONTENT

    for send in _django(ndb_client, service):
        for text, status in (("x", 200), ("x", 200), ("y", 422)):
            form = {"request": KEY, "text": text}
            answered, _, _ = send("form", None, form, content_type=MULTIPART_CONTENT)
            assert answered == status
        assert send("form", KEY, {"text": "x"}, content_type=MULTIPART_CONTENT)[0] == 400


def test_the_key_in_a_form_of_wsgi(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    """The function that finds it may read the body, which the app then gets in full."""

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    def key(environ: dict[str, Any]) -> str:
        form: dict[str, str] = dict(parse_qsl(environ["wsgi.input"].read().decode()))
        return form["request"]

    once = wsgi.Flows().idempotent(user=lambda environ: "ann", key=key)(app)
    served = wsgi.UserLockMiddleware(once, client=ndb_client, service=service)
    browser = werkzeug.test.Client(served)
    for replayed in (None, "true"):
        answer = browser.post("/", data={"request": KEY})
        assert (answer.status_code, answer.data) == (200, f"request={KEY}".encode())
        assert answer.headers.get("Idempotent-Replayed") == replayed
        answer.close()


def test_other_methods_go_through_a_wsgi_app() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("204 No Content", [])
        return [b"" if "userlock.flow" not in environ else b"flow"]

    once = wsgi.Flows().idempotent(user=lambda environ: "ann")(app)
    answer = werkzeug.test.Client(once).get("/")
    assert (answer.status_code, answer.data) == (204, b"")
    answer.close()
