"""The nightly job, which gives every learner the badges that were earned."""

from __future__ import annotations

import logging
import time

from google.cloud import ndb

import userlock
from sample_app import badges, demonstration, web
from sample_app.models import Learner, NightlyRun
from sample_app.outbox import job

log = logging.getLogger(__name__)

#: The owner of the job, so that one of it runs at a time. The job takes learners' locks while its
#: owner's is held, so this one must come first in the canonical order: `*` sorts before every
#: letter and digit.
LOCK_ID = "*nightly"
#: The interval at which the job stores its progress.
REPORT_SECONDS = 0.25
#: The learners of one job. It stages the next one, so none takes long.
PAGE = 100
#: The longest wait for a learner.
WAIT_SECONDS = 2


def latest_run() -> NightlyRun | None:
    """Return the current or last run of the job. Reading needs no lock."""
    run: NightlyRun | None = NightlyRun.get_by_id(LOCK_ID)
    return run


def start() -> None:
    """Start a run, or let the one that waits go on."""
    job("nightly").stage_now(LOCK_ID, dedupe="start")


def award_badges(_lock_id: str, *, goes_on: bool = False) -> None:
    """Give a page of learners the badges earned by now, and stage the job of the next page.

    One that `goes_on` begins no run: another job may have ended it.

    It takes one learner's lock at a time, for one get and at most one put, and waits only behind
    requests for that learner. A learner whose lock times out is skipped, so that one stuck lock
    does not stop the job. Run again after a crash it goes on where the stored run is; a badge is
    awarded once.
    """
    run = latest_run()
    if run is None or run.over:
        if goes_on:
            return
        run = _begin(run)
    keys = _page_after(run.after)
    before, started = run.seconds, time.perf_counter()
    reported = started
    for key in keys:
        _award(key, run)
        run.done += 1
        run.after = key.id()
        now = time.perf_counter()
        run.seconds = round(before + now - started, 3)
        if now - reported >= REPORT_SECONDS:
            run.put()
            reported = now
    ndb.transaction(lambda: _end_page(run, over=len(keys) < PAGE))


def _page_after(learner_id: str) -> list[ndb.Key]:
    query = Learner.query().order(Learner.key)
    if learner_id:
        query = query.filter(Learner.key > ndb.Key(Learner, learner_id))
    return list(query.fetch(PAGE, keys_only=True))


def _end_page(run: NightlyRun, *, over: bool) -> None:
    run.over = over
    run.put()
    if not over:
        job("nightly").stage(LOCK_ID, goes_on=True)


def _begin(run: NightlyRun | None) -> NightlyRun:
    run = run or NightlyRun(id=LOCK_ID)
    run.populate(
        began=web.now(),
        over=False,
        after="",
        learners=Learner.query().count(),
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
                ndb.transaction(lambda: _put_and_tell(learner, earned))
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


def _put_and_tell(learner: Learner, earned: list[str]) -> None:
    """Award badges and send the mail about them: both happen or neither."""
    learner.put()
    job("badge-mail").stage(learner.id, earned)
