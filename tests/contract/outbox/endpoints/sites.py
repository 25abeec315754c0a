"""One site in each integration, with the outbox's endpoints."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import flask
import werkzeug.test
from django.http import HttpRequest, HttpResponse
from django.urls import path

import userlock
from tests.contract.web.djangos import django_client
from userlock.contrib.flask import UserLock
from userlock.contrib.wsgi import UserLockMiddleware

Options = Mapping[str, Any]


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


#: Sends a request: method, path, headers, body.
Call = Callable[..., Answer]


def priority() -> str:
    scope = userlock.current_scope()
    assert scope is not None
    return f"{scope.priority.value} {scope.batch_work}"


def _wsgi_call(app: Any) -> Call:
    client = werkzeug.test.Client(app)

    def call(
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        **environ: Any,
    ) -> Answer:
        answer = client.open(
            path, method=method, headers=headers, data=body, environ_overrides=environ
        )
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
    yield _wsgi_call(app)


@contextmanager
def wsgi_site(**options: Any) -> Iterator[Call]:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        known = environ["PATH_INFO"] == "/priority"
        start_response("200 OK" if known else "418 I'M A TEAPOT", [])
        return [priority().encode()]

    yield _wsgi_call(UserLockMiddleware(app, **options))


@contextmanager
def django_site(**options: Any) -> Iterator[Call]:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(priority())

    def refuse_strangers(get_response: Any) -> Any:
        return lambda request: (
            get_response(request) if request.path == "/priority" else HttpResponse(status=418)
        )

    urls = types.ModuleType("urls_of_the_endpoints")
    urls.urlpatterns = [path("priority", view)]  # type: ignore[attr-defined]
    module = types.ModuleType("middleware_of_the_endpoints")
    module.refuse_strangers = refuse_strangers  # type: ignore[attr-defined]
    import sys

    sys.modules[module.__name__] = module
    middleware = [
        "userlock.contrib.django.UserLockMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        f"{module.__name__}.refuse_strangers",
    ]
    try:
        with django_client(ROOT_URLCONF=urls, MIDDLEWARE=middleware, USERLOCK=options) as client:
            client.handler.enforce_csrf_checks = True

            def call(
                method: str,
                path: str,
                headers: Mapping[str, str] | None = None,
                body: bytes = b"",
                **environ: Any,
            ) -> Answer:
                kind = "application/octet-stream"
                answer = client.generic(
                    method, path, body, kind, headers=dict(headers or {}), **environ
                )
                return Answer(answer.status_code, dict(answer.headers), answer.content)

            yield call
    finally:
        del sys.modules[module.__name__]


SITES = {"flask": flask_site, "django": django_site, "wsgi": wsgi_site}
