"""The site's jobs, with their names and retries."""

from __future__ import annotations

import flask

from sample_app.flows import flows
from sample_app.learning import mails, nightly
from userlock.idempotency import complete_by_relay
from userlock.outbox import Outbox, Retry

#: Short, so that a mail dies while somebody watches. A real site keeps the default.
_MAIL_RETRY = Retry(attempts=4, first_seconds=2)
_DAY = 86_400


def install(app: flask.Flask, outbox: Outbox) -> None:
    """Register the jobs. They run in the app's context."""
    app.extensions["outbox"] = outbox
    for name, send in (
        ("receipt", mails.send_receipt),
        ("course-receipt", mails.send_course_receipt),
        ("badge-mail", mails.send_badges),
    ):
        outbox.job(name=name, retry=_MAIL_RETRY, transactional=True)(send)
    outbox.job(name="nightly")(nightly.award_badges)
    # Answers that are no longer kept go each day; requests that nobody sends again are completed.
    outbox.job(name="reap", owner=None, every=_DAY)(_reap)
    complete_by_relay(flows, outbox)


def _reap() -> None:
    flows.reap()
