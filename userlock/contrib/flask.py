"""Integrate with Flask: a scope and an ndb context for each request, and a decorator for views.

Needs the extra `flask` (`pip install userlock[flask]`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

try:
    import flask
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.flask needs Flask: pip install 'userlock[flask]'"
    ) from error

from werkzeug import Response
from werkzeug.exceptions import HTTPException

from userlock import idempotency
from userlock.contrib.idempotent_requests import (
    HEADER,
    IdempotentView,
    ViewOptions,
    check_options,
    headers_of,
    key_of,
    parameters_of,
    refuse_stream,
)
from userlock.contrib.inspector.pages import Authorise, Inspector
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import (
    RequestOptions,
    RequestScope,
    close,
    finish_writes,
    log_violation,
    path_of,
)
from userlock.errors import ConfigurationError, UserLockError, WriteViolation
from userlock.idempotency import Answer, Flow, Request
from userlock.idempotency.answers import kept
from userlock.ids import are_plain
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority, PriorityName, check_lock_id
from userlock.words import meant

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: The key of a request's stack in its WSGI environment. Not in `flask.g`, which requests that an
#: app makes to itself share.
_STACK = "userlock.stack"


class UserLock:
    """Give each request of a Flask app its ndb context and its lock scope.

    In a request, `with userlock.global_lock(user_id):` is all that a handler
    needs. When the request ends, however it ends, its locks are released.

    Errors become problem documents of RFC 9457 (`userlock.contrib.problems`):
    503 and Retry-After for `LockTimeout` and `LockServiceUnavailable`, 429 and
    Retry-After for `TooManyWaiting`, 409 and Retry-After for `StaleWriteError`.
    If a write is in doubt (`CommitInDoubt`, `StaleWriteError.may_have_landed`),
    the answer is 500 without Retry-After: the request must not just be sent
    again. A `WriteViolation` is a bug. It is
    logged in full and answered with 500 without details; in debugging and
    testing it is raised. An app's own error handlers for these classes, in
    blueprints or registered later, come first.

    Args:
        app: the Flask app; or call `init_app` later.
        inspector: pages for operators (`userlock.contrib.inspector.Inspector`), or just the
            function that decides who may see them. None: there are none.

    Options, which the integrations share:

    - `client`: the `ndb.Client` to open contexts with, or a function that makes it (called
      once in each process, on its first request: gRPC channels do not survive a fork).
      None: the app opens contexts itself.
    - `service`: the lock service; by default the configured one.
    - `batch_prefixes`: URL paths that begin with one of these, in whole segments, are batch
      work; without the place where the app is mounted (SCRIPT_NAME). So are, on App Engine,
      requests of its task queues and cron. Other requests with their headers, or with those
      of Cloud Tasks or Cloud Scheduler, have batch priority only: they wait and hold no
      longer than interactive ones, and are no batch work for `WritePolicy.BATCH_ONLY`.
      Anybody can send these headers.
    - `trusted_headers`: names of headers that make a request batch work, too, as
      "X-CloudTasks-QueueName" if only the queue can reach the service, or send it.
    - `enforcement`: `raise`, `log` or `off`; by default as configured.
    - `fencing`: whether Datastore refuses stale writes; by default as configured.
    - `context_options`: options for `client.context()`, for instance a global cache.
    - `contention_status`: the answer to `LockTimeout`: 503 or 409.
    - `max_waiting`: the most requests of this process that wait for one lock, where the
      service's policy does not say; of batch requests, half as many. One more is answered
      with 429, so that one user cannot occupy all threads: with the holder's, they must be
      fewer than the server's threads. None: no limit.
    - `outbox`: an `Outbox`, or its `OutboxEndpoints` (`userlock.contrib.outbox_endpoints`):
      `POST /userlock/jobs` runs jobs, `POST /userlock/relay` relays. Only engines may call
      them.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        inspector: Inspector | Authorise | None = None,
        **options: Unpack[RequestOptions],
    ) -> None:
        if inspector is not None and not isinstance(inspector, Inspector):
            inspector = Inspector(inspector)
        self._inspector = inspector
        self._scope = RequestScope(**options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Attach to an app."""
        app.extensions["userlock"] = self
        if self._scope.hooks:
            app.wsgi_app = self._answer_by_hook(app.wsgi_app)  # type: ignore[assignment, method-assign]
        if self._inspector is not None:
            # First, so that its headers come last: also on an answer that `_finish` replaces.
            outboxes = [
                each.outbox for each in self._scope.hooks if isinstance(each, OutboxEndpoints)
            ]
            self._inspector.init_app(app, self._scope.service, *outboxes)
        app.before_request(self._open)
        app.after_request(self._finish)
        app.teardown_request(self._close)
        for kind in ANSWERED:
            app.register_error_handler(kind, self._answer)

    def _answer_by_hook(self, app: WSGIApplication) -> WSGIApplication:
        """Return a WSGI app whose requests the hooks see before the app does."""
        inspected = self._inspector is not None  # has pages at the same addresses

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            found = self._scope.answer_wsgi(environ, shared=inspected)
            if found is None:
                return app(environ, start_response)
            start_response(found.line, list(found.headers.items()))
            return [found.body]

        return answer

    def _open(self) -> None:
        request = flask.request
        request.environ[_STACK] = self._scope.open(
            request.method, path_of(request.environ), request.headers.__contains__
        )

    def _finish(self, response: flask.Response) -> flask.Response:
        """Wait for writes under locks that the handler has not left itself."""
        stale = finish_writes(response.status_code)
        return response if stale is None else self._answer(stale)

    @staticmethod
    def _close(error: BaseException | None) -> None:
        stack: ExitStack | None = flask.request.environ.pop(_STACK, None)
        if stack is not None:
            close(stack, error, flask.request.path)

    def _answer(self, error: UserLockError) -> flask.Response:
        app = flask.current_app
        if isinstance(error, WriteViolation):
            if app.testing or app.debug or app.config["PROPAGATE_EXCEPTIONS"]:
                raise error
            shown = flask.request.path if are_plain() else flask.request.url_rule or ""
            log_violation(app.logger, f"{flask.request.method} {shown}", error)
            flask.got_request_exception.send(app, _async_wrapper=app.ensure_sync, exception=error)
        problem = self._scope.problem_of(error)
        return flask.Response(problem.body, problem.status, problem.headers)


def user_lock(
    source: str | Callable[[], str | int] | None = None,
    *,
    session: str | None = None,
    wait_timeout: float | None = None,
    lock_timeout: float | None = None,
    priority: Priority | PriorityName | None = None,
    heartbeat: bool | None = None,
    max_waiting: int | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Hold a user's lock while a view runs; for views of one user.

        @app.post("/users/<user_id>/points")
        @user_lock("user_id")                     # from the route
        def add_points(user_id): ...

        @user_lock(session="user_id")             # from the session; 401 if it has none
        @user_lock(lambda: flask.g.user.id)       # from a function, called in the request

    Below the route: above it, the route calls the view without the lock. Also for
    methods of class-based views, in their `decorators`, and for async views. The
    lock is released when the view returns: a streamed response runs without it.

    Args:
        source: the name of an argument of the route, or a function without arguments that
            returns the lock id.
        session: the key in `flask.session`, instead of `source`.
        wait_timeout: as in `userlock.global_lock`, like the following.
        lock_timeout: the length of the lease.
        priority: the priority.
        heartbeat: whether the lease is renewed.
        max_waiting: the most callers of this process that wait for the lock.

    Raises:
        TypeError: not exactly one source is given. Raised at once.
        ConfigurationError: the view has no such argument; raised at once. Or the route has none;
            raised in the request.
    """
    if (source is None) == (session is None) or not (
        isinstance(session, str) or isinstance(source, str) or callable(source)
    ):
        raise TypeError(
            "user_lock takes the name of a route's argument, a function that returns the lock "
            "id, or session='its key in the session'"
        )

    def lock() -> global_lock:
        return global_lock(
            _lock_id(source, session),
            wait_timeout=wait_timeout,
            lock_timeout=lock_timeout,
            priority=priority,
            heartbeat=heartbeat,
            max_waiting=max_waiting,
        )

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        if isinstance(source, str):
            _check_parameters(view, source)
        if inspect.iscoroutinefunction(view):

            @functools.wraps(view)
            async def locked_async(*args: Any, **kwargs: Any) -> Any:
                async with lock():
                    return await view(*args, **kwargs)

            return cast(Callable[_P, _R], locked_async)

        @functools.wraps(view)
        def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with lock():
                return view(*args, **kwargs)

        return locked

    return decorate


def _check_parameters(view: Callable[..., Any], source: str) -> None:
    """Refuse a view that cannot take the argument."""
    parameters = inspect.signature(view, follow_wrapped=False).parameters
    kinds = [each.kind for each in parameters.values()]
    if source not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        name = getattr(view, "__qualname__", repr(view))
        raise _no_argument(source, f"{name}() takes no such argument", parameters)


def _no_argument(source: str, problem: str, there: Iterable[str]) -> ConfigurationError:
    near = meant(source, there, "{!r}")
    return ConfigurationError(
        f"@user_lock({source!r}): {problem} (it has: {', '.join(there) or 'none'})"
        f"{f'; {near}' if near else '.'} To fix it: name an argument of the route, or pass a "
        f"function that returns the lock id"
    )


def _lock_id(source: str | Callable[[], str | int] | None, session: str | None) -> str | int:
    if session is not None:
        found: str | int | None = flask.session.get(session)
        if found is None:
            flask.abort(401)
        return found
    if callable(source):
        return source()
    arguments = flask.request.view_args or {}
    if source not in arguments:
        problem = f"the route {flask.request.url_rule} has no such argument"
        raise _no_argument(str(source), problem, arguments)
    lock_id: str | int = arguments[source]
    return lock_id


class Flows(idempotency.Flows):
    """Requests that happen once, for views of Flask. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[], str | int],
        key: Callable[[], str | None] | None = None,
        final: tuple[type[Exception], ...] = (),
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @app.post("/rides")
            @flows.idempotent(user=lambda: flask.g.user.id)
            def create_ride(flow): ...

        The view gets a `Flow` before its other arguments. It answers in
        `flow.last()`, or by what it returns. An answer below 500 is stored with
        the headers that are not of one request alone, and given again with
        `Idempotent-Replayed: true`.

        Args:
            user: returns the user, the owner of the key, in the request.
            key: returns the idempotency key, in the request: a field of a form, as browsers send
                no header of a page's choice. By default that in the header.
            final: errors of the view that are answers, by the app's error handlers: refusals. So
                are those of `flask.abort()`.
            options: see below.

        Options, which the integrations share:

        - `on_busy`: the same request is running: `wait` for it, or `refuse` (409).
        - `wait_timeout`: the longest wait for the user's lock, in seconds.
        - `keep_hours`: how long the answer is kept, by default as long as the others.
        - `methods`: those that need a key, by default POST and PATCH. A request of another one
          is an error.
        - `completable`: whether the server may complete a request whose client does not come
          again. Its parameters are stored. The view takes all it needs from its flow and
          the arguments of its route, since there is no request then, and answers in
          `flow.last()` or with a response object.
        - `name`: the name in the rows, by default the view's module and name.

        Raises:
            ConfigurationError: the view is a coroutine or a generator, or is completable and has
                errors in `final`, whose handlers need a request. Raised at once.
            IdempotencyKeyRefused: the key is missing or malformed (400). In the request.
            IdempotencyKeyReused: the key belongs to another request (422). In the request.
            RequestRunning: the same request is running (409). In the request.
            NotStorable: the answer is a stream, or too long (500). In the request.
        """
        checked = check_options(**options)
        refusals: tuple[type[Exception], ...] = (HTTPException, *_checked_final(final))

        def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
            known = IdempotentView(view, checked)
            if known.completable and final:
                raise ConfigurationError(
                    f"flow {known.name} is completable, and the handlers of its final errors need "
                    f"a request. To fix it: answer in flow.last()"
                )

            def serve(flow: Flow, *args: Any, **kwargs: Any) -> Response | None:
                try:
                    returned = view(flow, *args, **kwargs)
                except refusals as error:
                    returned = _refusal(error)
                return None if flow.answer is not None else _response(flow, returned, known)

            def complete(flow: Flow) -> Answer | None:
                if flask.has_request_context():
                    raise RuntimeError(
                        "a view is completed outside of requests, or it would take this one for "
                        "its client's. To fix it: use complete_by_relay, `userlock flows "
                        "complete` or the inspector"
                    )
                return _stored(serve(flow, **flow.arguments))

            if known.completable:
                self.register(known.name, complete, known.keep_hours)

            @functools.wraps(view)
            def once(*args: Any, **kwargs: Any) -> flask.Response:
                known.check_method(flask.request.method)
                known.check_arguments(args)
                found = flask.request.headers.get(HEADER) if key is None else key()
                request = _request(known, check_lock_id(user()), key_of(found), kwargs)
                made: list[Response | None] = []

                def run(flow: Flow) -> Answer | None:
                    made[:] = [serve(flow, *args, **kwargs)]
                    return _stored(made[0])

                answer = known.run(self, request, run)
                if made and made[0] is not None and not answer.replayed:
                    return flask.make_response(made[0])  # with all of its headers
                return flask.Response(answer.body, answer.status, headers_of(answer))

            return once

        return decorate


def _request(view: IdempotentView, user_id: str, key: str, arguments: dict[str, Any]) -> Request:
    asked = flask.request
    body = asked.get_data(cache=True, parse_form_data=False)
    multipart = asked.mimetype == "multipart/form-data"
    is_form = multipart or asked.mimetype == "application/x-www-form-urlencoded"
    found = parameters_of(
        asked.query_string,
        asked.mimetype,
        b"" if is_form else body,
        form=list(asked.form.items(multi=True)) if is_form else (),
        files=[
            (field, file.filename or "", file.read())
            for field, file in asked.files.items(multi=True)
        ],
    )
    for file in asked.files.values():
        file.seek(0)
    return Request(
        user_id,
        key,
        view.name,
        found.value,
        asked.method,
        asked.path,
        found.digest,
        arguments if view.completable else None,
        completable=view.completable and found.storable,
    )


def _refusal(error: Exception) -> Any:
    """Return the answer to an error by the app's handler; raise it again if there is none."""
    if flask.has_request_context():
        return flask.current_app.handle_user_exception(error)
    return error


def _checked_final(final: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    found = final if isinstance(final, tuple) else (final,)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise TypeError(f"final= takes classes of errors, not {each!r:.80}")
    return found


def _response(flow: Flow, returned: Any, view: IdempotentView) -> Response:
    """Return what a view has returned as a response."""
    if isinstance(returned, HTTPException):
        returned = returned.get_response()
    if view.completable and not isinstance(returned, Response):
        # Without a request there is no app that makes one.
        view.refuse_value(returned)
    response: Response = (
        returned if isinstance(returned, Response) else flask.make_response(returned)
    )
    if response.is_streamed or response.direct_passthrough:
        refuse_stream(flow)
    return response


def _stored(response: Response | None) -> Answer | None:
    """Return a response as an answer; None if the view has answered in `last()`."""
    if response is None:
        return None
    return Answer(response.status_code, kept(response.headers.items()), response.get_data())
