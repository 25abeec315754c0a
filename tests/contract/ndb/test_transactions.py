"""Lock and transaction together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner, VideoLog
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")

Elsewhere = Callable[[Callable[[], None]], None]


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    context.clear_cache()


def stored_points() -> int:
    points: int = Learner.get_by_id("ann", use_cache=False).points
    return points


def test_a_function_may_be_both_transactional_and_locking() -> None:
    @ndb.transactional()
    def watch() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
            VideoLog(learner_id="ann").put()

    watch()
    assert stored_points() == 5
    assert VideoLog.query().count() == 1
    assert userlock.current_scope() is None


def test_both_or_neither() -> None:
    @ndb.transactional()
    def watch() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watch()
    assert stored_points() == 0


def test_a_lock_taken_inside_is_held_until_the_commit(
    service: userlock.LockService,
) -> None:
    seen: list[bool] = []

    @ndb.transactional()
    def watch() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
        seen.append(service.holder("ann") is not None)

    watch()
    assert seen == [True]
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_a_lock_taken_inside_is_released_when_the_transaction_fails(
    service: userlock.LockService,
) -> None:
    @ndb.transactional()
    def watch() -> None:
        with userlock.global_lock("ann"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watch()
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


def test_within_a_request_scope_too(service: userlock.LockService) -> None:
    with userlock.scope() as scope:

        @ndb.transactional()
        def watch() -> None:
            userlock.acquire_lock("ann")
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
            userlock.release_lock("ann")
            assert service.holder("ann") is not None

        watch()
        assert service.holder("ann") is None
        assert scope.held == {}
    assert stored_points() == 5


def test_a_lock_entered_again_in_the_same_transaction_is_the_same_tenure() -> None:
    @ndb.transactional()
    def watch() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
        with userlock.global_lock("ann"):
            learner.points += 5
            learner.put()

    watch()
    assert stored_points() == 5


def test_lock_outside_transaction_inside() -> None:
    with userlock.global_lock("ann"):

        @ndb.transactional()
        def watch() -> None:
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()

        watch()
        watch()
    assert stored_points() == 10


def test_the_lock_is_wanted_inside_a_transaction_as_well() -> None:
    @ndb.transactional()
    def watch() -> None:
        learner = Learner.get_by_id("ann")
        learner.points += 5
        learner.put()

    with pytest.raises(userlock.PutWithoutLock):
        watch()
    assert stored_points() == 0


def test_a_lease_that_runs_out_before_the_commit_rolls_back(clock: ManualClock) -> None:
    attempts: list[int] = []

    @ndb.transactional()
    def watch() -> None:
        attempts.append(1)
        with userlock.global_lock("ann", lock_timeout=5):
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
            clock.advance(6)

    with pytest.raises(userlock.LeaseRanOut, match="its transaction was about to commit"):
        watch()
    assert attempts == [1], "it must not be tried again"
    assert stored_points() == 0


def test_a_retried_transaction_takes_the_lock_again(
    elsewhere: Elsewhere, concurrency_mode: str
) -> None:
    if concurrency_mode == "pessimistic":
        pytest.skip("the other writer waits for this transaction there, and does not disturb it")
    attempts: list[int] = []

    def add_one() -> None:
        with userlock.suppress("a writer that has no lock"):
            other = Learner.get_by_id("ann")
            other.points += 1
            other.put()

    @ndb.transactional(retries=1)
    def watch() -> None:
        attempts.append(1)
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            if len(attempts) == 1:
                elsewhere(add_one)
            learner.points += 5
            learner.put()

    watch()
    assert len(attempts) == 2
    assert stored_points() == 6


def test_what_was_read_outside_is_fenced_inside(elsewhere: Elsewhere) -> None:
    """The transaction has not read it, so it would not notice by itself."""

    def add_one() -> None:
        with userlock.suppress("a writer that has no lock"):
            other = Learner.get_by_id("ann")
            other.points += 1
            other.put()

    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        elsewhere(add_one)

        attempts: list[int] = []

        @ndb.transactional()
        def watch() -> None:
            attempts.append(1)
            learner.points += 100
            learner.put()

        with pytest.raises(userlock.StaleWriteError) as caught:
            watch()
    assert caught.value.key == learner.key
    assert attempts == [1], "the same old object would fail again and again"
    assert stored_points() == 1


def test_a_second_object_read_in_the_transaction_after_a_put_is_a_stomp() -> None:
    """Reads in a transaction see the state at its beginning: the seed's `login_twice`."""

    @ndb.transactional()
    def login_twice() -> None:
        with userlock.global_lock("ann"):
            for _ in range(2):
                learner = Learner.get_by_id("ann", use_cache=False)
                learner.points += 1
                learner.put()

    with pytest.raises(userlock.InternalStomp):
        login_twice()
    assert stored_points() == 0


def test_after_a_rollback_a_new_object_may_be_put_in_the_next_attempt() -> None:
    attempts: list[int] = []
    log = VideoLog(learner_id="ann")

    @ndb.transactional(retries=1)
    def watch() -> None:
        attempts.append(1)
        with userlock.global_lock("ann"):
            log.put()
            if len(attempts) == 1:
                raise google_errors.Aborted("contention")

    watch()
    assert len(attempts) == 2
    assert VideoLog.query().count() == 1
