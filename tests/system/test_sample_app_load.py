"""Eight clients, fifty times each, one learner, two processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sample_app.config import Protection, Settings
from sample_app.models import ExerciseLog
from sample_app.protection import ndb_client
from sample_app.stack import Stack
from tests.system.conftest import StartStack
from tests.system.load import (
    FINISH,
    POINTS,
    Answer,
    Progress,
    learner,
    new_learner,
    run_clients,
    statuses,
)

pytestmark = pytest.mark.slow

CLIENTS = 8
EACH = 50
#: Time between get and put, the same in every run: only the protection differs.
THINK_MS = 2


def load(stack: Stack) -> list[Answer]:
    new_learner(stack.app_url, "ada")
    return run_clients(stack.app_url, [FINISH.format("ada")] * CLIENTS, requests_each=EACH)


def log_lines(stack: Stack) -> int:
    settings = Settings.load({"DATASTORE_EMULATOR_HOST": stack.datastore_host}, environ={})
    with ndb_client(settings).context():
        return len(ExerciseLog.query(ExerciseLog.learner_id == "ada").fetch(keys_only=True))


def test_without_the_lock_fencing_refuses_every_lost_race(start_stack: StartStack) -> None:
    stack = start_stack(Protection.FENCING, think_ms=THINK_MS)
    answers = load(stack)
    accepted = [answer for answer in answers if answer.accepted]
    refused = [answer for answer in answers if answer.status == 409]
    assert len(accepted) + len(refused) == CLIENTS * EACH, statuses(answers)
    ada = learner(stack.app_url, "ada")
    assert ada["points"] == len(accepted) * POINTS
    assert log_lines(stack) == len(accepted)
    print(f"\nfencing alone: {len(accepted)} accepted, {len(refused)} refused, none lost")
    assert refused, "no race was lost: this run proves nothing"
    assert all(answer.body["error"] == "StaleWriteError" for answer in refused), refused[0]


def test_a_certificate_is_paid_for_in_the_crowd(start_stack: StartStack) -> None:
    """The function with a lock and a transaction, while others earn points."""
    stack = start_stack(Protection.LOCK, think_ms=THINK_MS)
    new_learner(stack.app_url, "ada")
    finish, award = FINISH.format("ada"), "/api/learners/ada/certificates/"
    enough, progress = threading.Event(), Progress()
    with ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(
            run_clients, stack.app_url, [finish] * 5, until=enough.is_set, progress=progress
        )
        try:
            progress.wait_for(20)
            awards = run_clients(
                stack.app_url,
                [award + "numbers", award + "numbers", award + "sky"],
                requests_each=3,
            )
        finally:
            enough.set()
        finished = crowd.result()
    slowest = max(answer.seconds for answer in awards)
    print(f"\ncertificates in the crowd: {statuses(awards)}, slowest {slowest:.2f} s")
    assert statuses(finished) == {200: len(finished)}
    assert statuses(awards) == {201: 2, 200: 7}, "each certificate once, and nothing failed"
    assert "contended" in {answer.lock for answer in awards}
    assert learner(stack.app_url, "ada")["points"] == len(finished) * POINTS - 60 - 90


def test_the_embedded_memcached_will_do(tmp_path: Path) -> None:
    """For the first five minutes on a machine without memcached."""
    with Stack(memcached_binary=None, log_dir=tmp_path) as stack:
        assert stack.memcached_kind == "embedded"
        new_learner(stack.app_url, "ada")
        answers = run_clients(stack.app_url, [FINISH.format("ada")] * 4, requests_each=10)
        assert statuses(answers) == {200: 40}
        assert {answer.lock for answer in answers} <= {"free", "contended"}
        assert learner(stack.app_url, "ada")["points"] == 40 * POINTS
