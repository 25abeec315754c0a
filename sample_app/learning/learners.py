"""Learners: finding and adding them."""

from __future__ import annotations

import userlock
from sample_app.errors import LearnerExists, Unknown
from sample_app.models import Learner


def find_learner(learner_id: str) -> Learner:
    """Return the learner with this id, or raise `Unknown`. Reading needs no lock."""
    learner: Learner | None = Learner.get_by_id(learner_id)
    if learner is None:
        raise Unknown("learner", learner_id)
    return learner


def create_learner(learner_id: str, name: str) -> Learner:
    """Add a learner, or return the one of an earlier request: a repeat does no harm.

    An id that has another name raises `LearnerExists`.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner: Learner | None = Learner.get_by_id(learner_id)
        if learner is None:
            learner = Learner(id=learner_id, name=name)
            learner.put()
        elif learner.name != name:
            raise LearnerExists(learner_id)
    return learner
