"""A write that nobody awaits: its error is raised where its lock or its context is left."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, change, stored_points
from tests.contract.ndb.models import Learner
from userlock.contrib.request_scope import finish_writes
from userlock.ndb.context import request_notes


@pytest.fixture
def _ann(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    with ndb_client.context(), userlock.global_lock("ann"):
        Learner(id="ann").put()
    userlock.configure(enforcement="off")


def begin_stale_put(elsewhere: Elsewhere) -> Any:
    learner = Learner.get_by_id("ann")
    elsewhere(lambda: change(learner.key, 5))
    learner.points += 100
    return learner.put_async()


@pytest.mark.usefixtures("_ann")
class TestOutsideOfLocksAndTransactions:
    def test_it_is_raised_when_the_context_is_left(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        with pytest.raises(userlock.StaleWriteError), ndb_client.context():
            begin_stale_put(elsewhere)
        with ndb_client.context():
            assert stored_points() == 5

    def test_an_error_that_was_asked_for_is_not_raised_again(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        with ndb_client.context():
            future = begin_stale_put(elsewhere)
            with pytest.raises(userlock.StaleWriteError):
                future.get_result()

    def test_it_does_not_hide_the_error_of_the_context(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        def handler() -> None:
            with ndb_client.context():
                begin_stale_put(elsewhere)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            handler()

    def test_a_web_request_gets_it_before_its_answer(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        with ndb_client.context():
            begin_stale_put(elsewhere)
            assert isinstance(finish_writes(), userlock.StaleWriteError)
            assert finish_writes() is None

    def test_a_write_that_lands_is_not_remembered(self, ndb_client: ndb.Client) -> None:
        with ndb_client.context() as context:
            Learner.get_by_id("ann").put_async()
            context.flush()
            assert not request_notes().books.writes
