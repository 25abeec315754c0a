"""New entities under automatic ids, put outside of transactions: never twice, but in doubt."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Marked, VideoLog
from userlock.ndb import commits
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


def put_a_log(model: type[VideoLog] = VideoLog, **options: Any) -> VideoLog:
    with userlock.global_lock("ann"):
        log = model(learner_id="ann", **options)
        log.put()
        return log


def test_a_put_that_has_landed_is_not_sent_again(datastore: Emulator) -> None:
    datastore.faults.drop_reply()
    with pytest.raises(userlock.CommitInDoubt) as caught:
        put_a_log()
    assert VideoLog.query().count() == 1
    assert isinstance(caught.value.__cause__, google_errors.ServiceUnavailable)
    assert caught.value.lock_id == "ann"
    assert "test_automatic_ids.py" in str(caught.value.put_at)
    assert "it has put a new TestedVideoLog" in str(caught.value)


def test_ndb_alone_puts_it_twice(datastore: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(commits, "DOUBTFUL", ())
    datastore.faults.drop_reply()
    put_a_log()
    assert VideoLog.query().count() == 2


def test_a_put_that_was_certainly_not_applied_is_sent_again(datastore: Emulator) -> None:
    datastore.faults.abort(2)
    log = put_a_log()
    assert VideoLog.query().fetch(keys_only=True) == [log.key]


def test_the_others_of_a_batch_are_sent_again(datastore: Emulator) -> None:
    """They go in a commit of their own."""
    with userlock.global_lock("ann"):
        Marked(id="ann").put()
        learner = Marked.get_by_id("ann")
        learner.points = 5
        new = [VideoLog(learner_id="ann") for _ in range(3)]
        datastore.faults.drop_reply(2)
        futures = ndb.put_multi_async([new[0], learner, *new[1:]])
        errors = [type(future.exception()) for future in futures if future.wait() is None]
    doubt = userlock.CommitInDoubt
    assert errors == [doubt, type(None), doubt, doubt]
    assert VideoLog.query().count() == 3
    assert Marked.get_by_id("ann", use_cache=False).points == 5


def test_a_dropped_put_is_settled_by_one_of_its_own_object_alone(datastore: Emulator) -> None:
    @userlock.global_lock("ann")
    def put_again(first: VideoLog, second: VideoLog) -> None:
        first.put_async()
        ndb.get_context().flush()
        second.put()

    log = VideoLog(learner_id="ann", seconds=1)
    datastore.faults.unavailable(rpc="Commit")
    put_again(log, log)
    datastore.faults.unavailable(rpc="Commit")
    with pytest.raises(userlock.CommitInDoubt):
        put_again(VideoLog(learner_id="ann", seconds=2), VideoLog(learner_id="ann", seconds=2))
    assert VideoLog.query().count() == 2


def test_an_object_that_is_in_doubt_can_be_put_again(datastore: Emulator) -> None:
    """The caller has looked it up, and it was missing."""
    with userlock.global_lock("ann"):
        log = VideoLog(learner_id="ann")
        datastore.faults.unavailable(rpc="Commit")
        with pytest.raises(userlock.CommitInDoubt):
            log.put()
        log.put()
        log.seconds = 3
        log.put()
    assert [each.seconds for each in VideoLog.query()] == [3]


def test_without_fencing_too(datastore: Emulator) -> None:
    """Nothing is compared here; the write is only not repeated."""
    userlock.configure(fencing=False)
    datastore.faults.drop_reply()
    with pytest.raises(userlock.CommitInDoubt):
        put_a_log()
    assert VideoLog.query().count() == 1
