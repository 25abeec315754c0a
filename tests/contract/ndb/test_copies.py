"""Copied and pickled entities and attributes, and pickled errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.models import Learner
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("key")


class TestCopies:
    def test_a_copy_is_another_object_for_the_check_of_outdated_objects(self) -> None:
        def put_both() -> None:
            learner = Learner.get_by_id("ann")
            other = copy.copy(learner)
            learner.points += 1
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


@pytest.fixture
def old(key: Any, context: Any, elsewhere: Elsewhere) -> Any:
    """Return an object of an entity that has changed since."""
    with userlock.global_lock("ann"):
        old = Learner.get_by_id("ann", use_cache=False)
    elsewhere(add_five)
    context.clear_cache()
    return old


def test_copied_attributes_bring_the_version_along(old: Any) -> None:
    """`old.__dict__.update(new.__dict__)`: the object then stands for the latest read."""
    with userlock.global_lock("ann"):
        old.__dict__.update(Learner.get_by_id("ann").__dict__)
        old.points += 1
        old.put()
    assert stored_points() == 6


def test_nor_is_an_older_one_newer_for_being_copied_over(old: Any) -> None:
    with userlock.global_lock("ann"), allow_unlocked("the fence alone"):
        fresh = Learner.get_by_id("ann")
        fresh.__dict__.update(old.__dict__)
        with pytest.raises(userlock.StaleWriteError):
            fresh.put()
    assert stored_points() == 5
