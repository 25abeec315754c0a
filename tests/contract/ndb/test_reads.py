"""Reads: their time and place, beside the table in `ways`."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import model as ndb_model

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner, Plain, VideoLog
from tests.contract.ndb.ways.surroundings import with_a_global_cache
from userlock.ndb.client import own_context
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context")

#: The largest batch with which Datastore (and the emulator) answers a query.
BATCH = 300


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann", points=3).put()
        VideoLog(learner_id="ann").put()
    context.clear_cache()


def test_each_batch_of_a_query_counts_by_itself(context: Any) -> None:
    with allow_unlocked("arranging data"):
        ndb.put_multi([VideoLog(id=number + 1, learner_id="ann") for number in range(BATCH + 1)])
    context.clear_cache()
    logs = VideoLog.query(VideoLog.learner_id == "ann").iter()
    early = [logs.next() for _ in range(BATCH)]
    with userlock.global_lock("ann"):
        assert logs.has_next()  # sends the query on
        (first, *_), late = early, logs.next()
        late.put()
        with pytest.raises(userlock.ReadWithoutLock):
            first.put()


def test_an_object_asked_for_before_the_put_of_another_is_the_older_one() -> None:
    with userlock.global_lock("ann"):
        newer = Learner.get_by_id("ann")
        first = Learner.get_by_id_async("nobody", use_cache=False)
        asked = Learner.get_by_id_async("ann", use_cache=False)
        first.get_result()  # the answer is there for both, but nobody has taken the other's
        newer.points += 1
        newer.put()
        older = asked.get_result()
        with pytest.raises(userlock.StaleObjectPut):
            older.put()


def test_an_object_that_is_older_than_an_unchanged_put_undoes_nothing() -> None:
    with userlock.global_lock("ann"):
        older, newer = (Learner.get_by_id("ann", use_cache=False) for _ in range(2))
        newer.put()
        older.points += 1
        older.put()
    assert stored_points() == 4


@pytest.mark.parametrize("kind", ["database", "namespace"])
def test_an_entity_of_the_same_name_elsewhere_is_another_one(kind: str) -> None:
    """It was put before the other one, and so has an older version."""
    clients = [ndb.Client(**{kind: name}) for name in ("one", "two")]
    with userlock.global_lock("ann"):
        for client in clients:
            with own_context(client):
                Learner(id="ann").put()
        for client in clients:
            with own_context(client):
                Learner.get_by_id("ann").key.delete()


def test_two_callers_of_one_look_up_have_their_own_call_sites() -> None:
    def here() -> Any:
        return Learner.get_by_id_async("ann", use_cache=False)

    def there() -> Any:
        return Learner.get_by_id_async("ann", use_cache=False)

    asked = here(), there()
    for learner, place in zip(
        [future.get_result() for future in asked], (here, there), strict=True
    ):
        with pytest.raises(userlock.PutWithoutLock) as caught:
            learner.put()
        assert place.__qualname__ in str(caught.value.read_at)


def test_an_entity_made_by_hand_of_a_message_was_not_read_under_the_lock() -> None:
    """Some applications keep serialised entities in a cache of their own."""
    kept = ndb_model._entity_to_protobuf(Learner.get_by_id("ann"))
    with userlock.global_lock("ann"):
        learner = ndb_model._entity_from_protobuf(kept)
        with pytest.raises(userlock.ReadWithoutLock):
            learner.put()


def test_an_answer_of_the_global_cache_alone_was_not_read_under_the_lock() -> None:
    key = ndb.Key(Learner, "ann")
    with with_a_global_cache():
        key.get(use_cache=False)
        with userlock.global_lock("ann"):
            cached = key.get(use_cache=False, use_datastore=False)
            assert cached.points == 3
            with pytest.raises(userlock.ReadWithoutLock):
                cached.put()


def test_a_part_without_its_lock_id_is_refused_as_a_part() -> None:
    (part,) = VideoLog.query().fetch(projection=[VideoLog.seconds])
    with userlock.global_lock("ann"), pytest.raises(userlock.PartialEntityPut) as caught:
        part.put()
    assert caught.value.lock_id is None


def test_a_lock_that_another_thread_holds_is_reported_as_held() -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        with userlock.scope(), pytest.raises(userlock.PutWithoutLock, match="held elsewhere"):
            learner.put()


def test_a_look_up_that_a_helper_sends_in_a_scope_of_its_own(service: userlock.LockService) -> None:
    """The helper runs the event loop. The read is under the caller's lock all the same."""
    with userlock.global_lock("ann"):
        future = ndb.Key(Learner, "ann").get_async(use_cache=False)
        with userlock.scope(service):
            VideoLog.get_by_id("another")
        learner = future.result()
        learner.points = 7
        learner.put()
    assert stored_points() == 7


@pytest.mark.parametrize("model", [Learner, Plain])
def test_the_context_cache_is_a_dictionary(context: Any, model: Any) -> None:
    entity = model(id="ann")
    context.cache.update([(entity.key, entity)])
    assert entity.key.get() is entity


def test_a_look_up_that_is_cancelled(context: Any) -> None:
    future = ndb.Key(Learner, "ann").get_async(use_cache=False)
    future.cancel()
    context.eventloop.run()
    assert future.cancelled()
    assert Learner.get_by_id("ann", use_cache=False) is not None
