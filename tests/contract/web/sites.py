"""One site in each web integration, for the tests of what all of them do alike."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import flask
import werkzeug.test
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import re_path
from werkzeug.datastructures import Headers

from tests.contract.web.djangos import django_client
from userlock.contrib import asgi
from userlock.contrib.flask import UserLock
from userlock.contrib.wsgi import UserLockMiddleware


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: Headers
    text: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


#: Answers a request to any path.
View = Callable[[str], str]
Ask = Callable[..., Answer]
#: Makes a site of a view and the options of the integration.
Site = Callable[..., Ask]


def ask_wsgi(
    app: Any,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "POST",
    body: bytes = b"",
    **environ: str,
) -> Answer:
    """Ask a WSGI app for a decoded path; `environ` is what a server adds."""
    found = werkzeug.test.create_environ(
        "/", "http://testserver/", method=method, headers=dict(headers or {}), data=body
    )
    raw = path.encode("utf-8", "surrogateescape").decode("latin-1")
    chunks, status, sent = werkzeug.test.run_wsgi_app(app, {**found, "PATH_INFO": raw, **environ})
    text = b"".join(chunks).decode()
    return Answer(int(status.split()[0]), sent, text)


def flask_site(stack: ExitStack, view: View, **options: Any) -> Ask:
    app = flask.Flask(__name__)
    UserLock(app, **options)
    # Not a route: it answers also where the router would redirect.
    app.before_request(lambda: view(flask.request.path))
    return functools.partial(ask_wsgi, app)


def wsgi_site(stack: ExitStack, view: View, **options: Any) -> Ask:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [view(environ["PATH_INFO"]).encode()]

    return functools.partial(ask_wsgi, UserLockMiddleware(app, **options))


urlpatterns: list[object] = []


def django_site(stack: ExitStack, view: View, **options: Any) -> Ask:
    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(view(request.path_info))

    urlpatterns[:] = [re_path(r"(?s)^.*\Z", answer)]
    stack.enter_context(
        django_client(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=["userlock.contrib.django.UserLockMiddleware"],
            USERLOCK=options,
        )
    )
    return functools.partial(ask_wsgi, WSGIHandler())


def asgi_site(stack: ExitStack, view: View, **options: Any) -> Ask:
    """Each request has an event loop of its own, in the thread that asks."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = view(scope["path"]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    served = asgi.UserLockMiddleware(app, **options)

    def ask(path: str) -> Answer:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def serve() -> None:
            scope = {"type": "http", "method": "POST", "path": path, "headers": []}
            await served(scope, receive, send)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        asyncio.run(serve())
        return Answer(sent[0]["status"], Headers(), sent[1]["body"].decode())

    return ask


#: Those that open an ndb context, which ASGI's does not.
SITES = {"flask": flask_site, "wsgi": wsgi_site, "django": django_site}
ALL_SITES = {**SITES, "asgi": asgi_site}


@contextmanager
def site(kind: str, view: View, **options: Any) -> Iterator[Ask]:
    """Open a site of one kind."""
    with ExitStack() as stack:
        yield ALL_SITES[kind](stack, view, **options)
