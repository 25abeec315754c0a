"""Requests that happen once, for views of Django."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, Unpack

from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import LimitedStream, WSGIRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from userlock import idempotency
from userlock.contrib.idempotent_requests import views
from userlock.contrib.idempotent_requests.views import IdempotentView, ViewOptions
from userlock.errors import RequestIncomplete
from userlock.idempotency import Flow


class Flows(idempotency.Flows):
    """Requests that happen once, for views of Django. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[HttpRequest], str | int | None],
        key: Callable[[HttpRequest], str | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., HttpResponse]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @flows.idempotent(user=lambda request: request.user.pk)
            def create_ride(request, flow): ...

        `Http404`, `BadRequest` and `SuspiciousOperation` are answers, too. Options, answers and
        errors: as in `userlock.contrib.flask.Flows.idempotent`. A completable view gets an empty
        `HttpRequest` when the server completes it.
        """

        views.check_askers(user, key)

        def decorate(view: Callable[..., Any]) -> Callable[..., HttpResponse]:
            known = IdempotentView[HttpResponse](
                view,
                lambda each: (each.status_code, each.items(), each.content),
                _made_of,
                **options,
            )

            def serve(flow: Flow, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                try:
                    returned = view(request, flow, *args, **kwargs)
                except (Http404, BadRequest, SuspiciousOperation) as error:
                    returned = _refusal(request, error)
                return _response(flow, returned)

            known.register(self, lambda flow: serve(flow, HttpRequest(), **flow.arguments))

            @functools.wraps(view)
            def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
                known.check(request.method, args)
                length = request.META.get("CONTENT_LENGTH")
                views.check_length(length, known.max_bytes)
                chunked = isinstance(request, WSGIRequest) and views.CHUNKED in request.META
                if not length and (chunked or _is_upload(request)):  # it would be taken for empty
                    raise RequestIncomplete("the body has no Content-Length")
                user_id = views.owner_of(user(request))
                # First, so that the form can be read as well. Of one with files not at all.
                body = b"" if _is_upload(request) else request.body
                views.check_length(len(body), known.max_bytes)  # under ASGI one may have no length
                given = request.headers.get(views.HEADER) if key is None else key(request)
                sent = _parameters(request, body)
                asked = known.request(
                    user_id, given, request.method or "", request.path, sent, kwargs
                )
                _check_whole(request)  # after a form with files has been read

                return known.run(
                    self,
                    asked,
                    lambda flow: serve(flow, request, *args, **kwargs),
                    lambda: _rewind(request),
                )

            return once

        return decorate


def _made_of(status: int, headers: list[tuple[str, str]], body: bytes) -> HttpResponse:
    response = HttpResponse(body, status=status)
    del response["Content-Type"]  # Django's default; the stored answer may have none
    for name, value in headers:
        response[name] = value
    return response


def _is_upload(request: HttpRequest) -> bool:
    """Return whether Django reads a form whose files are not in memory."""
    return (request.method, request.content_type) == ("POST", "multipart/form-data")


def _check_whole(request: HttpRequest) -> None:
    """Refuse a body whose end has not come: its client is gone, and sends it again.

    Servers let it end early (wsgiref, gunicorn); and after an error Django takes an upload that
    a middleware has begun to read for an empty one.

    Raises:
        RequestIncomplete: it is shorter than its length.
    """
    stream, body = getattr(request, "_stream", None), getattr(request, "_body", None)
    read, stated = 0, 0  # under ASGI Django has all of a form with files
    if isinstance(stream, LimitedStream):  # no public way
        read, stated = stream._pos, stream.limit
    elif body is not None:
        read, stated = len(body), int(request.META.get("CONTENT_LENGTH") or 0)
    if read < stated:
        raise RequestIncomplete("the body is shorter than its length")


def _parameters(request: HttpRequest, body: bytes) -> views.Parameters:
    media, query = request.content_type or "", request.META.get("QUERY_STRING", "")
    query = query.encode("latin-1", "replace")
    if not (media in views.FORMS and request.method == "POST"):  # of others Django reads none
        return views.parameters_of(query, media, body)
    fields = [(field, each) for field, several in request.POST.lists() for each in several]
    sent = [(field, file) for field, several in request.FILES.lists() for file in several]
    files = [(field, file.name or "", views.digest_of(file)) for field, file in sent]
    return views.parameters_of(query, media, b"", form=fields, files=files)


def _rewind(request: HttpRequest) -> None:
    """Let the body, which was read before, be read from its beginning."""
    views.rewind_files(file for _, several in request.FILES.lists() for file in several)
    if not _is_upload(request):
        request._stream = io.BytesIO(request.body)


def _refusal(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the project's answer to an error of a view that is one."""
    if request.method is None:  # the server completes it: the project's pages need a request
        return HttpResponse(status=404 if isinstance(error, Http404) else 400)
    return response_for_exception(request, error)


def _response(flow: Flow, response: Any) -> HttpResponse | None:
    """Return what a view has returned as a response; None if it has answered in `last()`."""
    if flow.answer is not None:
        return None
    if not isinstance(response, HttpResponseBase):
        raise ValueError(f"the view has returned {response!r:.80}, which is no HttpResponse")
    if response.streaming:
        views.refuse_stream(flow)
    if not getattr(response, "is_rendered", True):  # Django renders it after the view
        response.render()
    return response
