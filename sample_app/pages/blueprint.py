"""What all pages share: the blueprint, and how they say that something is done."""

from __future__ import annotations

from typing import Any

import flask
from werkzeug.wrappers import Response

from sample_app import lock_notes, streaks
from sample_app.models import Learner
from sample_app.web import today

views = flask.Blueprint("views", __name__)


def to(endpoint: str, **values: Any) -> Response:
    """A redirection to a page, which is then fetched with GET."""
    return flask.redirect(flask.url_for(endpoint, **values), 303)


def done(message: str) -> None:
    """To be said on the next page, with what the lock did."""
    flask.flash(f"{message} {lock_notes.in_words()}".strip(), "done")


def shown_streak(learner: Learner) -> int:
    """The learner's streak as of today."""
    return streaks.as_of(learner.streak, learner.last_active, today())
