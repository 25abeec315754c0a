"""The pessimistic mode, through the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject, query, refused, where
from tests.unit.emulator.test_locks import wait_until_queued
from tests.unit.emulator.waiting import Started
from userlock_emulator.datastore.errors import EXPIRED, Code, DatastoreError
from userlock_emulator.datastore.locks import LockTable
from userlock_emulator.datastore.pessimistic import Pessimistic
from userlock_emulator.datastore.protos import Message, Mutation

KEY = key("Counter", 1)
OTHER = key("Counter", 2)


@pytest.fixture
def engine() -> Iterator[Subject]:
    with subjects.subject(Pessimistic) as running:
        running.put(entity(KEY, n=1), entity(OTHER, n=1))
        yield running


@pytest.fixture
def locks(engine: Subject) -> LockTable:
    control = engine.engine._control
    assert isinstance(control, Pessimistic)
    return control._locks


def write(n: int) -> Message:
    return Mutation(upsert=entity(KEY, n=n))


@pytest.mark.parametrize(
    "end",
    [
        lambda engine, it: engine.commit(write(2), transaction=it),
        lambda engine, it: engine.commit(transaction=it),
        lambda engine, it: engine.rollback(it),
        lambda engine, it: engine.engine.reset(),
    ],
    ids=["commit", "commit-nothing", "rollback", "reset"],
)
def test_a_plain_put_waits_for_a_reader(
    engine: Subject, locks: LockTable, end: Callable[[Subject, bytes], object]
) -> None:
    transaction = engine.begin()
    engine.n_of(KEY, transaction)
    put = Started(lambda: engine.put(entity(KEY, n=50)))
    wait_until_queued(locks, 1)
    assert engine.n_of(KEY) == 1, "plain reads wait for nobody"
    end(engine, transaction)
    put.result()
    assert engine.n_of(KEY) == 50


def test_reads_see_what_was_committed_before_them(engine: Subject) -> None:
    transaction = engine.begin()
    engine.put(entity(KEY, n=7))
    assert engine.n_of(KEY, transaction) == 7
    engine.put(entity(OTHER, n=8))
    engine.lookup(OTHER, transaction=transaction)
    engine.commit(write(8), transaction=transaction)
    assert engine.n_of(KEY) == 8


def test_a_read_that_is_aborted_ends_the_transaction(engine: Subject, locks: LockTable) -> None:
    # Each has read an entity that the other wants to write; the younger one waits as a reader.
    old, young = engine.begin(), engine.begin()
    engine.n_of(KEY, old)
    engine.lookup(OTHER, transaction=young)
    put = Started(lambda: engine.put(entity(KEY, n=9)))
    wait_until_queued(locks, 1)
    reader = Started(lambda: engine.n_of(KEY, young))
    wait_until_queued(locks, 2)
    other = Mutation(upsert=entity(OTHER, n=9))
    engine.commit(other, transaction=old)
    with refused(code=Code.ABORTED):
        reader.result()
    put.result()
    with pytest.raises(DatastoreError, match=EXPIRED):
        engine.n_of(KEY, young)


def test_a_phantom_aborts(engine: Subject) -> None:
    transaction = engine.begin()
    engine.run(query("Counter"), transaction=transaction)
    engine.put(entity(key("Counter", 3), n=1))
    with pytest.raises(DatastoreError, match="contention"):
        engine.commit(write(2), transaction=transaction)
    only_reads = engine.begin()
    engine.run(query("Counter"), transaction=only_reads)
    engine.put(entity(key("Counter", 4), n=1))
    with pytest.raises(DatastoreError, match="contention"):
        engine.commit(transaction=only_reads)


def test_a_query_that_was_overtaken_is_run_again(engine: Subject, locks: LockTable) -> None:
    holder = engine.begin()
    engine.n_of(KEY, holder)
    writer = Started(lambda: engine.put(entity(KEY, n=5)))
    wait_until_queued(locks, 1)
    transaction = engine.begin()
    asking = query("Counter", filters=where(("n", ">", 0)), orders=("n",))
    # Its results are queued behind the writer: when they are locked, they are out of date.
    result = Started(lambda: engine.run(asking, transaction=transaction))
    wait_until_queued(locks, 2)
    engine.rollback(holder)
    writer.result()
    numbers = [r.entity.properties["n"].integer_value for r in result.result().entity_results]
    assert numbers == [1, 5]
    engine.commit(write(6), transaction=transaction)
