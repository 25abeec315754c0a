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
        self._serve = request_scope.in_own_context(self._scope.hooked(self._answer))

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._serve(environ, start_response)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = request_scope.path_of(environ)
        stack = self._scope.open(
            environ["REQUEST_METHOD"],
            path,
            lambda header: f"HTTP_{header.upper().replace('-', '_')}" in environ,
        )
        response = _Response(self._scope, stack, path, start_response)
        try:
            response.chunks = self._app(environ, response.start)
            stale = request_scope.finish_writes(response.status)
            if stale is not None:
                raise stale
        except BaseException as error:
            response.error = error
            response.close()
            if isinstance(error, ANSWERED) and not response.has_gone_out:
                return response.replaced(error)
            raise
        return response


@dataclasses.dataclass(eq=False)
class _Response:
    """The app's answer, which can be replaced until its first part goes out. Ends the scope."""

    scope: RequestScope
    stack: ExitStack
    path: str
    start_response: StartResponse
    chunks: Iterable[bytes] = ()
    error: BaseException | None = None
    has_gone_out: bool = False  # whether the server's `start_response` has been called
    _arguments: tuple[Any, ...] = ()

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        """Take note of the answer: the app's `start_response`."""
        self._arguments = (status, headers) if exc_info is None else (status, headers, exc_info)
        if self.has_gone_out:
            self.start_response(*self._arguments)  # the server refuses
        return self._write

    @property
    def status(self) -> int:
        """Return the status of the answer; 200 while the app has not reported one."""
        return int(self._arguments[0][:3]) if self._arguments else 200

    def _go_out(self) -> Any:
        """Call the server's `start_response`. Return its `write`, the old way to send the body."""
        self.has_gone_out = True
        return self.start_response(*self._arguments)

    def _write(self, data: bytes) -> None:
        if not self.has_gone_out:
            self._server_write = self._go_out()
        self._server_write(data)

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self.chunks:
                if chunk and not self.has_gone_out:
                    self._go_out()
                if self.has_gone_out:
                    yield chunk
            if not self.has_gone_out:
                self._go_out()
        except Exception as error:
            self.error = error
            if self.has_gone_out or not isinstance(error, ANSWERED):
                raise
            yield from self.replaced(error)

    def replaced(self, error: UserLockError) -> list[bytes]:
        problem = self.scope.problem_of(error, self.path)
        headers = problem.headers.items()
        return request_scope.respond(self.start_response, problem.status, headers, problem.body)

    def close(self) -> None:
        """Close the app's answer and the stack. The server calls this, however the answer ended."""
        error, self.error = self.error, None  # whose traceback refers to this answer
        try:
            request_scope.close_chunks(self.chunks)
        finally:
            request_scope.close(self.stack, error, self.path)
