"""A transaction within ndb's retries: errors keep their type, and the library never repeats it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Elsewhere, Overtake, add_five, add_points, stored_points
from tests.contract.ndb.models import Learner
from userlock.events import LISTENERS, Event
from userlock.lock.held_lock import HeldLock
from userlock.ndb import transactions
from userlock.ndb.transactions import DatastoreParticipant
from userlock_emulator import Emulator
from userlock_emulator.datastore.errors import Code
from userlock_emulator.datastore.faults import Rule

pytestmark = [pytest.mark.usefixtures("key", "quick_retries"), EACH_MODE]


class TestOwnErrors:
    """ndb disguises errors while any other call is under way, and runs the function again."""

    def test_of_a_put(self) -> None:
        slow = Learner.get_by_id_async("ann", use_cache=False)
        with pytest.raises(userlock.PutWithoutLock):
            ndb.transaction(add_points)
        slow.get_result()

    def test_of_the_commit(self, overtake: Overtake) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            overtake(add_five)
            slow = Learner.get_by_id_async("ann", use_cache=False)
            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(learner.put)
            slow.get_result()

    def test_of_a_transaction_within_a_transaction(self) -> None:
        runs: list[str] = []

        @ndb.transactional(propagation=ndb.TransactionOptions.INDEPENDENT)
        def inner() -> None:
            runs.append("inner")
            add_points()

        def outer() -> None:
            runs.append("outer")
            inner()

        slow = Learner.get_by_id_async("ann", use_cache=False)
        with pytest.raises(userlock.PutWithoutLock):
            ndb.transaction(outer)
        slow.get_result()
        assert runs == ["outer", "inner"]

    def test_ndb_alone_disguises_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control: ndb alone."""
        monkeypatch.setattr(transactions, "_with_its_error", lambda future, _: future)
        slow = Learner.get_by_id_async("ann", use_cache=False)
        with pytest.raises(ndb.exceptions.NestedRetryException):
            ndb.transaction(add_points)
        slow.get_result()

    def test_a_rollback_that_fails_does_not_hide_them(self, datastore: Emulator) -> None:
        runs: list[int] = []

        def work() -> None:
            runs.append(1)
            add_points()

        refused = Rule(name="refused", code=Code.INVALID_ARGUMENT, rpc="Rollback")
        datastore.faults.plant(refused)
        with pytest.raises(userlock.PutWithoutLock):
            ndb.transaction(work)
        assert runs == [1]

    def test_a_rollback_is_sent_again_after_a_transient_error(
        self, datastore: Emulator, elsewhere: Elsewhere
    ) -> None:
        unavailable = datastore.faults.unavailable(2, rpc="Rollback")
        with pytest.raises(userlock.PutWithoutLock):
            ndb.transaction(add_points)
        assert unavailable.hits == 2
        elsewhere(add_five)
        assert stored_points() == 5


class TestNotRepeated:
    def test_a_lookup_of_ours_that_fails_is_tried_again_by_itself(
        self, datastore: Emulator
    ) -> None:
        runs: list[int] = []
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")

            def work() -> None:
                runs.append(1)
                learner.points += 1
                learner.put()

            datastore.faults.unavailable(2, rpc="Lookup")
            ndb.transaction(work)
        assert runs == [1]
        assert stored_points() == 1

    def test_a_listener_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(event: Event) -> None:
            raise google_errors.Aborted("contention, says a listener")

        monkeypatch.setattr(LISTENERS, "_listeners", (*LISTENERS._listeners, fail))
        runs: list[int] = []

        @ndb.transactional()
        def work() -> None:
            runs.append(1)
            with userlock.global_lock("ann"):
                add_points()

        work()
        assert runs == [1]
        assert stored_points() == 1

    @pytest.mark.parametrize("quietly", [True, False])
    def test_a_release_that_fails(
        self, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch, quietly: bool
    ) -> None:
        """It fails after the commit. If ndb got the error (the control), it would run it again."""
        give_back = service.released

        async def fail(*args: Any, **kwargs: Any) -> None:
            await give_back(*args, **kwargs)
            raise google_errors.Aborted("contention, says a release")

        def postpone(self: Any, tenure: HeldLock, release: Callable[[], None]) -> None:
            ndb.get_context().call_on_transaction_complete(release)

        monkeypatch.setattr(service, "released", fail)
        if not quietly:
            monkeypatch.setattr(DatastoreParticipant, "postpone", postpone)
        runs: list[int] = []

        @ndb.transactional(retries=1)
        def work() -> None:
            runs.append(1)
            with userlock.global_lock("ann"):
                add_points()

        with contextlib.nullcontext() if quietly else pytest.raises(google_errors.RetryError):
            work()
        assert (len(runs), stored_points()) == ((1, 1) if quietly else (2, 2))

    def test_an_error_of_the_applications_own_callback(self) -> None:
        """A limit, named in docs/transactions.md: it is run again after it was committed."""

        def work() -> None:
            add_points()
            ndb.context.get_context().call_on_commit(fail)

        def fail() -> None:
            raise google_errors.ServiceUnavailable("the mail server, says a callback")

        with userlock.global_lock("ann"), pytest.raises(google_errors.RetryError):
            ndb.transaction(work, retries=1)
        assert stored_points() == 2
