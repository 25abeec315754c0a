"""Give a web request its ndb context, its lock scope and its priority.

Hooks answer requests before the app does. The engines of an outbox call such endpoints: none of the
app's own hooks (log-ins, protection against forged forms, redirections) is in their way. Web scopes
know no more of them; see `outbox_endpoints.OutboxEndpoints`.
"""

from __future__ import annotations

import contextvars
import http.client
import importlib
import io
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Never, TypedDict

import userlock.ndb.model  # noqa: F401  (installs itself in ndb)
from userlock.arguments import check_kind, check_texts
from userlock.callsite import is_application
from userlock.contrib.problems import Problem, problem_of
from userlock.errors import RequestIncomplete, StaleWriteError, UserLockError, WriteViolation
from userlock.ids import show_request
from userlock.lock.configuration import default_service, defaults
from userlock.lock.lease import Priority, check_max_waiting
from userlock.lock.scope import current, scope
from userlock.lock.service import LockService, check_service
from userlock.ndb import transactions
from userlock.ndb.client import ClientOfProcess, own_context
from userlock.platforms import on_app_engine
from userlock.settings import Enforcement

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: App Engine removes these from foreign requests. On other platforms anybody can send them.
APP_ENGINE_HEADERS = ("X-AppEngine-QueueName", "X-AppEngine-Cron")
#: Set by Google's task queues and schedulers. A forged one only makes its request wait behind all
#: others, for as long as an interactive one (`LockScope.defaults_of`).
BATCH_HEADERS = (*APP_ENGINE_HEADERS, "X-CloudTasks-QueueName", "X-CloudScheduler")
#: The most requests of a process that wait for one lock, by default: with the holder they are as
#: many as a browser sends to a site at once by HTTP/1.1.
MAX_WAITING = 5


#: No hook takes a longer body.
MOST_BODY_BYTES = 4096


class Answer(NamedTuple):
    """A hook's answer to a request: the status, a JSON document, all headers."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def respond(
    start: StartResponse, status: int, headers: Iterable[tuple[str, str]], body: bytes
) -> list[bytes]:
    """Answer a request of WSGI."""
    start(f"{status} {http.client.responses.get(status, 'Unknown')}", list(headers))
    return [body]


def on_demand(module: str, **places: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`: it imports names from other modules when they are used."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return find


class ScopeOptions(TypedDict, total=False):
    """The options of all web integrations."""

    client: Any
    service: LockService | None
    batch_prefixes: Iterable[str]
    trusted_headers: Iterable[str]
    enforcement: Enforcement | str | None
    fencing: bool | None
    contention_status: int
    max_waiting: int | None
    outbox: Any


class RequestOptions(ScopeOptions, total=False):
    """The options of those that open ndb's context as well."""

    context_options: dict[str, Any] | None


def path_of(environ: Mapping[str, Any]) -> str:
    """Return the path of a WSGI environment that an app routes by: PATH_INFO as text."""
    raw: str = environ.get("PATH_INFO") or "/"
    return raw.encode("latin-1", "replace").decode("utf-8", "replace")


#: Characters of which some readers make others, and the replacement of what was no UTF-8.
_NOT_PLAIN = frozenset("%\\\ufffd")


class BatchPaths:
    """The paths of batch work, the same in all integrations.

    A path is proof of batch work, so it has to be the one that the app routes by, whatever the app
    is: one path that frameworks, servers and apps read alike. A path with an empty or dot segment,
    a backslash, a percent sign that is left after decoding, bytes that are no UTF-8, or a control
    character is no batch work. Upper and lower case differ.

    `prefixes`: the beginnings, in whole segments: "/tasks" is "/tasks" itself and all below,
    "/tasks/" all below.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = check_texts("batch_prefixes", prefixes, "paths")
        for each in self._prefixes:
            if not _is_plain(each):
                raise ValueError(
                    f"no path begins with the batch prefix {each!r:.99}: it must begin with a "
                    f"slash, and have no empty or dot segments, `%`, `\\` or control characters"
                )
        #: The same, each the end of a segment.
        self._below = tuple(each.rstrip("/") + "/" for each in self._prefixes)

    def __contains__(self, path: str) -> bool:
        return (path.startswith(self._below) or path in self._prefixes) and _is_plain(path)


def _is_plain(path: str) -> bool:
    """Return whether all readers of a decoded path agree about it."""
    first, *segments = path.split("/")
    return (
        not first
        and bool(segments)
        and all(segments[:-1])
        and not {".", ".."}.intersection(segments)
        and not _NOT_PLAIN.intersection(path)
        and path.isprintable()
    )


class RequestScope:
    """Opens the ndb context and the lock scope of each request. Thread-safe.

    `userlock.contrib.flask.UserLock` documents the options.
    """

    def __init__(
        self,
        *,
        client: Any = None,
        service: LockService | None = None,
        batch_prefixes: Iterable[str] = (),
        trusted_headers: Iterable[str] = (),
        enforcement: Enforcement | str | None = None,
        fencing: bool | None = None,
        context_options: dict[str, Any] | None = None,
        contention_status: int = 503,
        max_waiting: int | None = MAX_WAITING,
        outbox: Any = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            known = ", ".join(ScopeOptions.__annotations__)
            raise TypeError(
                f"unknown option {next(iter(unknown))!r:.100}; the options are {known}, and "
                f"context_options where an ndb context is opened"
            )
        if contention_status not in (503, 409):
            raise ValueError(f"contention_status must be 503 or 409, not {contention_status!r:.99}")
        self._client = ClientOfProcess(client)
        self.service = None if service is None else check_service(service)
        self._batch_paths = BatchPaths(batch_prefixes)
        self._trusted_headers = check_texts("trusted_headers", trusted_headers, "names")
        if on_app_engine():
            self._trusted_headers += APP_ENGINE_HEADERS
        given = {"enforcement": enforcement, "fencing": fencing}
        self._changes = {name: value for name, value in given.items() if value is not None}
        defaults.settings.changed(**self._changes)  # refuses unknown modes at once
        self._context_options = {} if context_options is None else context_options
        check_kind("context_options", self._context_options, dict, "a dict")
        if context_options and client is None:
            raise TypeError("context_options must be given with client: it opens the ndb context")
        self._contention_status = contention_status
        self._max_waiting = None if max_waiting is None else check_max_waiting(max_waiting)
        self.hooks: tuple[Any, ...] = ()
        if outbox is not None:
            # By name: an app without jobs does not load them.
            endpoints = importlib.import_module("userlock.contrib.outbox_endpoints")
            self.hooks = endpoints.endpoints_of(outbox)

    def priority_of(self, path: str, has_header: Callable[[str], bool]) -> tuple[Priority, bool]:
        """Return a request's rank, and whether it is proven to be batch work.

        Proven by its path or a trusted header, it may write batch-only models, and has the wait and
        the lease of batch. Any client may send the other headers: they only let others pass.
        """
        proven = path in self._batch_paths or any(map(has_header, self._trusted_headers))
        batch = proven or any(map(has_header, BATCH_HEADERS))
        return Priority.BATCH if batch else Priority.INTERACTIVE, proven

    def open(
        self, method: str, path: str, has_header: Callable[[str], bool], *, with_ndb: bool = True
    ) -> ExitStack:
        """Open the context and the scope. Closing the returned stack releases all locks.

        `path`: as the app routes by, without the place where it is said to be mounted
        (SCRIPT_NAME).
        """
        priority, proven = self.priority_of(path, has_header)
        return self._open(f"{method} {path}", priority, proven, with_ndb)

    def open_for_jobs(self, request: str) -> ExitStack:
        """Open them for a request whose sender has been proven to be an engine, so batch work."""
        return self._open(request, Priority.BATCH, True, True)

    def _open(self, request: str, priority: Priority, proven: bool, with_ndb: bool) -> ExitStack:
        with ExitStack() as stack:
            client = self._client.get() if with_ndb else None
            if client is not None:
                stack.enter_context(own_context(client, **self._context_options))
            settings = defaults.settings
            if self._changes:
                settings = settings.changed(**self._changes)
            service = self.service or default_service()
            opened = stack.enter_context(
                scope(service, settings=settings, priority=priority, request=request)
            )
            opened.batch_work = proven
            opened.max_waiting = self._max_waiting
            if self._max_waiting is not None and opened.priority is Priority.BATCH:
                # Batch leaves places to interactive requests.
                opened.max_waiting = (self._max_waiting + 1) // 2
            return stack.pop_all()

    def answer(
        self,
        method: str,
        path: str,
        header: Callable[[str], str | None],
        read: Callable[[int], bytes],
        shared: bool = False,
    ) -> Answer | None:
        """Answer a request by a hook; None if it is for the app.

        `path`: as the app routes by. `read`: reads at most so many bytes of the body. `shared`:
        whether the app answers other methods at the addresses of hooks.
        """
        found: Answer | None = None
        for each in self.hooks:
            found = found or each.answer(method, path, header, read, self.open_for_jobs, shared)
        return found

    def hooked(self, app: WSGIApplication, shared: bool = False) -> WSGIApplication:
        """Return a WSGI app before which the hooks answer. `shared`: as for `answer`."""

        def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            def header(name: str) -> str | None:
                name = name.upper().replace("-", "_")
                return environ.get(name if name == "CONTENT_LENGTH" else f"HTTP_{name}")

            method, read = environ["REQUEST_METHOD"], environ["wsgi.input"].read
            found = self.answer(method, path_of(environ), header, read, shared)
            if found is None:
                return app(environ, start_response)
            return respond(start_response, found.status, found.headers.items(), found.body)

        return serve if self.hooks else app

    def problem_of(self, error: UserLockError, path: str | None = None) -> Problem:
        """Return the answer to a request that failed. With its path, a violation is logged."""
        if path is not None and isinstance(error, WriteViolation):
            log_violation(log, show_request(path), error)
        return problem_of(error, contention_status=self._contention_status)


def finish_writes(status: int = 200) -> StaleWriteError | None:
    """Wait for the writes of a request before its answer goes out. Return the error of one.

    An answer with an error status goes out as it is, as it says more; a failed write is logged when
    the scope ends.
    """
    if status >= 500:
        return None
    try:
        transactions.finish_writes()
    except StaleWriteError as error:
        return error
    return None


def log_violation(logger: logging.Logger, request: str, error: WriteViolation) -> None:
    """Log that a request has failed by a violation.

    Its text was logged when it was raised, as a rule: an application might drop the error.
    """
    if not error.logged:
        logger.error("%s failed", request, exc_info=error)
        return
    # Without the frames of frameworks, ndb and this library. An application may be installed as a
    # package: then everything is shown.
    frames = list(traceback.walk_tb(error.__traceback__))
    shown = [each for each in frames if is_application(each[0])] or frames
    stack = "".join(traceback.StackSummary.extract(iter(shown)).format()).rstrip("\n")
    name = type(error).__name__
    logger.error("%s failed by the %s above, which was raised here:\n%s", request, name, stack)


def close(stack: ExitStack, error: BaseException | None, path: str) -> None:
    """Close the stack of `RequestScope.open` when the answer is decided."""
    trouble = (None, None, None) if error is None else (type(error), error, error.__traceback__)
    try:
        stack.__exit__(*trouble)
    except Exception:
        # Raised here, the error would replace the answer.
        log.exception("a write of %s failed after its answer", show_request(path))


def close_chunks(chunks: Iterable[bytes]) -> None:
    """Close the answer of a WSGI app, which need not be closable."""
    closing = getattr(chunks, "close", None)
    if closing is not None:
        closing()


def in_own_context(app: WSGIApplication) -> WSGIApplication:
    """Return the same WSGI app, each request of which has context variables of its own.

    They begin as a copy of the server's. The app, each step of its response and its end run with
    them, in whatever order and thread the server takes the steps of several responses. A body
    whose end has not come raises `RequestIncomplete`, whoever reads it.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("wsgi.input_terminated") and environ.get("CONTENT_LENGTH", "").isdecimal():
            environ["wsgi.input"] = _WholeBody(environ["wsgi.input"], environ["CONTENT_LENGTH"])
        own = contextvars.copy_context()
        chunks = own.run(app, environ, start_response)
        # A response whose request has ended needs no state, and stays what the server knows.
        return chunks if own.get(current) is current.get() else _OwnContext(own, chunks)

    return answer


class _WholeBody(io.RawIOBase):
    """A body that the server ends itself, as gunicorn does: it may be cut, and frameworks take it
    for the whole."""

    def __init__(self, stream: Any, length: str) -> None:
        self._stream = stream
        self._left = int(length[:18])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self._stream.read(len(buffer))
        self._left -= len(piece)
        if len(buffer) and not piece and self._left > 0:
            raise RequestIncomplete("the body is shorter than its length")
        buffer[: len(piece)] = piece
        return len(piece)


class _OwnContext:
    """A response whose steps run with the context variables of its request."""

    def __init__(self, own: contextvars.Context, chunks: Iterable[bytes]) -> None:
        self._own = own
        self._chunks = chunks
        self._steps = own.run(iter, chunks)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return self._own.run(next, self._steps)

    def close(self) -> None:
        self._own.run(close_chunks, self._chunks)
