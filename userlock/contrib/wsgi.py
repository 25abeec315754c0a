"""Integrate with any WSGI app: a scope and an ndb context for each request.

    app = UserLockMiddleware(app, client=ndb.Client)

Errors that a framework answers itself do not reach this middleware. Under
Flask use `userlock.contrib.flask`, under Django `userlock.contrib.django`.
"""

from __future__ import annotations

import dataclasses
import functools
import http
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Unpack

from userlock import idempotency
from userlock.contrib.idempotent_requests import (
    HEADER,
    IdempotentView,
    ViewOptions,
    check_options,
    headers_of,
    key_of,
    parameters_of,
)
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import (
    RequestOptions,
    RequestScope,
    close,
    finish_writes,
    log,
    log_violation,
    path_of,
)
from userlock.errors import ConfigurationError, UserLockError, WriteViolation
from userlock.idempotency import Answer, Flow, Request
from userlock.idempotency.answers import kept
from userlock.ids import show_request
from userlock.lock.lease import check_lock_id

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


#: The header of the key in a WSGI environment.
_HEADER = "HTTP_" + HEADER.upper().replace("-", "_")


class UserLockMiddleware:
    """Give each request of a WSGI app its ndb context and its lock scope.

    Locks are released when the server closes the response, so a streamed
    response runs under the locks that the app still holds. Errors that leave
    the app are answered as in `userlock.contrib.flask.UserLock`, as long as no
    part of the answer has gone out.

    The server must call the app, iterate and close in one thread, as servers do that
    give each request a thread.

    Args:
        app: the WSGI app.
        options: the options of `userlock.contrib.flask.UserLock`.
    """

    def __init__(self, app: WSGIApplication, **options: Unpack[RequestOptions]) -> None:
        self._app = app
        self._scope = RequestScope(**options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._scope.answer_wsgi(environ)
        if answer is not None:
            start_response(answer.line, list(answer.headers.items()))
            return [answer.body]
        path = path_of(environ)
        stack = self._scope.open(
            environ["REQUEST_METHOD"],
            path,
            lambda header: f"HTTP_{header.upper().replace('-', '_')}" in environ,
        )
        start = _Start(start_response)
        chunks: Iterable[bytes] = ()
        try:
            chunks = self._app(environ, start)
            stale = finish_writes(start.status)
            if stale is not None:
                raise stale
        except BaseException as error:
            try:
                _close_all(chunks)
            finally:
                close(stack, error, path)
            if isinstance(error, ANSWERED) and not start.has_gone_out:
                return self._answer(start_response, path, error)
            raise
        return _Response(chunks, start, stack, path, self._answer)

    def _answer(
        self, start_response: StartResponse, path: str, error: UserLockError
    ) -> list[bytes]:
        if isinstance(error, WriteViolation):
            log_violation(log, show_request(path), error)
        problem = self._scope.problem_of(error)
        start_response(f"{problem.status} {problem.title}", list(problem.headers.items()))
        return [problem.body]


class _Start:
    """The app's `start_response`. Calls the server's when the first part of the answer goes out.

    Until then the answer can be replaced.

    Attributes:
        has_gone_out: whether the server's has been called.
    """

    def __init__(self, start_response: StartResponse) -> None:
        self.start_response = start_response
        self.has_gone_out = False
        self._arguments: tuple[Any, ...] = ()

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        self._arguments = (status, headers) if exc_info is None else (status, headers, exc_info)
        if self.has_gone_out:
            self.start_response(*self._arguments)  # the server refuses
        return self._write

    @property
    def status(self) -> int:
        """Return the status of the answer; 200 while the app has not reported one."""
        return int(self._arguments[0][:3]) if self._arguments else 200

    def go_out(self) -> Any:
        """Call the server's. Returns its `write`, the old way to send the body."""
        self.has_gone_out = True
        return self.start_response(*self._arguments)

    def _write(self, data: bytes) -> None:
        if not self.has_gone_out:
            self._server_write = self.go_out()
        self._server_write(data)


@dataclasses.dataclass(eq=False)
class _Response:
    """The app's answer, with the stack to close after it."""

    chunks: Iterable[bytes]
    start: _Start
    stack: ExitStack
    path: str
    answer: Callable[[StartResponse, str, UserLockError], list[bytes]]
    error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        start = self.start
        try:
            for chunk in self.chunks:
                if chunk and not start.has_gone_out:
                    start.go_out()
                if start.has_gone_out:
                    yield chunk
            if not start.has_gone_out:
                start.go_out()
        except Exception as error:
            self.error = error
            if start.has_gone_out or not isinstance(error, ANSWERED):
                raise
            yield from self.answer(start.start_response, self.path, error)

    def close(self) -> None:
        """Close the app's answer and the stack. The server calls this, however the answer ended."""
        try:
            _close_all(self.chunks)
        finally:
            close(self.stack, self.error, self.path)


def _close_all(chunks: Iterable[bytes]) -> None:
    closing = getattr(chunks, "close", None)
    if closing is not None:
        closing()


class Flows(idempotency.Flows):
    """Requests that happen once, for WSGI apps. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[WSGIEnvironment], str | int],
        key: Callable[[WSGIEnvironment], str | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[WSGIApplication], WSGIApplication]:
        """Let an app run once for each `Idempotency-Key`, however often its request is sent.

            @flows.idempotent(user=lambda environ: environ["REMOTE_USER"])
            def rides(environ, start_response):
                flow = environ["userlock.flow"]

        To be used inside of `UserLockMiddleware`. The answer is read as a whole; one
        of `flow.last()` counts instead of the app's. Requests of other methods go
        through, without a flow. A form's bytes count, not its fields. Options, answers
        and errors: as in `userlock.contrib.flask.Flows.idempotent`. No app is `completable`:
        it would need its environment.
        """
        checked = check_options(**options)

        def decorate(app: WSGIApplication) -> WSGIApplication:
            known = IdempotentView(app, checked)
            if known.completable:
                raise ConfigurationError(
                    f"flow {known.name} cannot be completable: a WSGI app needs its environment. "
                    f"To fix it: let it call a function of flows.function"
                )

            @functools.wraps(app)
            def once(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
                if environ["REQUEST_METHOD"] not in known.methods:
                    return app(environ, start_response)
                body = _body(environ)
                environ["wsgi.input"] = io.BytesIO(body)
                user_id = check_lock_id(user(environ))
                found = environ.get(_HEADER) if key is None else key(environ)
                environ["wsgi.input"] = io.BytesIO(body)  # those may have read it
                asked = _request(known.name, user_id, key_of(found), environ, body)
                made: list[list[tuple[str, str]]] = []
                answer = known.run(self, asked, lambda flow: _collected(flow, app, environ, made))
                headers = headers_of(answer)
                if made and not answer.replayed:
                    headers = made[0]  # all of them
                start_response(f"{answer.status} {_phrase(answer.status)}", headers)
                return [answer.body]

            return once

        return decorate


def _body(environ: WSGIEnvironment) -> bytes:
    length = environ.get("CONTENT_LENGTH") or ""
    body = b""
    if length.isdecimal():
        body = environ["wsgi.input"].read(int(length))
    elif environ.get("wsgi.input_terminated"):  # else there is no body without a length
        body = environ["wsgi.input"].read()
    return body


def _request(name: str, user_id: str, key: str, environ: WSGIEnvironment, body: bytes) -> Request:
    media = (environ.get("CONTENT_TYPE") or "").partition(";")[0].strip().lower()
    query = (environ.get("QUERY_STRING") or "").encode("latin-1", "replace")
    found = parameters_of(query, media, body)
    method = environ["REQUEST_METHOD"]
    path = path_of(environ)
    return Request(user_id, key, name, found.value, method, path, found.digest, completable=False)


def _collected(
    flow: Flow,
    app: WSGIApplication,
    environ: WSGIEnvironment,
    made: list[list[tuple[str, str]]],
) -> Answer | None:
    """Return the whole answer of an app; None if it has answered in `last()`.

    Its headers, all of them, become the only element of `made`.
    """
    made.clear()
    started: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
        started.append((status, headers))
        return written.append

    environ["wsgi.input"].seek(0)
    chunks = app({**environ, "userlock.flow": flow}, start)
    try:
        written.extend(chunks)
    finally:
        _close_all(chunks)
    if flow.answer is not None:
        return None
    status, headers = started[-1]
    made.append(headers)
    return Answer(int(status.split()[0]), kept(headers), b"".join(written))


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
