"""Certificates, paid for with points."""

from __future__ import annotations

import datetime

from google.cloud import ndb

from sample_app import catalogue, demonstration
from sample_app.errors import NotEnoughPoints
from sample_app.learning.learners import find_learner
from sample_app.models import Certificate
from sample_app.outbox import job
from userlock.idempotency import Flow


def award_certificate(flow: Flow, course: catalogue.Course, today: datetime.date) -> None:
    """Spend points on a certificate, send a receipt, and answer: all of it happens or nothing.

    The request holds the learner's lock. Sent again, it gets the same answer. Another request for
    the same certificate finds it, and costs nothing: 200 instead of 201.
    """
    with flow.last() as end:
        learner = find_learner(flow.user_id)
        key = Certificate.key_of(flow.user_id, course.slug)
        new = key.get() is None
        if new:
            demonstration.think()
            if learner.points < course.price:
                raise NotEnoughPoints("This certificate", price=course.price, points=learner.points)
            learner.points -= course.price
            certificate = Certificate(
                key=key, learner_id=flow.user_id, course=course.slug, price=course.price
            )
            ndb.put_multi([learner, certificate])
            job("receipt").stage(flow.user_id, course.slug, price=course.price)
        answer = {"learner": learner.as_json(today), "certificate": course.slug, "new": new}
        end.respond(answer, 201 if new else 200)
