"""Test the answer to one request too many for a locked user, in each integration."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import flask
import pytest
import werkzeug.test
from django.http import HttpRequest, HttpResponse
from django.urls import path
from werkzeug.test import TestResponse

import userlock
from tests.contract.web.djangos import django_client
from userlock.contrib.flask import UserLock, user_lock
from userlock.contrib.request_scope import RequestScope
from userlock.contrib.wsgi import UserLockMiddleware
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

Answer = tuple[int, dict[str, str], dict[str, Any]]
Post = Callable[[], Answer]
Site = Callable[..., Post]


def add_points() -> str:
    with userlock.global_lock("ann", wait_timeout=0.5):
        return "added"


def facts(response: TestResponse) -> Answer:
    return response.status_code, dict(response.headers), response.get_json(silent=True) or {}


def flask_site(stack: ExitStack, **options: Any) -> Post:
    app = flask.Flask(__name__)
    UserLock(app, **options)
    app.post("/points")(add_points)
    return lambda: facts(app.test_client().post("/points"))


def wsgi_site(stack: ExitStack, **options: Any) -> Post:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        answer = add_points()
        start_response("200 OK", [])
        return [answer.encode()]

    client = werkzeug.test.Client(UserLockMiddleware(app, **options))
    return lambda: facts(client.post("/points"))


def django_site(stack: ExitStack, **options: Any) -> Post:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(add_points())

    urls = types.ModuleType("urls_of_the_site")
    urls.urlpatterns = [path("points", view)]  # type: ignore[attr-defined]
    middleware = ["userlock.contrib.django.UserLockMiddleware"]
    client = stack.enter_context(
        django_client(ROOT_URLCONF=urls, MIDDLEWARE=middleware, USERLOCK=options)
    )

    def post() -> Answer:
        response = client.post("/points")
        is_json = response.headers.get("Content-Type", "").endswith("json")
        return response.status_code, dict(response.headers), response.json() if is_json else {}

    return post


@pytest.fixture(params=[flask_site, wsgi_site, django_site])
def site(request: pytest.FixtureRequest, service: userlock.LockService) -> Iterator[Site]:
    with ExitStack() as stack:
        yield lambda **options: request.param(stack, service=service, **options)


def test_it_is_429_with_retry_after(site: Site, service: userlock.LockService) -> None:
    service.release(service.acquire("ann"), held_seconds=6.5)
    lease = service.acquire("ann", request="POST /elsewhere")
    post = site(max_waiting=0, contention_status=409)
    status, headers, body = post()
    assert (status, headers["Retry-After"]) == (429, "7")
    assert headers["Content-Type"] == "application/problem+json"
    assert body.pop("detail").startswith("Too many requests for the same user")
    assert body.pop("waited_seconds") == pytest.approx(0, abs=0.1)
    assert body == {
        "title": "Too Many Requests",
        "status": 429,
        "error": "TooManyWaiting",
        "lock_id": "ann",
        "waiting": 0,
    }
    service.release(lease)
    assert post()[0] == 200


def test_without_a_bound_it_waits(site: Site, service: userlock.LockService) -> None:
    """The negative control."""
    service.acquire("ann")
    assert site(max_waiting=None)()[0] == 503


def test_the_default_lets_five_wait(
    site: Site, service: userlock.LockService, clock: ManualClock
) -> None:
    service.acquire("ann")
    post = site()
    statuses: list[int] = []

    def come() -> None:
        if len(entered) < 8:
            entered.append(len(entered))
            clock.after(0.001, come)
            statuses.append(post()[0])

    entered: list[int] = []
    come()
    assert statuses == [429] * 3 + [503] * 5, "eight came, each while those before it waited"


def test_the_policy_of_the_service_comes_before_the_default(
    store: MemoryStore, clock: ManualClock
) -> None:
    policy = userlock.LockPolicy(interactive=userlock.PriorityPolicy(max_waiting=0))
    service = userlock.LockService(store, clock=clock, policy=policy)
    service.acquire("ann")
    with (
        RequestScope(service=service).open("GET", "/", lambda name: False),
        pytest.raises(userlock.TooManyWaiting),
    ):
        userlock.acquire_lock("ann")


def test_a_scope_inside_a_request_has_its_bound(service: userlock.LockService) -> None:
    service.acquire("ann")
    scope = RequestScope(service=service, max_waiting=0)
    rejected = pytest.raises(userlock.TooManyWaiting)
    with scope.open("GET", "/", lambda name: False), userlock.scope(service), rejected:
        userlock.acquire_lock("ann")
    with userlock.scope(service), pytest.raises(userlock.LockTimeout) as caught:
        userlock.acquire_lock("ann", wait_timeout=0.1)
    assert type(caught.value) is userlock.LockTimeout, "the control: outside there is none"


@pytest.mark.parametrize(("most", "of_batch"), [(5, 3), (2, 1), (1, 1), (0, 0), (None, None)])
def test_batch_leaves_places_to_interactive_requests(
    service: userlock.LockService, most: int | None, of_batch: int | None
) -> None:
    scope = RequestScope(service=service, batch_prefixes=["/tasks/"], max_waiting=most)
    for path_, expected in (("/", most), ("/tasks/nightly", of_batch)):
        with scope.open("GET", path_, lambda name: False):
            current = userlock.current_scope()
            assert current is not None
            assert current.max_waiting == expected


def test_the_decorator_takes_it(service: userlock.LockService) -> None:
    app = flask.Flask(__name__)
    UserLock(app, service=service)
    app.post("/points")(user_lock(lambda: "ann", max_waiting=0)(add_points))
    service.acquire("ann")
    assert app.test_client().post("/points").status_code == 429


@pytest.mark.parametrize("wrong", [-1, 2.5, "5"])
def test_a_bound_that_is_none_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_waiting must be"):
        RequestScope(max_waiting=wrong)
