"""Integrate with any WSGI app: a scope and an ndb context for each request.

    app = UserLockMiddleware(app, client=ndb.Client)

Errors that a framework answers itself do not reach this middleware. Under
Flask use `userlock.contrib.flask`, under Django `userlock.contrib.django`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Unpack

from userlock.contrib import request_scope
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import RequestOptions, RequestScope, on_demand
from userlock.errors import UserLockError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from userlock.contrib.idempotent_requests.wsgi import Flows as Flows
else:
    __getattr__ = on_demand(__name__, Flows="userlock.contrib.idempotent_requests.wsgi")


class UserLockMiddleware:
    """Give each request of a WSGI app its ndb context and its lock scope.

    Locks are released when the server closes the response, so a streamed response runs under the
    locks that the app still holds. Errors that leave the app are answered as in
    `userlock.contrib.flask.UserLock`, as long as no part of the answer has gone out. The app has
    context variables of its own, which begin as the server's.

    Args:
        app: the WSGI app.
        options: the options of `userlock.contrib.flask.UserLock`.
    """

    def __init__(self, app: WSGIApplication, **options: Unpack[RequestOptions]) -> None:
        self._app = app
        self._scope = RequestScope(**options)
        self._in_own_context = request_scope.in_own_context(self._serve)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._in_own_context(environ, start_response)

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._scope.answer_wsgi(environ)
        if answer is not None:
            start_response(request_scope.status_line(answer.status), list(answer.headers.items()))
            return [answer.body]
        path = request_scope.path_of(environ)
        stack = self._scope.open(
            environ["REQUEST_METHOD"],
            path,
            lambda header: f"HTTP_{header.upper().replace('-', '_')}" in environ,
        )
        start = _Start(start_response)
        chunks: Iterable[bytes] = ()
        try:
            chunks = self._app(environ, start)
            stale = request_scope.finish_writes(start.status)
            if stale is not None:
                raise stale
        except BaseException as error:
            try:
                request_scope.close_chunks(chunks)
            finally:
                request_scope.close(stack, error, path)
            if isinstance(error, ANSWERED) and not start.has_gone_out:
                return self._answer(start_response, path, error)
            raise
        return _Response(chunks, start, stack, path, self._answer)

    def _answer(self, start: StartResponse, path: str, error: UserLockError) -> list[bytes]:
        problem = self._scope.problem_of(error, path)
        start(request_scope.status_line(problem.status), list(problem.headers.items()))
        return [problem.body]


class _Start:
    """The app's `start_response`. Calls the server's when the first part of the answer goes out.

    Until then the answer can be replaced.
    """

    def __init__(self, start_response: StartResponse) -> None:
        self.start_response = start_response
        self.has_gone_out = False  # whether the server's has been called
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
            request_scope.close_chunks(self.chunks)
        finally:
            request_scope.close(self.stack, self.error, self.path)
