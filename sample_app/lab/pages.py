"""The contention lab's pages: choose, run, look, compare. Without JavaScript, too."""

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

#: By what they are called on the page.
_CHOICES = {
    Between.NOTHING: "nothing: read, think, write",
    Between.TRANSACTION: "a transaction",
    Between.LOCK: "the user lock",
    Between.LOCK_WITHOUT_MEMCACHED: "the user lock, and memcached is killed on the way",
}
_FIGURES = (
    ("accepted", "Accepted", "{:,.0f}", "requests whose clients were told: done"),
    ("lost", "Lost updates", "{:,.0f}", "accepted, and not there in the end"),
    ("refused", "Refused", "{:,.0f}", "told that it was not done (409): to be tried again"),
    ("gave_up", "Gave up", "{:,.0f}", "waited in vain (503)"),
    ("retries", "Ran again", "{:,.0f}", "how often a critical section was run once more"),
    ("degraded", "Without memcached", "{:,.0f}", "ran without the lock's word"),
    ("per_second", "Accepted a second", "{:,.1f}", ""),
    ("wait_p50", "Wait, half of them", "{:,.0f} ms", "until the critical section began"),
    ("wait_p99", "Wait, 99 %", "{:,.0f} ms", ""),
    ("wait_longest", "Longest wait", "{:,.0f} ms", ""),
    ("people_p99", "Wait of people, 99 %", "{:,.0f} ms", ""),
    ("batch_p99", "Wait of batch, 99 %", "{:,.0f} ms", ""),
)


def _desk() -> Desk:
    return Desk(Path(flask.current_app.config["LAB_DIR"]))


@pages.get("/")
def home() -> str:
    """The form, and the runs so far."""
    return _home({})


def _home(typed: Mapping[str, str], problem: str = "") -> str:
    """The page; its form has what was typed, else the usual."""
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
        flask.flash("A run is under way: two at a time would measure each other.", "problem")
        name = busy.run
    return flask.redirect(flask.url_for("lab.show", name=name), 303)


@pages.get("/runs/<name>")
def show(name: str) -> str:
    """One run, or two side by side (`?beside=`)."""
    run = _found(name)
    other = flask.request.args.get("beside", "")
    shown = [run, *([_found(other)] if other and other != name else [])]
    measured = [each.document["outcome"] for each in shown if each.document]
    return flask.render_template(
        "lab_run.html",
        run=run,
        shown=shown,
        figures=_FIGURES,
        written=_written,
        picture=_picture,
        # On one scale, so that what takes longer looks longer.
        seconds=max((each["seconds"] for each in measured), default=0.0),
        lost_any=any(each["lost"] for each in measured),
        others=[each for each in _desk().runs() if each.document and each.name != name],
    )


@pages.get("/runs/<name>.json")
def document(name: str) -> dict[str, Any]:
    """How a run is going, and what was measured."""
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
        flask.abort(404, "There is no such run; the oldest are forgotten.")
    return run


def _written(run: Run, key: str, form: str) -> str:
    value = (run.document or {})["outcome"][key]
    return "none" if value is None else form.format(value)


def _lost(run: Run) -> str:
    """A run in a few words."""
    if run.document is None:
        return run.trouble or f"{run.done} of {run.plan.in_all} …"
    outcome = run.document["outcome"]
    return f"{outcome['lost']:,} of {outcome['accepted']:,} lost"


def _picture(run: Run, seconds: float) -> Markup:
    visits = [Visit(**each) for each in (run.document or {})["visits"]]
    return Markup(timeline.svg(visits, run.plan.title, seconds))  # noqa: S704 (numbers, and escaped)
