"""No stale write lands: the commit refuses a write that its lock fails to prevent."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.caches import EmptyGlobalCache
from tests.contract.ndb.models import Learner, VideoLog
from userlock.events import Event, LeaseLost, StaleWrite
from userlock.ndb.provenance import stamp_of
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    context.clear_cache()


@pytest.fixture(params=["evicted", "degraded"])
def without_exclusion(
    request: pytest.FixtureRequest, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break the lock, in one of two ways."""
    if request.param == "degraded":
        store.go_down("connection refused")
        return
    create = store.create

    def create_after_eviction(lock_id: str, record: bytes, ttl_seconds: float) -> object:
        store.evict(lock_id)
        return create(lock_id, record, ttl_seconds)

    monkeypatch.setattr(store, "create", create_after_eviction)


@pytest.mark.usefixtures("without_exclusion")
def test_a_stale_write_is_refused_and_nothing_is_lost(
    elsewhere: Elsewhere, events: list[Event]
) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        elsewhere(add_five)
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


@pytest.mark.usefixtures("without_exclusion")
def test_without_fencing_the_update_would_be_lost(elsewhere: Elsewhere) -> None:
    """The negative control."""
    userlock.configure(fencing=False)
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        elsewhere(add_five)
        learner.points += 100
        learner.put()
    assert stored_points() == 100, "the other's five points are gone"


def test_a_write_without_any_lock_is_fenced_as_well(elsewhere: Elsewhere) -> None:
    userlock.configure(enforcement="off")
    learner = Learner.get_by_id("ann")
    elsewhere(add_five)
    learner.points += 100
    with pytest.raises(userlock.StaleWriteError):
        learner.put()
    assert stored_points() == 5


def test_a_lease_that_ran_out_and_was_taken_by_another(
    elsewhere: Elsewhere, clock: ManualClock, events: list[Event]
) -> None:
    with userlock.global_lock("ann", lock_timeout=5):
        learner = Learner.get_by_id("ann")
        clock.advance(6)
        elsewhere(add_five)
        learner.points += 100
        with (
            userlock.suppress("to show that fencing does not rely on the check"),
            pytest.raises(userlock.StaleWriteError),
        ):
            learner.put()
    assert stored_points() == 5
    assert any(isinstance(event, LeaseLost) for event in events)


def test_after_a_refusal_the_next_read_is_fresh(store: MemoryStore, elsewhere: Elsewhere) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        store.evict("ann")
        elsewhere(add_five)
        with pytest.raises(userlock.StaleWriteError):
            learner.put()
        again = Learner.get_by_id("ann")
        assert again.points == 5
        again.points += 1
        again.put()
    assert stored_points() == 6


def test_after_a_put_the_object_carries_the_new_version(elsewhere: Elsewhere) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        learner.points = 1
        learner.put()
        learner.points = 2
        learner.put()
        learner.points = 3
        learner.put_async()
        learner.points = 4
        learner.put_async()
    assert stored_points() == 4


def test_only_the_stale_one_of_a_batch_is_refused(store: MemoryStore, elsewhere: Elsewhere) -> None:
    names = [f"learner-{number}" for number in range(50)]
    with userlock.suppress("arranging data"):
        ndb.put_multi([Learner(id=name) for name in names])
        keys = [ndb.Key(Learner, name) for name in names]
        learners = ndb.get_multi(keys, use_cache=False)

        def change_one() -> None:
            with userlock.suppress("another writer"):
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


def test_entities_from_queries_are_fenced(store: MemoryStore, elsewhere: Elsewhere) -> None:
    with userlock.global_lock("ann"):
        (learner,) = Learner.query(Learner.points == 0).fetch()
        store.evict("ann")
        elsewhere(add_five)
        with pytest.raises(userlock.StaleWriteError):
            learner.put()


def test_an_object_that_was_just_created_is_fenced(
    store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("bob"):
        learner = Learner(id="bob")
        learner.put()
        store.evict("bob")

        def change() -> None:
            with userlock.global_lock("bob"):
                other = Learner.get_by_id("bob")
                other.points = 7
                other.put()

        elsewhere(change)
        with pytest.raises(userlock.StaleWriteError):
            learner.put()
    assert Learner.get_by_id("bob", use_cache=False).points == 7


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

    def test_without_fencing_the_first_creation_would_be_lost(
        self, store: MemoryStore, elsewhere: Elsewhere
    ) -> None:
        """The negative control."""
        userlock.configure(fencing=False)
        with userlock.global_lock("bob"):
            assert Learner.get_by_id("bob") is None
            store.evict("bob")
            elsewhere(lambda: self.create_bob(7))
            Learner(id="bob", points=1).put()
        assert Learner.get_by_id("bob", use_cache=False).points == 1

    def test_only_the_one_that_exists_is_refused(self) -> None:
        self.create_bob(7)
        with userlock.suppress("arranging data"):
            learners = [Learner(id=name, points=1) for name in ("abe", "bob", "cid")]
            logs = [VideoLog(learner_id="bob") for _ in range(2)]
            futures = ndb.put_multi_async([*learners, *logs])
            errors = [future.exception() for future in futures if future.wait() is None]
        assert [type(error) for error in errors] == [
            type(None),
            userlock.EntityExistsError,
            *[type(None)] * 3,
        ]
        assert [Learner.get_by_id(name, use_cache=False).points for name in ("abe", "bob")] == [
            1,
            7,
        ]
        assert VideoLog.query().count() == 2

    def test_a_model_may_allow_to_overwrite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.create_bob(7)
        monkeypatch.setattr(Learner, "_overwrites", True)
        with userlock.global_lock("bob"):
            Learner(id="bob", points=1).put()
        assert Learner.get_by_id("bob", use_cache=False).points == 1

    def test_a_created_object_may_be_changed_and_put_again(self) -> None:
        with userlock.global_lock("bob"):
            learner = Learner(id="bob", points=1)
            learner.put()
            learner.points = 2
            learner.put()
        assert Learner.get_by_id("bob", use_cache=False).points == 2

    def test_a_deleted_entity_may_be_created_again(self) -> None:
        self.create_bob(1)
        with userlock.global_lock("bob"):
            ndb.Key(Learner, "bob").delete()
            Learner(id="bob", points=3).put()
        assert Learner.get_by_id("bob", use_cache=False).points == 3

    def test_but_not_from_an_object_that_the_context_cache_does_not_have(self) -> None:
        self.create_bob(1)
        with userlock.global_lock("bob"):
            other = Learner.get_by_id("bob", use_cache=False)
            other.key.delete()
            with pytest.raises(userlock.StaleWriteError):
                other.put()
        assert Learner.get_by_id("bob", use_cache=False) is None


class TestGlobalCache:
    @pytest.fixture
    def cache(self) -> Any:
        return EmptyGlobalCache()

    def test_reads_under_the_lock_go_past_it(
        self, ndb_client: ndb.Client, service: userlock.LockService, cache: Any
    ) -> None:
        key = ndb.Key(Learner, "ann")
        cache_key = ndb._cache.global_cache_key(key._key)
        outer = ndb.context.get_context()
        with outer.new(global_cache=cache, cache=None).use():
            key.get()  # fills the cache
            (value, _) = cache.cache[cache_key][:2]
            assert value
            entity_pb = value
            cache.cache[cache_key] = (entity_pb, *cache.cache[cache_key][1:])
            userlock.configure(fencing=False)
            with userlock.global_lock("ann"):
                learner = key.get()
                learner.points = 9
                learner.put()
            # Another request fills the cache late, with the old entity.
            cache.cache[cache_key] = (entity_pb, None)
            assert key.get(use_cache=False).points == 0, "reads without the lock are free to"
            with userlock.global_lock("ann"):
                assert key.get().points == 9

    def test_entities_from_it_carry_their_version(
        self, ndb_client: ndb.Client, cache: Any, elsewhere: Elsewhere
    ) -> None:
        key = ndb.Key(Learner, "ann")
        outer = ndb.context.get_context()
        with outer.new(global_cache=cache, cache=None).use():
            key.get()
            learner = key.get(use_cache=False)
            stamp = stamp_of(learner)
            assert stamp is not None
            assert stamp.version > 0
            elsewhere(add_five)
            with (
                userlock.suppress("to see what fencing does"),
                pytest.raises(userlock.StaleWriteError),
            ):
                learner.put()
        assert stored_points() == 5
