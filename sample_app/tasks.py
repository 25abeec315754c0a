"""Batch work: the nightly job, and the demo learners.

A scheduler calls `POST /tasks/…`, and the library gives these requests batch priority. In
production restrict this prefix to the scheduler's account.
"""

from __future__ import annotations

import flask

from sample_app import seed, studio
from sample_app.learning import nightly
from sample_app.web import today

tasks = flask.Blueprint("tasks", __name__, url_prefix="/tasks")


@tasks.post("/award-badges")
def award_badges_endpoint() -> tuple[flask.Response, int]:
    """Start the nightly job. A second one waits for the first."""
    nightly.start()
    return flask.jsonify({"report": flask.url_for("views.nightly_document")}), 202


@tasks.post("/check-quotas")
def check_quotas_endpoint() -> flask.Response:
    """Count again where the flags of projects over quota are wrong. To be called each night."""
    found = studio.quota().check_recent()
    return flask.jsonify(found._asdict())


@tasks.post("/seed")
def seed_endpoint() -> flask.Response:
    """Add the missing demo learners and coaches."""
    return flask.jsonify({"created": seed.demo_learners(today()), "coaches": seed.demo_coaches()})
