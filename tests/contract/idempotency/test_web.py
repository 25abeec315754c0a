"""Requests with an idempotency key to apps of each framework; the whole of it with Flask."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Annotated, Any, NamedTuple, NoReturn, TypedDict
from urllib.parse import urlencode

import fastapi
import flask
import pydantic
import pytest
import werkzeug.test
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from flask.testing import FlaskClient
from google.api_core.exceptions import Aborted
from google.cloud import ndb

import userlock
from tests.contract.idempotency.apps import (
    ALL_APPS,
    APPS,
    FORM,
    JSON,
    Model,
    Send,
    View,
    ran,
    sender_to_a_server,
)
from tests.contract.idempotency.conftest import KEY, CardDeclined, Provider, Ride, rows
from userlock.contrib import asgi, django, wsgi
from userlock.contrib.flask import Flows, UserLock
from userlock.contrib.idempotent_requests import views
from userlock.errors import NotUnique, RequestTooLarge
from userlock.idempotency import Flow
from userlock.idempotency.rows import MOST_PARAMS_BYTES
from userlock.testing import ManualClock

#: A form that is longer than what flows get as a value.
LONG = dict.fromkeys(map(str, range(20_000)), "")


def answers_last(flow: Flow) -> str:
    with flow.last() as end:
        end.respond({"last": True}, 202)
    return "not this"


def reads(flow: Flow, read: Callable[[], bytes]) -> str:
    """Answer with what each step reads; the call and the last transaction are made twice."""

    def met_before(what: object) -> bool:
        MET.append(what)
        return MET.count(what) > 1

    def call(key: str) -> str:
        text = read().decode()
        if not met_before(key):
            raise ConnectionError
        return text

    texts = [read().decode(), flow.phase("phase", lambda: read().decode())]
    texts.append(flow.external("call", call))
    with flow.last() as end:
        texts.append(read().decode())
        if not met_before(flow):
            raise Aborted("a conflict")
        end.respond(texts)
    return "0"


def takes_a_name(flow: Flow) -> str:
    """Meet another's value at the first run only."""
    if flow.attempt == 1:
        flow.phase("name", refuse_name)
    return ran(flow)


def refuse_name() -> NoReturn:
    key = ndb.Key("Name", 1)
    raise NotUnique(key=key, kind="Name", constraint="", value="", holder=key, put_at=None)


MET: list[object] = []
VIEWS = {
    "taken": View(takes_a_name),
    "rides": View(ran, status=201),
    "last": View(answers_last),
    "bare": View(ran, status=204),
    "stream": View(ran, streams=True),
    "reads": View(reads, reads=True),
    "form": View(ran, key="form"),
    "small": View(ran, options={"max_bytes": 100}),
    "who": View(ran, key="long"),
}
#: WSGI apps read their bodies and answer in parts: what is a form or a stream is theirs.
FORMS = pytest.mark.parametrize("framework", ["flask", "django", "fastapi"])


@pytest.fixture(params=APPS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def send(framework: str, ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Send]:
    yield from ALL_APPS[framework](VIEWS, client=ndb_client, service=service)


def test_a_replay(send: Send) -> None:
    """Cookies are of one request."""
    first, again = (
        send("rides", b'{"to": "home"}'),
        send("rides", b'{"to": "home"}', key=f'"{KEY}"'),
    )
    assert (first[0], again[0], first[2]) == (201, 201, again[2])
    assert json.loads(first[2]) == [1, {"to": "home"}]
    assert "Idempotent-Replayed" not in first[1]
    assert again[1]["Idempotent-Replayed"] == "true"
    assert "secret" in first[1]["Set-Cookie"]
    assert "Set-Cookie" not in again[1]
    first, again = (send("bare", b"{}", key=KEY + "-3") for _ in range(2))
    assert again[1].get("Content-Type") == first[1].get("Content-Type")
    for _ in range(2):
        status, _, body = send("last", b"{}", key=KEY + "-2")
        assert (status, json.loads(body)) == (202, {"last": True})


def test_problems(send: Send) -> None:
    for key in (None, "", "x" * 256, '""'):
        status, headers, body = send("rides", b"{}", key=key)
        assert (status, headers["Content-Type"]) == (400, "application/problem+json")
        assert "Idempotency-Key" in json.loads(body)["detail"]
    send("rides", b'{"to": "home"}')
    status, _, body = send("rides", b'{"to": "work"}')
    assert (status, json.loads(body)["error"]) == (422, "IdempotencyKeyReused")


def test_a_value_that_is_taken_is_an_answer(send: Send) -> None:
    """Its client sends another value: the request must not be done when the value is free."""
    first, again = (send("taken", b"{}") for _ in range(2))
    assert (first[0], json.loads(first[2])["error"]) == (409, "NotUnique")
    assert (again[0], again[2], again[1]["Idempotent-Replayed"]) == (409, first[2], "true")


@pytest.mark.parametrize("framework", ["flask", "django", "wsgi"])
def test_an_app_that_is_mounted_at_two_paths(send: Send) -> None:
    answered = [send("rides", b"{}", mount=each)[0] for each in ("one", "two", "one")]
    assert answered == [201, 422, 201]


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("", 401), ("ann", 413)])
def test_who_asks_is_known_before_the_key_is_read(
    send: Send, user: str | None, status: int
) -> None:
    """For nobody, a stranger, no form is parsed. The control: ann, whose is."""
    answer = send("who", b"{}", user=user)
    assert (answer[0], json.loads(answer[2])["status"]) == (status, status)


def test_the_key_in_a_form(send: Send) -> None:
    """A form of a page without scripts; the header then counts for nothing."""
    for key, text, status in (
        *((KEY, "a", 200), (KEY, "a", 200), (KEY, "b", 422)),
        *((KEY + "-2", "b", 200), ("x" * 256, "a", 400), (None, "a", 400)),
    ):
        form = {"text": text, **({} if key is None else {"request": key})}
        assert send("form", urlencode(form).encode(), FORM)[0] == status


@FORMS
def test_fields_and_files_count_and_not_the_boundaries_between_them(send: Send) -> None:
    def upload(boundary: str, text: str, file: str) -> int:
        parts = {'"text"': text, '"file"; filename="a.txt"': file}
        lines = [
            f"--{boundary}\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n"
            for name, value in parts.items()
        ]
        body = "".join([*lines, f"--{boundary}--\r\n"]).encode()
        return send("rides", body, f"multipart/form-data; boundary={boundary}")[0]

    assert [upload("one", "x", "file"), upload("two", "x", "file")] == [201, 201]
    assert [upload("one", "y", "file"), upload("one", "x", "other")] == [422, 422]


def upload_of(file: bytes) -> tuple[bytes, str]:
    """Return the body of a form with a file, and its type."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    return b"".join([head, file, b"\r\n--x--\r\n"]), "multipart/form-data; boundary=x"


@pytest.mark.parametrize("kind", ["json", "form", "upload"])
def test_a_body_has_a_bound(send: Send, framework: str, kind: str) -> None:
    """In chunks it is refused as soon as it is too long. Django takes none in chunks."""

    def body_of(size: int) -> tuple[bytes, str]:
        if kind == "upload":
            return upload_of(b"x" * size)
        if kind == "form":
            return urlencode({"text": "x" * (size - 5)}).encode(), FORM
        return json.dumps("x" * (size - 2)).encode(), JSON

    least = 1 if kind == "upload" else 70  # with all around it
    for chunked in ({},) if framework == "django" else ({}, {"chunked": True}):
        if framework == "fastapi":  # it reads the body for the parameters of a view
            assert send("read", *body_of(least), f"{KEY}-read", **chunked)[0] == 200
            assert send("read", *body_of(100_000), f"{KEY}-long", **chunked)[0] == 413
        for size, status in ((least, 200), (101, 413), (100_000, 413)):
            answer = send("small", *body_of(size), f"{KEY}-{size}", **chunked)
            assert answer[0] == status
            if status == 413:
                assert json.loads(answer[2])["error"] == "RequestTooLarge"


@pytest.mark.parametrize("digit", ["9", "0"])
def test_a_length_that_is_none_for_int(digit: str) -> None:
    with pytest.raises(RequestTooLarge):
        views.check_length(digit * 5000, 100)


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # Werkzeug's, of the upload
@pytest.mark.parametrize("framework", ["django", "flask", "wsgi"])
@pytest.mark.parametrize("kind", ["json", "form", "upload"])
def test_a_body_whose_end_is_lost_does_nothing(send: Send, kind: str) -> None:
    """The client is gone, and sends all of it again. (ASGI servers refuse it.)"""
    body, media = {
        "json": (b'{"cents": 10}     ', JSON),
        "form": (b"to=home&cents=1000", FORM),
        "upload": upload_of(b"x"),
    }[kind]
    refused = send("small", body, media, lost=2)
    assert (refused[0], json.loads(refused[2])["error"]) == (400, "RequestIncomplete")
    status, headers, text = send("small", body, media)
    assert (status, headers.get("Idempotent-Replayed")) == (200, None)
    assert json.loads(text)[0] == 1


@pytest.mark.parametrize(
    ("framework", "kind", "status"),
    [
        *(("django", kind, 400) for kind in ("json", "form", "upload")),
        ("django under ASGI", "upload", 400),
        *(("django under ASGI", kind, 200) for kind in ("json", "form")),
        *((framework, kind, 400) for framework in ("flask", "wsgi") for kind in ("json", "form")),
    ],
)
def test_a_body_without_a_length_is_none_that_is_empty(
    send: Send, framework: str, kind: str, status: int
) -> None:
    """Django takes it for one, and all do where the server does not read it: any two would be the
    same request. The control: with a length."""
    body, media = {
        "json": (b'{"cents": 10}', JSON),
        "form": (b"to=home", FORM),
        "upload": upload_of(b""),
    }[kind]
    answer = send("small", body, media, chunked="unread")
    assert answer[0] == status
    if "ASGI" not in framework:  # servers refuse it
        assert send("small", body, media, length="+13")[0] == 400
    if status == 400:
        assert json.loads(answer[2])["error"] == "RequestIncomplete"
    assert send("small", body, media)[0] == 200


@pytest.mark.parametrize("framework", ["fastapi"])
def test_an_escaped_path_is_another_one(send: Send) -> None:
    for place, status in (("a%3Fb", 200), ("a%253Fb", 422), ("a%23b", 422), ("a%3Fb", 200)):
        assert send(f"rides/{place}", b"{}")[0] == status


@pytest.mark.parametrize("framework", ["fastapi"])
def test_the_namespace_of_a_context_around_is_the_flow_s(send: Send) -> None:
    """Two tenants have a user of the same id, who has the same key."""
    replayed = [
        send("rides", b"{}", tenant=each)[1].get("Idempotent-Replayed")
        for each in ("one", "two", None, "one")
    ]
    assert replayed == [None, None, None, "true"]


@pytest.mark.parametrize("framework", ["fastapi"])
def test_a_header_that_is_there_twice(send: Send) -> None:
    assert [send("rides", b"{}")[1]["Vary"] for _ in range(2)] == ["Cookie, Accept"] * 2


@pytest.mark.parametrize("framework", ["django"])
@pytest.mark.parametrize(
    ("where", "status", "replayed"),
    [("template", 200, True), ("refuses", 404, True), ("forgets", 500, False)],
)
def test_answers_that_django_makes_itself(
    send: Send, where: str, status: int, replayed: bool
) -> None:
    """It renders after the view, and answers errors. A view that returns nothing is no answer."""
    first, again = (send(where, b"{}") for _ in range(2))
    assert (first[0], again[0]) == (status, status)
    assert (again[1].get("Idempotent-Replayed") == "true") is replayed
    assert first[2] == again[2] or not replayed


@pytest.mark.parametrize(
    ("framework", "whole"),
    [
        *((each, False) for each in ("flask", "django", "fastapi")),
        *((each, True) for each in ("flask", "fastapi")),  # Django refuses it by itself
    ],
)
def test_a_file_is_not_in_memory(send: Send, whole: bool) -> None:
    """It is on disk, by the framework, and hashed in pieces. The control: another body."""
    body, media = upload_of(b"x" * 9_000_000)
    tracemalloc.start()
    try:
        status, _, _ = send("rides", body, "application/x-picture" if whole else media)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 201
    assert (peak > 9_000_000) is whole, peak


@pytest.mark.parametrize(
    ("framework", "form"),
    [
        *((each, True) for each in ("flask", "django", "fastapi")),
        *((each, False) for each in ("flask", "django", "wsgi")),
    ],
)
def test_each_run_and_step_reads_the_whole_body(send: Send, form: bool) -> None:
    body, media = upload_of(b"of a file") if form else (b"of a file", "text/plain")
    assert json.loads(send("reads", body, media)[2]) == ["of a file"] * 4


@FORMS
def test_streams_are_refused(send: Send) -> None:
    assert send("stream", b"{}")[0] == 500


def test_other_methods_go_through_a_wsgi_app() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("204 No Content", [])
        return [b"" if "userlock.flow" not in environ else b"flow"]

    once = wsgi.Flows().idempotent(user=lambda environ: "ann")(app)
    answer = werkzeug.test.Client(once).get("/")
    assert (answer.status_code, answer.data) == (204, b"")
    answer.close()


def test_a_wsgi_app_that_starts_no_response(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    once = wsgi.Flows().idempotent(user=lambda environ: "ann")(lambda *_: [b""])
    app = wsgi.UserLockMiddleware(once, client=ndb_client, service=service)
    with pytest.raises(ValueError, match="has not called start_response"):
        werkzeug.test.Client(app).post("/", headers={"Idempotency-Key": "k"})


# --- FastAPI --------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    to: str


class Typed(TypedDict):
    to: str


class Named(NamedTuple):
    to: str


class FastJSONResponse(JSONResponse):
    """As those that write JSON by another package."""


@pytest.mark.parametrize("framework", ["fastapi"])
def test_a_parameter_of_the_body_whose_name_is_request(send: Send) -> None:
    assert send("model", b'{"to": "home"}')[::2] == (200, b'"home"')


@pytest.mark.parametrize(
    ("options", "status"),
    [
        *(({"response_model": each}, 500) for each in (Model, list[Model], dict[str, str])),
        ({"status_code": 201}, 500),
        *(({"response_class": each}, 500) for each in (HTMLResponse, PlainTextResponse)),
        *((fine, 200) for fine in (
            {}, {"response_model": None}, {"responses": {200: {"model": Model}}},
            {"response_class": FastJSONResponse},
        )),
    ],
)  # fmt: skip
def test_a_route_that_would_shape_the_answer_is_refused(
    ndb_client: ndb.Client, service: userlock.LockService, options: dict[str, Any], status: int
) -> None:
    """It is not asked for what it would leave out. The control: a route without such options."""
    app, began = fastapi.FastAPI(), list[bool]()
    app.add_middleware(asgi.UserLockMiddleware, client=ndb_client, service=service)

    def view(flow: Flow) -> dict[str, str]:
        began.append(True)
        return {"to": "home", "password": "secret"}

    once = asgi.Flows(client=ndb_client).idempotent(user=lambda request: "ann")(view)
    app.post("/rides", **options)(once)
    with sender_to_a_server(app) as send:
        answer = send("rides", b"{}")
    assert (answer[0], b"secret" in answer[2], bool(began)) == (status, status < 500, status < 500)


@pytest.mark.parametrize(
    ("returns", "refused"),
    [
        *((each, True) for each in (Model, list[Model], Model | None, Data, Typed, Named)),
        *((each, False) for each in (
            inspect.Signature.empty, None, Any, dict[str, list[str]], fastapi.Response, JSONResponse
        )),
    ],
)  # fmt: skip
def test_a_view_whose_annotation_would_shape_the_answer_is_refused(
    returns: Any, refused: bool
) -> None:
    def view(flow: Flow) -> Any: ...

    if returns is inspect.Signature.empty:
        del view.__annotations__["return"]
    else:
        view.__annotations__["return"] = returns
    decorate = asgi.Flows().idempotent(user=lambda request: "ann")
    with pytest.raises(userlock.ConfigurationError) if refused else nullcontext():
        decorate(view)


def test_a_view_that_would_shape_its_response_by_a_parameter_is_refused() -> None:
    def view(flow: Flow, to: JSONResponse) -> Any: ...

    with pytest.raises(userlock.ConfigurationError, match="its response"):
        asgi.Flows().idempotent(user=lambda request: "ann")(view)


@dataclasses.dataclass
class Order:
    items: list[str]


class Sent(pydantic.BaseModel):
    to: str
    orders: list[Order]


SHARED: list[str] = []


def dependency() -> list[str]:
    return SHARED


def test_another_run_gets_the_arguments_as_they_were_sent(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    """But the results of dependencies are the app's own."""
    app, seen = fastapi.FastAPI(), list[Any]()
    app.add_middleware(asgi.UserLockMiddleware, client=ndb_client, service=service)

    @app.post("/rides")
    @asgi.Flows(client=ndb_client).idempotent(user=lambda request: "ann")
    def create_ride(
        flow: Flow,
        sent: Sent,
        more: dict[str, list[int]] = fastapi.Body(),  # noqa: B008  (FastAPI's way)
        notes: list[str] = fastapi.Depends(dependency),  # noqa: B008
        others: Annotated[list[str], fastapi.Depends(dependency)] = [],  # noqa: B006
    ) -> None:
        seen.append([sent.model_dump(), {**more, "of": [*more["of"]]}])
        assert notes is others is SHARED
        sent.to += "wards"
        sent.orders[0].items.append("bread")
        more["of"].append(3)
        with flow.last() as end:
            if len(seen) == 1:
                raise Aborted("a conflict")
            end.respond(1)

    body = {"sent": {"to": "home", "orders": [{"items": []}]}, "more": {"of": [1, 2]}}
    with sender_to_a_server(app) as send:
        assert send("rides", json.dumps(body).encode())[::2] == (200, b"1")
    assert seen == [[body["sent"], body["more"]]] * 2


# --- Flask ----------------------------------------------------------------------------------


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service)
    return app


@pytest.fixture
def flows(clock: ManualClock) -> Flows:
    return Flows(clock=clock)


@pytest.fixture
def client(app: flask.Flask, flows: Flows, provider: Provider) -> FlaskClient:
    def user() -> str:
        return flask.request.headers.get("X-User", "ann")

    @app.post("/rides")
    @flows.idempotent(user=user)
    def create_ride(flow: Flow) -> Any:
        final: dict[type[Exception], int] = {CardDeclined: 402}
        detail = "detail" in flask.request.args
        return {"charge": flow.external("charge", provider.charge, final=final, detail=detail)}

    @app.route("/echo", methods=["POST", "PATCH", "GET"])
    @flows.idempotent(user=user)
    def echo(flow: Flow) -> Any:
        headers = {"ETag": '"1"', "Location": "/there", "X-Own": "1"}
        return flask.Response("text", 201, headers)

    @app.post("/refuses/<int:status>")
    @flows.idempotent(user=user, final=(CardDeclined,))
    def refuses(flow: Flow, status: int) -> Any:
        flow.phase("begun", lambda: None)
        raise CardDeclined(f"{status} attempt {flow.attempt}")

    @app.post("/aborts/<int:status>")
    @flows.idempotent(user=user)
    def aborts(flow: Flow, status: int) -> Any:
        text = f"attempt {flow.attempt}"
        if status in (407, 425):  # werkzeug has no class for them
            flask.abort(flask.Response(text, status))
        flask.abort(status, text)

    @app.post("/fails")
    @flows.idempotent(user=user)
    def fails(flow: Flow) -> Any:
        flow.phase("begun", lambda: None)
        return {"attempt": flow.attempt}, 503 if flow.attempt == 1 else 200

    return app.test_client()


def post(client: FlaskClient, path: str = "/rides", key: str | None = KEY, **how: Any) -> Any:
    headers = {**how.pop("headers", {}), **({} if key is None else {"Idempotency-Key": key})}
    return client.post(path, headers=headers, **(how or {"json": {"to": "home"}}))


def test_a_service_that_fails_or_refuses(client: FlaskClient, provider: Provider) -> None:
    provider.trouble = ConnectionError("reset")
    trouble = post(client)
    assert (trouble.status_code, trouble.headers["Retry-After"]) == (503, "5")
    provider.trouble = CardDeclined("too poor")
    for where, shown in (("/rides", {}), ("/rides?detail=1", {"detail": "too poor"})):
        for _ in range(2):
            declined = post(client, where, key=KEY + where[6:8])
            assert declined.get_json() == {"title": "CardDeclined", "status": 402, **shown}
    assert declined.headers["Idempotent-Replayed"] == "true"
    provider.trouble = None
    assert post(client, headers={"X-User": "bob"}).status_code == 200


def test_headers_of_one_request_are_not_given_again(client: FlaskClient) -> None:
    first, again = post(client, "/echo"), post(client, "/echo")
    for name, value in (("ETag", '"1"'), ("Location", "/there")):
        assert first.headers[name] == again.headers[name] == value
    assert (first.headers.get("X-Own"), again.headers.get("X-Own")) == ("1", None)


def test_an_answer_from_500_on_is_not_stored(client: FlaskClient) -> None:
    assert [post(client, "/fails").status_code for _ in range(3)] == [503, 200, 200]
    assert post(client, "/fails").get_json() == {"attempt": 2}


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        ({"json": {"a": 1, "b": 2}}, {"json": {"b": 2, "a": 1}}, True),
        ({"data": b'{"a": 1}', "content_type": JSON}, {"json": {"a": 1}}, True),
        ({"json": {"a": 1}}, {"json": {"a": 2}}, False),
        ({"data": {"text": "x"}}, {"data": {"text": "x"}}, True),
        ({"data": {"text": "x"}}, {"data": {"text": "y"}}, False),
        ({"data": {"a": ["x", "y"], "b": "z"}}, {"data": {"b": "z", "a": ["x", "y"]}}, True),
        ({"data": {"a": ["x", "y"]}}, {"data": {"a": ["y", "x"]}}, False),
        ({"data": b"x"}, {"data": b"x"}, True),
        ({"data": b"x"}, {"data": b"y"}, False),
        ({"data": b"{", "content_type": JSON}, {"json": {}}, False),
        ({"query_string": "a=1", "data": b""}, {"query_string": "a=2", "data": b""}, False),
        # Long JSON: by its bytes.
        *(
            ({"data": first, "content_type": JSON}, {"data": again, "content_type": JSON}, same)
            for length in (MOST_PARAMS_BYTES, MOST_PARAMS_BYTES + 1)
            for first, again, same in (
                (b"[1, 2]".ljust(length), b"[1,2]".ljust(length), length == MOST_PARAMS_BYTES),
                (b"[1, 2]".ljust(length), b"[1, 2]".ljust(length), True),
                (b"[1, 2]".ljust(length), b"[1, 3]".ljust(length), False),
            )
        ),
        # Long forms: as short ones.
        ({"data": {**LONG, "b": "x"}}, {"data": {**LONG, "b": "x"}}, True),
        ({"data": {**LONG, "b": "x"}}, {"data": {**LONG, "b": "y"}}, False),
    ],
)
def test_equal_parameters(
    client: FlaskClient, first: dict[str, Any], again: dict[str, Any], same: bool
) -> None:
    assert post(client, "/echo", **first).status_code == 201
    assert post(client, "/echo", **again).status_code == (201 if same else 422)


@pytest.mark.parametrize("bound", [MOST_PARAMS_BYTES, 10_000_000], ids=["", "the control"])
def test_long_parameters_cost_no_calls_for_their_values(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as many as there are values, which a client chooses."""
    monkeypatch.setattr(views, "MOST_PARAMS_BYTES", bound)
    calls: list[object] = []
    document, fields = b"[" + b"[]," * 100_000 + b"[]]", list(LONG.items())
    sys.setprofile(lambda *event: calls.append(event[1]))
    try:
        read = (
            views.parameters_of(b"", JSON, document),
            views.parameters_of(b"", FORM, b"", form=fields),
        )
    finally:
        sys.setprofile(None)
    cheap = len(calls) < 1_000
    assert [(each.value is None, each.storable) for each in read] == [(cheap, not cheap)] * 2
    assert cheap is (bound == MOST_PARAMS_BYTES)


def test_an_abort_is_an_answer(client: FlaskClient, ndb_client: ndb.Client) -> None:
    """Not one about the sender, or the time, and none above 499. These leave no row, which would
    never expire, if nothing was done."""
    first, again = post(client, "/aborts/404"), post(client, "/aborts/404")
    assert (first.status_code, again.status_code, first.data) == (404, 404, again.data)
    assert b"attempt 1" in again.data
    assert again.headers["Idempotent-Replayed"] == "true"
    assert post(client, "/refuses/402").status_code == 422
    assert post(client, "/refuses/402", key=KEY + "-3").status_code == 500, "it has no handler"
    for status in (401, 403, 407, 408, 425, 429, 503):
        for _ in range(2):
            answer = post(client, f"/aborts/{status}", key=f"{KEY}-{status}")
            assert answer.status_code == status
            assert "Idempotent-Replayed" not in answer.headers, "another sender, or time, may pass"
    with ndb_client.context():
        assert [row.status for row in rows() if "aborts" in row.flow] == [404]


def test_the_app_s_handlers_answer(app: flask.Flask, client: FlaskClient) -> None:
    """Aborts, and errors that are declared final."""
    app.register_error_handler(404, lambda error: ({"error": error.description}, 418))
    app.register_error_handler(
        CardDeclined, lambda error: ({"error": str(error)}, int(str(error)[:3]))
    )
    for _ in range(2):
        answer = post(client, "/aborts/404")
        assert (answer.status_code, answer.json) == (418, {"error": "attempt 1"})
        answer = post(client, "/refuses/402", key=KEY + "-4")
        assert (answer.status_code, answer.json) == (402, {"error": "402 attempt 1"})
    for attempt in (1, 2):
        answer = post(client, "/refuses/500", key=f"{KEY}-2")
        assert answer.json == {"error": f"500 attempt {attempt}"}


def test_a_violation_is_logged_once(
    app: flask.Flask, flows: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    @app.post("/unlocked")
    @flows.idempotent(user=lambda: "ann")
    def unlocked(flow: Flow) -> str:
        Ride(id="new", user_id="bob").put()
        return "never sent"

    assert post(app.test_client(), "/unlocked").status_code == 500
    assert caplog.text.count("was created without its lock") == 1
    assert "unfinished" in caplog.text


def test_the_text_of_the_app_s_error_is_not_logged(
    app: flask.Flask, flows: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have secrets. The control: Flask's own line has it."""

    @app.post("/fails")
    @flows.idempotent(user=lambda: "ann")
    def fails(flow: Flow) -> str:
        raise KeyError("hunter2")

    assert post(app.test_client(), "/fails").status_code == 500
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("userlock")]
    assert [line for line in ours if "KeyError at " in line and "test_web.py:" in line]
    assert not [line for line in ours if "hunter2" in line]
    assert "hunter2" in caplog.text


async def later(flow: Flow) -> None:
    """A view that cannot be stored."""


def stream(flow: Flow) -> Iterator[str]:
    yield "a"


@pytest.mark.parametrize(
    ("view", "options", "error", "text"),
    [
        *((each, {}, userlock.ConfigurationError, "cannot be stored") for each in (later, stream)),
        (None, {"on_busy": "hope"}, ValueError, "on_busy"),
        (None, {"completable": "no"}, TypeError, "completable"),
        *((None, {"wait_timeout": number}, (TypeError, ValueError), "wait_timeout")
          for number in (float("nan"), -1, "5")),
        *((None, {"keep_hours": hours}, (TypeError, ValueError), "keep_hours")
          for hours in (0, -1, 24 * 366, True, "24")),
        *((None, wrong, TypeError, ".")
          for wrong in ({"final": (7,)}, {"final": (BaseException,)}, {"other": 1})),
        (None, {"final": (CardDeclined,), "completable": True}, userlock.ConfigurationError,
         "need a request"),
    ],
)  # fmt: skip
def test_refused_at_decoration(
    flows: Flows, view: Any, options: dict[str, Any], error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        flows.idempotent(user=lambda: "ann", **options)(view or (lambda flow: None))


@pytest.mark.parametrize("kind", [Flows, django.Flows, wsgi.Flows, asgi.Flows])
def test_who_asks_and_the_key_come_from_functions(kind: Any) -> None:
    for wrong in ({"user": "ann"}, {"user": lambda *_: "ann", "key": "request"}):
        with pytest.raises(TypeError, match="must be a function"):
            kind().idempotent(**wrong)


@pytest.mark.parametrize(
    ("options", "method", "error"),
    [
        *(({"user": lambda nobody=nobody: nobody}, "POST", (TypeError, ValueError))
          for nobody in (1.5, True)),
        ({"user": lambda: "ann", "key": lambda: 7}, "POST", userlock.ConfigurationError),
        ({"user": lambda: "ann"}, "GET", userlock.ConfigurationError),
    ],
)  # fmt: skip
def test_refused_at_the_request(
    app: flask.Flask, flows: Flows, options: dict[str, Any], method: str, error: Any
) -> None:
    """Without a user, all anonymous clients would share their keys, and get others' answers."""
    app.testing = True
    once = flows.idempotent(**options)(lambda flow: "secret")
    app.add_url_rule("/wrong", view_func=once, methods=["GET", "POST"])
    with pytest.raises(error):
        app.test_client().open("/wrong", method=method, headers={"Idempotency-Key": KEY})
