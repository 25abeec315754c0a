"""A batch of which nothing is sent leaves no trace in the history of puts."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored
from tests.contract.ndb.models import Learner

pytestmark = pytest.mark.usefixtures("context")


def delete_with_another(key: Any) -> None:
    with pytest.raises(userlock.DeletedWithoutLock):
        ndb.delete_multi([key, ndb.Key(Learner, "without a lock")])


def put_with_another(learner: Any) -> None:
    with pytest.raises(userlock.CreatedWithoutLock):
        ndb.put_multi([learner, Learner(id="without a lock")])


class TestADelete:
    def test_an_older_object_stays_outdated(self, key: Any) -> None:
        def run() -> None:
            learner, older = key.get(), key.get(use_cache=False)
            learner.points += 1
            learner.put()
            delete_with_another(key)
            older.points += 1_000
            older.put()

        with userlock.global_lock("ann"), pytest.raises(userlock.StaleObjectPut):
            ndb.transaction(run)
        assert stored(key) == (0, None)

    def test_the_next_delete_builds_on_the_latest_put(self, key: Any) -> None:
        with userlock.global_lock("ann"):
            key.get()
            other = key.get(use_cache=False)
            other.points += 1
            other.put(use_cache=False)
            delete_with_another(key)
            key.delete()
        assert stored(key) is None


class TestAPut:
    def test_of_one_entity_twice(self, key: Any) -> None:
        def run() -> None:
            first, second = key.get(), key.get(use_cache=False)
            with pytest.raises(userlock.CreatedWithoutLock):
                ndb.put_multi([first, first, Learner(id="without a lock")])
            second.points = 10
            second.put()

        with userlock.global_lock("ann"):
            ndb.transaction(run)
        assert stored(key) == (10, None)

    def test_another_object_is_not_outdated_by_it(self, key: Any) -> None:
        def run() -> None:
            first, second = key.get(), key.get(use_cache=False)
            put_with_another(first)
            second.points = 10
            second.put()

        with userlock.global_lock("ann"):
            ndb.transaction(run)
        assert stored(key) == (10, None)
