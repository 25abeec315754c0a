"""Small helpers shared by pages, API and tasks."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import cast

import flask


def now() -> datetime.datetime:
    """Return the time in UTC, naive as in ndb, by the app's own clock (tests set NOW)."""
    clock = cast(Callable[[], datetime.datetime], flask.current_app.config["NOW"])
    return clock()


def today() -> datetime.date:
    """Return the date of `now()`."""
    return now().date()


def utc_now() -> datetime.datetime:
    """Return the time by the system's clock: the default of NOW."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def field(name: str) -> object:
    """Return a field of the request's JSON object or form; None if it is missing."""
    if flask.request.is_json:
        try:
            body = flask.request.get_json()
        except RecursionError:
            flask.abort(400, "The JSON document is nested too deeply.")
        return body.get(name) if isinstance(body, dict) else None
    return flask.request.form.get(name)
