"""The cost of fencing without contention: no round trip more than ndb's own, few calls.

Those of transactions: `test_late_begin.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner, Marked, VideoLog
from tests.contract.ndb.servers import Wire, connect
from userlock.ndb import capabilities
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("wire", "context")


@pytest.fixture
def key(context: Any, wire: Wire) -> Any:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    context.clear_cache()
    wire.rpcs.clear()
    return ndb.Key(Learner, "ann")


class TestAsManyAsWithout:
    """ndb alone needs as many."""

    def test_get_and_put(self, key: Any, wire: Wire) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            for points in (1, 2, 3):
                learner.points = points
                learner.put()
        assert wire.names == ["lookup", "commit", "commit", "commit"]

    def test_a_query_and_a_batch(self, key: Any, wire: Wire) -> None:
        with allow_unlocked("arranging data"):
            ndb.put_multi([Learner(id=f"learner-{number}") for number in range(100)])
            ndb.context.get_context().clear_cache()
            wire.rpcs.clear()
            ndb.put_multi(Learner.query().fetch())
        assert wire.names == ["run_query", "commit"]
        assert len(wire.rpcs[-1][1].mutations) == 101

    def test_creations_with_keys_and_without(self, wire: Wire) -> None:
        with allow_unlocked("arranging data"):
            ndb.put_multi([VideoLog(learner_id="ann") for _ in range(100)])
            assert wire.names == ["commit"]
            ndb.put_multi([Marked(id=f"learner-{number}") for number in range(100)])
        assert wire.names == ["commit", "commit"]

    def test_a_delete(self, key: Any, wire: Wire) -> None:
        with userlock.global_lock("ann"):
            key.get()
            key.delete()
        assert wire.names == ["lookup", "commit"]


def test_creations_and_changes_go_side_by_side(key: Any, wire: Wire) -> None:
    """There are two commits, under way at the same time."""
    with userlock.global_lock("ann"), userlock.global_lock("bob"):
        learner = key.get()
        wire.rpcs.clear()
        ndb.put_multi([learner, Learner(id="bob")])
    assert wire.names == ["commit", "commit"]


def test_an_entity_read_before_a_transaction_is_looked_up_in_it(key: Any, wire: Wire) -> None:
    """The look-up begins the transaction: no round trip more than ndb alone."""
    with userlock.global_lock("ann"):
        learner = key.get()
        ndb.transaction(learner.put)
    assert wire.names == ["lookup", "lookup", "commit"]


def test_a_server_is_asked_by_the_first_write_that_builds_on_a_version(
    ndb_client: ndb.Client, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that builds on no version does not ask. The server is asked only once."""
    monkeypatch.setattr(capabilities, "_honoured", {})
    server = connect(ndb_client, Wire)
    with userlock.global_lock("ann"), userlock.global_lock("bob"):
        learner = key.get()
        Learner(id="bob").put()
        assert server.names == ["lookup", "commit"]
        learner.put()
        asked = len(server.rpcs)
        assert 3 < asked <= 3 + 12
        learner.put()
    assert server.names[asked:] == ["commit"]


# --- calls ----------------------------------------------------------------------------------


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of Python functions that an action calls."""
    count = 0

    def called(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def put_one_by_one(entities: list[Any]) -> None:
    @ndb.tasklet
    def put() -> Any:
        for entity in entities:
            yield entity.put_async()

    ndb.transaction_async(put).result()


#: Each leaves all entities in the context cache.
MANY: dict[str, Callable[[list[Any]], object]] = {
    "put_multi": ndb.put_multi,
    "get_multi": lambda entities: ndb.get_multi([entity.key for entity in entities]),
    "put in a transaction": lambda entities: ndb.transaction(lambda: ndb.put_multi(entities)),
    "put by a tasklet in a transaction": put_one_by_one,
}


@pytest.mark.parametrize("do", MANY.values(), ids=MANY)
def test_calls_per_entity_do_not_grow_with_the_context_cache(
    context: Any, do: Callable[[list[Any]], object]
) -> None:
    per_entity = []
    with allow_unlocked("arranging data"):
        for count in (20, 100):
            entities = [Learner(id=f"{count}-{number}") for number in range(count)]
            context.clear_cache()
            per_entity.append(calls_of(functools.partial(do, entities)) / count)
    assert per_entity[1] < 1.1 * per_entity[0]
