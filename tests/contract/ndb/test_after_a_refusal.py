"""After a refused put, a delete of the same read is refused; other tasklets keep their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, change, stored
from tests.contract.ndb.models import Learner
from userlock.stores import MemoryStore


def put_and_catch(learner: Any) -> None:
    with pytest.raises(userlock.StaleWriteError):
        learner.put()


def begin_to_put(learner: Any) -> None:
    future = learner.put_async()
    future.wait()
    assert isinstance(future.exception(), userlock.StaleWriteError)


def leave_it_to_the_delete(learner: Any) -> None:
    learner.put_async().add_done_callback(lambda future: future.exception())


def delete_and_catch(learner: Any) -> None:
    with pytest.raises(userlock.StaleWriteError):
        learner.key.delete()


@pytest.mark.parametrize(
    "refused", [put_and_catch, begin_to_put, leave_it_to_the_delete, delete_and_catch]
)
def test_the_delete_is_refused_until_it_is_read_again(
    key: Any, refused: Callable[[Any], None], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        store.evict("ann")
        elsewhere(lambda: change(key, 50))
        learner.points += 5
        refused(learner)
        with pytest.raises(userlock.StaleWriteError):
            key.delete()
        assert stored(key) == (50, None)
        assert key.get().points == 50
        key.delete()
    assert stored(key) is None


def test_a_tasklet_that_runs_meanwhile_keeps_its_error(
    key: Any, store: MemoryStore, elsewhere: Elsewhere
) -> None:
    """While `put_multi` waits for an earlier put, another put is sent and refused."""
    waiting = ndb.Key(Learner, "bob")
    with userlock.global_lock("bob"):
        Learner(key=waiting).put()

    def work() -> None:
        with userlock.global_locks(["ann", "bob"]):
            stale, first = key.get(), waiting.get()
            store.evict("ann")
            elsewhere(lambda: change(key, 50))

            @ndb.tasklet
            def other() -> Any:
                yield ndb.Key(Learner, "nobody").get_async()
                stale.points += 5
                stale.put_async()

            first.put_async()
            running = other()
            with pytest.raises(userlock.CreatedWithoutLock):
                ndb.put_multi([first, Learner(id="without a lock")])
            running.wait()

    with pytest.raises(userlock.StaleWriteError):
        work()
    assert stored(key) == (50, None)
