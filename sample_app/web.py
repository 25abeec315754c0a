"""Small helpers that pages, API and tasks share."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import cast

import flask


def now() -> datetime.datetime:
    """The time in UTC, naive as ndb keeps it, by the app's own clock (NOW: tests choose it)."""
    clock = cast(Callable[[], datetime.datetime], flask.current_app.config["NOW"])
    return clock()


def today() -> datetime.date:
    """The date of `now()`."""
    return now().date()


def utc_now() -> datetime.datetime:
    """The default for NOW."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def field(name: str) -> object:
    """A field of the request's JSON object, or of its form; None when it is missing."""
    if flask.request.is_json:
        body = flask.request.get_json()
        return body.get(name) if isinstance(body, dict) else None
    return flask.request.form.get(name)
