"""Batch work: the nightly job, and the demo learners.

A scheduler calls `POST /tasks/…`, and the library gives these requests batch priority. In
production restrict this prefix to the scheduler's account.
"""

from __future__ import annotations

import flask

from sample_app import seed
from sample_app.learning.nightly import award_badges
from sample_app.web import today

tasks = flask.Blueprint("tasks", __name__, url_prefix="/tasks")


@tasks.post("/award-badges")
def award_badges_endpoint() -> flask.Response:
    """Run the nightly job and report its result. A second one at the same time gets a 503 and is
    retried."""
    return flask.jsonify(award_badges().to_dict(exclude=("began", "over")))


@tasks.post("/seed")
def seed_endpoint() -> flask.Response:
    """Add the missing demo learners and coaches."""
    return flask.jsonify({"created": seed.demo_learners(today()), "coaches": seed.demo_coaches()})
