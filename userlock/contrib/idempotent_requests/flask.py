"""Requests that happen once, for views of Flask."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, Unpack

import flask
from werkzeug import Response
from werkzeug.exceptions import HTTPException

from userlock import idempotency
from userlock.arguments import check_errors
from userlock.contrib.idempotent_requests import views
from userlock.contrib.idempotent_requests.views import IdempotentView, ViewOptions
from userlock.errors import ConfigurationError, NotUnique
from userlock.idempotency import Flow


class Flows(idempotency.Flows):
    """Requests that happen once, for views of Flask. Options: as `userlock.idempotency.Flows`."""

    def idempotent(
        self,
        *,
        user: Callable[[], str | int | None],
        key: Callable[[], str | None] | None = None,
        final: tuple[type[Exception], ...] = (),
        **options: Unpack[ViewOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
        """Let a view run once for each `Idempotency-Key`, however often its request is sent.

            @app.post("/rides")
            @flows.idempotent(user=lambda: flask.session.get("user_id"))
            def create_ride(flow): ...

        The view gets a `Flow` before its other arguments. It answers in `flow.last()`, or by what
        it returns. An answer below 500 is stored with the headers that are not of one request
        alone, and given again with `Idempotent-Replayed: true`. Not those about the sender or the
        time: 401, 403, 407, 408, 425, 429.

        Args:
            user: returns the user, the owner of the key, in the request; None if nobody is signed
                in (401). It is called first.
            key: returns the idempotency key, in the request: a field of a form, as browsers send no
                header of a page's choice. By default that in the header.
            final: errors of the view that are answers, by the app's error handlers: refusals. So
                are those of `flask.abort()`, and `NotUnique`.
            options: see below.

        Options, which the integrations share:

        - `on_busy`: the same request is running: `wait` for it, or `refuse` (409).
        - `wait_timeout`: the longest wait for the user's lock, in seconds.
        - `keep_hours`: how long the answer is kept, by default as long as the others.
        - `methods`: those that need a key, by default POST and PATCH. Another one is an error.
        - `max_bytes`: the longest body of a request (10 MB). One that is no form is in memory.
        - `completable`: whether the server may complete a request whose client does not come again.
          Its parameters are stored. The view takes all it needs from its flow and the arguments of
          its route, since there is no request then, and answers in `flow.last()` or with a response
          object.
        - `name`: the name in the rows, by default the view's module and name.

        Raises:
            ConfigurationError: the view is a coroutine or a generator, or is completable and has
                errors in `final`, whose handlers need a request. Raised at once; the others are
                raised in the request.
            IdempotencyKeyRefused: the key is missing or malformed (400).
            IdempotencyKeyReused: the key belongs to another request (422).
            RequestTooLarge: the body is longer than `max_bytes` (413).
            RequestIncomplete: the end of the body has not come (400).
            NotSignedIn: `user` has returned None or an empty text (401).
            RequestRunning: the same request is running (409).
            NotStorable: the answer is a stream, or too long (500).
        """
        views.check_askers(user, key)
        refusals = final if isinstance(final, tuple) else (final,)
        check_errors("final=", refusals)
        refusals = (HTTPException, NotUnique, *refusals)

        def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
            known = IdempotentView[Response](
                view,
                lambda each: (each.status_code, each.headers.items(), each.get_data()),
                lambda status, headers, body: flask.Response(body, status, headers),
                **options,
            )
            if known.completable and final:
                raise ConfigurationError(
                    f"flow {known.name} is completable, and the handlers of its final errors need "
                    f"a request. To fix it: answer in flow.last()"
                )

            def serve(flow: Flow, *args: Any, **kwargs: Any) -> Response | None:
                try:
                    returned = view(flow, *args, **kwargs)
                except refusals as error:
                    returned = error
                    if flask.has_request_context():  # raises it again if there is no handler
                        returned = flask.current_app.handle_user_exception(error)
                    elif not isinstance(error, HTTPException):
                        raise
                return None if flow.answer is not None else _response(flow, returned, known)

            def complete(flow: Flow) -> Response | None:
                if flask.has_request_context():
                    raise RuntimeError(
                        "a view is completed outside of requests, or it would take this one for "
                        "its client's. To fix it: use complete_by_relay, `userlock flows "
                        "complete` or the inspector"
                    )
                return serve(flow, **flow.arguments)

            known.register(self, complete)

            @functools.wraps(view)
            def once(*args: Any, **kwargs: Any) -> flask.Response:
                asked = flask.request
                known.check(asked.method, args)
                if views.check_environ(asked.environ, known.max_bytes) is None:
                    unbounded = asked.environ["wsgi.input"]
                    asked.environ["wsgi.input"] = _Bounded(unbounded, known.max_bytes)
                user_id = views.owner_of(user())
                given = asked.headers.get(views.HEADER) if key is None else key()
                sent = _parameters(asked)
                path = asked.script_root + asked.path
                request = known.request(user_id, given, asked.method, path, sent, kwargs)

                served = known.run(
                    self,
                    request,
                    lambda flow: serve(flow, *args, **kwargs),
                    functools.partial(_rewind, asked),
                )
                return served if isinstance(served, flask.Response) else flask.make_response(served)

            return once

        return decorate


class _Bounded(io.RawIOBase):
    """Refuses a body in chunks that is too long. (Werkzeug's own stream ends there silently.)"""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._most = most
        self._seen = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self._stream.read(len(buffer))
        self._seen += len(piece)
        views.check_length(self._seen, self._most)
        buffer[: len(piece)] = piece
        return len(piece)


def _parameters(asked: flask.Request) -> views.Parameters:
    if asked.mimetype not in views.FORMS:
        body = asked.get_data(cache=True, parse_form_data=False)
        return views.parameters_of(asked.query_string, asked.mimetype, body)
    # The files of a form are not in memory, as its bytes would be.
    fields, sent = list(asked.form.items(multi=True)), list(asked.files.items(multi=True))
    files = [(field, file.filename or "", views.digest_of(file.stream)) for field, file in sent]
    return views.parameters_of(asked.query_string, asked.mimetype, b"", form=fields, files=files)


def _rewind(asked: flask.Request) -> None:
    """Let the body, which was read before, be read from its beginning."""
    if asked.mimetype in views.FORMS:
        views.rewind_files(file.stream for _, file in asked.files.items(multi=True))
    elif type(asked.stream) is io.BytesIO and not asked.stream.closed:
        asked.stream.seek(0)
    else:
        asked.stream = io.BytesIO(asked.get_data())


def _response(flow: Flow, returned: Any, view: IdempotentView[Response]) -> Response:
    """Return what a view has returned as a response."""
    if isinstance(returned, HTTPException):
        returned = returned.get_response()
    if view.completable and not isinstance(returned, Response):
        # Without a request there is no app that makes one.
        raise ConfigurationError(
            f"flow {view.name} is completable, and its view has returned a "
            f"{type(returned).__name__}. To fix it: answer in flow.last(), or return a response "
            f"object"
        )
    response: Response = (
        returned if isinstance(returned, Response) else flask.make_response(returned)
    )
    if response.is_streamed or response.direct_passthrough:
        views.refuse_stream(flow)
    return response
