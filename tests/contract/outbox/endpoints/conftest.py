"""A site with the outbox's endpoints, in each integration, and an issuer of tokens."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import flask
import pytest
import werkzeug.test
from django.http import HttpRequest, HttpResponse
from django.urls import path
from google.cloud import ndb

import userlock
from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.issuer import Issuer
from tests.contract.web.djangos import django_client
from userlock.contrib.flask import UserLock
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.contrib.wsgi import UserLockMiddleware
from userlock.outbox import Outbox
from userlock.outbox.authentication import Caller
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

SECRET = "correct-horse-battery-staple"
AUTHORIZED = {"Authorization": f"Bearer {SECRET}"}
JOBS, RELAY = "/userlock/jobs", "/userlock/relay"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


#: Sends a request: method, path, headers, body; further options are of the WSGI environment.
Call = Callable[..., Answer]


class Anybody:
    """Lets everybody in: the negative control."""

    def check(self, header: Callable[[str], str | None]) -> None:
        pass


class Shop:
    """An outbox with a job that notes its runs."""

    def __init__(self, client: ndb.Client, service: userlock.LockService, name: str = "") -> None:
        self.client = client
        self.service = service
        self.outbox = Outbox("inline://?threads=0", name=name)
        self.ran: list[str] = []
        self.outbox.job(name="note")(self.note)

    def note(self, user_id: str) -> None:
        self.ran.append(f"{user_id} {priority()}")

    def stage(self, user_id: str = "ann", job: str = "note") -> bytes:
        with self.client.context():
            return self.outbox.jobs[job].stage_now(user_id).key.encode()

    def options(self, *callers: Caller) -> dict[str, Any]:
        endpoints = OutboxEndpoints(self.outbox, callers=callers)
        return {"client": self.client, "service": self.service, "outbox": endpoints}


def priority() -> str:
    scope = userlock.current_scope()
    assert scope is not None
    return f"{scope.priority.value} {scope.batch_work}"


# --- the integrations: a page with the priority, and nothing else for strangers ----------------


def wsgi_call(app: Any) -> Call:
    client = werkzeug.test.Client(app)

    def call(method: str, path: str, headers: Any = None, body: bytes = b"", **how: Any) -> Answer:
        answer = client.open(path, method=method, headers=headers, data=body, environ_overrides=how)
        found = Answer(answer.status_code, dict(answer.headers), answer.data)
        answer.close()
        return found

    return call


@contextmanager
def flask_site(**options: Any) -> Iterator[Call]:
    app = flask.Flask(__name__)
    UserLock(app, **options)

    @app.before_request
    def refuse_strangers() -> None:
        """As log-ins and protection against forged forms do."""
        if flask.request.path != "/priority":
            flask.abort(418)

    app.add_url_rule("/priority", view_func=priority, methods=["GET", "POST"])
    yield wsgi_call(app)


@contextmanager
def wsgi_site(**options: Any) -> Iterator[Call]:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        known = environ["PATH_INFO"] == "/priority"
        start_response("200 OK" if known else "418 I'M A TEAPOT", [])
        return [priority().encode()]

    yield wsgi_call(UserLockMiddleware(app, **options))


@contextmanager
def django_site(**options: Any) -> Iterator[Call]:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(priority())

    def refuse_strangers(get_response: Any) -> Any:
        return lambda request: (
            get_response(request) if request.path == "/priority" else HttpResponse(status=418)
        )

    site: Any = types.ModuleType("site_of_the_endpoints")
    site.urlpatterns, site.refuse_strangers = [path("priority", view)], refuse_strangers
    middleware = [
        "userlock.contrib.django.UserLockMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        f"{site.__name__}.refuse_strangers",
    ]
    with (
        pytest.MonkeyPatch.context() as patch,
        django_client(ROOT_URLCONF=site, MIDDLEWARE=middleware, USERLOCK=options) as client,
    ):
        patch.setitem(sys.modules, site.__name__, site)
        client.handler.enforce_csrf_checks = True

        def call(method: str, path: str, headers: Any = None, body: Any = b"", **how: Any) -> Any:
            kind = "application/octet-stream"
            answer = client.generic(method, path, body, kind, headers=dict(headers or {}), **how)
            return Answer(answer.status_code, dict(answer.items()), answer.content)

        yield call


SITES = {"flask": flask_site, "django": django_site, "wsgi": wsgi_site}
#: `make test` tries Flask, `make test-all` the others as well.
_SITES = ["flask", *(pytest.param(each, marks=pytest.mark.slow) for each in ("django", "wsgi"))]


@pytest.fixture
def shop(ndb_client: ndb.Client, store: MemoryStore, clock: ManualClock) -> Shop:
    return Shop(ndb_client, userlock.LockService(store, clock=clock))


@pytest.fixture(params=_SITES)
def site(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Callable[..., Call]]:
    """Return a function that starts the site for some callers, in each integration."""
    with contextlib.ExitStack() as opened:
        yield lambda *callers, **options: opened.enter_context(
            SITES[request.param](**shop.options(*callers), **options)
        )


@pytest.fixture(scope="module")
def running_issuer() -> Iterator[Issuer]:
    with issuers.issuer() as found:
        yield found


@pytest.fixture
def issuer(running_issuer: Issuer) -> Issuer:
    running_issuer.keys, running_issuer.status = [issuers.KEY_ID], 200
    running_issuer.fetched = 0
    return running_issuer
