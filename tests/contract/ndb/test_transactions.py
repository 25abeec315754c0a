"""Lock and transaction together."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Beside, add_five, add_points, stored_points
from tests.contract.ndb.models import Learner, Plain
from tests.contract.ndb.ways.surroundings import with_a_global_cache
from tests.unit.emulator.waiting import Started
from userlock.ndb.transactions import DatastoreParticipant
from userlock.ndb.writes import Write
from userlock.testing import ManualClock, allow_unlocked

pytestmark = [pytest.mark.usefixtures("key"), EACH_MODE]


class TestALockTakenInside:
    def leave(self, service: userlock.LockService) -> None:
        self.held_after_leaving: list[bool] = []

        @ndb.transactional()
        def watch() -> None:
            with userlock.global_lock("ann"):
                add_points(5)
            self.held_after_leaving.append(service.holder("ann") is not None)

        watch()

    def test_is_held_until_the_commit(self, service: userlock.LockService) -> None:
        self.leave(service)
        assert self.held_after_leaving == [True]
        assert service.holder("ann") is None
        assert userlock.current_scope() is None

    def test_released_earlier_another_could_have_it_and_the_commit_is_refused(
        self, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(DatastoreParticipant, "holds", lambda self, tenure: False)
        with pytest.raises(userlock.PutAfterRelease, match="its transaction was about to commit"):
            self.leave(service)
        assert self.held_after_leaving == [False]


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


class TestBeforeTheCommit:
    """The lease runs out after the put, which was checked, and before the commit."""

    def run_out(self, clock: ManualClock) -> None:
        self.attempts = 0

        @ndb.transactional()
        def watch() -> None:
            self.attempts += 1
            with userlock.global_lock("ann", lock_timeout=5):
                add_points(5)
                clock.advance(6)

        watch()

    def test_a_lease_that_runs_out_rolls_back(self, clock: ManualClock) -> None:
        with pytest.raises(userlock.LeaseRanOut, match="its transaction was about to commit"):
            self.run_out(clock)
        assert self.attempts == 1, "it must not be tried again"
        assert stored_points() == 0

    def test_without_the_check_it_is_committed(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(Write, "check_commit", lambda self: None)
        self.run_out(clock)
        assert stored_points() == 5


def test_a_writer_without_the_lock_disturbs_the_transaction_or_is_refused(
    beside: Beside, concurrency_mode: str
) -> None:
    """The first commit wins; but if reads lock, the reader comes first."""
    attempts: list[int] = []

    def add_one() -> None:
        with allow_unlocked("a writer that has no lock"):
            other = Learner.get_by_id("ann")
            other.points += 1
            other.put()

    @ndb.transactional(retries=1)
    def watch() -> None:
        attempts.append(1)
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            if len(attempts) == 1:
                others.append(beside(add_one))
            learner.points += 5
            learner.put()

    others: list[Started] = []
    watch()
    if concurrency_mode == "pessimistic":
        # It has waited for the transaction, and then its read was old.
        with pytest.raises(userlock.StaleWriteError):
            others[0].result()
        assert len(attempts) == 1
        assert stored_points() == 5
    else:
        others[0].result()
        assert len(attempts) == 2, "the lock was taken again"
        assert stored_points() == 6


def test_a_lock_that_has_to_be_waited_for_inside(beside: Beside, concurrency_mode: str) -> None:
    """The transaction has read the entity that the lock's holder is about to put."""
    attempts: list[int] = []
    others: list[Started] = []

    @ndb.transactional(retries=1)
    def watch() -> None:
        attempts.append(1)
        Learner.get_by_id("ann")
        if len(attempts) == 1:
            others.append(beside(add_five))
        with userlock.global_lock("ann", wait_timeout=1):
            add_points(1)

    if concurrency_mode == "pessimistic":
        # Its put waits for us, and we for its lock.
        with pytest.raises(userlock.LockTimeout):
            watch()
        others[0].result()
        assert (len(attempts), stored_points()) == (1, 5)
    else:
        watch()
        others[0].result()
        assert (len(attempts), stored_points()) == (2, 6), "the first one's read was old"


@pytest.mark.parametrize("cls", [Learner, Plain])
def test_a_key_may_be_deleted_twice_with_a_global_cache(cls: Any) -> None:
    def delete_twice() -> None:
        key.delete()
        key.delete()

    with userlock.global_lock("ann"), with_a_global_cache():
        key = cls(id="ann").put() if cls is Plain else ndb.Key(cls, "ann")
        key.get()
        ndb.transaction(delete_twice)
        assert key.get() is None
