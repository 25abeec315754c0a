"""Batch work: the nightly badge job, and the demo learners.

`POST /tasks/…` is what a scheduler calls; the library gives these requests batch
priority. In production let only the scheduler's account reach this prefix.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import flask

import userlock
from sample_app import badges, seed
from sample_app.demonstration import think
from sample_app.models import Learner
from sample_app.web import today

log = logging.getLogger(__name__)

tasks = flask.Blueprint("tasks", __name__, url_prefix="/tasks")


@dataclasses.dataclass
class BadgeRun:
    """What one run of the badge job did. `skipped` learners get their badges next time."""

    learners: int = 0
    badges_awarded: int = 0
    skipped: int = 0
    longest_wait_ms: float = 0.0
    mean_wait_ms: float = 0.0
    longest_hold_ms: float = 0.0
    seconds: float = 0.0


def award_badges() -> BadgeRun:
    """Give every learner the badges earned by now; running it again changes nothing.

    Takes one learner's lock at a time, for one get and at most one put, and
    waits only behind requests for that very learner. A learner who cannot be
    had is skipped, so that one stuck lock does not stop the night.
    """
    run = BadgeRun()
    waits: list[float] = []
    started = time.perf_counter()
    for key in Learner.query().iter(keys_only=True):
        run.learners += 1
        try:
            asked = time.perf_counter()
            with userlock.global_lock(key.id(), priority="batch"):
                granted = time.perf_counter()
                learner = key.get()
                if learner is None:  # gone since the query
                    continue
                think()
                if earned := badges.newly_earned(learner, learner.badges):
                    learner.badges += earned
                    learner.put()
            held = time.perf_counter() - granted
        except (userlock.LockTimeout, userlock.StaleWriteError) as problem:
            log.warning("badge job skipped a learner: %s", problem)
            run.skipped += 1
            continue
        run.badges_awarded += len(earned)
        waits.append((granted - asked) * 1000)
        run.longest_hold_ms = max(run.longest_hold_ms, round(held * 1000, 2))
    if waits:
        run.longest_wait_ms = round(max(waits), 2)
        run.mean_wait_ms = round(sum(waits) / len(waits), 2)
    run.seconds = round(time.perf_counter() - started, 3)
    return run


@tasks.post("/award-badges")
def award_badges_endpoint() -> flask.Response:
    """The nightly job."""
    return flask.jsonify(dataclasses.asdict(award_badges()))


@tasks.post("/seed")
def seed_endpoint() -> flask.Response:
    """Add the demo learners that are not there yet."""
    return flask.jsonify({"created": seed.demo_learners(today())})
