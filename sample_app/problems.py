"""Responses to refusals and errors: a problem document (RFC 9457) for the API, else a page.

The library's own responses (503, 409, and 500 if the outcome is in doubt) are used for the API, and
the site's have the same form. Browsers get the same status with a page that explains it in plain
words.
"""

from __future__ import annotations

import logging

import flask
from google.api_core.exceptions import GoogleAPIError
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.wrappers import Response

import userlock
from sample_app.errors import ElsewhereForm, Refused, SignInFirst, Unknown
from sample_app.pages import views
from userlock.contrib.problems import ANSWERED, Problem, problem_of

log = logging.getLogger(__name__)

Answer = Response | tuple[Response, int] | tuple[str, int] | tuple[str, int, dict[str, str]]


def install(app: flask.Flask) -> None:
    """Register the error handlers."""
    app.register_error_handler(Refused, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(GoogleAPIError, _datastore_trouble)


@views.errorhandler(userlock.LockTimeout)
def _busy(error: userlock.LockTimeout) -> Answer:
    page = _page(
        "One moment, please",
        "Another request is changing this learner right now. "
        "Your change was not saved: go back and try again.",
    )
    return page, 503, {"Retry-After": "1"}


@views.errorhandler(userlock.LockServiceUnavailable)
def _no_locks(error: userlock.LockServiceUnavailable) -> Answer:
    page = _page(
        "One moment, please",
        "Nothing can be saved safely right now, so nothing was changed: try again in a moment.",
    )
    return page, 503, {"Retry-After": "1"}


@views.errorhandler(userlock.StaleWriteError)
def _stale(error: userlock.StaleWriteError) -> Answer:
    if error.may_have_landed:
        return _in_doubt(error)
    page = _page(
        "Another request was faster",
        "Meanwhile the learner was changed by another request. "
        "To lose neither change, yours was not saved: go back and try again.",
    )
    return page, 409


@views.errorhandler(userlock.CommitInDoubt)
def _in_doubt(error: userlock.CommitInDoubt | userlock.StaleWriteError) -> Answer:
    # No Retry-After: a change that did land would be made twice.
    page = _page(
        "Saved, or not?",
        "A reply of the database was lost, so it is not certain that your change was saved. "
        "Check the learner before you try again: it might count twice.",
    )
    return page, 500


def _flow(error: userlock.FlowError) -> Answer:
    problem = problem_of(error)
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    return _page(problem.title, problem.detail), problem.status, headers


for _kind in ANSWERED:
    if issubclass(_kind, userlock.FlowError):
        views.register_error_handler(_kind, _flow)


def _refused(error: Refused) -> Answer:
    if _for_a_program():
        return _document(Problem(status=error.status, detail=str(error), error=error.code))
    if isinstance(error, SignInFirst):
        flask.flash(str(error), "notice")
        if flask.request.method == "GET":
            flask.session["wanted"] = flask.request.path
        return flask.redirect(flask.url_for("views.home"), 303)
    if flask.request.method == "POST" and not isinstance(error, Unknown | ElsewhereForm):
        # Back to the page with the form, which shows the message.
        flask.flash(str(error), "notice" if error.expected else "problem")
        return flask.redirect(_form_of(flask.request), 303)
    return _page("Not here", str(error)), error.status


def _form_of(request: flask.Request) -> str:
    """Return the page of the submitted form: the same address, else the front page."""
    here = flask.current_app.create_url_adapter(request)
    assert here is not None
    return request.path if here.test(method="GET") else flask.url_for("views.home")


def _datastore_trouble(error: GoogleAPIError) -> Answer:
    """Report a Datastore outage, or a transaction that lost too many races without memcached."""
    log.error("Datastore: %s", error, exc_info=error)
    # No Retry-After after a write: a change that did land would be made twice.
    reading = flask.request.method in {"GET", "HEAD"}
    message = "The data cannot be reached right now" + (
        ": try again in a moment."
        if reading
        else ", so it is not certain that your change was saved. Check before you try again."
    )
    if _for_a_program():
        return _document(
            Problem(
                status=503,
                detail=message,
                error="datastore_unavailable",
                retry_after=1 if reading else None,
            )
        )
    return _page("One moment, please", message), 503, {"Retry-After": "1"} if reading else {}


def _http_error(error: HTTPException) -> Answer:
    status, detail = error.code or 500, error.description or ""
    if status == 404 and detail == NotFound.description:
        detail = "There is no such page."
    if status < 400:  # a redirection
        return error.get_response()
    if _for_a_program():
        code = error.name.lower().replace(" ", "_")
        answer = _document(Problem(status=status, detail=detail, error=code))
    else:
        answer = flask.Response(_page(error.name, detail), status)
    for name, value in error.get_headers():
        if name != "Content-Type":  # except Allow, Retry-After
            answer.headers[name] = value
    return answer


def _document(problem: Problem) -> flask.Response:
    return flask.Response(problem.body, problem.status, problem.headers)


def _page(title: str, message: str) -> str:
    return flask.render_template("problem.html", title=title, message=message)


def _for_a_program() -> bool:
    return flask.request.path.startswith(("/api/", "/tasks/", "/healthz", "/lab/bench/"))
