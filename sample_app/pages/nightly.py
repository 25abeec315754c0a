"""The nightly job by day: started by hand, and observed."""

from __future__ import annotations

from typing import Any

import flask
from werkzeug.wrappers import Response

from sample_app.learning import nightly as job
from sample_app.models import NightlyRun
from sample_app.outbox import outbox
from sample_app.pages.blueprint import to, views


@views.get("/nightly")
def nightly() -> str:
    """Show the current or last run of the job."""
    run = job.latest_run()
    return flask.render_template("nightly.html", run=run, state=_shown_state(run))


@views.get("/nightly.json")
def nightly_document() -> dict[str, Any]:
    """Return the same as JSON, for the page's progress bar and for tools."""
    run = job.latest_run()
    return {
        "over": _shown_state(run) in {"over", "dead", "never"},
        "done": run.done if run else 0,
        "of": run.learners if run else 0,
        "report": run.to_dict(exclude=("began", "over", "after")) if run else None,
    }


@views.post("/nightly")
def start_nightly() -> Response:
    """Start the job, or show the run in progress."""
    run = job.latest_run()
    if _state(run) == "running":
        return to("views.nightly")
    job.start()
    # It may not have stored anything yet. The page therefore gets the name of the previous run.
    return to("views.nightly", after=_name(run))


def _state(run: NightlyRun | None) -> str:
    """Return `never`, `running`, `over`, or `dead` if it has failed too often to be tried again.

    A run whose process has died is running: another one goes on with it.
    """
    if run is None or run.over:
        return "never" if run is None else "over"
    return "dead" if outbox().dead.list("nightly", most=1) else "running"


def _shown_state(run: NightlyRun | None) -> str:
    """Return the state, or `beginning`.

    For display only: `after`, the run before the one that was begun, is the client's word.
    """
    return "beginning" if flask.request.args.get("after") == _name(run) else _state(run)


def _name(run: NightlyRun | None) -> str:
    return run.began.isoformat() if run else "never"
