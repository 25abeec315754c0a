"""A learner's record: a public page."""

from __future__ import annotations

import flask
from google.cloud import ndb

from sample_app import catalogue, validation
from sample_app.learning import learners
from sample_app.models import Bonus, Certificate, ExerciseLog, Mail, VideoLog
from sample_app.pages.blueprint import of_learner, views

LOG_LINES = 8


@views.get("/learners/<learner_id>")
def record(learner_id: str) -> str:
    """Show everything about one learner. Reads without the lock: nothing here is put back."""
    learner = learners.find_learner(validation.learner_id(learner_id))
    return flask.render_template(
        "record.html",
        **of_learner(learner),
        titles={
            each.slug: each.title
            for each in (*catalogue.EXERCISES, *catalogue.VIDEOS, *catalogue.COURSES)
        },
        certificates=_latest(Certificate, learner_id),
        mails=_latest(Mail, learner_id),
        bonuses=_latest(Bonus, learner_id),
        exercise_log=_latest(ExerciseLog, learner_id),
        video_log=_latest(VideoLog, learner_id),
    )


def _latest(kind: type[ndb.Model], learner_id: str) -> list[ndb.Model]:
    query = kind.query(kind.learner_id == learner_id).order(-kind.at)
    return list(query.fetch(LOG_LINES))
