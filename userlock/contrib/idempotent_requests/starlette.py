"""Requests that happen once, for endpoints of Starlette and FastAPI."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Unpack, get_args, is_typeddict

try:
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse, Response
except ImportError as error:  # pragma: no cover
    raise ImportError("Flows need Starlette or FastAPI: pip install starlette") from error

from userlock import idempotency
from userlock.contrib.idempotent_requests import views
from userlock.contrib.idempotent_requests.views import IdempotentView, ViewOptions
from userlock.errors import ConfigurationError
from userlock.idempotency import Flow
from userlock.idempotency.answers import json_answer

#: The name under which FastAPI hands over the request, if the view does not ask for it.
_REQUEST = "userlock_request"


class Flows(idempotency.Flows):
    """Requests that happen once, for endpoints of Starlette and FastAPI.

    Options: as `userlock.idempotency.Flows`; with `client=`, as views run in threads.
    """

    def idempotent(
        self,
        *,
        user: Callable[[HttpRequest], str | int | Awaitable[str | int | None] | None],
        key: Callable[[HttpRequest], str | Awaitable[str | None] | None] | None = None,
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Response]]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @app.post("/rides")
            @flows.idempotent(user=lambda request: request.session.get("user_id"))
            def create_ride(flow, ride: Ride): ...

        The view is a plain function, and runs in a thread with an ndb context. Its parameter `flow`
        is the flow; of its other parameters FastAPI gives what it knows, and Starlette `request`.
        It answers in `flow.last()`, or returns a response or a JSON value; an `HTTPException` is an
        answer, too. `user` and `key` may be coroutine functions, which a form needs (`await
        request.form()`, with python-multipart). Options, answers and errors: as in
        `userlock.contrib.flask.Flows.idempotent`. A completable view takes its flow and the
        parameters of the path only.
        """

        views.check_askers(user, key)

        def decorate(view: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
            known = IdempotentView[Response](
                view,
                lambda each: (each.status_code, each.headers.items(), bytes(each.body)),
                _made_of,
                **options,
            )
            signature = inspect.signature(view, eval_str=True)
            parameters = signature.parameters
            if "flow" not in parameters:
                raise ConfigurationError(
                    f"flow {known.name} needs a parameter `flow`. To fix it: add it to the view"
                )
            if _has_fields(signature.return_annotation):
                raise _shaped(known.name, "the model that it is annotated to return")
            asked_as = next(_named_for(HttpRequest, parameters), _REQUEST)
            if list(_named_for(Response, parameters)):
                raise _shaped(known.name, "a parameter that is its response")
            injected = {name for name, each in parameters.items() if _is_injected(each)}

            def serve(flow: Flow, arguments: dict[str, Any]) -> Response | None:
                made = {each: _fresh(arguments[each]) for each in arguments.keys() - injected}
                try:
                    returned = view(flow=flow, **{**arguments, **made})
                except HTTPException as error:
                    detail = {"detail": error.detail}
                    returned = JSONResponse(detail, error.status_code, error.headers)
                return None if flow.answer is not None else _response(flow, returned)

            def complete(flow: Flow) -> Response | None:
                names = parameters & flow.arguments.keys()
                return serve(flow, {each: flow.arguments[each] for each in names})

            known.register(self, complete)

            @functools.wraps(view)
            async def once(*args: Any, **arguments: Any) -> Response:
                request: HttpRequest = args[0] if args else arguments[asked_as]
                arguments.pop(_REQUEST, None)
                if args and "request" in parameters:
                    arguments["request"] = request
                _check_route(known.name, request.scope.get("route"))
                known.check(
                    request.method, parameters.keys() - request.path_params.keys() - {"flow"}
                )

                def work() -> Response:
                    with self.context(own=True):
                        return known.run(
                            self,
                            asked,
                            lambda flow: serve(flow, arguments),
                            lambda: views.rewind_files(files),
                        )

                try:
                    _bound(request, known.max_bytes)
                    user_id = views.owner_of(await _value(user(request)))
                    given = key(request) if key is not None else request.headers.get(views.HEADER)
                    given = await _value(given)
                    # Of a path's parameters the values that the view gets: FastAPI converts them.
                    given_path = request.path_params.items()
                    path = {each: arguments.get(each, text) for each, text in given_path}
                    sent, files = await _parameters(request, known.max_bytes)
                    # Not of `request.url`: it does not tell an escaped character from a plain one.
                    method, route = request.method, request.scope["path"]
                    asked = known.request(user_id, given, method, route, sent, path)
                    # Of 40 threads. asyncio's own are few: one user's requests would take all.
                    return await run_in_threadpool(work)
                finally:
                    await request.close()  # the files of a form

            once.__signature__ = _without_flow(signature, asked_as)  # type: ignore[attr-defined]  # FastAPI reads it
            return once

        return decorate


def _bound(request: HttpRequest, most: int) -> None:
    """Refuse a body that is too long, before it is read; one in chunks, when it is."""
    views.check_length(request.headers.get("content-length"), most)
    receive, seen = request.receive, 0

    async def receive_bounded() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        views.check_length(seen, most)
        return message

    # No public way: another Request would not have what FastAPI has read by this one.
    request._receive = receive_bounded


async def _digest_of(file: Any) -> str:
    digest = hashlib.sha256()
    await file.seek(0)
    while piece := await file.read(views.PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _named_for(kind: type, parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    for name, each in parameters.items():
        if inspect.isclass(each.annotation) and issubclass(each.annotation, kind):
            yield name


def _is_injected(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is a dependency's result, which may be anybody's."""
    marks = parameter.default, *getattr(parameter.annotation, "__metadata__", ())
    return any(type(each).__name__ in ("Depends", "Security") for each in marks)


def _fresh(argument: Any) -> Any:
    """Return a view's argument as FastAPI has made it of the request.

    A run of the view may change models, lists and dicts.
    """
    if type(argument) in (list, tuple, set):
        return type(argument)(map(_fresh, argument))
    if type(argument) is dict:
        return {key: _fresh(value) for key, value in argument.items()}
    if _has_fields(type(argument)) and hasattr(argument, "__dict__"):
        argument = copy.copy(argument)
        vars(argument).update(_fresh(vars(argument)))
    return argument


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def _without_flow(signature: inspect.Signature, asked_as: str) -> inspect.Signature:
    """Return the signature of a view for FastAPI: with the request, without the flow."""
    shown = [each for each in signature.parameters.values() if each.name != "flow"]
    if asked_as == _REQUEST:
        kind = inspect.Parameter.KEYWORD_ONLY
        shown.append(inspect.Parameter(_REQUEST, kind, annotation=HttpRequest))
    return signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)


def _has_fields(annotation: Any) -> bool:
    """Return whether FastAPI would leave out of an answer what an annotation does not name."""
    annotation = getattr(annotation, "__value__", annotation)  # of a `type` statement
    named = ("_fields", "model_fields", "__dataclass_fields__")
    if inspect.isclass(annotation) and any(hasattr(annotation, each) for each in named):
        return True
    return is_typeddict(annotation) or any(map(_has_fields, get_args(annotation)))


def _check_route(name: str, route: Any) -> None:
    """Refuse a route of FastAPI whose options would change an answer that is stored before.

    Else the client would get what they leave out.
    """
    for option in ("response_model", "status_code"):
        if getattr(route, option, None) is not None:
            raise _shaped(name, f"{option}=")
    kind = getattr(route, "response_class", None)
    if inspect.isclass(kind) and not issubclass(kind, JSONResponse):
        raise _shaped(name, "response_class=")


def _shaped(name: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"flow {name}: FastAPI does not apply {what} to an answer that is stored. To fix it: "
        f"remove it, and return only what the client may see, with its status. For the "
        f"documentation there is responses="
    )


async def _parameters(asked: HttpRequest, most: int) -> tuple[views.Parameters, list[Any]]:
    """Return the parameters of a request, and its files."""
    media = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    query = asked.scope.get("query_string", b"")
    # FastAPI reads a body for the parameters of a view, before there is a bound.
    if media not in views.FORMS:
        body = await asked.body()
        views.check_length(len(body), most)
        return views.parameters_of(query, media, body), []
    form, files, opened, size = [], [], [], 0
    for field, value in (await asked.form()).multi_items():
        if isinstance(value, str):
            form.append((field, value))
            size += len(value)
        else:
            size += value.size or 0
            files.append((field, value.filename or "", await _digest_of(value)))
            opened.append(value.file)
    views.check_length(size, most)
    return views.parameters_of(query, media, b"", form=form, files=files), opened


def _response(flow: Flow, returned: Any) -> Response:
    """Return what a view has returned as a response."""
    if not isinstance(returned, Response):
        answer = json_answer(returned)
        return Response(answer.body, answer.status, media_type="application/json")
    if not isinstance(getattr(returned, "body", None), bytes):
        views.refuse_stream(flow)
    return returned


def _made_of(status: int, headers: list[tuple[str, str]], body: bytes) -> Response:
    response = Response(body, status)
    for name, value in headers:
        response.headers.append(name, value)
    return response
