"""No stale write lands: the commit refuses a write that its lock fails to prevent."""

from __future__ import annotations

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, add_five, stored_points
from tests.contract.ndb.models import Learner
from userlock.events import Event, StaleWrite
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("key")


def test_the_error_tells_the_facts(overtake: Overtake, events: list[Event]) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        overtake(add_five)
        learner.points += 100
        with pytest.raises(userlock.StaleWriteError) as caught:
            learner.put()
    assert stored_points() == 5
    error = caught.value
    assert error.key == ndb.Key(Learner, "ann")
    assert error.lock_id == "ann"
    assert 0 < error.read_version < error.found_version
    assert "test_fencing.py" in str(error.read_at)
    assert "test_fencing.py" in str(error.put_at)
    assert any(isinstance(event, StaleWrite) for event in events)


def test_only_the_stale_one_of_a_batch_is_refused(store: MemoryStore, elsewhere: Elsewhere) -> None:
    names = [f"learner-{number}" for number in range(50)]
    with allow_unlocked("arranging data"):
        ndb.put_multi([Learner(id=name) for name in names])
        keys = [ndb.Key(Learner, name) for name in names]
        learners = ndb.get_multi(keys, use_cache=False)

        def change_one() -> None:
            with allow_unlocked("another writer"):
                other = Learner.get_by_id("learner-17")
                other.points = 1000
                other.put()

        elsewhere(change_one)
        for learner in learners:
            learner.points = 1
        futures = ndb.put_multi_async(learners)
        errors = [future.exception() for future in futures if future.wait() is None]
    assert [name for name, error in zip(names, errors, strict=True) if error] == ["learner-17"]
    assert isinstance(errors[17], userlock.StaleWriteError)
    assert errors[17].others_landed == 49
    assert "49 other writes of its commit have landed" in str(errors[17])
    stored = {learner.key.id(): learner.points for learner in ndb.get_multi(keys, use_cache=False)}
    assert stored.pop("learner-17") == 1000
    assert set(stored.values()) == {1}


def test_of_a_refused_transaction_nothing_is_stored() -> None:
    def change() -> None:
        learner = Learner.get_by_id("ann")
        learner.points = 100
        learner.put()
        Learner(id="bob").put()  # which exists

    with userlock.global_locks(["ann", "bob"]):
        Learner(id="bob").put()
        with pytest.raises(userlock.EntityExistsError) as caught:
            ndb.transaction(change)
    assert caught.value.others_landed == 0
    assert "of its commit" not in str(caught.value)
    assert stored_points() == 0


class TestCreation:
    @staticmethod
    def create_bob(points: int) -> None:
        with userlock.global_lock("bob"):
            if Learner.get_by_id("bob") is None:
                Learner(id="bob", points=points).put()

    def test_of_two_creators_one_wins(self, store: MemoryStore, elsewhere: Elsewhere) -> None:
        with userlock.global_lock("bob"):
            assert Learner.get_by_id("bob") is None
            store.evict("bob")
            elsewhere(lambda: self.create_bob(7))
            with pytest.raises(userlock.EntityExistsError) as caught:
                Learner(id="bob", points=1).put()
        assert Learner.get_by_id("bob", use_cache=False).points == 7
        assert "exists already" in str(caught.value)
        assert "version" not in str(caught.value)
        assert "test_fencing.py" in str(caught.value)

    def test_but_not_from_an_object_of_an_earlier_version(self) -> None:
        self.create_bob(1)
        with userlock.global_lock("bob"):
            old, new = (Learner.get_by_id("bob", use_cache=False) for _ in range(2))
            new.points = 2
            new.put()
            new.key.delete()
            with pytest.raises((userlock.StaleWriteError, userlock.StaleObjectPut)):
                old.put()
        assert Learner.get_by_id("bob", use_cache=False) is None


@pytest.mark.usefixtures("key")
def test_the_error_says_if_the_request_itself_has_written() -> None:
    userlock.configure(enforcement="off")
    old, new = (Learner.get_by_id("ann", use_cache=False) for _ in range(2))
    new.points += 1
    new.put()
    with pytest.raises(userlock.StaleWriteError) as caught:
        old.put()
    (note,) = caught.value.__notes__
    assert "test_the_error_says_if_the_request_itself_has_written" in note
