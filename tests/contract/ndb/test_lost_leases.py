"""A lease that its heartbeat finds lost: nothing more is written under it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner, VideoLog
from tests.unit.lock.pulse import live
from userlock.events import Event, LeaseLost, Violation
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, allow_unlocked

pytestmark = pytest.mark.usefixtures("key")

LEASE = 10.0


Pass = Callable[[float], None]


@pytest.fixture
def live_on(service: userlock.LockService, clock: ManualClock) -> Pass:
    """Let time pass with the renewal thread beating."""
    return lambda seconds: live(service, clock, seconds)


def forget(store: MemoryStore) -> None:
    store.evict("ann")


def break_(store: MemoryStore) -> None:
    userlock.break_lock("ann", by="Jo")


def stay_away(store: MemoryStore) -> None:
    store.go_down("connection refused")


@pytest.fixture(params=[forget, break_, stay_away])
def accident(request: pytest.FixtureRequest, store: MemoryStore) -> Callable[[], None]:
    return lambda: request.param(store)


REASONS = {
    "forget": "its record is gone from the store",
    "break_": "it was broken by Jo",
    "stay_away": "the lease store did not answer (connection refused)",
}


@pytest.fixture
def reason(request: pytest.FixtureRequest) -> str:
    return REASONS[request.node.callspec.params["accident"].__name__]


def test_the_next_put_is_refused_and_says_why(
    live_on: Pass, accident: Callable[[], None], reason: str, events: list[Event]
) -> None:
    with userlock.global_lock("ann", heartbeat=True) as lock:
        learner = Learner.get_by_id("ann")
        learner.points += 1
        learner.put()
        live_on(5 * LEASE)
        accident()
        live_on(LEASE + 1)
        learner.points += 100
        with pytest.raises(userlock.LeaseWasLost) as caught:
            learner.put()
    assert stored_points() == 1
    assert reason in lock.lost
    assert reason in str(caught.value)
    assert (caught.value.lock_id, caught.value.key) == ("ann", ndb.Key(Learner, "ann"))
    assert [event.how for event in events if isinstance(event, LeaseLost)] == [lock.lost]
    assert len([event for event in events if isinstance(event, Violation)]) == 1


def test_so_are_new_entities_and_deletes(live_on: Pass, store: MemoryStore) -> None:
    with userlock.global_lock("ann", heartbeat=True):
        learner = Learner.get_by_id("ann")
        store.evict("ann")
        live_on(LEASE)
        with pytest.raises(userlock.LeaseWasLost):
            learner.key.delete()
        with allow_unlocked("negative control: the loss alone keeps it from being written"):
            learner.put()
    with userlock.global_lock("bob", heartbeat=True):
        store.evict("bob")
        live_on(LEASE)
        with pytest.raises(userlock.LeaseWasLost):
            Learner(id="bob").put()
    assert stored_points("bob") is None


def test_with_a_heartbeat_that_succeeds_it_is_accepted(live_on: Pass) -> None:
    """The negative control: not every long hold is refused."""
    with userlock.global_lock("ann", heartbeat=True):
        learner = Learner.get_by_id("ann")
        live_on(5 * LEASE)
        learner.points += 100
        learner.put()
    assert stored_points() == 100


def test_a_put_under_way_that_datastore_compares_is_sent(clock: ManualClock) -> None:
    """A stale one would be refused there."""
    with userlock.global_lock("ann", lock_timeout=LEASE):
        learner = Learner.get_by_id("ann")
        learner.points += 100
        future = learner.put_async()
        clock.advance(2 * LEASE)
        future.get_result()
    assert stored_points() == 100


@pytest.mark.parametrize("accident", [forget], indirect=True)
def test_a_commit_is_refused_when_the_loss_is_found_before_it(
    live_on: Pass, accident: Callable[[], None], reason: str
) -> None:
    """The put was allowed; between it and the commit the lease was lost."""
    attempts: list[int] = []

    @ndb.transactional()
    def work() -> None:
        attempts.append(1)
        with userlock.global_lock("ann", heartbeat=True):
            learner = Learner.get_by_id("ann")
            learner.points += 100
            learner.put()
            accident()
            live_on(LEASE + 1)

    with pytest.raises(userlock.LeaseWasLost, match=r".") as caught:
        work()
    assert reason in str(caught.value)
    assert stored_points() == 0
    assert attempts == [1], "to try again would not help"
    assert userlock.current_scope() is None


@pytest.mark.parametrize(("coach", "ann"), [(60, 10), (10, 60)])
def test_a_delete_whose_key_names_no_lock_needs_each_lease(
    clock: ManualClock, coach: float, ann: float
) -> None:
    """Any of the locks may be the one that guards the entity."""
    with userlock.global_lock("ann"):
        key = VideoLog(learner_id="ann").put()
    ndb.get_context().clear_cache()
    with (
        userlock.global_lock("coach", lock_timeout=coach),
        userlock.global_lock("ann", lock_timeout=ann),
    ):
        clock.advance(11)
        with pytest.raises(userlock.LeaseRanOut):
            key.delete()
    assert key.get(use_cache=False) is not None
