"""The badge job over 500 learners during interactive use of the site."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from sample_app.config import Protection, Settings
from sample_app.models import Learner
from sample_app.protection import GrantsEverybody, ndb_client
from sample_app.stack import Stack
from tests.system.conftest import StartStack
from tests.system.load import FINISH, Answer, call, statuses
from tests.waiting import wait_until
from userlock.lock.policy import LockPolicy
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.slow

LEARNERS = 500
BUSY = 20
CLIENTS = 5
#: The length of critical sections, long enough for contention.
THINK_MS = 15
#: The margin for two cores that run clients, site, emulator and memcached at once.
SCHEDULING_MS = 100
#: The 2016 scheme's sleep before every batch attempt.
FIXED_DELAY_2016 = 1.1


def learners_with_a_badge_to_come(stack: Stack) -> list[str]:
    """Store 500 learners directly in Datastore, each with one exercise done and no badge yet."""
    settings = Settings.load({"DATASTORE_EMULATOR_HOST": stack.datastore_host}, environ={})
    ids = [f"learner-{number:03}" for number in range(LEARNERS)]
    service = userlock.LockService(GrantsEverybody())
    with ndb_client(settings).context(), userlock.scope(service), allow_unlocked("test data"):
        ndb.put_multi(
            [Learner(id=each, name=each, exercises_done=1, best_streak=1) for each in ids]
        )
    return ids


def run_job(stack: Stack) -> dict[str, Any]:
    """Start the job, as a scheduler does, and return its report."""

    def look() -> dict[str, Any]:
        found: dict[str, Any] = call(stack.app_url, "GET", "/nightly.json").body
        return found

    before = look()["report"]
    assert call(stack.app_url, "POST", "/tasks/award-badges").status == 202
    wait_until(lambda: (now := look())["over"] and now["report"] != before, seconds=300)
    document = look()
    report: dict[str, Any] = document["report"]
    assert report["learners"] == LEARNERS
    assert report["skipped"] == 0
    return report


def run_job_with_interactive(stack: Stack, ids: list[str]) -> tuple[dict[str, Any], list[Answer]]:
    """Run the job, with five clients on twenty learners from before its start until its end.

    Only one client works on each learner, so only the job can make it wait. The job visits the
    learners in the order of their ids, and each client stays with a learner until the badge is
    there, so that the two do contend.
    """
    done = threading.Event()
    busy = ids[:: LEARNERS // BUSY]
    answers: list[Answer] = []
    begun = threading.Semaphore(0)

    def interactive(mine: list[str]) -> None:
        for each in mine:
            badges: list[str] = []
            while not badges and not done.is_set():
                answer = call(stack.app_url, "POST", FINISH.format(each))
                answers.append(answer)
                badges = answer.body["learner"]["badges"]
                begun.release()

    clients = [
        threading.Thread(target=interactive, args=(busy[number::CLIENTS],))
        for number in range(CLIENTS)
    ]
    for each in clients:
        each.start()
    try:
        for _ in clients:
            assert begun.acquire(timeout=60)
        report = run_job(stack)
    finally:
        done.set()
        for each in clients:
            each.join(60)
    return report, answers


def test_no_request_waits_longer_than_one_critical_section(start_stack: StartStack) -> None:
    """The batch job waits for the requests that it meets, not a fixed delay for each learner."""
    stack = start_stack(Protection.LOCK, think_ms=THINK_MS)
    ids = learners_with_a_badge_to_come(stack)
    report, answers = run_job_with_interactive(stack, ids)
    quiet = run_job(stack)

    met = [answer for answer in answers if answer.lock == "contended"]
    longest = max(answer.lock_ms for answer in answers)
    poll = LockPolicy().interactive.polling.most_seconds * 1000
    print(
        f"\nbatch over {LEARNERS} learners: {report['seconds']:.1f} s with contention, "
        f"{quiet['seconds']:.1f} s alone; its longest critical section "
        f"{report['longest_hold_ms']:.0f} ms, its longest wait {report['longest_wait_ms']:.0f} ms; "
        f"{len(answers)} interactive requests, {len(met)} met the batch, "
        f"longest wait {longest:.0f} ms; alone, a lock took {quiet['mean_wait_ms']:.1f} ms "
        "on average"
    )
    assert statuses(answers) == {200: len(answers)}
    assert met, "no request met the batch: this run proves nothing"
    # The critical section in progress when they arrived, and one late poll.
    assert longest <= report["longest_hold_ms"] + poll + SCHEDULING_MS

    # All learners got the badge, and none lost exercises by it.
    assert report["badges_awarded"] >= LEARNERS
    for index, learner_id in enumerate(ids[:: LEARNERS // BUSY]):
        learner = call(stack.app_url, "GET", f"/api/learners/{learner_id}").body["learner"]
        assert "first-step" in learner["badges"], index

    # Without contention, a lock costs two round trips. Any delay per learner, even a single poll,
    # would show in the mean.
    assert quiet["mean_wait_ms"] < 5.0
    # With contention, it shares two cores, awards badges, and their mails are sent meanwhile (hence
    # four times). It waits for the requests that it meets, and for nothing else.
    waits = BUSY * report["longest_wait_ms"] / 1000
    assert report["seconds"] < 4 * quiet["seconds"] + waits
    assert report["seconds"] < LEARNERS * FIXED_DELAY_2016 / 10
