"""Requests that happen once, for WSGI apps."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from userlock import idempotency
from userlock.contrib.idempotent_requests import views
from userlock.contrib.idempotent_requests.views import IdempotentView, ViewOptions
from userlock.contrib.request_scope import close_chunks, path_of, respond
from userlock.errors import ConfigurationError, RequestIncomplete
from userlock.idempotency import Flow

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The header of the key in a WSGI environment.
_HEADER = "HTTP_" + views.HEADER.upper().replace("-", "_")


class Flows(idempotency.Flows):
    """Requests that happen once, for WSGI apps. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[WSGIEnvironment], str | int | None],
        key: Callable[[WSGIEnvironment], str | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[WSGIApplication], WSGIApplication]:
        """Let an app run once for each `Idempotency-Key`, however often its request is sent.

            @flows.idempotent(user=lambda environ: environ.get("REMOTE_USER"))
            def rides(environ, start_response):
                flow = environ["userlock.flow"]

        To be used inside of `UserLockMiddleware`. The answer is read as a whole; one
        of `flow.last()` counts instead of the app's. Requests of other methods go
        through, without a flow. `user` must not read the body. A form's bytes count, not
        its fields. Options, answers and errors: as in
        `userlock.contrib.flask.Flows.idempotent`. No app is `completable`: it would need
        its environment.
        """

        views.check_askers(user, key)

        def decorate(app: WSGIApplication) -> WSGIApplication:
            known = IdempotentView[_Response](app, lambda each: each, _Response, **options)
            if known.completable:
                raise ConfigurationError(
                    f"flow {known.name} cannot be completable: a WSGI app needs its environment. "
                    f"To fix it: let it call a function of flows.function"
                )

            @functools.wraps(app)
            def once(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
                if environ["REQUEST_METHOD"] not in known.methods:
                    return app(environ, start_response)
                user_id = views.owner_of(user(environ))
                body = _body(environ, known.max_bytes)
                environ["wsgi.input"] = io.BytesIO(body)
                given = environ.get(_HEADER) if key is None else key(environ)
                environ["wsgi.input"] = io.BytesIO(body)  # which has read the first
                media = (environ.get("CONTENT_TYPE") or "").partition(";")[0].strip().lower()
                query = (environ.get("QUERY_STRING") or "").encode("latin-1", "replace")
                sent = views.parameters_of(query, media, body)
                method = environ["REQUEST_METHOD"]
                path = environ.get("SCRIPT_NAME", "") + path_of(environ)
                asked = known.request(user_id, given, method, path, sent, {})
                served = known.run(
                    self,
                    asked,
                    lambda flow: _collected(flow, app, environ),
                    lambda: views.rewind_files([environ["wsgi.input"]]),
                )
                return respond(start_response, *served)

            return once

        return decorate


def _body(environ: WSGIEnvironment, most: int) -> bytes:
    left = views.check_environ(environ, most)
    body = b""
    if left is not None:
        while left and (piece := environ["wsgi.input"].read(left)):
            body += piece
            left -= len(piece)
        if left:
            raise RequestIncomplete("the body is shorter than its length")
    elif environ.get("wsgi.input_terminated"):  # else there is no body without a length
        body = environ["wsgi.input"].read(most + 1)
        views.check_length(len(body), most)
    return body


class _Response(NamedTuple):
    """The whole response of an app."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def _collected(flow: Flow, app: WSGIApplication, environ: WSGIEnvironment) -> _Response | None:
    """Return the whole response of an app; None if it has answered in `last()`."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
        started.append((status, headers))
        return written.append

    chunks = app({**environ, "userlock.flow": flow}, start)
    try:
        written.extend(chunks)
    finally:
        close_chunks(chunks)
    if flow.answer is not None:
        return None
    if not started:
        raise ValueError("the app has not called start_response")
    status, headers = started[-1]
    return _Response(int(status.split()[0]), headers, b"".join(written))
