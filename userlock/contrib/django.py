"""Integrate with Django: a scope and an ndb context for each request.

    # settings.py
    MIDDLEWARE = ["userlock.contrib.django.UserLockMiddleware", …]
    USERLOCK = {"client": ndb.Client, "batch_prefixes": ["/tasks/"]}

Needs the extra `django` (`pip install userlock[django]`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Unpack

try:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.http import HttpRequest, HttpResponse
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "userlock.contrib.django needs Django: pip install 'userlock[django]'"
    ) from error

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
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import RequestScope, close, finish_writes, log, log_violation
from userlock.errors import ConfigurationError, UserLockError, WriteViolation
from userlock.idempotency import Answer, Flow, Request
from userlock.idempotency.answers import kept
from userlock.ids import show_request
from userlock.lock.lease import check_lock_id


class UserLockMiddleware:
    """Give each request of a Django project its ndb context and its lock scope.

    Put it first, or at least before all middleware that reads entities. The
    setting `USERLOCK` is a dict of the options of
    `userlock.contrib.flask.UserLock`. Clients get the same answers; with
    `DEBUG` a `WriteViolation` is raised. For synchronous views. The locks of a
    request are released before a streamed response runs.

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
        answer = self._answer_by_hook(request)
        if answer is not None:
            return answer
        stack = self._scope.open(
            # Which Django routes by; unlike `request.path` without SCRIPT_NAME.
            request.method or "",
            request.path_info,
            request.headers.__contains__,
        )
        failed: BaseException | None = None
        try:
            response = self._get_response(request)
            stale = finish_writes(response.status_code)
            return response if stale is None else self._answer(stale)
        except BaseException as error:
            failed = error
            raise
        finally:
            close(stack, failed, request.path)

    def _answer_by_hook(self, request: HttpRequest) -> HttpResponse | None:
        answer = self._scope.answer(
            request.method or "", request.path_info, request.headers.get, request.read
        )
        if answer is None:
            return None
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Turn an exception that a view raises into a response."""
        if not isinstance(exception, ANSWERED):
            return None
        if isinstance(exception, WriteViolation):
            if settings.DEBUG:
                return None
            log_violation(log, show_request(request.path), exception)
        return self._answer(exception)

    def _answer(self, error: UserLockError) -> HttpResponse:
        problem = self._scope.problem_of(error)
        return HttpResponse(problem.body, status=problem.status, headers=problem.headers)


class Flows(idempotency.Flows):
    """Requests that happen once, for views of Django. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[HttpRequest], str | int],
        key: Callable[[HttpRequest], str | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., HttpResponse]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @flows.idempotent(user=lambda request: request.user.pk)
            def create_ride(request, flow): ...

        Options, answers and errors: as in `userlock.contrib.flask.Flows.idempotent`. A
        completable view gets an empty `HttpRequest` when the server completes it.
        """
        checked = check_options(**options)

        def decorate(view: Callable[..., Any]) -> Callable[..., HttpResponse]:
            known = IdempotentView(view, checked)

            if known.completable:
                self.register(
                    known.name,
                    lambda flow: _stored(flow, view(HttpRequest(), flow, **flow.arguments)),
                    known.keep_hours,
                )

            @functools.wraps(view)
            def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
                known.check_method(request.method)
                known.check_arguments(args)
                body = request.body  # first, so that the form can be read as well
                found = request.headers.get(HEADER) if key is None else key(request)
                user_id = check_lock_id(user(request))
                asked = _request(known, user_id, key_of(found), request, body, kwargs)
                made: list[HttpResponse] = []

                def run(flow: Flow) -> Answer | None:
                    returned = view(request, flow, *args, **kwargs)
                    stored = _stored(flow, returned)
                    made[:] = [] if stored is None else [returned]
                    return stored

                answer = known.run(self, asked, run)
                if made and not answer.replayed:
                    return made[0]  # with all of its headers
                response = HttpResponse(answer.body, status=answer.status)
                for header, value in headers_of(answer):
                    response[header] = value
                return response

            return once

        return decorate


def _request(
    view: IdempotentView,
    user_id: str,
    key: str,
    request: HttpRequest,
    body: bytes,
    arguments: dict[str, Any],
) -> Request:
    media = request.content_type or ""
    is_form = media in ("multipart/form-data", "application/x-www-form-urlencoded")
    files = [
        (field, file.name or "", file.read())
        for field, several in (request.FILES.lists() if is_form else ())
        for file in several
    ]
    for _, several in request.FILES.lists() if is_form else ():
        for file in several:
            file.seek(0)
    found = parameters_of(
        request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        media,
        b"" if is_form else body,
        form=[(field, each) for field, several in request.POST.lists() for each in several]
        if is_form
        else (),
        files=files,
    )
    return Request(
        user_id,
        key,
        view.name,
        found.value,
        request.method or "",
        request.path_info,
        found.digest,
        arguments if view.completable else None,
        completable=view.completable and found.storable,
    )


def _stored(flow: Flow, response: Any) -> Answer | None:
    """Return what a view has returned as an answer; None if it has answered in `last()`."""
    if flow.answer is not None:
        return None
    if getattr(response, "streaming", False):
        refuse_stream(flow)
    return Answer(response.status_code, kept(response.items()), response.content)
