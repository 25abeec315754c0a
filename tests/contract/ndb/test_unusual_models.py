"""Unusual model classes: they work here as on `ndb.Model`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.models import Learner

pytestmark = pytest.mark.usefixtures("context")


class Slotted:
    __slots__ = ("note",)


class OfASlottedClass(Slotted, userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


class WithOtherAttributes(userlock.UserModel):
    """Missing attributes are looked up somewhere else."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)

    def __getattr__(self, name: str) -> Any:
        return {"score": self.points}[name]


class OfAnExpando(userlock.UserModel, ndb.Expando):
    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


@pytest.mark.parametrize("model", [OfASlottedClass, WithOtherAttributes, OfAnExpando])
class TestEachIsProtected:
    def test_from_its_creation_to_its_delete(self, model: Any) -> None:
        key = ndb.Key(model, "ann")
        with userlock.global_lock("ann"):
            model(key=key, points=1).put()
            found = key.get(use_cache=False)
            found.points += 1
            found.put()
            found.points += 1
            found.put()
            assert key.get(use_cache=False).points == 3
            key.delete()
            assert key.get() is None

    def test_an_entity_read_without_the_lock_is_refused(self, model: Any) -> None:
        key = ndb.Key(model, "ann")
        with userlock.global_lock("ann"):
            model(key=key).put()
        found = key.get(use_cache=False)
        with userlock.global_lock("ann"), pytest.raises(userlock.ReadWithoutLock):
            found.put()

    def test_copies_are_of_the_same_entity(self, model: Any) -> None:
        key = ndb.Key(model, "ann")
        with userlock.global_lock("ann"):
            model(key=key).put()
            other = copy.copy(key.get(use_cache=False))
            other.points = 7
            other.put()
            assert key.get(use_cache=False).points == 7

    def test_a_new_object_creates(self, model: Any) -> None:
        key = ndb.Key(model, "ann")
        with userlock.global_lock("ann"):
            model(key=key).put()
            with pytest.raises(userlock.EntityExistsError):
                copy.copy(model(key=key)).put()


@pytest.fixture
def old(context: Any, elsewhere: Elsewhere) -> Any:
    """Return an object of an entity that has changed since."""
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
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
    with userlock.global_lock("ann"), userlock.suppress("the fence alone"):
        fresh = Learner.get_by_id("ann")
        fresh.__dict__.update(old.__dict__)
        with pytest.raises(userlock.StaleWriteError):
            fresh.put()
    assert stored_points() == 5
