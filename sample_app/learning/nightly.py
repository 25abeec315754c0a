"""The nightly job, which gives every learner the badges that were earned."""

from __future__ import annotations

import logging
import time

from google.cloud import ndb

import userlock
from sample_app import badges, demonstration, web
from sample_app.models import Learner, NightlyRun

log = logging.getLogger(__name__)

#: The job's own lock. The job takes learners' locks while it holds this one, so this one must come
#: first in the canonical order: `*` sorts before every letter and digit.
LOCK_ID = "*nightly"
#: The interval at which the job stores its progress.
REPORT_SECONDS = 0.25
#: The longest wait for a learner. The job's own lease is longer.
WAIT_SECONDS = 10
LEASE_SECONDS = 30


def latest_run() -> NightlyRun | None:
    """Return the current or last run of the job. Reading needs no lock."""
    run: NightlyRun | None = NightlyRun.get_by_id(LOCK_ID)
    return run


def award_badges() -> NightlyRun:
    """Give every learner the badges earned by now; running it again changes nothing.

    It takes one learner's lock at a time, for one get and at most one put, and waits only behind
    requests for that learner. A learner whose lock times out is skipped, so that one stuck lock
    does not stop the job.

    One run at a time: a second one raises `userlock.LockTimeout` at once. The job's own lock has a
    heartbeat. It is held for the whole run, and expires within half a minute if the process is
    killed.
    """
    with userlock.global_lock(
        LOCK_ID, wait_timeout=0, lock_timeout=LEASE_SECONDS, heartbeat=True, priority="batch"
    ):
        keys = list(Learner.query().iter(keys_only=True))
        run = _begin(len(keys))
        started = reported = time.perf_counter()
        for key in keys:
            _award(key, run)
            run.done += 1
            now = time.perf_counter()
            run.seconds = round(now - started, 3)
            if now - reported >= REPORT_SECONDS:
                run.put()
                reported = now
        run.over = True
        run.put()
    return run


def _begin(learners: int) -> NightlyRun:
    run = latest_run() or NightlyRun(id=LOCK_ID)
    run.populate(
        began=web.now(),
        over=False,
        learners=learners,
        done=0,
        badges_awarded=0,
        skipped=0,
        longest_wait_ms=0.0,
        mean_wait_ms=0.0,
        longest_hold_ms=0.0,
        seconds=0.0,
    )
    run.put()
    return run


def _award(key: ndb.Key, run: NightlyRun) -> None:
    try:
        asked = time.perf_counter()
        with userlock.global_lock(key.id(), wait_timeout=WAIT_SECONDS, priority="batch"):
            granted = time.perf_counter()
            learner = key.get()
            if learner is None:  # deleted since the query
                return
            demonstration.think()
            earned = badges.newly_earned(learner, learner.badges)
            if earned:
                learner.badges += earned
                learner.put()
        held = time.perf_counter() - granted
    except (userlock.LockTimeout, userlock.StaleWriteError) as problem:
        log.warning("the nightly job skipped a learner: %s", problem)
        run.skipped += 1
        return
    run.badges_awarded += len(earned)
    waited = (granted - asked) * 1000
    had = run.done - run.skipped + 1
    run.mean_wait_ms = round(run.mean_wait_ms + (waited - run.mean_wait_ms) / had, 3)
    run.longest_wait_ms = max(run.longest_wait_ms, round(waited, 2))
    run.longest_hold_ms = max(run.longest_hold_ms, round(held * 1000, 2))
