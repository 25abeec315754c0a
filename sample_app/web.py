"""Small helpers that pages, API and tasks share."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import cast

import flask


def today() -> datetime.date:
    """Today's UTC date, by the app's own clock (config TODAY, so that tests can choose it)."""
    clock = cast(Callable[[], datetime.date], flask.current_app.config["TODAY"])
    return clock()


def utc_today() -> datetime.date:
    """The default for TODAY."""
    return datetime.datetime.now(datetime.UTC).date()


def field(name: str) -> object:
    """A field of the request's JSON object, or of its form; None when it is missing."""
    if flask.request.is_json:
        body = flask.request.get_json()
        return body.get(name) if isinstance(body, dict) else None
    return flask.request.form.get(name)
