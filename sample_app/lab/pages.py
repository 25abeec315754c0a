"""The contention lab's pages: choose, run, view, compare. They work without JavaScript."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flask
from markupsafe import Markup
from werkzeug.wrappers import Response

from sample_app.lab import timeline
from sample_app.lab.crew import Visit
from sample_app.lab.desk import Busy, Desk, Run
from sample_app.lab.plan import MODES, Between, Plan, PlanError

pages = flask.Blueprint("lab", __name__, url_prefix="/lab")

#: The labels on the page.
_CHOICES = {
    Between.NOTHING: "None: read, think, write",
    Between.TRANSACTION: "Transaction",
    Between.LOCK: "User lock",
    Between.LOCK_WITHOUT_MEMCACHED: "User lock, memcached killed during the run",
}
_FIGURES = (
    ("accepted", "Accepted", "{:,.0f}", "requests confirmed to the client"),
    ("lost", "Lost updates", "{:,.0f}", "accepted, but missing at the end"),
    ("refused", "Refused", "{:,.0f}", "not done (409): the client may retry"),
    ("timed_out", "Timed out", "{:,.0f}", "waited too long for the lock (503)"),
    ("retries", "Retries", "{:,.0f}", "repeated runs of a critical section"),
    ("degraded", "Degraded", "{:,.0f}", "ran without an answer from memcached"),
    ("per_second", "Throughput", "{:,.1f}/s", "accepted requests"),
    ("wait_p50", "Median wait", "{:,.0f} ms", "until the critical section began"),
    ("wait_p99", "Wait, 99th percentile", "{:,.0f} ms", ""),
    ("wait_longest", "Longest wait", "{:,.0f} ms", ""),
    ("interactive_p99", "Interactive wait, 99th percentile", "{:,.0f} ms", ""),
    ("batch_p99", "Batch wait, 99th percentile", "{:,.0f} ms", ""),
)


def _desk() -> Desk:
    return Desk(Path(flask.current_app.config["LAB_DIR"]))


@pages.get("/")
def home() -> str:
    """Show the form, and the runs so far."""
    return _home({})


def _home(typed: Mapping[str, str], problem: str = "") -> str:
    """Return the page. Its form has the submitted values, else the defaults."""
    return flask.render_template(
        "lab.html",
        choices=_CHOICES,
        modes=MODES,
        plan={**dataclasses.asdict(Plan(between=Between.NOTHING)), **typed},
        runs=_desk().runs(),
        problem=problem,
        lost=_lost,
    )


@pages.post("/runs")
def start() -> Response | tuple[str, int]:
    """Start a run."""
    try:
        plan = Plan.of(flask.request.form)
    except PlanError as error:
        return _home(flask.request.form.to_dict(), str(error)), 400
    try:
        name = _desk().start(plan)
    except Busy as busy:
        flask.flash(
            "A run is in progress. Two at a time would distort each other's figures.", "problem"
        )
        name = busy.run
    return flask.redirect(flask.url_for("lab.show", name=name), 303)


@pages.get("/runs/<name>")
def show(name: str) -> str:
    """Show one run, or compare two (`?other=`)."""
    run = _found(name)
    other = flask.request.args.get("other", "")
    shown = [run, *([_found(other)] if other and other != name else [])]
    measured = [each.document["outcome"] for each in shown if each.document]
    return flask.render_template(
        "lab_run.html",
        run=run,
        shown=shown,
        figures=_FIGURES,
        written=_written,
        picture=_picture,
        # On one scale, so that longer runs look longer.
        seconds=max((each["seconds"] for each in measured), default=0.0),
        lost_any=any(each["lost"] for each in measured),
        others=[each for each in _desk().runs() if each.document and each.name != name],
    )


@pages.get("/runs/<name>.json")
def document(name: str) -> dict[str, Any]:
    """Return the progress and the result of a run."""
    run = _found(name)
    return {
        "over": run.over,
        "done": run.done,
        "of": run.plan.in_all,
        "trouble": run.trouble,
        **(run.document or {}),
    }


def _found(name: str) -> Run:
    run = _desk().find(name)
    if run is None:
        flask.abort(404, "There is no such run. The oldest runs are deleted.")
    return run


def _written(run: Run, key: str, form: str) -> str:
    value = (run.document or {})["outcome"][key]
    return "none" if value is None else form.format(value)


def _lost(run: Run) -> str:
    """Return the state of a run in a few words."""
    if run.document is None:
        return run.trouble or f"{run.done} of {run.plan.in_all} …"
    outcome = run.document["outcome"]
    return f"{outcome['lost']:,} of {outcome['accepted']:,} lost"


def _picture(run: Run, seconds: float) -> Markup:
    visits = [Visit(**each) for each in (run.document or {})["visits"]]
    return Markup(timeline.svg(visits, run.plan.title, seconds, styled=False))  # noqa: S704 (numbers, and escaped)
