"""The nightly job by day: started by hand, and observed."""

from __future__ import annotations

import logging
from typing import Any

import flask
from werkzeug.wrappers import Response

import userlock
from sample_app.background import background
from sample_app.learning import nightly as job
from sample_app.models import NightlyRun
from sample_app.pages.blueprint import to, views

log = logging.getLogger(__name__)


@views.get("/nightly")
def nightly() -> str:
    """Show the current or last run of the job."""
    run = job.latest_run()
    return flask.render_template("nightly.html", run=run, state=_shown_state(run))


@views.get("/nightly.json")
def nightly_document() -> dict[str, Any]:
    """Return the same as JSON, for the page's progress bar."""
    run = job.latest_run()
    return {
        "over": _shown_state(run) in {"over", "cut short", "never"},
        "done": run.done if run else 0,
        "of": run.learners if run else 0,
    }


@views.post("/nightly")
def start_nightly() -> Response:
    """Start the job in the background, or show the one in progress."""
    run = job.latest_run()
    if _is_running(run) or not background().start("nightly job", _run):
        return to("views.nightly")
    # The thread may not have stored anything yet. The page therefore gets the name of the previous
    # run.
    return to("views.nightly", after=_name(run))


def _run() -> None:
    try:
        job.award_badges()
    except userlock.LockTimeout:
        log.info("the nightly job is running already")  # begun in another process at the same time


def _is_running(run: NightlyRun | None) -> bool:
    """Return whether the job holds its lock: also before it has stored anything."""
    try:
        return userlock.holder(job.LOCK_ID) is not None
    except userlock.LockServiceUnavailable:
        return run is not None and not run.over  # Unknown for now; the next refresh shows it.


def _shown_state(run: NightlyRun | None) -> str:
    """Return `never`, `beginning`, `running`, `over`, or `cut short` if its process has died.

    For display only: `after`, the run before the one that was begun, is the client's word.
    """
    if flask.request.args.get("after") == _name(run):
        return "beginning"
    if run is None:
        return "never"
    if run.over:
        return "over"
    return "running" if _is_running(run) else "cut short"


def _name(run: NightlyRun | None) -> str:
    return run.began.isoformat() if run else "never"
