"""The nightly job by day: started by hand, and watched."""

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
    """How the job is going, or went the last time."""
    run = job.latest_run()
    return flask.render_template("nightly.html", run=run, state=_state(run))


@views.get("/nightly.json")
def nightly_document() -> dict[str, Any]:
    """The same, for the page's progress bar."""
    run = job.latest_run()
    return {
        "over": _state(run) in {"over", "cut short", "never"},
        "done": run.done if run else 0,
        "of": run.learners if run else 0,
    }


@views.post("/nightly")
def start_nightly() -> Response:
    """Begin the job in the background; one that is under way is shown instead."""
    run = job.latest_run()
    if _state(run) == "running":
        return to("views.nightly")
    background().start("nightly job", job.award_badges)
    # The thread may not have written anything down yet, so the page is told which run is the
    # one before.
    return to("views.nightly", after=_name(run))


def _state(run: NightlyRun | None) -> str:
    """`never`, `beginning`, `running`, `over`, or `cut short` where its process has died."""
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
        return "running"  # Nobody can say; the next look tells.


def _name(run: NightlyRun | None) -> str:
    return run.began.isoformat() if run else "never"
