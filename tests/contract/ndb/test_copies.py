"""Copied and pickled entities, and pickled errors."""

from __future__ import annotations

import copy
import pickle

import pytest

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner

pytestmark = pytest.mark.usefixtures("key")


class TestCopies:
    def test_a_deep_copy_has_values_of_its_own(self) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            other = copy.deepcopy(learner)
            other.points = 3
            assert learner.points == 0
            other.put()
        assert stored_points() == 3

    def test_a_copy_is_another_object_for_the_check_of_outdated_objects(self) -> None:
        def put_both() -> None:
            learner = Learner.get_by_id("ann")
            other = copy.copy(learner)
            learner.put()
            other.put()

        with userlock.global_lock("ann"), pytest.raises(userlock.StaleObjectPut):
            put_both()

    def test_new_entities_can_be_pickled(self) -> None:
        with userlock.global_lock("bob"):
            pickle.loads(pickle.dumps(Learner(id="bob", points=4))).put()  # noqa: S301
        assert stored_points("bob") == 4

    def test_errors_can_be_pickled(self) -> None:
        learner = Learner.get_by_id("ann")
        with pytest.raises(userlock.PutWithoutLock) as caught:
            learner.put()
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert str(again) == str(caught.value)
        assert again.lock_id == "ann"
        assert again.read_at == str(caught.value.read_at)
