"""Paid courses: buying one, with all that can go wrong on the way chosen by hand.

The page's address has the key of its form. So the form that is sent again, and the page that is
gone back to after a crash, are the same request; a new request has another address.
"""

from __future__ import annotations

import os
import re
from typing import Any

import flask
from werkzeug.wrappers import Response

import userlock
from sample_app import catalogue, demonstration, signed_in
from sample_app.errors import BadInput
from sample_app.flows import WAIT_SECONDS, form_key, new_key, once
from sample_app.learning import courses, learners
from sample_app.pages.blueprint import is_replay, to, views
from sample_app.payment_provider import client
from sample_app.payment_provider.ledger import Mood
from sample_app.web import field
from userlock.contrib.problems import problem_of
from userlock.idempotency import Flow
from userlock.idempotency.rows import points_in, request_key

#: The provider's moods, with their words.
MOODS = {
    Mood.CHARGES: "charges",
    Mood.REFUSES: "declines the card",
    Mood.TIMES_OUT: "does not answer",
    Mood.LOSES_REPLY: "charges, and its reply is lost",
    Mood.IS_DOWN: "is down for maintenance (503)",
}
#: Errors of a request that may be sent again, or cannot be: the page says so.
_EXPECTED = (
    userlock.ExternalUnavailable,
    userlock.RequestRunning,
    userlock.FlowTakenOver,
    userlock.IdempotencyKeyReused,
    userlock.LockTimeout,
)
_KEY = re.compile(r"[0-9a-f-]{36}")
_KEYS_SHOWN = 8


@views.get("/payments")
def payments() -> str | Response:
    """Show the page of one request; without one, begin a new one."""
    _provider()
    key = flask.request.args.get("request", "")
    if not _KEY.fullmatch(key):
        return to("views.payments", request=new_key())
    state = _state(key)
    return flask.render_template(
        "payments.html",
        moods=MOODS,
        deaths=demonstration.DEATHS if flask.current_app.config["DEATHS"] else {},
        death=flask.session.get("death", ""),
        courses=catalogue.PAID_COURSES,
        **state,
    )


@views.get("/payments/state")
def payments_state() -> str:
    """Return the part of the page that changes."""
    _provider()
    return flask.render_template(
        "_payments_state.html", **_state(flask.request.args.get("request", ""))
    )


@views.post("/payments/settings")
def set_payments() -> Response:
    """Choose the provider's mood, and where the worker dies."""
    mood, death = str(field("mood")), str(field("death") or "")
    if mood not in MOODS:
        raise BadInput("mood", f"one of {', '.join(MOODS)}")
    if death and death not in demonstration.DEATHS:
        raise BadInput("death", f"one of {', '.join(demonstration.DEATHS)}")
    try:
        client.set_mood(_provider(), mood)
    except OSError:
        flask.flash("The payment provider cannot be reached.", "problem")
    else:
        flask.flash("From now on, this goes wrong.", "done")
    flask.session["death"] = death
    return to("views.payments", request=form_key())


@views.post("/payments")
def buy_course() -> Response | tuple[dict[str, Any], int]:
    """Buy a course. Scripts get what is shown to people as JSON."""
    _provider()
    replayed = False
    try:
        answer = _buy()
    except _EXPECTED as error:
        problem = problem_of(error)
        status, words = problem.status, problem.detail
    else:
        status, replayed = answer.status_code, is_replay(answer)
        words = _words(answer)
    if flask.request.accept_mimetypes.best == "application/json":
        return {"words": words, "replayed": replayed, "worker": os.getpid()}, status
    again = " This is the stored answer again." if replayed else ""
    flask.flash(f"{words}{again} Worker {os.getpid()}.", "done" if status < 400 else "problem")
    return to("views.payments", request=form_key())


@once("buy-course", user=signed_in.learner_id, key=form_key, wait_timeout=WAIT_SECONDS)
def _buy(flow: Flow) -> None:
    courses.buy_course(flow, catalogue.paid_course(str(field("course"))))


def _words(answer: flask.Response) -> str:
    told = answer.get_json()
    if answer.status_code >= 400:
        return str(told["detail"])
    title = catalogue.paid_course(told["course"]).title
    return f"Paid: “{title}”, {told['charge']}, in attempt {told['attempt']}."


def _state(key: str) -> dict[str, Any]:
    """Return what is stored about a request of the learner's, and what the provider has."""
    learner_id = signed_in.learner_id()
    learner = learners.find_learner(learner_id)
    row = request_key(learner_id, key).get(use_cache=False)
    orders = courses.orders_of(learner_id)
    try:
        provider: dict[str, Any] | None = client.state(_provider())
    except OSError:
        provider = None
    keys = provider["keys"] if provider else []
    return {
        "key": key,
        "row": row,
        "points": [] if row is None else points_in(row.points),
        "learner": learner,
        "orders": orders,
        "titles": {each.slug: each.title for each in catalogue.PAID_COURSES},
        "chosen": next((each.course for each in orders if each.request == key), None),
        "provider": provider,
        "charges": [each for each in keys if each["reference"].startswith(f"{learner_id}/")][
            :_KEYS_SHOWN
        ],
    }


def _provider() -> str:
    """Return the provider's URL; 404 for a site without one."""
    url: str | None = flask.current_app.config["PAYMENT_PROVIDER"]
    if url is None:
        flask.abort(404)
    return url
