"""The same views in an app of each framework, and requests to them."""

from __future__ import annotations

import io
import json
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import fastapi
import flask
import pydantic
import werkzeug.test
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.urls import path
from fastapi import Request
from fastapi.responses import StreamingResponse

from tests.contract.idempotency.conftest import KEY
from tests.contract.web.djangos import django_client
from tests.contract.web.test_asgi import served
from userlock.contrib import asgi, django, wsgi
from userlock.contrib.flask import Flows, UserLock
from userlock.errors import RequestTooLarge
from userlock.idempotency import Flow

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
#: Sends a body to a path, with its type, a key and a user; returns status, headers and body.
Send = Callable[..., tuple[int, dict[str, str], bytes]]


class View(NamedTuple):
    """A view. Its user is in the header X-User.

    Attributes:
        serve: returns the text of the answer.
        status: of the answer; one of 201 has a cookie.
        key: where the key is: in the "header", in a "form", in a form that is too "long".
        streams: whether it answers with a stream.
        reads: whether `serve` gets a function that reads the body, or the file of a form, as well.
        options: of the flow.
    """

    serve: Callable[..., Any]
    status: int = 200
    key: str = "header"
    streams: bool = False
    reads: bool = False
    options: Mapping[str, Any] = types.MappingProxyType({})

    def text(self, flow: Flow, read: Callable[[], bytes]) -> Any:
        return self.serve(flow, read) if self.reads else self.serve(flow)


Views = Mapping[str, View]


def ran(flow: Flow) -> str:
    """Count the runs of a request, in a phase."""
    return json.dumps(flow.phase("ride", lambda: [flow.attempt, flow.params]))


def too_much(*_: Any) -> str:
    """Read the key from a form that is too long."""
    raise RequestTooLarge(1)


def flask_app(views: Views, **site: Any) -> Iterator[Send]:
    flows, app = Flows(), flask.Flask(__name__)
    UserLock(app, **site)
    keys = {"form": lambda: flask.request.form.get("request"), "long": too_much}

    @app.before_request
    def check_origin() -> None:
        """Read the form, as a protection against forged ones does."""
        if flask.request.content_length:
            flask.request.form.get("csrf_token")

    def add(name: str, view: View) -> None:
        def serve(flow: Flow) -> flask.Response:
            file = flask.request.files.get("file", flask.request)
            text = iter(["a", "b"]) if view.streams else view.text(flow, file.stream.read)
            response = flask.Response(text, view.status, content_type=JSON)
            if view.status == 201:
                response.set_cookie("session", "secret")
            return response

        user = lambda: flask.request.headers.get("X-User")  # noqa: E731
        once = flows.idempotent(user=user, key=keys.get(view.key), name=name, **view.options)
        app.add_url_rule(f"/{name}", name, once(serve), methods=["POST"])

    for name, view in views.items():
        add(name, view)
    yield sender(app)


def wsgi_app(views: Views, **site: Any) -> Iterator[Send]:
    flows = wsgi.Flows()

    def key_in_form(environ: dict[str, Any]) -> str | None:
        return dict(parse_qsl(environ["wsgi.input"].read().decode())).get("request")

    def made(name: str, view: View) -> Any:
        def serve(environ: dict[str, Any], start_response: Any) -> Any:
            body = b"" if view.reads else environ["wsgi.input"].read()
            assert view.key != "form" or b"text=" in body, "although the key was read from it"
            cookie = [("Set-Cookie", "session=secret")] if view.status == 201 else []
            start_response(f"{view.status} OK", [("Content-Type", JSON), *cookie])
            return [str(view.text(environ["userlock.flow"], environ["wsgi.input"].read)).encode()]

        user = lambda environ: environ.get("HTTP_X_USER")  # noqa: E731
        key: Any = {"form": key_in_form, "long": too_much}.get(view.key)
        return flows.idempotent(user=user, key=key, name=name, **view.options)(serve)

    apps = {f"/{name}": made(name, view) for name, view in views.items()}

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        return apps[environ["PATH_INFO"]](environ, start_response)

    yield sender(wsgi.UserLockMiddleware(app, **site))


def sender(app: Any) -> Send:
    def send(
        where: str,
        body: bytes,
        content_type: str = JSON,
        key: str | None = KEY,
        *,
        chunked: bool | str = False,
        lost: int = 0,
        length: str | None = None,
        user: str | None = "ann",
        mount: str = "",
    ) -> Any:
        sent = {"X-User": user, "Idempotency-Key": key}
        headers = {name: each for name, each in sent.items() if each is not None}
        environ = werkzeug.test.create_environ(
            f"/{where}",
            f"http://testserver/{mount}",
            method="POST",
            data=body,
            headers=headers,
            content_type=content_type,
        )
        if chunked:
            del environ["CONTENT_LENGTH"]
            terminated = {} if chunked == "unread" else {"wsgi.input_terminated": True}
            environ.update({"HTTP_TRANSFER_ENCODING": "chunked", **terminated})
        if length is not None:
            environ["CONTENT_LENGTH"] = length
        if lost:
            environ["wsgi.input"] = io.BytesIO(body[:-lost])
            environ["wsgi.input_terminated"] = True  # as gunicorn says
        # (The test client would count the bytes that are there.)
        chunks, line, answered = werkzeug.test.run_wsgi_app(app, environ, buffered=True)
        return int(line.split()[0]), dict(answered), b"".join(chunks)

    return send


@contextmanager
def django_site(views: Views, **site: Any) -> Iterator[None]:
    flows = django.Flows()
    keys = {"form": lambda request: request.POST.get("request"), "long": too_much}

    def made(name: str, view: View) -> Any:
        def serve(request: HttpRequest, flow: Flow) -> Any:
            if view.streams:
                return StreamingHttpResponse(iter([b"a"]))
            text = view.text(flow, request.FILES.get("file", request).read)
            response = HttpResponse(text, status=view.status, content_type=JSON)
            if view.status == 201:
                response.set_cookie("session", "secret")
            elif view.status == 204:
                del response["Content-Type"]
            return response

        user = lambda request: request.headers.get("X-User")  # noqa: E731
        key = keys.get(view.key)
        return flows.idempotent(user=user, key=key, name=name, **view.options)(serve)

    @flows.idempotent(user=lambda request: "ann")
    def template(request: HttpRequest, flow: Flow) -> HttpResponse:
        text = ran(flow)
        return SimpleTemplateResponse(types.SimpleNamespace(render=lambda *_: text))

    @flows.idempotent(user=lambda request: "ann")
    def refuses(request: HttpRequest, flow: Flow) -> HttpResponse:
        raise Http404(ran(flow))

    urls = [path(name, made(name, view)) for name, view in views.items()]

    @flows.idempotent(user=lambda request: "ann")
    def forgets(request: HttpRequest, flow: Flow) -> None:
        ran(flow)

    urls += [path("template", template), path("refuses", refuses), path("forgets", forgets)]
    with django_client(
        ROOT_URLCONF=type("urls", (), {"urlpatterns": urls}),
        MIDDLEWARE=["userlock.contrib.django.UserLockMiddleware"],
        USERLOCK=site,
    ):
        yield


def django_app(views: Views, **site: Any) -> Iterator[Send]:
    with django_site(views, **site):
        yield sender(WSGIHandler())


def django_under_asgi(views: Views, **site: Any) -> Iterator[Send]:
    with django_site(views, **site), sender_to_a_server(ASGIHandler()) as send:
        yield send


class Model(pydantic.BaseModel):
    to: str


def fastapi_app(views: Views, *, client: Any, **site: Any) -> Iterator[Send]:
    """Under a real server: views run in threads."""
    flows, app = asgi.Flows(client=client), fastapi.FastAPI()
    app.add_middleware(asgi.UserLockMiddleware, client=client, **site)

    async def user(request: Request) -> str | None:
        return request.headers.get("X-User")

    async def key_in_form(request: Request) -> Any:
        return (await request.form()).get("request")

    def add(path: str, serve: Any, **options: Any) -> None:
        app.post(f"/{path}")(flows.idempotent(user=user, name=path, **options)(serve))

    def made(view: View) -> Any:
        def serve(flow: Flow) -> Any:
            if view.streams:
                return StreamingResponse(iter(["a", "b"]))
            response = fastapi.Response(view.serve(flow), view.status, media_type=JSON)
            if view.status == 201:
                response.set_cookie("session", "secret")
                response.headers.append("Vary", "Cookie")
                response.headers.append("Vary", "Accept")
            return response

        def serve_file(flow: Flow, file: fastapi.UploadFile) -> Any:
            return json.loads(view.serve(flow, file.file.read))

        return serve_file if view.reads else serve

    for name, view in views.items():
        key = {"form": key_in_form, "long": too_much}.get(view.key)
        add(name, made(view), key=key, **view.options)

    async def read_before(request: Request) -> None:
        is_json = request.headers["Content-Type"] == JSON
        await (request.body() if is_json else request.form())

    def read(flow: Flow, request: Request, _: None = fastapi.Depends(read_before)) -> Any:
        assert request.method == "POST"
        return json.loads(ran(flow))

    def model(flow: Flow, request: Model) -> Any:
        return request.to

    add("read", read, max_bytes=100)
    add("rides/{place}", lambda flow, place: ran(flow))
    add("model", model)

    async def of_tenant(scope: Any, receive: Any, send: Any) -> None:
        tenant = dict(scope["headers"]).get(b"x-tenant")
        with client.context(namespace=tenant.decode()) if tenant else nullcontext():
            await app(scope, receive, send)

    with sender_to_a_server(of_tenant) as send:
        yield send


@contextmanager
def sender_to_a_server(app: Any) -> Iterator[Send]:
    with served(app) as ask:

        def send(
            where: str,
            body: Any,
            content_type: str = JSON,
            key: str | None = KEY,
            *,
            chunked: bool = False,
            tenant: str | None = None,
            user: str | None = "ann",
        ) -> Any:
            body = iter([body[:60], body[60:]]) if chunked else body
            sent = {"X-Tenant": tenant, "X-User": user, "Idempotency-Key": key}
            headers = {name: each for name, each in sent.items() if each is not None}
            answer = ask(f"/{where}", headers={**headers, "Content-Type": content_type}, body=body)
            found = {name.title(): each for name, each in answer.headers.items()}
            return answer.status, found, answer.body

        yield send


APPS = {"flask": flask_app, "django": django_app, "wsgi": wsgi_app, "fastapi": fastapi_app}
ALL_APPS = {**APPS, "django under ASGI": django_under_asgi}
