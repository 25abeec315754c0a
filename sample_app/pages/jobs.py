"""The site's jobs as they come and go, its post office, and the mails that have arrived."""

from __future__ import annotations

from typing import Any

import flask
from werkzeug.wrappers import Response

from sample_app.learning import mails
from sample_app.outbox import outbox
from sample_app.pages.blueprint import to, views
from sample_app.words import counted

#: The most dead jobs that one request runs again.
MOST_REDRIVEN = 50


@views.get("/jobs")
def jobs() -> str:
    """Show the page. A script shows the jobs, live."""
    return flask.render_template("jobs.html", is_open=mails.is_open(), mails=mails.latest())


@views.get("/jobs.json")
def jobs_document() -> dict[str, Any]:
    """Return the mails that arrived last."""
    return {
        "mails": [
            {"at": each.at.isoformat() + "Z", "to": each.learner_id, "subject": each.subject}
            for each in mails.latest()
        ]
    }


@views.post("/jobs/post-office")
def set_post_office() -> Response:
    """Open or close the post office."""
    is_open = flask.request.form.get("open") == "yes"
    mails.set_open(is_open)
    if is_open:
        flask.flash("The post office is open.", "done")
    return to("views.jobs")


@views.post("/jobs/redrive")
def redrive() -> Response:
    """Let dead jobs run again."""
    letters = outbox().dead.redrive_all("", rate=100, busy_seconds=0.5, most=MOST_REDRIVEN)
    again = sum(redriven for _, redriven in letters)
    flask.flash(f"{counted(again, 'job')} will run again.", "done")
    return to("views.jobs")
