"""Batch work: the nightly job, and those who are here from the start.

`POST /tasks/…` is what a scheduler calls; the library gives these requests batch
priority. In production let only the scheduler's account reach this prefix.
"""

from __future__ import annotations

import flask

from sample_app import seed
from sample_app.learning.nightly import award_badges
from sample_app.web import today

tasks = flask.Blueprint("tasks", __name__, url_prefix="/tasks")


@tasks.post("/award-badges")
def award_badges_endpoint() -> flask.Response:
    """The nightly job, and what it did. While it runs, another one is a 503: it is tried again."""
    return flask.jsonify(award_badges().to_dict(exclude=("began", "over")))


@tasks.post("/seed")
def seed_endpoint() -> flask.Response:
    """Add the demo learners, and their coaches, that are not there yet."""
    return flask.jsonify({"created": seed.demo_learners(today()), "coaches": seed.demo_coaches()})
