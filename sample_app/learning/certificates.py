"""Certificates, paid for with points."""

from __future__ import annotations

from google.cloud import ndb

import userlock
from sample_app import catalogue, demonstration
from sample_app.errors import NotEnoughPoints
from sample_app.learning.learners import find_learner
from sample_app.models import Certificate, Learner
from sample_app.outbox import job


def award_certificate(learner_id: str, course: catalogue.Course) -> tuple[Learner, bool]:
    """Spend points on a certificate, and send a receipt: all of it happens or nothing.

    The lock is outside the transaction. The other order works too, but a transaction may read the
    state of its beginning. A wait for the lock then makes its read stale and its commit fail.

    A repeated call returns the existing certificate and costs nothing. The second value tells
    whether it is new.
    """

    def spend() -> tuple[Learner, bool]:
        learner = find_learner(learner_id)
        key = Certificate.key_of(learner_id, course.slug)
        if key.get():
            return learner, False
        demonstration.think()
        if learner.points < course.price:
            raise NotEnoughPoints("This certificate", price=course.price, points=learner.points)
        learner.points -= course.price
        certificate = Certificate(
            key=key, learner_id=learner_id, course=course.slug, price=course.price
        )
        ndb.put_multi([learner, certificate])
        job("receipt").stage(learner_id, course.slug, price=course.price)
        return learner, True

    with userlock.global_lock(learner_id, wait_timeout=5):
        awarded: tuple[Learner, bool] = ndb.transaction(spend)
        return awarded
