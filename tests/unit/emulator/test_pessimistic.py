"""The pessimistic mode: its reader/writer locks, and transactions through the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject, query, refused, where
from tests.unit.emulator.waiting import Started
from userlock_emulator.datastore import locks as locks_module
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import CONTENTION, EXPIRED, Code, DatastoreError
from userlock_emulator.datastore.locks import LockTable, Owner
from userlock_emulator.datastore.pessimistic import Pessimistic
from userlock_emulator.datastore.protos import Message, Mutation
from userlock_emulator.datastore.transactions import Transaction

PARTITION = Partition("p", "", "")
A, B, C = ((PARTITION, name) for name in (b"a", b"b", b"c"))


@pytest.fixture
def table() -> LockTable:
    return LockTable(sweep=lambda: None)


def wait_until_queued(locks: LockTable, count: int) -> None:
    """Return when `count` requests wait. Woken by the lock table, never by time."""
    with locks._condition:
        assert locks._condition.wait_for(lambda: len(locks._queue) == count, 10)


def test_readers_and_writers_take_turns(table: LockTable) -> None:
    early = [Owner(), Owner()]
    for reader in early:
        table.share(reader, [A])
    owner = Owner()
    writer = Started(lambda: table.take(owner, [A]))
    wait_until_queued(table, 1)
    # A new reader does not overtake it; one that shares already may do so again.
    late = Started(lambda: table.share(Owner(), [A]))
    wait_until_queued(table, 2)
    table.share(early[0], [A])
    table.share(Owner(), [B])
    table.release(early[0])
    assert table.waiting == 2
    table.release(early[1])
    writer.result()
    assert not late.done
    table.release(owner)
    late.result()


@pytest.mark.parametrize("first", ["old", "young"])
def test_of_two_readers_that_want_to_write_the_younger_is_aborted(
    table: LockTable, first: str
) -> None:
    old, young = Owner(), Owner()
    table.share(old, [A])
    table.share(young, [A])
    waiting = Started(lambda: table.take(old if first == "old" else young, [A]))
    wait_until_queued(table, 1)
    if first == "old":
        with refused(code=Code.ABORTED):
            table.take(young, [A])
        waiting.result()
    else:
        table.take(old, [A])
        with refused(code=Code.ABORTED):
            waiting.result()
    with refused(code=Code.ABORTED):
        table.share(young, [B])


def test_the_only_reader_may_become_the_writer_ahead_of_the_queue(table: LockTable) -> None:
    reader = Owner()
    table.share(reader, [A])
    stranger = Started(lambda: table.take(Owner(), [A]))
    wait_until_queued(table, 1)
    table.take(reader, [A])
    table.release(reader)
    stranger.result()


def test_several_entities_are_granted_as_a_whole(table: LockTable) -> None:
    reader = Owner()
    table.share(reader, [B])
    owner = Owner()
    writer = Started(lambda: table.take(owner, [A, B]))
    wait_until_queued(table, 1)
    # The waiting writer does not hold A, so a writer of A alone is only queued behind it.
    assert owner.exclusive == set()
    table.release(reader)
    writer.result()
    assert owner.exclusive == {A, B}


def test_a_long_cycle_is_found(table: LockTable) -> None:
    owners = [Owner(), Owner(), Owner()]
    for owner, place in zip(owners, (A, B, C), strict=True):
        table.share(owner, [place])
    first = Started(lambda: table.take(owners[0], [B]))
    wait_until_queued(table, 1)
    second = Started(lambda: table.take(owners[1], [C]))
    wait_until_queued(table, 2)
    with refused(code=Code.ABORTED):
        table.take(owners[2], [A])
    second.result()
    table.release(owners[1])
    first.result()


def owned(name: bytes, began: float = 0.0, client: str = "") -> Owner:
    transaction = Transaction(
        name * 20, ("p", ""), read_only=False, snapshot=0, began=began, last_used=began
    )
    return Owner(transaction=transaction, client=client)


def test_the_request_that_gives_up_names_the_transaction_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks_module, "_SWEEP_SECONDS", 0.001)
    now = [100.0]

    def sweep() -> None:
        now[0] += locks_module.LOCK_TIMEOUT_SECONDS

    table = LockTable(sweep, monotonic=lambda: now[0])
    place = (Partition("p", "", "n"), encode_key(key("Task", "a")))
    stuck = owned(b"s", began=90.0)
    assert stuck.transaction is not None
    stuck.transaction.client = "gl-python/3.11"
    table.share(stuck, [place])
    with pytest.raises(DatastoreError) as caught:
        table.take(owned(b"w"), [place])
    assert caught.value.message == (
        f"{CONTENTION} This request has waited 20 s for the lock of"
        " KEY(NAMESPACE('n'), Task, 'a'), behind transaction 73737373 (begun 30 s ago, last used"
        " 30 s ago, by gl-python/3.11). To fix it: end that transaction in its client, or see"
        " /viewer/transactions at the emulator's address."
    )
    assert "73737373" in caplog.text


# --- through the engine

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
    engine.n_of(KEY, transaction=transaction)
    put = Started(lambda: engine.put(entity(KEY, n=50)))
    wait_until_queued(locks, 1)
    assert engine.n_of(KEY) == 1, "plain reads wait for nobody"
    end(engine, transaction)
    put.result()
    assert engine.n_of(KEY) == 50


def test_a_read_that_is_aborted_ends_the_transaction(engine: Subject, locks: LockTable) -> None:
    # Each has read an entity that the other wants to write; the younger one waits as a reader.
    old, young = engine.begin(), engine.begin()
    engine.n_of(KEY, transaction=old)
    engine.lookup(OTHER, transaction=young)
    put = Started(lambda: engine.put(entity(KEY, n=9)))
    wait_until_queued(locks, 1)
    reader = Started(lambda: engine.n_of(KEY, transaction=young))
    wait_until_queued(locks, 2)
    other = Mutation(upsert=entity(OTHER, n=9))
    engine.commit(other, transaction=old)
    with refused(code=Code.ABORTED):
        reader.result()
    put.result()
    with pytest.raises(DatastoreError, match=EXPIRED):
        engine.n_of(KEY, transaction=young)


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
    engine.n_of(KEY, transaction=holder)
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
