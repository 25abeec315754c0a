"""Requests that happen once, however often they are sent: the site's payments, of all kinds.

The API takes the key from the header `Idempotency-Key`; a page's form has it in a hidden field,
so that it works without scripts.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any, cast

import flask

from sample_app.config import Settings
from sample_app.errors import Refused
from sample_app.protection import ndb_client
from userlock.clock import Clock
from userlock.contrib.flask import Flows
from userlock.contrib.problems import Problem
from userlock.idempotency import Flow

#: The longest wait for the user's lock. The lease of a worker that was killed ends within ten.
WAIT_SECONDS = 15.0


class _AppClock:
    """The clock of the running app."""

    def now(self) -> float:
        return _clock().now()

    def wall(self) -> float:
        return _clock().wall()

    def sleep(self, seconds: float) -> None:
        _clock().sleep(seconds)


flows = Flows(client=lambda: ndb_client(Settings.load()), clock=_AppClock())


def once(
    name: str,
    *,
    user: Callable[[], str],
    key: Callable[[], str | None] | None = None,
    wait_timeout: float = 5,
    completable: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
    """Let a view run once for each key. Its refusals are answers, too, and given again."""

    def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
        @functools.wraps(view)
        def answered(flow: Flow, *args: Any, **kwargs: Any) -> Any:
            try:
                return view(flow, *args, **kwargs)
            except Refused as refusal:
                problem = Problem(status=refusal.status, detail=str(refusal), error=refusal.code)
                return flask.Response(problem.body, problem.status, problem.headers)

        decorated = flows.idempotent(
            user=user, key=key, wait_timeout=wait_timeout, name=name, completable=completable
        )
        return decorated(answered)

    return decorate


def form_key() -> str:
    """Return the key of the request's form; empty if there is none."""
    return flask.request.form.get("request", "")


def new_key() -> str:
    """Return a key for a form. Also for templates."""
    return str(uuid.uuid4())


def _clock() -> Clock:
    return cast(Clock, flask.current_app.config["CLOCK"])
