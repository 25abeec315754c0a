"""Django: a scope and an ndb context for each request.

    # settings.py
    MIDDLEWARE = ["userlock.contrib.django.UserLockMiddleware", …]
    USERLOCK = {"client": ndb.Client, "batch_prefixes": ["/tasks/"]}

Needs the extra `django` (`pip install userlock[django]`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

try:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.http import HttpRequest, HttpResponse
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.django needs Django: pip install 'userlock[django]'"
    ) from error

from userlock.contrib.problems import ANSWERED, check_contention_status, problem_of
from userlock.contrib.request_scope import RequestScope, close, finish_writes, log
from userlock.errors import UserLockError, WriteViolation


class UserLockMiddleware:
    """Give each request of a Django project its ndb context and its lock scope.

    Put it first, or at least before all middleware that reads entities. The
    setting `USERLOCK` is a dict of the arguments of
    `userlock.contrib.flask.UserLock`, all optional; clients get the same answers,
    and with `DEBUG` a `WriteViolation` is shown as any other bug. For synchronous
    views; the locks of a request are released before a streamed response runs.

    Raises:
        ImproperlyConfigured: when the server starts, for a setting that makes no sense.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        options = dict(getattr(settings, "USERLOCK", {}))
        try:
            self._contention_status = check_contention_status(options.pop("contention_status", 503))
            self._surroundings = RequestScope(**options)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"USERLOCK: {error}") from error

    def __call__(self, request: HttpRequest) -> HttpResponse:
        stack: ExitStack = self._surroundings.open(
            request.method or "", request.path, request.headers.__contains__
        )
        response: HttpResponse | None = None
        failed: BaseException | None = None
        try:
            response = self._get_response(request)
            # An answer that is an error already says more than this one would.
            stale = finish_writes() if response.status_code < 500 else None
            if stale is not None:
                response = self._answer(stale)
            return response
        except BaseException as error:
            failed = error
            raise
        finally:
            close(stack, failed, request.path)

    def process_exception(self, request: HttpRequest, exception: Exception) -> Any:
        """Turn an exception that a view raises into a response."""
        if not isinstance(exception, ANSWERED):
            return None
        if isinstance(exception, WriteViolation):
            if settings.DEBUG:
                return None
            log.error("%s failed", request.path, exc_info=exception)
        return self._answer(exception)

    def _answer(self, error: UserLockError) -> HttpResponse:
        problem = problem_of(error, contention_status=self._contention_status)
        return HttpResponse(problem.body, status=problem.status, headers=problem.headers)
