"""The contention lab's pages: choose, run, view, compare. They work without JavaScript."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flask
from markupsafe import Markup
from werkzeug.wrappers import Response

from sample_app.lab import timeline, waits
from sample_app.lab.crashes import strip
from sample_app.lab.crashes.outcome import Order, wrong
from sample_app.lab.crashes.outcome import verdict as crash_verdict
from sample_app.lab.crew import Visit
from sample_app.lab.desk import MOST_KEPT, Busy, Desk, Run
from sample_app.lab.outcome import lost_visits, milliseconds, verdict
from sample_app.lab.plan import (
    MODES,
    Between,
    CrashPlan,
    Plan,
    PlanError,
    Scenario,
    options_of,
    with_each,
)

pages = flask.Blueprint("lab", __name__, url_prefix="/lab")

#: The labels on the page.
_CHOICES = {
    Between.NOTHING: "None: read, think, write",
    Between.TRANSACTION: "Transaction",
    Between.LOCK: "User lock",
    Between.LOCK_WITHOUT_MEMCACHED: "User lock, memcached killed during the run",
}
_SCENARIOS = {
    Scenario.ORDERS: "Orders: stored, and the warehouse is told. With userlock by a job",
    Scenario.PAYMENTS: "Payments: charged, and stored. With userlock as an idempotent request",
}
#: The explanations of the forms' fields.
_HELP = {
    "mode": "How the emulator treats conflicting transactions; the service has the same three.",
    "clients": "1 to 32. Each sends its requests one after the other.",
    "requests": "1 to 200. All increment the same counter.",
    "hold_ms": "0 to 500. The longer, the more updates collide.",
    "batch_percent": "Batch work lets people pass where the lock is used.",
    "orders": "1 to 100. Clients send each until it is confirmed.",
    "kill_percent": "Of the orders. The worker is killed between the two halves, as by kill -9.",
}


class _Figure(NamedTuple):
    key: str
    title: str
    about: str
    #: Counts are whole numbers; waits are times.
    form: Callable[[float], str] = "{:,.0f}".format


#: Those that decide come first, which is what a phone shows.
_FIGURES = (
    _Figure("lost", "Lost updates", "accepted, but missing at the end"),
    _Figure("accepted", "Accepted", "requests confirmed to the client"),
    _Figure("wait_longest", "Longest wait", "until the critical section began", milliseconds),
    _Figure("refused", "Refused", "not done (409): the client may retry"),
    _Figure("timed_out", "Timed out", "waited too long for the lock (503)"),
    _Figure("per_second", "Throughput", "accepted requests", "{:,.1f}/s".format),
    _Figure("wait_p50", "Median wait", "", milliseconds),
    _Figure("interactive_p99", "People, 99 %", "waited at most so long", milliseconds),
    _Figure("batch_p99", "Batch, 99 %", "waited at most so long", milliseconds),
    _Figure("retries", "Retries", "repeated runs of a critical section"),
    _Figure("degraded", "Degraded", "ran without an answer from memcached"),
)


#: The same for orders.
_CRASH_FIGURES = (
    _Figure("without_effect", "Without effect", "stored, but the other service did nothing"),
    _Figure("repeated", "Repeated", "the other service did its part more than once"),
    _Figure("without_order", "Without order", "the other service did its part for nothing"),
    _Figure("stored", "Stored", "orders at the end"),
    _Figure("confirmed", "Confirmed", "orders that were confirmed to their client"),
    _Figure("killed", "Killed", "workers, between the two halves"),
    _Figure("sent", "Requests", "with those that were sent again"),
    _Figure("seconds", "Time", "until all was done", "{:,.0f} s".format),
)


class _Result(NamedTuple):
    """One plan of a run, with its result."""

    run: Run
    plan: Plan
    document: dict[str, Any]

    @property
    def verdict(self) -> str:
        return verdict(self.document["outcome"])

    @property
    def lost(self) -> int:
        lost: int = self.document["outcome"]["lost"]
        return lost

    def written(self, figure: _Figure) -> str:
        """Return a figure as people write it."""
        value = self.document["outcome"][figure.key]
        return "none" if value is None else figure.form(value)

    @property
    def visits(self) -> list[Visit]:
        return [Visit(**each) for each in self.document["visits"]]

    def timeline(self, seconds: float, *, key: bool) -> Markup:
        """Return the picture of its requests, in a width of so many seconds, with a key or none."""
        visits = self.visits
        lost = lost_visits(visits, self.document["outcome"]["stored"])
        drawn = timeline.svg(
            visits,
            self.plan.title,
            seconds,
            lost=lost,
            killed_at=self.document.get("killed_at"),
            styled=False,
            key=key,
        )
        return Markup(drawn)  # noqa: S704 (numbers, and escaped)

    def waits(self, longest: float) -> Markup:
        """Return the picture of its waits, up to the longest, in milliseconds."""
        return Markup(waits.svg(self.visits, self.plan.title, longest / 1000))  # noqa: S704


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
        plan={
            **dataclasses.asdict(CrashPlan(scenario=Scenario.ORDERS)),
            **dataclasses.asdict(Plan(between=Between.NOTHING)),
            **typed,
        },
        scenarios=_SCENARIOS,
        runs=_desk().runs(),
        problem=problem,
        help=_HELP,
        state=_state,
    )


@pages.post("/runs")
def start() -> Response | tuple[str, int]:
    """Start a run, of one protection or of all."""
    try:
        plan = Plan.of(flask.request.form)
    except PlanError as error:
        return _home(flask.request.form.to_dict(), str(error)), 400
    plans = with_each(plan) if "all" in flask.request.form else [plan]
    return _started(*plans)


@pages.post("/crashes")
def start_crashes() -> Response | tuple[str, int]:
    """Start a run with orders whose workers are killed."""
    try:
        plan = CrashPlan.of(flask.request.form)
    except PlanError as error:
        return _home(flask.request.form.to_dict(), str(error)), 400
    return _started(plan)


def _started(*plans: Plan | CrashPlan) -> Response:
    """Start a run and go to its page, or to that of the run in progress."""
    try:
        name = _desk().start(*plans)
    except Busy as busy:
        flask.flash(
            "A run is in progress. Two at a time would distort each other's figures.", "problem"
        )
        name = busy.run
    return flask.redirect(flask.url_for("lab.show", name=name), 303)


@pages.post("/runs/<name>/again")
def again(name: str) -> Response:
    """Start a run of the same plans."""
    return _started(*_found(name).plans)


@pages.get("/runs/<name>")
def show(name: str) -> str:
    """Show a run, or compare it with another one (`?other=`)."""
    run = _found(name)
    if isinstance(run.plans[0], CrashPlan):
        return _show_crashes(run, run.plans[0])
    other = flask.request.args.get("other", "")
    compared = _found(other) if other and other != name else None
    runs = [run, *([compared] if compared and isinstance(compared.plans[0], Plan) else [])]
    results = [result for each in runs for result in _results(each)]
    measured = [each.document["outcome"] for each in results]
    return flask.render_template(
        "lab_run.html",
        run=run,
        runs=runs,
        results=results,
        figures=_FIGURES,
        options={each.name: options_of(each.plans) for each in runs},
        # On one scale, so that longer runs look longer.
        seconds=max((each["seconds"] for each in measured), default=0.0),
        longest=max((each["wait_longest"] for each in measured), default=0.0),
        others=[
            each
            for each in _desk().runs()
            if each.complete and each.name != name and isinstance(each.plans[0], Plan)
        ],
        kept=MOST_KEPT,
    )


def _show_crashes(run: Run, plan: CrashPlan) -> str:
    """Show a run with orders."""
    measured = run.documents[0]["outcome"] if run.complete else {}
    return flask.render_template(
        "lab_crash.html",
        run=run,
        plan=plan,
        figures=_CRASH_FIGURES,
        results=[
            {
                "title": title,
                "figures": measured[way],
                "wrong": wrong(measured[way]),
                "verdict": crash_verdict(plan.scenario, measured[way]),
                "strip": Markup(  # noqa: S704 (numbers, and escaped)
                    strip.svg([Order(**each) for each in measured[way]["each"]], title)
                ),
            }
            for way, title in plan.scenario.ways.items()
            if way in measured
        ],
        options=options_of(run.plans),
        kept=MOST_KEPT,
    )


@pages.get("/runs/<name>.json")
def document(name: str) -> dict[str, Any]:
    """Return the progress and the results of a run."""
    run = _found(name)
    return {
        "over": run.over,
        "done": run.done,
        "of": run.in_all,
        "seconds": run.seconds,
        "trouble": run.trouble,
        "results": run.documents,
    }


def _found(name: str) -> Run:
    run = _desk().find(name)
    if run is None:
        flask.abort(404, "There is no such run. The oldest runs are deleted.")
    return run


def _results(run: Run) -> list[_Result]:
    return [
        _Result(run, plan, document)
        for plan, document in zip(run.plans, run.documents, strict=False)  # some may be missing
        if isinstance(plan, Plan)
    ]


def _state(run: Run) -> str:
    """Return the state of a run in a few words."""
    if not run.complete:
        return run.trouble or f"{run.done} of {run.in_all} …"
    if isinstance(run.plans[0], CrashPlan):
        without, protected = (wrong(each) for each in run.documents[0]["outcome"].values())
        return f"{without:,} wrong without userlock, {protected:,} with it"
    if len(run.plans) > 1:
        losing = sum(each.lost > 0 for each in _results(run))
        return f"{losing} of {len(run.plans)} lose updates"
    (result,) = _results(run)
    return f"{result.lost:,} of {result.document['outcome']['accepted']:,} lost"
