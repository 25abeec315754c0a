"""The blueprint of all pages, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
from werkzeug.wrappers import Response

from sample_app import badges, lock_notes, signed_in, streaks
from sample_app.models import Learner
from sample_app.web import today

views = flask.Blueprint("views", __name__)

#: The pages that need nobody, and those that need a coach. All others need a learner.
_PUBLIC = ("home", "create", "record", "sign_in", "sign_out", "nightly", "nightly_document",
           "start_nightly", "jobs", "jobs_document", "set_post_office", "redrive")  # fmt: skip
_OF_COACHES = ("coach", "give_bonus")


@views.before_request
def authorise() -> None:
    """Refuse a request without its user before anything else of it is looked at."""
    page = str(flask.request.endpoint).removeprefix("views.")
    if page in _OF_COACHES:
        signed_in.coach_id()
    elif page not in _PUBLIC:
        signed_in.learner_id()


def to(endpoint: str, **values: Any) -> Response:
    """Return a redirection to a page, which is then fetched with GET."""
    return flask.redirect(flask.url_for(endpoint, **values), 303)


def to_wanted() -> Response:
    """Return a redirection to the page that asked for a sign-in; else to the front page."""
    wanted = flask.session.pop("wanted", None)
    return to("views.home") if wanted is None else flask.redirect(wanted, 303)


def done(message: str) -> None:
    """Show a message, and the request's locks, on the next page."""
    flask.flash(f"{message} {lock_notes.in_words()}".strip(), "done")


def report(answer: flask.Response, words: Callable[[dict[str, Any]], str]) -> None:
    """Show on the next page what a request that happens once was answered."""
    told = answer.get_json()
    if answer.status_code >= 400:
        flask.flash(told["detail"], "problem")
    else:
        again = " This form was sent again; it counts once." if is_replay(answer) else ""
        done(words(told) + again)


def is_replay(answer: flask.Response) -> bool:
    """Return whether an answer was given before."""
    return "Idempotent-Replayed" in answer.headers


def of_learner(learner: Learner) -> dict[str, Any]:
    """Return what the pages about a learner show of streak and badges."""
    return {
        "learner": learner,
        "streak": shown_streak(learner),
        "badges": badges.BADGES,
        "earned": badges.newly_earned(learner, learner.badges),
    }


def shown_streak(learner: Learner) -> int:
    """Return the learner's streak as of today."""
    return streaks.as_of(learner.streak, learner.last_active, today())
