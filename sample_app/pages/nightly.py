"""The nightly job by day: started by hand, and observed."""

from __future__ import annotations

from typing import Any

import flask
from werkzeug.wrappers import Response

import userlock
from sample_app.background import background
from sample_app.learning import nightly as job
from sample_app.models import NightlyRun
from sample_app.pages.blueprint import to, views


@views.get("/nightly")
def nightly() -> str:
    """Show the current or last run of the job."""
    run = job.latest_run()
    return flask.render_template("nightly.html", run=run, state=_state(run))


@views.get("/nightly.json")
def nightly_document() -> dict[str, Any]:
    """Return the same as JSON, for the page's progress bar."""
    run = job.latest_run()
    return {
        "over": _state(run) in {"over", "cut short", "never"},
        "done": run.done if run else 0,
        "of": run.learners if run else 0,
    }


@views.post("/nightly")
def start_nightly() -> Response:
    """Start the job in the background, or show the one in progress."""
    run = job.latest_run()
    if _state(run) == "running":
        return to("views.nightly")
    background().start("nightly job", job.award_badges)
    # The thread may not have stored anything yet. The page therefore gets the name of the previous
    # run.
    return to("views.nightly", after=_name(run))


def _state(run: NightlyRun | None) -> str:
    """Return `never`, `beginning`, `running`, `over`, or `cut short` if its process has died."""
    after = flask.request.args.get("after")
    if after == _name(run):
        return "beginning"
    if run is None:
        return "never"
    if run.over:
        return "over"
    try:
        return "running" if userlock.holder(job.LOCK_ID) else "cut short"
    except userlock.LockServiceUnavailable:
        return "running"  # Unknown for now; the next refresh shows it.


def _name(run: NightlyRun | None) -> str:
    return run.began.isoformat() if run else "never"
