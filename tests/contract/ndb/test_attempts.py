"""Transactions around and within locks: each attempt and each commit is checked."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import add_points, stored_points
from tests.contract.ndb.models import Learner, VideoLog
from userlock.ndb.writes import Write
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, allow_unlocked
from userlock_emulator import Emulator

pytestmark = [pytest.mark.usefixtures("key", "quick_retries"), EACH_MODE]


class TestEachAttempt:
    """A lock around a transaction that meets contention."""

    def run(self, datastore: Emulator, meanwhile: Callable[[], None]) -> int:
        """Run a transaction under the lock; the first commit is aborted after `meanwhile`."""
        runs: list[int] = []

        def work() -> None:
            runs.append(1)
            add_points()
            if len(runs) == 1:
                ndb.context.get_context().call_on_transaction_complete(meanwhile)

        datastore.faults.abort()
        try:
            with userlock.global_lock("ann", lock_timeout=60):
                ndb.transaction(work)
        finally:
            self.runs = len(runs)
        return self.runs

    def test_a_lease_that_ran_out_in_between(self, datastore: Emulator, clock: ManualClock) -> None:
        with pytest.raises(userlock.LeaseRanOut, match="about to be run again"):
            self.run(datastore, lambda: clock.advance(61))
        assert self.runs == 1
        assert stored_points() == 0

    def test_a_lease_that_was_found_lost(self, datastore: Emulator, store: MemoryStore) -> None:
        def lose() -> None:
            store.evict("ann")
            scope = userlock.current_scope()
            assert scope is not None
            with pytest.raises(userlock.LockNotHeld):
                scope.held["ann"].extend(60)

        with pytest.raises(userlock.LeaseWasLost):
            self.run(datastore, lose)
        assert self.runs == 1

    def test_a_lock_that_is_still_held(self, datastore: Emulator) -> None:
        """The control."""
        assert self.run(datastore, lambda: None) == 2
        assert stored_points() == 1

    def test_without_the_check_the_function_would_run_once_more(
        self, datastore: Emulator, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: its put is refused, but its other effects happen twice."""
        monkeypatch.setattr(Write, "trying_again", lambda self: None)
        with pytest.raises(userlock.LeaseRanOut, match="a lease of"):
            self.run(datastore, lambda: clock.advance(61))
        assert self.runs == 2

    def test_a_transaction_that_writes_nothing_under_a_lock_needs_none(
        self, datastore: Emulator, clock: ManualClock
    ) -> None:
        runs: list[int] = []

        def work() -> None:
            runs.append(1)
            Learner.get_by_id("ann")
            clock.advance(31)

        datastore.faults.abort()
        with userlock.global_lock("ann", lock_timeout=60):
            ndb.transaction(work)
        assert len(runs) == 2

    def test_a_lock_that_is_taken_inside_is_taken_again(
        self, datastore: Emulator, store: MemoryStore
    ) -> None:
        tenures: list[object] = []

        @ndb.transactional()
        def work() -> None:
            with userlock.global_lock("ann") as tenure:
                tenures.append(tenure)
                add_points()

        datastore.faults.abort()
        work()
        assert len(set(map(id, tenures))) == 2
        assert stored_points() == 1
        assert userlock.holder("ann") is None


class TestWays:
    def test_joined(self) -> None:
        @ndb.transactional()
        def inner() -> None:
            with userlock.global_lock("ann"):
                add_points()
            assert userlock.holder("ann") is not None, "it is the outer one's until the end"

        @ndb.transactional()
        def outer() -> None:
            inner()
            VideoLog(learner_id="bob").put()
            with userlock.global_lock("bob"):
                pass

        with allow_unlocked("the log is beside the point"):
            outer()
        assert stored_points() == 1
        assert userlock.holder("ann") is None

    @pytest.mark.parametrize("lock_inside", [True, False])
    def test_independent(self, lock_inside: bool) -> None:
        independent = ndb.TransactionOptions.INDEPENDENT

        @ndb.transactional(propagation=independent)
        def inner() -> None:
            if lock_inside:
                with userlock.global_lock("ann"):
                    add_points()
                assert userlock.holder("ann") is not None
            else:
                add_points()

        def outer() -> None:
            inner()
            assert stored_elsewhere_is_one()
            assert (userlock.holder("ann") is None) == lock_inside
            raise ZeroDivisionError

        def stored_elsewhere_is_one() -> bool:
            with ndb.context.get_context().new(transaction=None).use():
                return stored_points() == 1

        around = contextlib.nullcontext() if lock_inside else userlock.global_lock("ann")
        with around, pytest.raises(ZeroDivisionError):
            ndb.transaction(outer)
        assert stored_points() == 1, "the inner one stands by itself"

    def test_the_lock_inside_a_read_only_one(self) -> None:
        def read() -> int:
            with userlock.global_lock("ann"):
                points: int = Learner.get_by_id("ann").points
            assert userlock.holder("ann") is not None, "until its end, as in any other"
            return points

        assert ndb.transaction(read, read_only=True) == 0
        assert userlock.holder("ann") is None


class TestOneObjectInTwoAttempts:
    """The first commit is aborted; the function runs again with the objects of the first run."""

    def run(self, datastore: Emulator, work: Callable[[Learner], None]) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            assert learner is not None
            datastore.faults.abort()
            ndb.transaction(functools.partial(work, learner))

    def test_changed_twice(self, datastore: Emulator) -> None:
        def work(learner: Learner) -> None:
            learner.points += 5
            learner.put()

        with pytest.raises(userlock.WrongTransaction, match="points once more"):
            self.run(datastore, work)
        assert stored_points() == 0

    def test_refused_in_the_first_one(self, datastore: Emulator) -> None:
        """The first run sends another object, and catches the error of this one."""
        runs: list[int] = []

        def work(learner: Learner) -> None:
            runs.append(1)
            if len(runs) == 1:
                first = Learner.get_by_id("ann", use_cache=False)
                assert first is not None
                first.put()
                with pytest.raises(userlock.StaleWriteError):
                    learner.put(unguarded="a test")
            else:
                learner.points = 5
                learner.put()

        self.run(datastore, work)
        assert stored_points() == 5
        assert len(runs) == 2

    def test_changed_to_the_same(self, datastore: Emulator) -> None:
        def work(learner: Learner) -> None:
            learner.points = 3
            learner.put()
            learner.points = 5
            learner.put()

        self.run(datastore, work)
        assert stored_points() == 5

    def test_read_again(self, datastore: Emulator) -> None:
        self.run(datastore, lambda _: add_points(5))
        assert stored_points() == 5

    def test_a_new_object(self, datastore: Emulator) -> None:
        with userlock.global_lock("ann"):
            log = VideoLog(learner_id="ann", seconds=1)
            datastore.faults.abort()
            ndb.transaction(log.put)
        assert VideoLog.query().count() == 1
