"""Unfinished requests are completed by the server: functions, views, and by the relay's jobs."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import fastapi
import flask
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from google.cloud import ndb
from starlette.applications import Starlette
from starlette.routing import Route

import userlock
from tests.contract.idempotency.apps import Send, sender, sender_to_a_server
from tests.contract.idempotency.conftest import KEY, Provider, rows
from tests.contract.idempotency.test_web import post, refuse_name
from tests.contract.outbox.conftest import Mailbox
from tests.contract.web.djangos import django_client
from userlock.contrib import asgi, django, wsgi
from userlock.contrib.flask import Flows as FlaskFlows
from userlock.contrib.flask import UserLock
from userlock.errors import ExternalUnavailable
from userlock.events import LISTENERS, Event, RequestServed
from userlock.idempotency import Flow, Flows, Request, complete_by_relay
from userlock.idempotency import flows as requests
from userlock.ndb.owners import in_namespace
from userlock.outbox import Outbox
from userlock.outbox.rows import JobRow
from userlock.testing import ManualClock
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("service")


class Gone(Exception):
    """The process that served the request has died here."""


def completable_app(ndb_client: ndb.Client, flows: FlaskFlows, view: Any, **options: Any) -> Any:
    app = flask.Flask("completable")
    app.testing = True
    UserLock(app, client=ndb_client)
    options.setdefault("completable", True)
    once = flows.idempotent(user=lambda: "ann", name="rides", **options)(view)
    app.post("/rides/<int:number>")(once)
    return app.test_client()


class Rides:
    """A view whose first attempt dies.

    Attributes:
        got: the arguments of the attempts.
    """

    def __init__(self) -> None:
        self.got: list[Any] = []

    def serve(self, flow: Flow, number: Any) -> dict[str, Any]:
        begun = flow.phase("begun", lambda: flow.attempt)
        self.got.append(number)
        if len(self.got) == 1:
            raise Gone
        return {"begun": begun, "number": number, "to": flow.params["to"]}


Opened = Iterator[tuple[Flows, Send]]
COMPLETABLE: dict[str, Any] = {"completable": True, "name": "rides"}


def in_flask(rides: Rides, clock: ManualClock, client: ndb.Client, _: Any) -> Opened:
    flows, app = FlaskFlows(clock=clock, client=client), flask.Flask("completable")
    UserLock(app, client=client)

    @app.post("/rides/<int:number>")
    @flows.idempotent(user=lambda: "ann", **COMPLETABLE)
    def view(flow: Flow, number: int) -> None:
        answer = rides.serve(flow, number)
        with flow.last() as end:
            end.respond(answer, 201)

    yield flows, sender(app)


def in_django(rides: Rides, clock: ManualClock, client: ndb.Client, service: Any) -> Opened:
    flows = django.Flows(clock=clock, client=client)

    @flows.idempotent(user=lambda request: "ann", **COMPLETABLE)
    def view(request: HttpRequest, flow: Flow, number: int) -> HttpResponse:
        return HttpResponse(json.dumps(rides.serve(flow, number)), status=201)

    with django_client(
        ROOT_URLCONF=type("urls", (), {"urlpatterns": [path("rides/<int:number>", view)]}),
        MIDDLEWARE=["userlock.contrib.django.UserLockMiddleware"],
        USERLOCK={"client": client, "service": service},
    ):
        yield flows, sender(WSGIHandler())


def in_fastapi(rides: Rides, clock: ManualClock, client: ndb.Client, service: Any) -> Opened:
    """It makes a number of the argument."""
    flows, app = asgi.Flows(clock=clock, client=client), fastapi.FastAPI()
    app.add_middleware(asgi.UserLockMiddleware, client=client, service=service)

    def view(flow: Flow, number: int) -> dict[str, Any]:
        return rides.serve(flow, number)

    app.post("/rides/{number}")(flows.idempotent(user=lambda request: "ann", **COMPLETABLE)(view))
    with sender_to_a_server(app) as send:
        yield flows, send


def in_starlette(rides: Rides, clock: ManualClock, client: ndb.Client, service: Any) -> Opened:
    flows = asgi.Flows(clock=clock, client=client)

    def view(flow: Flow) -> dict[str, Any]:
        return rides.serve(flow, flow.arguments["number"])

    once = flows.idempotent(user=lambda request: "ann", **COMPLETABLE)(view)
    app = Starlette(routes=[Route("/rides/{number:int}", once, methods=["POST"])])
    app.add_middleware(asgi.UserLockMiddleware, client=client, service=service)
    with sender_to_a_server(app) as send:
        yield flows, send


@pytest.mark.parametrize("framework", [in_flask, in_django, in_fastapi, in_starlette])
def test_the_server_completes_a_view(
    ndb_client: ndb.Client, service: userlock.LockService, clock: ManualClock, framework: Any
) -> None:
    """It gets the same arguments in both attempts, and its client gets the answer."""
    rides = Rides()
    with contextmanager(framework)(rides, clock, ndb_client, service) as (flows, send):
        assert send("rides/7", b'{"to": "home"}')[0] == 500
        clock.advance(301)
        with flows.context():
            ((asked, answer),) = flows.complete()
        assert (asked.path, asked.arguments) == ("/rides/7", {"number": 7})
        assert (asked.params, rides.got) == ({"to": "home"}, [7, 7])
        status, headers, body = send("rides/7", b'{"to": "home"}')
    assert answer is not None
    assert (status, body) == (answer.status, answer.body)
    assert headers["Idempotent-Replayed"] == "true"
    assert json.loads(body) == {"begun": 1, "number": 7, "to": "home"}


class Refused(Rides):
    def serve(self, flow: Flow, number: Any) -> dict[str, Any]:
        raise Http404(super().serve(flow, number))


class Taken(Rides):
    def serve(self, flow: Flow, number: Any) -> dict[str, Any]:
        super().serve(flow, number)
        return refuse_name()


@pytest.mark.parametrize(
    ("framework", "rides", "status"), [(in_django, Refused, 404), (in_flask, Taken, 409)]
)
def test_the_server_completes_a_view_that_refuses(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    clock: ManualClock,
    framework: Any,
    rides: type[Rides],
    status: int,
) -> None:
    """Without the project's page, which needs a request."""
    with contextmanager(framework)(rides(), clock, ndb_client, service) as (flows, send):
        assert send("rides/7", b'{"to": "home"}')[0] == 500
        clock.advance(301)
        with flows.context():
            ((_, answer),) = flows.complete()
        assert answer is not None
        assert (answer.status, send("rides/7", b'{"to": "home"}')[0]) == (status, status)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"completable": False}, {"json": {"to": "home"}}),
        ({}, {"data": b"text", "content_type": "text/plain"}),
        ({}, {"json": {"to": "x" * 200_000}}),
        ({}, {"data": {"file": b"a file"}}),
    ],
    ids=["not completable", "no JSON", "too long", "a file"],
)
def test_others_are_left_to_their_clients(
    ndb_client: ndb.Client, clock: ManualClock, options: dict[str, Any], how: dict[str, Any]
) -> None:
    flows = FlaskFlows(clock=clock)

    def view(flow: Flow, number: int) -> None:
        flow.phase("begun", lambda: None)
        raise Gone

    client = completable_app(ndb_client, flows, view, **options)
    if isinstance(how.get("data"), dict):
        how = {"data": {"file": (io.BytesIO(how["data"]["file"]), "a.txt")}}
    with pytest.raises(Gone):
        post(client, "/rides/7", **how)
    clock.advance(301)
    with ndb_client.context():
        (row,) = rows()
        assert row.params is None
        assert list(flows.complete()) == []


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (lambda flow, number: {"a": 1}, r"answer in flow\.last"),
        (lambda flow, number: flask.Response("text", 202), None),
    ],
    ids=["a value", "an answer"],
)
def test_a_completable_view_returns_an_answer_of_its_own(
    ndb_client: ndb.Client, view: Any, text: str | None
) -> None:
    """A value would need the app of a request; this is said at the first request."""
    client = completable_app(ndb_client, FlaskFlows(), view)
    if text is None:
        assert post(client, "/rides/7").status_code == 202
        return
    with pytest.raises(userlock.ConfigurationError, match=text):
        post(client, "/rides/7")


def test_a_view_is_not_completed_within_another_request(
    ndb_client: ndb.Client, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a route for cron: the view would see the request and the session of that one."""
    flows = FlaskFlows(clock=clock)
    ran: list[int] = []

    def view(flow: Flow, number: int) -> None:
        ran.append(flow.attempt)
        if len(ran) == 1:
            raise Gone
        flask.abort(404)

    client = completable_app(ndb_client, flows, view)
    with pytest.raises(Gone):
        post(client, "/rides/7")
    clock.advance(301)
    with ndb_client.context(), flask.Flask("cron").test_request_context():
        ((_, answer),) = flows.complete()
    assert (ran, answer) == ([1], None)
    assert "completed outside of requests" in caplog.text
    clock.advance(3600)
    with ndb_client.context():
        ((_, answer),) = flows.complete()  # its abort is an answer, without an app as well
    assert answer is not None
    assert (ran, answer.status) == ([1, 3], 404)


@pytest.mark.parametrize("asks", ["a query", "the request"])
def test_a_completable_view_of_fastapi_takes_its_path_alone(
    ndb_client: ndb.Client, service: userlock.LockService, asks: str
) -> None:
    """A default would be charged when the server completes it."""
    flows, app, charged = asgi.Flows(client=ndb_client), fastapi.FastAPI(), list[Any]()
    app.add_middleware(asgi.UserLockMiddleware, client=ndb_client, service=service)

    def query(flow: Flow, cents: int = 1) -> None:
        charged.append(cents)
        raise Gone

    def asked(flow: Flow, cents: fastapi.Request) -> None:
        query(flow)

    view = query if asks == "a query" else asked
    app.post("/rides")(flows.idempotent(user=lambda request: "ann", **COMPLETABLE)(view))
    with sender_to_a_server(app) as send:
        assert send("rides?cents=500", b"{}")[0] == 500
    with flows.context():
        assert list(flows.complete(older_than=0)) == []
    assert charged == []


def test_refused_at_decoration(flows: Flows, ndb_client: ndb.Client) -> None:
    twice = FlaskFlows()
    completable_app(ndb_client, twice, lambda flow, number: None)
    with pytest.raises(userlock.ConfigurationError, match="two flows have the name"):
        completable_app(ndb_client, twice, lambda flow, number: None)
    once = wsgi.Flows().idempotent(user=lambda environ: "ann", completable=True)
    with pytest.raises(userlock.ConfigurationError, match="needs its environment"):
        once(lambda environ, start: [])
    with pytest.raises(userlock.ConfigurationError, match="no flow has the name 'other'"):
        flows.run(Request("ann", KEY, "other"))


def test_a_view_keeps_its_answers_for_its_own_time(
    ndb_client: ndb.Client, clock: ManualClock
) -> None:
    flows = FlaskFlows(clock=clock, keep_hours=24)
    runs: list[int] = []

    def view(flow: Flow, number: int) -> flask.Response:
        runs.append(number)
        return flask.Response("text")

    client = completable_app(ndb_client, flows, view, keep_hours=48)
    post(client, "/rides/7")
    clock.advance(47 * 3600)
    post(client, "/rides/7")
    assert len(runs) == 1
    clock.advance(3600 + 1)
    post(client, "/rides/7")
    assert len(runs) == 2


# --- by jobs ----------------------------------------------------------------------------------


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def outbox(mailbox: Mailbox, service: userlock.LockService, clock: ManualClock) -> Outbox:
    return Outbox(mailbox, service=service, clock=clock)


def test_the_relay_completes_requests_later_and_later(
    flows: Flows, outbox: Outbox, mailbox: Mailbox, clock: ManualClock
) -> None:
    """From five minutes on, by one job, although one that fails."""
    runs: list[float] = []
    alive = False

    @flows.function(name="relay-fails")
    def fails(flow: Flow, cents: int) -> int:
        runs.append(clock.wall())
        flow.phase("begun", lambda: 1)
        if alive:
            return cents
        raise RuntimeError("a bug")

    def relay() -> None:
        for _ in range(2):  # several relays: one job
            outbox.relay(seconds=0)  # its chores alone
        assert len({each.key for each in mailbox.messages}) <= 1
        mailbox.deliver_all()

    def failing_chore() -> None:
        raise RuntimeError("it does not stop the others")

    outbox.each_minute(failing_chore)
    complete_by_relay(flows, outbox)
    with pytest.raises(RuntimeError):
        fails("ann", KEY, cents=5)
    relay()
    assert len(runs) == 1, "it may be running"
    for number, minutes in enumerate((5, 10, 20, 40, 60, 60), start=1):
        clock.advance(minutes * 60 - 2)
        relay()
        assert len(runs) == number, "it is too early"
        clock.advance(2)
        relay()
        assert len(runs) == number + 1
    assert outbox.dead.list() == []
    assert rows()[0].status is None
    alive = True
    clock.advance(3600)
    relay()
    assert rows()[0].is_finished
    attempts = len(runs)
    clock.advance(3600)
    relay()
    assert (fails("ann", KEY, cents=5), len(runs)) == (5, attempts)


def test_a_malformed_row_does_not_stop_the_others(
    flows: Flows, outbox: Outbox, mailbox: Mailbox, clock: ManualClock
) -> None:
    alive = False

    @flows.function(name="relay-rows")
    def fails(flow: Flow) -> int:
        if alive:
            return 1
        raise RuntimeError("a bug")

    complete_by_relay(flows, outbox)
    harms: list[dict[str, Any]] = [
        {"params": "{"},
        {"params": "7"},
        {"begun_at": None},
        {"user": None},
        {"user": 7},
        {"idempotency_key": None},
        {"points": "{"},
        {},
    ]
    for number, harm in enumerate(harms):
        with pytest.raises(RuntimeError):
            fails(f"user-{number}", KEY)
        row = next(each for each in rows() if each.user == f"user-{number}")
        for field, value in harm.items():
            setattr(row, field, value)
        row.put()
    alive = True
    clock.advance(301)
    outbox.relay()
    mailbox.deliver_all()
    assert [row.user for row in rows() if row.is_finished] == ["user-7"]
    assert outbox.dead.list() == []


def test_contention_at_one_does_not_stop_the_others(
    flows: Flows, outbox: Outbox, mailbox: Mailbox, clock: ManualClock, datastore: Emulator
) -> None:
    alive = False

    @flows.function(name="relay-contention")
    def fails(flow: Flow) -> int:
        if alive:
            return 1
        raise RuntimeError("a bug")

    complete_by_relay(flows, outbox)
    with pytest.raises(userlock.ConfigurationError, match="make one Flows"):
        complete_by_relay(Flows(), outbox)
    for user in ("ann", "bob"):
        with pytest.raises(RuntimeError):
            fails(user, KEY)
    alive = True
    clock.advance(301)
    with datastore.faults.abort(4, kind="UserLockRequest"):  # the first one, and its retries
        outbox.relay()
    mailbox.deliver_all()
    assert len([row for row in rows() if row.is_finished]) == 1


def test_one_that_fails_again_does_not_stop_the_others(
    flows: Flows, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @flows.function(name="work")
    def work(flow: Flow) -> str:
        ran.append(flow.user_id)
        if flow.user_id == "ann" or len(ran) <= 3:
            raise RuntimeError("a bug")
        return "done"

    for user in ("ann", "bob", "cem"):
        with pytest.raises(RuntimeError):
            work(user, KEY)
    assert list(flows.complete()) == [], "they may be running"
    clock.advance(301)
    outcomes = {asked.user_id: answer for asked, answer in flows.complete()}
    assert {user: answer is None for user, answer in outcomes.items()} == {
        "ann": True,
        "bob": False,
        "cem": False,
    }
    (record,) = (each for each in caplog.records if "not complete" in each.getMessage())
    assert record.exc_info is not None


def test_one_that_runs_is_no_failure(
    flows: Flows, ndb_client: ndb.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log has no traceback: there is nothing to mend."""

    def complete() -> list[object]:
        with ndb_client.context():
            return [answer for _, answer in flows.complete(older_than=0)]

    @flows.function(name="work")
    def work(flow: Flow) -> str:
        with ThreadPoolExecutor() as elsewhere:
            assert elsewhere.submit(complete).result() == [None]
        return "done"

    assert work("ann", KEY) == "done"
    (record,) = (each for each in caplog.records if "not complete" in each.getMessage())
    assert record.exc_info is None


@pytest.mark.parametrize(
    ("share", "first", "second"),
    [(2, {"ann": 2, "bob": 1}, {"ann": 2}), (9, {"ann": 3}, {"ann": 1, "bob": 1})],
    ids=["", "the control"],
)
def test_one_user_leaves_room_for_others(
    flows: Flows,
    outbox: Outbox,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    share: int,
    first: dict[str, int],
    second: dict[str, int],
) -> None:
    """And those that wait for their turn are not asked for again before it."""
    monkeypatch.setattr(requests, "_MOST", 3)
    monkeypatch.setattr(requests, "_MOST_OF_ONE", share)

    @flows.function(name="crowd")
    def fails(flow: Flow) -> None:
        raise RuntimeError("a bug")

    complete_by_relay(flows, outbox)
    for user, number in (("ann", 4), ("bob", 1)):
        for each in range(number):
            with pytest.raises(RuntimeError):
                fails(user, f"{KEY}-{each}")
            clock.advance(1)
    clock.advance(301)
    staged: list[Counter[str]] = []
    for _ in range(2):
        outbox.relay()
        staged.append(Counter(row.owner for row in JobRow.query(namespace="")))
        clock.advance(60)
    assert (staged[0], staged[1] - staged[0]) == (first, second)


# --- events -----------------------------------------------------------------------------------


def test_outcomes(flows: Flows, provider: Provider, clock: ManualClock) -> None:
    """Each request is told once, as what it was."""
    told: list[Event] = []
    LISTENERS.add(told.append)

    @flows.function(name="told")
    def pay(flow: Flow, cents: int) -> str:
        return str(flow.external("charge", provider.charge))

    try:
        provider.lost = ConnectionError("reset")
        with pytest.raises(ExternalUnavailable):
            pay("ann", KEY, cents=5)
        provider.lost = None
        pay("ann", KEY, cents=5)
        pay("ann", KEY, cents=5)
        pay("ann", f"{KEY}-2", cents=5)
        with pytest.raises(userlock.IdempotencyKeyReused):
            pay("ann", KEY, cents=6)
        with pytest.raises(userlock.IdempotencyKeyRefused):
            pay("ann", "", cents=6)
        with pytest.raises(TypeError):
            pay(None, KEY, cents=6)
        assert {each.namespace for each in told if isinstance(each, RequestServed)} == {""}
        with in_namespace("tenant"), pytest.raises(userlock.IdempotencyKeyRefused):
            pay("ann", "", cents=6)
        tenants = told.pop()
    finally:
        LISTENERS.remove(told.append)
    assert isinstance(tenants, RequestServed)
    assert tenants.namespace == "tenant"
    assert "'ann' in tenant" in str(tenants.log_line())
    *served, last = [each for each in told if isinstance(each, RequestServed)]
    assert (last.lock_id, last.outcome) == (None, "unfinished"), "there is no user"
    assert [(each.outcome, each.attempt) for each in served] == [
        ("unfinished", 1),
        ("resumed", 2),
        ("replayed", 0),
        ("done", 1),
        ("reused", 0),
        ("malformed", 0),
    ]
    assert {(each.lock_id, each.flow) for each in served} == {("ann", "told")}
    assert served[0].error.startswith("ExternalUnavailable: ")
    assert KEY not in str([each.log_line() for each in served])
