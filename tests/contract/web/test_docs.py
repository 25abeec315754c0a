"""Test docs/web.md: its examples work, and its problem document is the real one."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator
from typing import Any

import flask
import pytest
import werkzeug.test
from google.cloud import ndb

import userlock
from tests.contract.web.djangos import django_client
from tests.documents import Block, Page
from userlock.contrib.flask import UserLock
from userlock.contrib.problems import problem_of
from userlock.events import LISTENERS
from userlock_emulator import memcache

PAGE = Page("docs/web.md")
FLASK = PAGE.take("python", "import flask")
FACTORY = PAGE.take("python", "def create_app")
DJANGO = PAGE.take("python", "# settings.py")
WSGI = PAGE.take("python", "userlock.contrib.wsgi")
INSPECTOR = PAGE.take("python", "inspector=")
ANSWER = PAGE.take("http")


@pytest.fixture
def run(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that runs an example, with the emulator and a memcached."""
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    with memcache.start() as server:

        def execute(block: Block, **names: Any) -> dict[str, Any]:
            code = block.text.replace("127.0.0.1:11211", server.address)
            return dataclasses.replace(block, text=code).run({"__name__": "wallets", **names})

        yield execute


def test_flask(run: Any) -> None:
    names = run(FLASK)
    names["app"].secret_key = "test"
    client = names["app"].test_client()
    with client.session_transaction() as session:
        session["user_id"] = "ann"
    assert client.post("/wallets/ann/points").get_json() == {"points": 5}
    assert client.post("/wallets/ann/points").get_json() == {"points": 10}
    assert client.post("/wallets/ben/points").status_code == 403
    assert names["app"].test_client().post("/wallets/ann/points").status_code == 403


def test_an_app_factory(run: Any, service: userlock.LockService) -> None:
    names = run(FACTORY, flask=flask, ndb=ndb, service=service, UserLock=UserLock)
    for _ in range(2):  # tests make many apps
        app = names["create_app"]()
        app.add_url_rule("/a", view_func=scope_and_lock)
        assert app.test_client().get("/a").text == "interactive GET /a"


def scope_and_lock() -> str:
    """Return the priority and the request of the scope, under a lock."""
    scope = userlock.current_scope()
    assert scope is not None
    with userlock.global_lock("ann"):
        return f"{scope.priority.value} {scope.request}"


def test_django(run: Any) -> None:
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    def tell(request: HttpRequest) -> HttpResponse:
        return HttpResponse(scope_and_lock())

    urls = types.ModuleType("urls_of_the_page")
    urls.urlpatterns = [path("tasks/a", tell), path("a", tell)]  # type: ignore[attr-defined]
    settings = {name: value for name, value in run(DJANGO).items() if name.isupper()}
    assert set(settings) == {"MIDDLEWARE", "USERLOCK"}
    with django_client(ROOT_URLCONF=urls, **settings) as client:
        assert client.get("/a").content == b"interactive GET /a"
        assert client.get("/tasks/a").content == b"batch GET /tasks/a"


def test_wsgi(run: Any, service: userlock.LockService) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [scope_and_lock().encode()]

    wrapped = run(WSGI, app=app, ndb=ndb, service=service)["app"]
    client = werkzeug.test.Client(wrapped)
    assert client.get("/tasks/a").text == "batch GET /tasks/a"


def test_the_inspector(
    run: Any, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LISTENERS, "_listeners", LISTENERS._listeners)  # the inspector adds one
    app = flask.Flask("of_the_page")
    names = {"ndb": ndb, "service": service, "UserLock": UserLock}
    run(INSPECTOR, app=app, operator_of=lambda request: request.args.get("me"), **names)
    client = app.test_client()
    assert client.get("/userlock/locks.json").status_code == 403
    assert client.get("/userlock/locks.json?me=olga").status_code == 200


def test_the_problem_document() -> None:
    head, _, body = ANSWER.text.partition("\n\n")
    status, *headers = head.splitlines()
    error = userlock.LockTimeout(lock_id="ann", waited_seconds=5.0021, holder=None)
    problem = problem_of(error)
    assert status == f"HTTP/1.1 {problem.status} {problem.title}"
    assert dict(each.split(": ") for each in headers) == problem.headers
    assert json.loads(body) == json.loads(problem.body)
