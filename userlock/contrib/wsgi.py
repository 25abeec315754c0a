"""WSGI middleware: a scope and an ndb context for each request, under any framework.

    app = UserLockMiddleware(app, client=ndb.Client)

What a framework turns into answers of its own never comes here: under Flask
use `userlock.contrib.flask`, under Django `userlock.contrib.django`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from userlock.contrib.problems import ANSWERED, check_contention_status, problem_of
from userlock.contrib.request_scope import RequestScope, close, finish_writes, log
from userlock.errors import UserLockError, WriteViolation
from userlock.lock.service import LockService
from userlock.settings import Enforcement

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class UserLockMiddleware:
    """Give each request of a WSGI app its ndb context and its lock scope.

    Locks are released when the server closes the response, so a response that
    is streamed runs under those that were not left before. Errors that the app
    lets out are answered as in `userlock.contrib.flask.UserLock`, as long as no
    part of the answer has gone out.

    The server must call the app, iterate and close in one thread, as those do that
    give each request a thread.

    Args:
        app: the WSGI app.
        client: as in `userlock.contrib.flask.UserLock`.
        service: as there.
        batch_prefixes: as there.
        trusted_headers: as there.
        enforcement: as there.
        fencing: as there.
        context_options: as there.
        contention_status: as there.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        client: Any = None,
        service: LockService | None = None,
        batch_prefixes: Iterable[str] = (),
        trusted_headers: Iterable[str] = (),
        enforcement: Enforcement | str | None = None,
        fencing: bool | None = None,
        context_options: dict[str, Any] | None = None,
        contention_status: int = 503,
    ) -> None:
        self._app = app
        self._surroundings = RequestScope(
            client=client,
            service=service,
            batch_prefixes=batch_prefixes,
            trusted_headers=trusted_headers,
            enforcement=enforcement,
            fencing=fencing,
            context_options=context_options,
        )
        self._contention_status = check_contention_status(contention_status)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        stack = self._surroundings.open(
            environ["REQUEST_METHOD"], path, lambda name: _variable(name) in environ
        )
        start = _Start(start_response)
        try:
            chunks = self._app(environ, start)
            stale = finish_writes() if start.is_success else None
            if stale is not None:
                _close_all(chunks)
                raise stale
        except BaseException as error:
            close(stack, error, path)
            if isinstance(error, ANSWERED) and not start.has_gone_out:
                return self._answer(start_response, path, error)
            raise
        return _Response(chunks, start, stack, path, self._answer)

    def _answer(
        self, start_response: StartResponse, path: str, error: UserLockError
    ) -> list[bytes]:
        if isinstance(error, WriteViolation):
            log.error("%s failed", path, exc_info=error)
        problem = problem_of(error, contention_status=self._contention_status)
        start_response(f"{problem.status} {problem.title}", list(problem.headers.items()))
        return [problem.body]


class _Start:
    """The app's `start_response`: told to the server when the first part of the answer goes out.

    Until then there may be another answer.

    Attributes:
        has_gone_out: whether the server has been told.
    """

    def __init__(self, start_response: StartResponse) -> None:
        self.start_response = start_response
        self.has_gone_out = False
        self._said: tuple[Any, ...] = ()

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        self._said = (status, headers) if exc_info is None else (status, headers, exc_info)
        if self.has_gone_out:
            self.start_response(*self._said)  # to be refused by the server
        return self._write

    @property
    def is_success(self) -> bool:
        """Return whether the app has reported success, or may still do so."""
        return not self._said or not self._said[0].startswith("5")

    def go_out(self) -> Any:
        """Tell the server. What it gives is the old way to send the body."""
        self.has_gone_out = True
        return self.start_response(*self._said)

    def _write(self, data: bytes) -> None:
        if not self.has_gone_out:
            self._server_write = self.go_out()
        self._server_write(data)


class _Response:
    """The app's answer, with what is to be closed after it."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        start: _Start,
        stack: ExitStack,
        path: str,
        answer: Callable[[StartResponse, str, UserLockError], list[bytes]],
    ) -> None:
        self._chunks = chunks
        self._start = start
        self._stack = stack
        self._path = path
        self._answer = answer
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        start = self._start
        try:
            for chunk in self._chunks:
                if chunk and not start.has_gone_out:
                    start.go_out()
                if start.has_gone_out:
                    yield chunk
            if not start.has_gone_out:
                start.go_out()
        except Exception as error:
            self._error = error
            if start.has_gone_out or not isinstance(error, ANSWERED):
                raise
            yield from self._answer(start.start_response, self._path, error)

    def close(self) -> None:
        """Called by the server when the answer is over, however it ended."""
        try:
            _close_all(self._chunks)
        finally:
            close(self._stack, self._error, self._path)


def _close_all(chunks: Iterable[bytes]) -> None:
    closing = getattr(chunks, "close", None)
    if closing is not None:
        closing()


def _variable(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")
