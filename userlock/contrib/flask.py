"""Flask: a scope and an ndb context for each request.

Needs the extra `flask` (`pip install userlock[flask]`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

try:
    import flask
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.flask needs Flask: pip install 'userlock[flask]'"
    ) from error

from google.cloud.ndb.context import get_context

import userlock.ndb.model  # noqa: F401  (hooks into ndb)
from userlock.errors import CommitInDoubt, LockServiceUnavailable, LockTimeout, StaleWriteError
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope, default_service, defaults, scope
from userlock.lock.service import LockService, check_service
from userlock.settings import Enforcement, make_settings

log = logging.getLogger(__name__)

#: Set by Google's front ends. App Engine strips X-AppEngine-* headers from requests of anybody
#: else. The others can be sent by anybody whom a service lets in; all that they gain is to wait
#: longer, behind everybody else, so a public service loses at most a worker's time.
BATCH_HEADERS = (
    "X-AppEngine-QueueName",
    "X-AppEngine-Cron",
    "X-CloudTasks-QueueName",
    "X-CloudScheduler",
)

#: Where a request keeps what is to be closed at its end. In its WSGI environment, because
#: `flask.g` is shared by requests that one makes to its own app.
_STACK = "userlock.stack"


class UserLock:
    """Give each request of a Flask app its ndb context and its lock scope.

    In a request, `with userlock.global_lock(user_id):` is all that a handler
    needs. When the request ends, whatever happened, its locks are released.
    `LockTimeout` and `LockServiceUnavailable` are answered with 503 and
    Retry-After, `StaleWriteError` with 409 and Retry-After; where a write is
    in doubt (`CommitInDoubt`, `StaleWriteError.may_have_landed`) with 500 and
    without, since the request must not just be sent again; each with a JSON
    body. A `WriteViolation` is a bug and is left to the app (500).

    Args:
        app: the Flask app; or call `init_app` later.
        client: the `ndb.Client` to open contexts with, or a function that makes it (called
            once in each process, on its first request: gRPC channels do not survive a fork).
            None: the app opens contexts itself.
        service: where locks come from; by default the configured service.
        batch_prefixes: URL paths that begin with one of these are batch work. So are
            requests from App Engine task queues and cron, Cloud Tasks and Cloud Scheduler.
        enforcement: `raise`, `log` or `off`; by default as configured.
        fencing: whether Datastore refuses stale writes; by default as configured.
        context_options: for `client.context()`, for instance a global cache.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        client: Any = None,
        service: LockService | None = None,
        batch_prefixes: Iterable[str] = (),
        enforcement: Enforcement | str | None = None,
        fencing: bool | None = None,
        context_options: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(batch_prefixes, str):
            raise TypeError("batch_prefixes must be a list of paths, not one string")
        self._client = client
        self._made: tuple[int, Any] = (0, None)
        self._service = None if service is None else check_service(service)
        self._batch_prefixes = tuple(batch_prefixes)
        self._enforcement = None if enforcement is None else Enforcement.of(enforcement)
        self._fencing = fencing
        self._context_options = context_options or {}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Attach to an app."""
        app.extensions["userlock"] = self
        app.before_request(self._open)
        app.after_request(self._finish)
        app.teardown_request(self._close)
        app.register_error_handler(LockTimeout, _answer_timeout)
        app.register_error_handler(LockServiceUnavailable, _answer_unavailable)
        app.register_error_handler(StaleWriteError, _answer_stale)
        app.register_error_handler(CommitInDoubt, _answer_in_doubt)

    def priority_of(self, request: flask.Request) -> Priority:
        """Whether a request is a person's or a batch job's."""
        if request.path.startswith(self._batch_prefixes) or any(
            header in request.headers for header in BATCH_HEADERS
        ):
            return Priority.BATCH
        return Priority.INTERACTIVE

    def _client_of_this_process(self) -> Any:
        if not callable(self._client):
            return self._client
        made_in, client = self._made
        if made_in != os.getpid():
            client = self._client()
            self._made = os.getpid(), client
        return client

    def _open(self) -> None:
        with ExitStack() as stack:
            client = self._client_of_this_process()
            # Inside a context that is open already (a test's, or an outer
            # request's) ndb would refuse another one.
            if client is not None and get_context(False) is None:
                stack.enter_context(client.context(**self._context_options))
            stack.enter_context(
                scope(
                    self._service or default_service(),
                    settings=make_settings(
                        defaults.settings,
                        enforcement=self._enforcement,
                        fencing=self._fencing,
                    ),
                    priority=self.priority_of(flask.request),
                    request=f"{flask.request.method} {flask.request.path}",
                )
            )
            flask.request.environ[_STACK] = stack.pop_all()

    @staticmethod
    def _finish(response: flask.Response) -> flask.Response:
        """Writes under locks that the handler did not leave itself land before the answer."""
        current = current_scope()
        # An answer that is an error already says more than this one would;
        # what goes wrong with its writes is logged when the scope ends.
        if current is not None and response.status_code < 500:
            try:
                current.finish_writes()
            except StaleWriteError as error:
                return _answer_stale(error)
        return response

    def _close(self, error: BaseException | None) -> None:
        stack: ExitStack | None = flask.request.environ.pop(_STACK, None)
        if stack is None:
            return
        try:
            stack.__exit__(
                None if error is None else type(error),
                error,
                None if error is None else error.__traceback__,
            )
        except Exception:
            # The answer is decided; raised here, it would be lost with the rest.
            log.exception("a write of %s failed after its answer", flask.request.path)


def _answer(
    status: int, error: Exception, message: str, retry_after: int | None, **facts: Any
) -> flask.Response:
    response = flask.jsonify(error=type(error).__name__, message=message, **facts)
    response.status_code = status
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


# Who holds a lock, which servers are down and where the code is are for the
# log, not for whoever sent the request.


def _answer_timeout(error: LockTimeout) -> flask.Response:
    return _answer(
        503,
        error,
        "Another request for the same user is still running. Try again in a moment.",
        retry_after=1,
        lock_id=error.lock_id,
        waited_seconds=round(error.waited_seconds, 3),
    )


def _answer_unavailable(error: LockServiceUnavailable) -> flask.Response:
    return _answer(
        503,
        error,
        "The lock service is not available. Try again in a moment.",
        retry_after=1,
        lock_id=error.lock_id,
    )


def _answer_in_doubt(error: CommitInDoubt | StaleWriteError) -> flask.Response:
    return _answer(
        500,
        error,
        "It is not known whether the change was made. Look before you try again.",
        retry_after=None,
        lock_id=error.lock_id,
    )


def _answer_stale(error: StaleWriteError) -> flask.Response:
    if error.may_have_landed:
        return _answer_in_doubt(error)
    return _answer(
        409,
        error,
        "The data was changed by another request. Nothing was overwritten; try again.",
        retry_after=0,
        lock_id=error.lock_id,
    )
