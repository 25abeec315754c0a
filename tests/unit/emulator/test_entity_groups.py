"""The legacy mode: optimistic with entity groups, through the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.entity_groups import MAX_GROUPS, OptimisticWithEntityGroups
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import KeyPb, Message, Mutation

ROOT = key("Group", 1)
CHILD = key("Group", 1, "Child", 1)
SIBLING = key("Group", 1, "Child", 2)
ELSEWHERE = key("Group", 2)


@pytest.fixture
def engine() -> Iterator[Subject]:
    with subjects.subject(OptimisticWithEntityGroups) as running:
        running.put(entity(CHILD, n=1))
        yield running


def write(to: KeyPb) -> Message:
    return Mutation(upsert=entity(to, n=9))


def assert_aborted(engine: Subject, transaction: bytes, to: KeyPb = ELSEWHERE) -> None:
    with pytest.raises(DatastoreError) as caught:
        engine.commit(write(to), transaction=transaction)
    assert caught.value.code is Code.ABORTED


def test_a_change_anywhere_in_a_group_that_was_read_aborts(engine: Subject) -> None:
    transaction = engine.begin()
    engine.lookup(CHILD, transaction=transaction)
    engine.put(entity(SIBLING, n=1))
    assert_aborted(engine, transaction)


def test_a_change_in_another_group_does_not(engine: Subject) -> None:
    transaction = engine.begin()
    engine.lookup(CHILD, transaction=transaction)
    engine.put(entity(ELSEWHERE, n=1))
    engine.commit(write(CHILD), transaction=transaction)


def test_two_writers_of_a_group_conflict_without_reading(engine: Subject) -> None:
    first, second = engine.begin(), engine.begin()
    engine.commit(write(CHILD), transaction=first)
    assert_aborted(engine, second, SIBLING)


def test_a_query_needs_an_ancestor(engine: Subject) -> None:
    transaction = engine.begin()
    below = query("Child", filters=where(("__key__", "ancestor", ROOT)))
    assert len(engine.run(below, transaction=transaction).entity_results) == 1
    after = where(("__key__", "ancestor", ROOT), ("__key__", ">", CHILD))
    engine.run(query("Child", filters=after), transaction=transaction)
    for wide in (query("Child"), query("Child", filters=where(("__key__", ">", CHILD)))):
        with pytest.raises(DatastoreError, match="ancestor") as caught:
            engine.run(wide, transaction=transaction)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert len(engine.run(wide).entity_results) == (1 if not wide.HasField("filter") else 0)
    engine.put(entity(SIBLING, n=1))
    assert_aborted(engine, transaction)


def test_a_transaction_touches_a_limited_number_of_groups(engine: Subject) -> None:
    transaction = engine.begin()
    allowed = [key("Group", i + 1) for i in range(MAX_GROUPS)]
    engine.lookup(*allowed, CHILD, SIBLING, transaction=transaction)
    with pytest.raises(DatastoreError, match="too many entity groups") as caught:
        engine.lookup(key("Group", 99), transaction=transaction)
    assert caught.value.code is Code.INVALID_ARGUMENT
