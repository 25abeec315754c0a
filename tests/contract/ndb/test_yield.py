"""`yield_to_waiters` and the model layer: reads before the yield are outdated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.models import Learner
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked, make_claim
from userlock.waits import run

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def service() -> userlock.LockService:
    """Provide a service with real time: a waiter really waits."""
    service = userlock.LockService(MemoryStore())
    userlock.configure(service=service)
    return service


@pytest.fixture
def ann() -> ndb.Key:
    with userlock.global_lock("ann"):
        return Learner(id="ann", points=1).put()


Arrive = Callable[[], Started]


@pytest.fixture
def arrive(ndb_client: ndb.Client, ann: ndb.Key) -> Arrive:
    """Begin an interactive request that adds five points, and wait until it is queued."""

    def add() -> None:
        with ndb_client.context():
            add_five()

    def begin() -> Started:
        started = Started(add)
        wait_until(lambda: userlock.waiters("ann"))
        return started

    return begin


def test_an_entity_read_before_cannot_be_put(ann: ndb.Key, arrive: Arrive) -> None:
    with userlock.global_lock("ann", priority="batch") as lock:
        learner = ann.get()
        waiter = arrive()
        assert lock.yield_to_waiters() is not lock
        waiter.result()
        learner.points += 100
        with pytest.raises(userlock.ReadUnderEarlierTenure) as caught:
            learner.put()
        assert "test_yield.py" in str(caught.value.read_at)
        assert "read it again" in str(caught.value)
    assert stored_points() == 6


def test_writes_that_were_begun_have_landed_before_the_waiter_reads(
    ann: ndb.Key, arrive: Arrive
) -> None:
    with userlock.global_lock("ann", priority="batch") as lock:
        learner = ann.get()
        learner.points = 50
        begun = learner.put_async()
        waiter = arrive()
        lock.yield_to_waiters()
        assert begun.done()
        waiter.result()
    assert stored_points() == 55


def test_a_write_that_fails_keeps_the_lock(ann: ndb.Key, elsewhere: Elsewhere) -> None:
    """The batch gets the error at the checkpoint, before another request builds on it."""
    with userlock.global_lock("ann", priority="batch") as lock:
        learner = ann.get()
        elsewhere(behind_the_lock)
        learner.points = 50
        learner.put_async()
        run(userlock.current_scope().service.protocol.join, make_claim("ann"))
        with pytest.raises(userlock.StaleWriteError):
            lock.yield_to_waiters()
        assert lock.held
    assert stored_points() == 1000


def behind_the_lock() -> None:
    """Write as a script without locks."""
    with allow_unlocked("a script"):
        other = Learner.get_by_id("ann")
        other.points = 1000
        other.put()


def test_in_nested_blocks(ann: ndb.Key, arrive: Arrive) -> None:
    with userlock.global_lock("ann") as outer:
        with userlock.global_lock("ann") as inner:
            learner = ann.get()
            waiter = arrive()
            inner.yield_to_waiters()
            with pytest.raises(userlock.ReadUnderEarlierTenure):
                learner.put()
        assert not outer.held
        again = ann.get()
        again.points += 100
        again.put()
    waiter.result()
    assert stored_points() == 106
    with pytest.raises(userlock.PutAfterRelease):
        again.put()


def test_in_a_transaction_the_waiter_waits_to_its_end(ann: ndb.Key, arrive: Arrive) -> None:
    waiting: list[Started] = []

    def in_transaction() -> None:
        with userlock.global_lock("ann", priority="batch") as lock:
            learner = ann.get()
            waiting.append(arrive())
            assert lock.yield_to_waiters() is lock
            learner.points += 100
            learner.put()

    ndb.transaction(in_transaction)
    waiting[0].result()
    assert stored_points() == 106
