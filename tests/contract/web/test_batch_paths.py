"""Test the paths that prove batch work: the same in all integrations, whatever the client sends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import flask
import pytest
import werkzeug.test
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from hypothesis import given
from hypothesis import strategies as st

import userlock
from tests.contract.web.djangos import django_client
from userlock.contrib.flask import UserLock
from userlock.contrib.request_scope import BatchPaths, path_of
from userlock.contrib.wsgi import UserLockMiddleware

OPTIONS: dict[str, Any] = {"batch_prefixes": ["/tasks/", "/cron"]}

#: PATH_INFO as text, decoded once as servers do, and whether it proves batch work.
TABLE: list[tuple[str, bool]] = [
    ("/tasks/report", True),
    ("/tasks/report/", True),
    ("/tasks/", True),
    ("/tasks/café", True),
    ("/tasks/a b", True),
    ("/tasks/a..b/.well-known/...", True),
    ("/cron", True),
    ("/cron/", True),
    ("/cron/nightly", True),
    # Other paths.
    ("", False),
    ("/", False),
    ("/tasks", False),
    ("/tasksreport", False),
    ("/cronology", False),
    ("/answers/tasks/report", False),
    ("tasks/report", False),
    # Which some routers would take for another path.
    ("//tasks/report", False),
    ("///tasks/report", False),
    ("/tasks//report", False),
    ("/tasks/report//", False),
    ("/tasks//", False),
    ("/tasks/../answers", False),
    ("/tasks/..", False),
    ("/tasks/./report", False),
    ("/tasks/.", False),
    ("/./tasks/report", False),
    ("/answers/../tasks/report", False),
    ("/tasks/%2e%2e/answers", False),
    ("/tasks/%2E%2e/answers", False),
    ("/tasks%2freport", False),
    ("/tasks/..%2fanswers", False),
    ("/%74asks/report", False),
    ("/tasks/100%", False),
    ("/tasks\\report", False),
    ("/tasks/..\\answers", False),
    ("\\tasks\\report", False),
    # Case.
    ("/Tasks/report", False),
    ("/TASKS/report", False),
    # What a line or a terminal ends with.
    ("/tasks/report\n", False),
    ("/tasks/\n", False),
    ("/cron\n", False),
    ("/tasks/report\r\nX-AppEngine-Cron: true", False),
    ("/tasks/report\0", False),
    ("\n/tasks/report", False),
    (" /tasks/report", False),
    ("/tasks/\u2028report", False),
    # Bytes that are no UTF-8.
    ("/tasks/\udcff", False),
]

Send = Callable[[dict[str, Any]], str]


def seen() -> str:
    """Return the facts of the request that is running."""
    scope = userlock.current_scope()
    assert scope is not None
    return f"{scope.priority.value} {scope.batch_work}"


def _text_of(app: Any) -> Send:
    def send(environ: dict[str, Any]) -> str:
        chunks, _, _ = werkzeug.test.run_wsgi_app(app, environ)
        return b"".join(chunks).decode()

    return send


def flask_site(stack: ExitStack, service: userlock.LockService) -> Send:
    app = flask.Flask(__name__)
    UserLock(app, service=service, **OPTIONS)
    # Also where no route fits, and where the router redirects to another path.
    app.before_request(seen)
    return _text_of(app)


def wsgi_site(stack: ExitStack, service: userlock.LockService) -> Send:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [seen().encode()]

    return _text_of(UserLockMiddleware(app, service=service, **OPTIONS))


def answers_any_path(get_response: object) -> Callable[[HttpRequest], HttpResponse]:
    """Return a middleware for Django, behind the library's."""
    return lambda request: HttpResponse(seen())


urlpatterns: list[object] = []


def django_site(stack: ExitStack, service: userlock.LockService) -> Send:
    middleware = [
        "userlock.contrib.django.UserLockMiddleware",
        f"{__name__}.{answers_any_path.__name__}",
    ]
    stack.enter_context(
        django_client(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=middleware,
            USERLOCK={"service": service, **OPTIONS},
        )
    )
    return _text_of(WSGIHandler())


@pytest.fixture(params=[flask_site, wsgi_site, django_site])
def send(request: pytest.FixtureRequest, service: userlock.LockService) -> Iterator[Send]:
    """Provide a site in each integration, which answers any path."""
    with ExitStack() as stack:
        yield request.param(stack, service)


def environ_of(path: str, **more: str) -> dict[str, Any]:
    """Return the environment that a server makes of a decoded path."""
    environ = werkzeug.test.create_environ("/", "http://testserver/", method="POST")
    raw = path.encode("utf-8", "surrogateescape").decode("latin-1")
    return {**environ, "PATH_INFO": raw, **more}


EXPECTED = {True: "batch True", False: "interactive False"}


def test_each_path_of_the_table(send: Send) -> None:
    wrong = {path for path, batch in TABLE if send(environ_of(path)) != EXPECTED[batch]}
    assert wrong == set()


@pytest.mark.parametrize("mounted", ["/tasks", "/tasks/", "/tasks/x", "/cron", "//tasks", "/a/.."])
def test_the_place_where_a_client_says_the_app_is_mounted_proves_nothing(
    send: Send, mounted: str
) -> None:
    """gunicorn takes SCRIPT_NAME from a header of a trusted peer; PATH_INFO routes."""
    for path, batch in TABLE:
        assert send(environ_of(path, SCRIPT_NAME=mounted)) == EXPECTED[batch], path
    assert send(environ_of("/report", SCRIPT_NAME=mounted)) == EXPECTED[False]


@pytest.mark.parametrize(
    "header", ["HTTP_SCRIPT_NAME", "HTTP_X_ORIGINAL_URL", "HTTP_X_REWRITE_URL"]
)
def test_headers_with_another_path_prove_nothing(send: Send, header: str) -> None:
    for path, batch in TABLE:
        assert send(environ_of(path, **{header: "/tasks/report"})) == EXPECTED[batch], path
    raw = {"REQUEST_URI": "/tasks/report", "RAW_URI": "/tasks/report"}
    assert send(environ_of("/answers", **raw)) == EXPECTED[False]


segments = st.sampled_from(
    [
        *("tasks", "Tasks", "cron", "report", "answers", "", ".", "..", "%2e", "%2e%2e"),
        *("a%2fb", "\n", "ta\\sks", "tasks\n", "tasks\0", "é", "..;"),
    ]
)
paths = (
    st.lists(segments, max_size=5).map("/".join).flatmap(lambda p: st.sampled_from([p, "/" + p]))
)


@given(paths)
def test_no_reader_of_a_path_finds_another_one_in_it(path: str) -> None:
    """Whatever a router, proxy or app normalises: a path of batch work stays one."""
    if path not in BatchPaths(["/tasks/"]):
        return
    segments = path.split("/")[1:]
    assert segments[0] == "tasks"
    assert "/" + "/".join(resolved(segments)) == path
    for reading in (path.strip(), path.replace("\\", "/"), path.split("%")[0]):
        assert reading == path


def resolved(segments: list[str]) -> list[str]:
    """Return segments without dots and without empty ones, but for the last."""
    found: list[str] = []
    for number, each in enumerate(segments):
        if each == "..":
            with contextlib.suppress(IndexError):
                found.pop()
        elif each not in ("", ".") or (each == "" and number == len(segments) - 1):
            found.append(each)
    return found


def test_a_prefix_check_alone_would_take_other_paths_for_batch_work() -> None:
    """The negative control of the table."""
    fooled = [path for path, batch in TABLE if path.startswith("/tasks/") and not batch]
    assert len(fooled) > 10


@pytest.mark.parametrize(
    "prefix", ["", "tasks/", "//tasks/", "/tasks//", "/a/../b", "/a%2f", "/a\n"]
)
def test_a_prefix_that_no_path_has_is_refused_at_once(prefix: str) -> None:
    with pytest.raises(ValueError, match="no path begins with the batch prefix"):
        BatchPaths([prefix])


def test_a_service_whose_paths_are_all_batch_work() -> None:
    everything = BatchPaths(["/"])
    assert "/" in everything
    assert "/report" in everything
    assert "//report" not in everything


def test_anything_but_a_list_of_paths_is_refused_at_once() -> None:
    for wrong in ("/tasks/", [b"/tasks/"], [None]):
        with pytest.raises(TypeError, match="batch_prefixes must be a list of paths"):
            BatchPaths(wrong)  # type: ignore[arg-type]


def test_a_path_is_text() -> None:
    assert path_of({"PATH_INFO": "/caf\xc3\xa9"}) == "/café"
    assert path_of({"PATH_INFO": "/\xff"}) == "/\ufffd"
    assert path_of({"PATH_INFO": "/\u20ac"}) == "/?"
    assert path_of({}) == path_of({"PATH_INFO": ""}) == "/"
