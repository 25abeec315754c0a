"""A lock is left: the writes that were begun under it land before, and their errors are told."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import emulator
import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.models import Learner, VideoLog
from userlock.stores import MemoryStore


@pytest.fixture
def ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    context.clear_cache()


@pytest.mark.usefixtures("ann")
def test_a_refused_put_async_that_nobody_waits_for_is_raised_on_leaving(
    store: MemoryStore, elsewhere: Elsewhere
) -> None:
    def handler() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            store.evict("ann")
            elsewhere(add_five)
            learner.put_async()

    with pytest.raises(userlock.StaleWriteError):
        handler()
    assert stored_points() == 5


@pytest.mark.usefixtures("ann")
def test_a_refusal_that_was_handled_is_not_raised_again(
    store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        store.evict("ann")
        elsewhere(add_five)
        future = learner.put_async()
        with pytest.raises(userlock.StaleWriteError):
            future.get_result()


@pytest.mark.usefixtures("ann")
def test_leaving_the_lock_waits_for_its_puts(store: MemoryStore, elsewhere: Elsewhere) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        learner.points = 5
        future = learner.put_async()
        log = VideoLog(learner_id="ann")
        log.put_async()
    assert future.done()
    found: list[tuple[int, int]] = []
    elsewhere(lambda: found.append((Learner.get_by_id("ann").points, VideoLog.query().count())))
    assert found == [(5, 1)]


@pytest.mark.usefixtures("ann")
def test_an_error_in_the_block_is_not_hidden_by_that_of_a_pending_put(
    store: MemoryStore, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            store.evict("ann")
            elsewhere(add_five)
            learner.put_async()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handler()
    assert "StaleWriteError" in caplog.text


@pytest.mark.parametrize("sent", [False, True], ids=["not sent yet", "to be sent again"])
def test_a_context_that_is_over(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    datastore: emulator.Emulator,
    caplog: pytest.LogCaptureFixture,
    sent: bool,
) -> None:
    """The lock is around it, and an exception leaves both: ndb waits for nothing then."""
    puts: list[Any] = []

    def handler() -> None:
        with userlock.global_lock("bob"), ndb_client.context() as context:
            puts.append(Learner(id="bob", points=7).put_async())
            if sent:
                refused = datastore.faults.unavailable(rpc="Commit")
                while not refused.hits:
                    context.eventloop.run0()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handler()
    assert puts[0].done()
    assert "failed as well" not in caplog.text
    with ndb_client.context():
        assert Learner.get_by_id("bob").points == 7
    assert ndb.get_context(False) is ndb.context.get_toplevel_context(False) is None
