"""Requests with an idempotency key to a Flask app."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, CardDeclined, Provider, Ride
from userlock.contrib.flask import Flows, UserLock
from userlock.idempotency import Flow
from userlock.testing import ManualClock


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService, clock: ManualClock) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service)
    app.extensions["flows"] = Flows(clock=clock)
    return app


@pytest.fixture
def client(app: flask.Flask, provider: Provider) -> FlaskClient:
    flows: Flows = app.extensions["flows"]

    def user() -> str:
        return flask.request.headers.get("X-User", "ann")

    @app.post("/rides")
    @flows.idempotent(user=user)
    def create_ride(flow: Flow) -> None:
        ride_id = flow.phase("ride", lambda: Ride(user_id=flow.user_id).put().id())
        charge = flow.external("charge", provider.charge, final={CardDeclined: 402})
        with flow.last() as end:
            ride = Ride.get_by_id(ride_id)
            ride.charge = charge
            ride.put()
            end.respond({"ride": ride_id, "to": flow.params["to"]}, 201)

    @app.route("/echo", methods=["POST", "PATCH", "GET"])
    @flows.idempotent(user=user)
    def echo(flow: Flow) -> Any:
        response = flask.make_response(flask.request.form.get("text", "none"), 200)
        response.set_cookie("session", "secret")
        response.headers["ETag"] = '"1"'
        response.headers["X-Of-This-Request"] = "1"
        return response

    @app.post("/form")
    @flows.idempotent(user=user, key=lambda: flask.request.form.get("request"))
    def form(flow: Flow) -> Any:
        return {"attempt": flow.attempt, "text": flask.request.form["text"]}, 201

    @app.post("/stream")
    @flows.idempotent(user=user)
    def stream(flow: Flow) -> Any:
        return flask.Response(iter(["a", "b"]))

    @app.post("/refuses/<int:status>")
    @flows.idempotent(user=user, final=(CardDeclined,))
    def refuses(flow: Flow, status: int) -> Any:
        raise CardDeclined(f"{status} attempt {flow.attempt}")

    @app.post("/aborts/<int:status>")
    @flows.idempotent(user=user)
    def aborts(flow: Flow, status: int) -> Any:
        flask.abort(status, f"attempt {flow.attempt}")

    @app.post("/fails")
    @flows.idempotent(user=user)
    def fails(flow: Flow) -> Any:
        return {"attempt": flow.attempt}, 503 if flow.attempt == 1 else 200

    return app.test_client()


def post(client: FlaskClient, path: str = "/rides", key: str | None = KEY, **how: Any) -> Any:
    headers = {**how.pop("headers", {}), **({} if key is None else {"Idempotency-Key": key})}
    if not how:
        how["json"] = {"to": "home"}
    return client.post(path, headers=headers, **how)


def test_a_replay(client: FlaskClient, provider: Provider) -> None:
    first, again = post(client), post(client, key=f'"{KEY}"')
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.data, first.content_type) == (again.data, again.content_type)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert provider.asked == 1


def test_problems(client: FlaskClient, provider: Provider) -> None:
    for key in (None, "", "short", '""'):
        missing = post(client, key=key)
        assert (missing.status_code, missing.content_type) == (400, "application/problem+json")
        assert "Idempotency-Key" in missing.get_json()["detail"]
    post(client)
    other = post(client, json={"to": "work"})
    assert (other.status_code, other.get_json()["error"]) == (422, "IdempotencyKeyReused")
    assert post(client, headers={"X-User": "bob"}, json={"to": "work"}).status_code == 201
    provider.trouble = ConnectionError("reset")
    trouble = post(client, key=KEY + "-2")
    assert (trouble.status_code, trouble.headers["Retry-After"]) == (503, "5")
    provider.trouble = CardDeclined("too poor")
    for _ in range(2):
        declined = post(client, key=KEY + "-2")
        assert (declined.status_code, declined.get_json()["detail"]) == (402, "too poor")
    assert declined.headers["Idempotent-Replayed"] == "true"


def test_the_key_in_a_form(client: FlaskClient) -> None:
    """A form of a page without scripts; the header then counts for nothing."""
    for key, text, status in (
        (KEY, "a", 201),
        (KEY, "a", 201),
        (KEY, "b", 422),
        (KEY + "-2", "b", 201),
        ("short", "a", 400),
    ):
        answer = post(client, "/form", data={"request": key, "text": text})
        assert answer.status_code == status
    assert post(client, "/form", data={"text": "a"}).status_code == 400
    again = post(client, "/form", key=None, data={"request": KEY, "text": "a"})
    assert again.headers["Idempotent-Replayed"] == "true"


def test_cookies_and_headers_of_one_request_are_not_given_again(client: FlaskClient) -> None:
    first, again = post(client, "/echo"), post(client, "/echo")
    assert first.headers["ETag"] == again.headers["ETag"] == '"1"'
    for name in ("Set-Cookie", "X-Of-This-Request"):
        assert name in first.headers
        assert name not in again.headers


def test_streams_are_refused(client: FlaskClient, app: flask.Flask) -> None:
    app.config["PROPAGATE_EXCEPTIONS"] = False
    assert post(client, "/stream").status_code == 500


def test_an_answer_from_500_on_is_not_stored(client: FlaskClient) -> None:
    assert [post(client, "/fails").status_code for _ in range(3)] == [503, 200, 200]
    assert post(client, "/fails").get_json() == {"attempt": 2}


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        ({"json": {"a": 1, "b": 2}}, {"json": {"b": 2, "a": 1}}, True),
        ({"data": b'{"a": 1}', "content_type": "application/json"}, {"json": {"a": 1}}, True),
        ({"json": {"a": 1}}, {"json": {"a": 2}}, False),
        ({"data": {"text": "x"}}, {"data": {"text": "x"}}, True),
        ({"data": {"text": "x"}}, {"data": {"text": "y"}}, False),
        ({"data": b"x"}, {"data": b"x"}, True),
        ({"data": b"x"}, {"data": b"y"}, False),
        ({"data": b"{", "content_type": "application/json"}, {"json": {}}, False),
        ({"query_string": "a=1", "data": b""}, {"query_string": "a=2", "data": b""}, False),
    ],
)
def test_equal_parameters(
    client: FlaskClient, first: dict[str, Any], again: dict[str, Any], same: bool
) -> None:
    assert post(client, "/echo", **first).status_code == 200
    assert post(client, "/echo", **again).status_code == (200 if same else 422)


def test_uploads(client: FlaskClient) -> None:
    """Their boundaries differ, their files count."""

    def upload(content: bytes) -> int:
        file = (io.BytesIO(content), "a.txt")
        return int(post(client, "/echo", data={"text": "x", "file": file}).status_code)

    assert [upload(b"one"), upload(b"one"), upload(b"two")] == [200, 200, 422]


def test_another_method(client: FlaskClient, app: flask.Flask) -> None:
    app.testing = True
    with pytest.raises(userlock.ConfigurationError, match="not for GET"):
        client.get("/echo", headers={"Idempotency-Key": KEY})


@pytest.mark.parametrize("nobody", [None, "", 1.5, True])
def test_a_request_without_a_user_is_refused(app: flask.Flask, nobody: Any) -> None:
    """All anonymous clients would share their keys, and get each other's answers."""
    app.testing = True
    once = app.extensions["flows"].idempotent(user=lambda: nobody)
    app.add_url_rule("/nobody", view_func=once(lambda flow: "secret"), methods=["POST"])
    with pytest.raises((TypeError, ValueError)):
        post(app.test_client(), "/nobody")


def test_refused_at_decoration(app: flask.Flask) -> None:
    flows = Flows()

    async def later(flow: Flow) -> None:
        pass

    def stream(flow: Flow) -> Iterator[str]:
        yield "a"

    for view in (later, stream):
        with pytest.raises(userlock.ConfigurationError, match="cannot be stored"):
            flows.idempotent(user=lambda: "ann")(view)
    with pytest.raises(ValueError, match="on_busy"):
        flows.idempotent(user=lambda: "ann", on_busy="hope")  # type: ignore[arg-type]


def test_an_abort_is_an_answer(app: flask.Flask, client: FlaskClient) -> None:
    """Else each refusal would leave an unfinished request."""
    first, again = post(client, "/aborts/403"), post(client, "/aborts/403")
    assert (first.status_code, again.status_code, first.data) == (403, 403, again.data)
    assert b"attempt 1" in again.data
    assert again.headers["Idempotent-Replayed"] == "true"


def test_an_abort_above_499_is_none(client: FlaskClient) -> None:
    assert b"attempt 1" in post(client, "/aborts/503").data
    assert b"attempt 2" in post(client, "/aborts/503").data


def test_an_abort_is_answered_by_the_apps_handler(app: flask.Flask, client: FlaskClient) -> None:
    app.register_error_handler(403, lambda error: ({"error": error.description}, 418))
    for _ in range(2):
        answer = post(client, "/aborts/403")
        assert (answer.status_code, answer.json) == (418, {"error": "attempt 1"})


def test_final_errors_are_answers_of_the_apps_handler(
    app: flask.Flask, client: FlaskClient
) -> None:
    app.register_error_handler(
        CardDeclined, lambda error: ({"error": str(error)}, int(str(error)[:3]))
    )
    for _ in range(2):
        answer = post(client, "/refuses/402")
        assert (answer.status_code, answer.json) == (402, {"error": "402 attempt 1"})
    for attempt in (1, 2):
        answer = post(client, "/refuses/500", key=f"{KEY}-2")
        assert answer.json == {"error": f"500 attempt {attempt}"}


def test_a_final_error_without_a_handler_is_a_bug(client: FlaskClient) -> None:
    assert post(client, "/refuses/402").status_code == 500


def test_final_errors_need_a_request(app: flask.Flask) -> None:
    flows: Flows = app.extensions["flows"]
    once = flows.idempotent(user=lambda: "ann", final=(CardDeclined,), completable=True)
    with pytest.raises(userlock.ConfigurationError, match="need a request"):
        once(lambda flow: None)


def test_the_first_answer_has_all_headers(app: flask.Flask) -> None:
    flows: Flows = app.extensions["flows"]

    @app.post("/headers")
    @flows.idempotent(user=lambda: "ann")
    def headers(flow: Flow) -> flask.Response:
        response = flask.Response("text", 201, {"X-Own": "1", "Location": "/there"})
        response.set_cookie("session", "secret")
        return response

    client = app.test_client(use_cookies=False)
    first, again = post(client, "/headers"), post(client, "/headers")
    assert (first.headers["X-Own"], first.headers["Location"]) == ("1", "/there")
    assert "secret" in first.headers["Set-Cookie"]
    assert again.headers["Location"] == "/there"
    assert not {"X-Own", "Set-Cookie"} & set(again.headers.keys())


def test_wrong_options(app: flask.Flask) -> None:
    flows: Flows = app.extensions["flows"]
    for wrong in ({"final": (7,)}, {"final": (BaseException,)}, {"other": 1}):
        with pytest.raises(TypeError):
            flows.idempotent(user=lambda: "ann", **wrong)
    for number in (float("nan"), -1, "5"):
        with pytest.raises((TypeError, ValueError), match="wait_timeout"):
            flows.idempotent(user=lambda: "ann", wait_timeout=number)  # type: ignore[arg-type]


def test_a_key_that_is_no_text(app: flask.Flask) -> None:
    flows: Flows = app.extensions["flows"]
    app.testing = True
    number: Any = 7
    once = flows.idempotent(user=lambda: "ann", key=lambda: number)
    app.post("/key")(once(lambda flow: "text"))
    with pytest.raises(userlock.ConfigurationError, match="return a text or None"):
        post(app.test_client(), "/key")


def test_a_violation_is_logged_once(
    app: flask.Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    flows: Flows = app.extensions["flows"]

    @app.post("/unlocked")
    @flows.idempotent(user=lambda: "ann")
    def unlocked(flow: Flow) -> str:
        Ride(id="new", user_id="bob").put()
        return "never sent"

    answer = client.post("/unlocked", headers={"Idempotency-Key": KEY})
    assert answer.status_code == 500
    assert caplog.text.count("is new and was put without its lock") == 1
    assert "unfinished" in caplog.text
