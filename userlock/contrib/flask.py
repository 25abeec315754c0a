"""Integrate with Flask: a scope and an ndb context for each request, and a decorator for views.

Needs the extra `flask` (`pip install userlock[flask]`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

try:
    import flask
    from flask.globals import request_ctx
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.flask needs Flask: pip install 'userlock[flask]'"
    ) from error

from userlock.arguments import check_kind
from userlock.contrib import request_scope
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import RequestOptions, RequestScope, finish_writes, on_demand
from userlock.errors import ConfigurationError, UserLockError, WriteViolation
from userlock.ids import show_request
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority, PriorityName
from userlock.words import meant

if TYPE_CHECKING:
    from werkzeug.local import LocalProxy

    from userlock.contrib.idempotent_requests.flask import Flows as Flows
    from userlock.contrib.inspector import Inspector
else:
    __getattr__ = on_demand(__name__, Flows="userlock.contrib.idempotent_requests.flask")

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: The attribute of Flask's own object for a request that has its stack. Requests that an app makes
#: to itself share `flask.g`; copies of the request's context, and apps that it is handed on to,
#: share the environment.
_STACK = "_userlock_stack"
#: Returns Flask's own object for the running request. A copy is another one.
_flask_context = cast("LocalProxy[object]", request_ctx)._get_current_object


class UserLock:
    """Give each request of a Flask app its ndb context and its lock scope.

    In a request, `with userlock.global_lock(user_id):` is all that a handler needs. When the
    request ends, however it ends, its locks are released.

    Errors become problem documents of RFC 9457 (`userlock.contrib.problems`): 503 and Retry-After
    for `LockTimeout` and `LockServiceUnavailable`, 429 and Retry-After for `TooManyWaiting`, 409
    and Retry-After for `StaleWriteError`. If a write is in doubt (`CommitInDoubt`,
    `StaleWriteError.may_have_landed`), the answer is 500 without Retry-After: the request must not
    just be sent again. A `WriteViolation` is a bug. It is logged in full and answered with 500
    without details; in debugging and testing it is raised. An app's own error handlers for these
    classes, in blueprints or registered later, come first.

    Args:
        app: the Flask app; or call `init_app` later.
        inspector: pages for operators (`userlock.contrib.inspector.Inspector`), or just the
            function that decides who may see them. None: there are none.

    Options, which the integrations share:

    - `client`: the `ndb.Client` to open contexts with, or a function that makes it (called once in
      each process, on its first request: gRPC channels do not survive a fork). None: the app opens
      contexts itself.
    - `service`: the lock service; by default the configured one.
    - `batch_prefixes`: URL paths that begin with one of these, in whole segments, are batch work;
      without the place where the app is mounted (SCRIPT_NAME). So are, on App Engine, requests of
      its task queues and cron. Other requests with their headers, or with those of Cloud Tasks or
      Cloud Scheduler, which anybody can send, have batch priority only: they wait and hold no
      longer than interactive ones, and are no batch work for `WritePolicy.BATCH_ONLY`.
    - `trusted_headers`: names of headers that make a request batch work, too, as
      "X-CloudTasks-QueueName" if only the queue can reach the service, or send it.
    - `enforcement`: `raise`, `log` or `off`; by default as configured.
    - `fencing`: whether Datastore refuses stale writes; by default as configured.
    - `context_options`: options for `client.context()`, for instance a global cache.
    - `contention_status`: the answer to `LockTimeout`: 503 or 409.
    - `max_waiting`: the most requests of this process that wait for one lock, where the service's
      policy does not say; of batch requests, half as many. One more is answered with 429, so that
      one user cannot occupy all threads: with the holder's, they must be fewer than the server's
      threads. None: no limit.
    - `outbox`: an `Outbox`, or its `OutboxEndpoints` (`userlock.contrib.outbox_endpoints`), or a
      list of them: `POST /userlock/jobs` runs jobs, `POST /userlock/relay` relays. Only engines may
      call them.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        inspector: Inspector | Callable[[flask.Request], bool | str | None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> None:
        self._inspector: Inspector | None = None
        if inspector is not None:
            # By name: an app without these pages does not load them.
            kind = importlib.import_module("userlock.contrib.inspector").Inspector
            self._inspector = inspector if isinstance(inspector, kind) else kind(inspector)
        self._scope = RequestScope(**options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Attach to an app.

        Raises:
            ConfigurationError: one is attached to it already.
        """
        check_kind("app", app, flask.Flask, "a Flask app")
        if "userlock" in app.extensions:
            raise ConfigurationError(
                f"a UserLock is attached to {app!r} already. To fix it: pass the app to "
                "`UserLock(…)` or to `init_app`, once"
            )
        app.extensions["userlock"] = self
        for hook in self._scope.hooks:
            hook.outbox.within(app.app_context)
        inspected = self._inspector is not None  # it has pages at the same addresses
        app.wsgi_app = self._scope.hooked(app.wsgi_app, shared=inspected)  # type: ignore[assignment, method-assign]
        if self._inspector is not None:
            # First, so that its headers come last: also on an answer that `_finish` replaces.
            served = next((hook.outbox for hook in self._scope.hooks), None)
            self._inspector.init_app(app, self._scope.service, served)
        # Before 3.1.2 a stream with Flask's context runs within the request, after its return.
        app.wsgi_app = request_scope.in_own_context(app.wsgi_app)  # type: ignore[assignment, method-assign]
        app.before_request(self._open)
        app.after_request(self._finish)
        app.teardown_request(self._close)
        self._close_at_the_latest(app)
        for kind in ANSWERED:
            app.register_error_handler(kind, self._answer)

    def _open(self) -> None:
        request = flask.request
        vars(_flask_context())[_STACK] = self._scope.open(
            request.method, request_scope.path_of(request.environ), request.headers.__contains__
        )

    def _finish(self, response: flask.Response) -> flask.Response:
        """Wait for writes under locks that the handler has not left itself."""
        stale = finish_writes(response.status_code)
        return response if stale is None else self._answer(stale)

    @staticmethod
    def _close(error: BaseException | None) -> None:
        stack = vars(_flask_context()).pop(_STACK, None)
        if stack is not None:
            request_scope.close(stack, error, flask.request.path)

    def _close_at_the_latest(self, app: flask.Flask) -> None:
        """Close the scope even if a function of `teardown_request` raises before `_close` runs.

        Flask calls no other one then. Left to the garbage collector, the scope would end within
        another request, and take that one's ndb context.
        """
        teardown = app.do_teardown_request

        def close(*args: Any, **kwargs: Any) -> None:
            try:
                teardown(*args, **kwargs)
            except BaseException as error:
                self._close(error)
                raise

        app.do_teardown_request = close  # type: ignore[method-assign]

    def _answer(self, error: UserLockError) -> flask.Response:
        app = flask.current_app
        if isinstance(error, WriteViolation):
            if app.testing or app.debug or app.config["PROPAGATE_EXCEPTIONS"]:
                raise error
            method, rule = flask.request.method, flask.request.url_rule
            shown = show_request(f"{method} {flask.request.path}", lambda _: f"{method} {rule}")
            request_scope.log_violation(app.logger, shown, error)
            flask.got_request_exception.send(app, _async_wrapper=app.ensure_sync, exception=error)
        problem = self._scope.problem_of(error)
        return flask.Response(problem.body, problem.status, problem.headers)


def user_lock(
    source: str | Callable[[], str | int | None] | None = None,
    *,
    session: str | None = None,
    allowed: Callable[[Any], object] | None = None,
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
        @user_lock(lambda: flask.g.get("user_id"))  # from a function in the request; the same

    Below the route: above it, the route calls the view without the lock. Also for methods of
    class-based views, in their `decorators`, and for async views. The lock is released when the
    view returns: a streamed response runs without it.

    An id of the address says whose lock it is, not who asks. Check that first, by `allowed` or a
    decorator between this one and the route: a check in the view comes after the wait, so that
    strangers would take the user's places in it.

    Args:
        source: the name of an argument of the route, or a function without arguments that returns
            the lock id; None or empty: 401.
        session: the key in `flask.session`, instead of `source`.
        allowed: called with the lock id before the lock is asked for; 403 unless it returns True.
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
        isinstance(session, str) or isinstance(source, str) or _takes_nothing(source)
    ):
        raise TypeError(
            "user_lock takes the name of a route's argument, a function without arguments that "
            "returns the lock id, or session='its key in the session'; and is called above the "
            "view: @user_lock(…)"
        )

    if allowed is not None:
        check_kind("allowed", allowed, Callable, "a function")
    locked_as = functools.partial(
        global_lock,
        wait_timeout=wait_timeout,
        lock_timeout=lock_timeout,
        priority=priority,
        heartbeat=heartbeat,
        max_waiting=max_waiting,
    )
    locked_as("any")  # the options are checked now

    def lock() -> global_lock:
        lock_id = _lock_id(source, session)
        if allowed is not None and allowed(lock_id) is not True:  # nor a coroutine
            flask.abort(403)
        return locked_as(lock_id)

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        if isinstance(source, str):
            parameters = inspect.signature(view, follow_wrapped=False).parameters
            kinds = [each.kind for each in parameters.values()]
            if source not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
                name = getattr(view, "__qualname__", repr(view))
                raise _no_argument(source, f"{name}() takes no such argument", parameters)
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


def _takes_nothing(source: object) -> bool:
    """Return whether it is a function without arguments, unlike most views."""
    try:
        inspect.signature(cast(Any, source), follow_wrapped=False).bind()
    except TypeError:
        return False
    except Exception:  # some written in C, and proxies, do not tell
        return callable(source)
    return True


def _no_argument(source: str, problem: str, there: Iterable[str]) -> ConfigurationError:
    near = meant(source, there, "{!r}")
    return ConfigurationError(
        f"@user_lock({source!r}): {problem} (it has: {', '.join(there) or 'none'})"
        f"{f'; {near}' if near else '.'} To fix it: name an argument of the route, or pass a "
        f"function that returns the lock id"
    )


def _lock_id(source: str | Callable[[], str | int | None] | None, session: str | None) -> str | int:
    if session is not None:
        source = functools.partial(flask.session.get, session)
    if callable(source):
        found = source()
        if found is None or found == "":  # as the names and ids of anonymous users
            flask.abort(401)
        return found
    arguments = flask.request.view_args or {}
    if source not in arguments:
        problem = f"the route {flask.request.url_rule} has no such argument"
        raise _no_argument(str(source), problem, arguments)
    lock_id: str | int = arguments[source]
    return lock_id
