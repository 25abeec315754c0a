"""The site's jobs, with their names and retries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flask

from sample_app.learning import mails, nightly
from userlock.outbox import Outbox, Retry

#: Short, so that a mail dies while somebody watches. A real site keeps the default.
_MAIL_RETRY = Retry(attempts=4, first_seconds=2)


def install(app: flask.Flask, outbox: Outbox) -> None:
    """Register the jobs. They run in the app's context."""
    app.extensions["outbox"] = outbox
    for name, send in (
        ("receipt", mails.send_receipt),
        ("course-receipt", mails.send_course_receipt),
        ("badge-mail", mails.send_badges),
    ):
        mail = outbox.job(name=name, retry=_MAIL_RETRY, transactional=True)
        mail(_in_context(app, send))
    outbox.job(name="nightly")(_in_context(app, nightly.award_badges))


def _in_context(app: flask.Flask, function: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        with app.app_context():
            function(*args, **kwargs)

    return call
