"""Integrate with Django: a scope and an ndb context for each request.

    # settings.py
    MIDDLEWARE = ["userlock.contrib.django.UserLockMiddleware", …]
    USERLOCK = {"client": ndb.Client, "batch_prefixes": ["/tasks/"]}

Needs the extra `django` (`pip install userlock[django]`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

try:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.http import HttpRequest, HttpResponse
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.django needs Django: pip install 'userlock[django]'"
    ) from error

from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import RequestScope, close, finish_writes, on_demand
from userlock.errors import ConfigurationError, UserLockError, WriteViolation

if TYPE_CHECKING:
    from userlock.contrib.idempotent_requests.django import Flows as Flows
else:
    __getattr__ = on_demand(__name__, Flows="userlock.contrib.idempotent_requests.django")


class UserLockMiddleware:
    """Give each request of a Django project its ndb context and its lock scope.

    Put it first, or at least before all middleware that reads entities. The setting `USERLOCK` is a
    dict of the options of `userlock.contrib.flask.UserLock`. Clients get the same answers; with
    `DEBUG` a `WriteViolation` is raised. Of other middleware Django answers errors itself, with
    500. For synchronous views. The locks of a request are released before a streamed response runs.

    Raises:
        ImproperlyConfigured: a setting is wrong. Raised when the server starts.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        try:
            self._scope = RequestScope(**getattr(settings, "USERLOCK", {}))
        except (TypeError, ValueError, ConfigurationError) as error:
            raise ImproperlyConfigured(f"USERLOCK: {error}") from error

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # Django routes by `path_info`: unlike `path` without SCRIPT_NAME.
        method, path, headers = request.method or "", request.path_info, request.headers
        answer = self._scope.answer(method, path, headers.get, request.read)
        if answer is not None:
            return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))
        stack = self._scope.open(method, path, headers.__contains__)
        failed: BaseException | None = None
        try:
            response = self._get_response(request)
            stale = finish_writes(response.status_code)
            return response if stale is None else self._answer(stale, request)
        except BaseException as error:
            failed = error
            raise
        finally:
            close(stack, failed, request.path)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Turn an exception that a view raises into a response."""
        if not isinstance(exception, ANSWERED):
            return None
        if isinstance(exception, WriteViolation) and settings.DEBUG:
            return None
        return self._answer(exception, request)

    def _answer(self, error: UserLockError, request: HttpRequest) -> HttpResponse:
        problem = self._scope.problem_of(error, request.path)
        return HttpResponse(problem.body, status=problem.status, headers=problem.headers)
