"""Legitimate code that a careless check would refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb
from google.cloud.ndb.exceptions import BadValueError

import userlock
from tests.contract.ndb.actions import Overtake, add_five, stored_points
from tests.contract.ndb.models import Learner, VideoLog

pytestmark = pytest.mark.usefixtures("key")


class Signed(Learner):
    """Must be stored with its signature."""

    signature = ndb.StringProperty(required=True)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedSigned"


class TestLegitimateCode:
    def test_a_put_under_way_does_not_hang_a_put_in_a_transaction(self) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points = 1
            learner.put_async()

            def add_one() -> None:
                learner.points += 1
                learner.put()

            ndb.transaction(add_one)
        assert stored_points() == 2

    def test_a_transaction_gets_its_own_put_back(self) -> None:
        def create_twice() -> None:
            with userlock.global_lock("bob"):
                for _ in range(2):
                    learner = Learner.get_by_id("bob") or Learner(id="bob")
                    learner.points += 1
                    learner.put()

        ndb.transaction(create_twice)
        assert stored_points("bob") == 2

    def test_a_transaction_does_not_get_its_own_delete_back(self) -> None:
        """A look-up would still find it in Datastore, and put it back into the cache."""

        def delete_and_look() -> None:
            ndb.Key(Learner, "ann").delete_async().get_result()
            assert Learner.get_by_id("ann") is None
            assert Learner.get_or_insert("ann", points=7).points == 7

        with userlock.global_lock("ann"):
            ndb.transaction(delete_and_look)
        assert stored_points() == 7

    def test_after_a_transaction_that_failed_another_object_may_be_put(self) -> None:
        def fail() -> None:
            learner = Learner.get_by_id("ann")
            learner.points = 100
            learner.put()
            raise ZeroDivisionError

        with userlock.global_lock("ann"):
            before = Learner.get_by_id("ann")
            with pytest.raises(ZeroDivisionError):
                ndb.transaction(fail)
            before.points += 1
            before.put()
        assert stored_points() == 1

    def test_after_a_put_that_ndb_refuses_in_a_transaction(self) -> None:
        """Nothing was put, so no other object is outdated."""

        def put_both() -> None:
            first, second = (Signed.get_by_id("ann", use_cache=False) for _ in range(2))
            second.signature = None
            with pytest.raises(BadValueError):
                second.put()
            first.points = 3
            first.put()

        with userlock.global_lock("ann"):
            Signed(id="ann", signature="Ann").put()
            ndb.transaction(put_both)
        assert Signed.get_by_id("ann", use_cache=False).points == 3

    def test_a_put_before_one_that_ndb_refuses_counts(self) -> None:
        def put_both() -> None:
            first, second = (Signed.get_by_id("ann", use_cache=False) for _ in range(2))
            first.put()
            first.signature = None
            with pytest.raises(BadValueError):
                first.put()
            second.put()

        with userlock.global_lock("ann"):
            Signed(id="ann", signature="Ann").put()
            with pytest.raises(userlock.StaleObjectPut):
                ndb.transaction(put_both)

    @pytest.mark.parametrize("read_before", [False, True])
    def test_a_change_that_was_rolled_back_is_not_read_from_the_cache(
        self, read_before: bool
    ) -> None:
        def change_and_fail() -> None:
            learner = before or Learner.get_by_id("ann")
            learner.points = 100
            learner.put()
            raise google_errors.FailedPrecondition("the commit is refused")

        with userlock.global_lock("ann"):
            before = Learner.get_by_id("ann") if read_before else None
            with pytest.raises(google_errors.FailedPrecondition):
                ndb.transaction(change_and_fail)
            learner = Learner.get_by_id("ann")
            learner.name = "Anna"
            learner.put()
        assert stored_points() == 0

    def test_nor_is_a_change_whose_put_was_refused_before_an_earlier_put_landed(self) -> None:
        def put_twice() -> None:
            learner = Learner.get_by_id("ann")
            learner.points = 5
            learner.put()
            learner.points = 9
            with pytest.raises(userlock.CreatedWithoutLock):
                ndb.put_multi([learner, Learner(id="bob")])

        with userlock.global_lock("ann"):
            ndb.transaction(put_twice)
            assert Learner.get_by_id("ann").points == stored_points() == 5

    def test_nor_is_one_of_a_put_multi_that_was_refused_before_its_turn(self) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points = 9
            with pytest.raises(userlock.CreatedWithoutLock):
                ndb.put_multi([Learner(id="bob"), learner])
            assert Learner.get_by_id("ann").points == stored_points() == 0

    @pytest.mark.parametrize("caught", [False, True])
    def test_nor_is_a_new_entity_that_was_never_stored(self, caught: bool) -> None:
        def create_both() -> None:
            try:
                ndb.put_multi([VideoLog(id="new", learner_id="ann"), Learner(id="bob")])
            except userlock.CreatedWithoutLock:
                if not caught:
                    raise

        with userlock.global_lock("ann"), contextlib.suppress(userlock.CreatedWithoutLock):
            ndb.transaction(create_both)
        assert VideoLog.get_by_id("new") is None

    def test_nor_is_one_that_was_deleted_past_the_cache(self) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.key.delete(use_cache=False)
            assert Learner.get_by_id("ann") is None

    def test_nor_is_a_delete_that_was_rolled_back(self) -> None:
        def delete_and_fail() -> None:
            ndb.Key(Learner, "ann").delete()
            raise ZeroDivisionError

        with userlock.global_lock("ann"), pytest.raises(ZeroDivisionError):
            ndb.transaction(delete_and_fail)
        assert Learner.get_by_id("ann") is not None

    def test_a_write_begun_by_a_hook_lands_before_the_release(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def log_it(self: Learner, future: Any) -> None:
            VideoLog(learner_id="ann").put_async()

        monkeypatch.setattr(Learner, "_post_put_hook", log_it)
        with userlock.global_lock("ann"):
            Learner.get_by_id("ann").put_async()
        monkeypatch.undo()
        assert VideoLog.query().count() == 1

    def test_an_error_reaches_a_transaction_that_began_while_a_put_was_under_way(
        self, overtake: Overtake
    ) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            VideoLog(learner_id="ann").put_async()
            overtake(add_five)
            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(learner.put)
