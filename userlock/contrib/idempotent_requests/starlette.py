"""Requests that happen once, for endpoints of Starlette and FastAPI."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

try:
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse, Response
except ImportError as error:  # pragma: no cover
    raise ImportError("Flows need Starlette or FastAPI: pip install starlette") from error

from userlock import idempotency
from userlock.contrib.idempotent_requests.views import (
    FORMS,
    HEADER,
    PIECE_BYTES,
    IdempotentView,
    Parameters,
    ViewOptions,
    check_length,
    headers_of,
    key_of,
    parameters_of,
    refuse_stream,
)
from userlock.errors import ConfigurationError
from userlock.idempotency import Answer, Flow, Request
from userlock.idempotency.answers import json_answer, kept
from userlock.lock.lease import check_lock_id

#: The name under which FastAPI hands over the request, if the view does not ask for it.
_REQUEST = "userlock_request"


class Flows(idempotency.Flows):
    """Requests that happen once, for endpoints of Starlette and FastAPI.

    Options: as `userlock.idempotency.Flows`; with `client=`, as views run in threads.
    """

    def idempotent(
        self,
        *,
        user: Callable[[HttpRequest], str | int | Awaitable[str | int]],
        key: Callable[[HttpRequest], str | Awaitable[str | None] | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Response]]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @app.post("/rides")
            @flows.idempotent(user=lambda request: request.state.user_id)
            def create_ride(flow, ride: Ride): ...

        The view is a plain function, and runs in a thread with an ndb context. Its
        parameter `flow` is the flow; of its other parameters FastAPI gives what it knows,
        and Starlette `request`. It answers in `flow.last()`, or returns a response or a
        JSON value; an `HTTPException` is an answer, too. `user` and `key` may be coroutine
        functions, which a form needs (`await request.form()`, with python-multipart).
        Options, answers and errors: as in `userlock.contrib.flask.Flows.idempotent`. A
        completable view takes its flow and the parameters of the path only.
        """

        def decorate(view: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
            known = IdempotentView(view, **options)
            parameters = inspect.signature(view).parameters
            if "flow" not in parameters:
                raise ConfigurationError(
                    f"flow {known.name} needs a parameter `flow`. To fix it: add it to the view"
                )

            def serve(flow: Flow, arguments: dict[str, Any]) -> Response | None:
                try:
                    returned = view(flow=flow, **arguments)
                except HTTPException as error:
                    detail = {"detail": error.detail}
                    returned = JSONResponse(detail, error.status_code, error.headers)
                return None if flow.answer is not None else _response(flow, returned)

            def complete(flow: Flow) -> Answer | None:
                of_view = {
                    name: flow.arguments[name] for name in parameters & flow.arguments.keys()
                }
                return _stored(serve(flow, of_view))

            if known.completable:
                self.register(known.name, complete, known.keep_hours)

            @functools.wraps(view)
            async def once(*args: Any, **arguments: Any) -> Response:
                request: HttpRequest = args[0] if args else arguments.pop(_REQUEST, None)
                if args and "request" in parameters:
                    arguments["request"] = request
                request = request or arguments["request"]
                known.check_method(request.method)
                made: list[Response | None] = []

                async def answered() -> Answer:
                    _bound(request, known.max_bytes)
                    given = key(request) if key is not None else request.headers.get(HEADER)
                    found = await _value(given)
                    user_id = check_lock_id(await _value(user(request)))
                    # Of a path's parameters the values that the view gets: FastAPI converts them.
                    path = {
                        each: arguments.get(each, text)
                        for each, text in request.path_params.items()
                    }
                    asked = await _request(known, user_id, key_of(found), request, path)

                    def run(flow: Flow) -> Answer | None:
                        made[:] = [serve(flow, arguments)]
                        return _stored(made[0])

                    def work() -> Answer:
                        with self.context(own=True):
                            return known.run(self, asked, run)

                    # Of 40 threads. asyncio's own are few: one user's requests would take all.
                    return await run_in_threadpool(work)

                try:
                    answer = await answered()
                finally:
                    await request.close()  # the files of a form
                if made and made[0] is not None and not answer.replayed:
                    return made[0]  # with all of its headers
                response = Response(answer.body, answer.status)
                for name, value in headers_of(answer):
                    response.headers.append(name, value)
                return response

            once.__signature__ = _signature(view)  # type: ignore[attr-defined]  # FastAPI reads it
            return once

        return decorate


def _bound(request: HttpRequest, most: int) -> None:
    """Refuse a body that is too long, before it is read; one in chunks, when it is."""
    check_length(request.headers.get("content-length"), most)
    receive, seen = request.receive, 0

    async def receive_bounded() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        check_length(seen, most)
        return message

    # No public way: another Request would not have what FastAPI has read by this one.
    request._receive = receive_bounded


async def _digest_of(file: Any) -> str:
    digest = hashlib.sha256()
    while piece := await file.read(PIECE_BYTES):
        digest.update(piece)
    await file.seek(0)
    return digest.hexdigest()


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def _signature(view: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a view for FastAPI: with the request, without the flow."""
    signature = inspect.signature(view, eval_str=True)
    shown = [each for each in signature.parameters.values() if each.name != "flow"]
    if "request" not in signature.parameters:
        kind = inspect.Parameter.KEYWORD_ONLY
        shown.append(inspect.Parameter(_REQUEST, kind, annotation=HttpRequest))
    return signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)


async def _request(
    view: IdempotentView, user_id: str, key: str, asked: HttpRequest, path: dict[str, Any]
) -> Request:
    found = await _parameters(asked, view.max_bytes)
    # Not that of `asked.url`, where an escaped path is the same as one that has the character.
    return view.request(user_id, key, asked.method, asked.scope["path"], found, path)


async def _parameters(asked: HttpRequest, most: int) -> Parameters:
    media = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    query = asked.scope.get("query_string", b"")
    # FastAPI reads a body for the parameters of a view, before there is a bound.
    if media not in FORMS:
        body = await asked.body()
        check_length(len(body), most)
        return parameters_of(query, media, body)
    form, files, size = [], [], 0
    for field, value in (await asked.form()).multi_items():
        if isinstance(value, str):
            form.append((field, value))
            size += len(value)
        else:
            size += value.size or 0
            files.append((field, value.filename or "", await _digest_of(value)))
    check_length(size, most)
    return parameters_of(query, media, b"", form=form, files=files)


def _response(flow: Flow, returned: Any) -> Response:
    """Return what a view has returned as a response."""
    if not isinstance(returned, Response):
        answer = json_answer(returned)
        return Response(answer.body, answer.status, media_type="application/json")
    if not isinstance(getattr(returned, "body", None), bytes):
        refuse_stream(flow)
    return returned


def _stored(response: Response | None) -> Answer | None:
    """Return a response as an answer; None if the view has answered in `last()`."""
    if response is None:
        return None
    return Answer(response.status_code, kept(response.headers.items()), bytes(response.body))
