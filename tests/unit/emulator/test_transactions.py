"""Transactions without locks: snapshots, validation, the life cycle of an id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import Subject, aggregation, query, refused, where
from userlock_emulator.datastore import concurrency, transactions
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.concurrency import Optimistic, Unvalidated
from userlock_emulator.datastore.engine import ControlFactory
from userlock_emulator.datastore.entity_groups import MAX_GROUPS, OptimisticWithEntityGroups
from userlock_emulator.datastore.errors import CONTENTION, EXPIRED, Code
from userlock_emulator.datastore.protos import BeginTransactionRequest, Message, Mutation, timestamp
from userlock_emulator.datastore.transactions import State, TransactionTable

KEY, OTHER = key("K", 1), key("K", 2)
FRESH = key("K", 1, namespace="fresh")
CHILD, SIBLING = key("Group", 1, "Child", 1), key("Group", 1, "Child", 2)
NAMED, NAMED_SIBLING = key("Group", "a\x00b", "Child", 1), key("Group", "a\x00b", "Another", 1)
UNKNOWN = "^Invalid transaction.$"
WRITE = Mutation(upsert=entity(key("Written", 1), n=1))


def assert_aborted(engine: Subject, transaction: bytes, write: Message = WRITE) -> None:
    with refused(f"^{CONTENTION}$", Code.ABORTED):
        engine.commit(write, transaction=transaction)


def assert_expired(engine: Subject, transaction: bytes) -> None:
    for use in (
        lambda: engine.lookup(KEY, transaction=transaction),
        lambda: engine.run(query(), transaction=transaction),
        lambda: engine.commit(WRITE, transaction=transaction),
    ):
        with refused(f"^{EXPIRED}$"):
            use()


def looking_up(*keys: Any) -> Callable[[Subject, bytes], object]:
    return lambda engine, transaction: engine.lookup(*keys, transaction=transaction)


def asking(kind: str = "K", **fields: Any) -> Callable[[Subject, bytes], object]:
    message = query(kind, **fields)
    return lambda engine, transaction: engine.run(message, transaction=transaction)


def counting(engine: Subject, transaction: bytes) -> None:
    request = aggregation(query(), ("count", None, ""))
    request.read_options.transaction = transaction
    engine.engine.run_aggregation_query(request)


def putting(of: Any, n: int = 9) -> Callable[[Subject], object]:
    return lambda engine: engine.put(entity(of, n=n))


FIRST_TWO = asking(orders=("n",), limit=2)


@pytest.mark.parametrize(
    ("control", "read", "change", "aborted"),
    [
        (Optimistic, looking_up(KEY), putting(KEY), True),
        (Optimistic, looking_up(KEY), lambda engine: engine.delete(KEY), True),
        (Optimistic, looking_up(OTHER), putting(OTHER), True),  # it was missing
        (Optimistic, looking_up(FRESH), putting(FRESH), True),
        (Optimistic, looking_up(KEY), putting(OTHER), False),
        (Optimistic, lambda engine, transaction: None, putting(KEY), False),  # a blind write
        (Optimistic, FIRST_TWO, putting(key("K", 6), 60), False),  # beyond the limit
        (Optimistic, FIRST_TWO, putting(key("K", 9), -1), True),
        (Optimistic, counting, putting(OTHER), True),
        (Optimistic, asking("__kind__"), putting(key("New", 1)), True),
        (OptimisticWithEntityGroups, looking_up(CHILD), putting(SIBLING), True),
        (OptimisticWithEntityGroups, looking_up(CHILD), putting(KEY), False),
        (OptimisticWithEntityGroups, looking_up(NAMED), putting(NAMED_SIBLING), True),
        (OptimisticWithEntityGroups, looking_up(NAMED), putting(key("Group", "a")), False),
        (
            OptimisticWithEntityGroups,
            asking("Child", filters=where(("__key__", "ancestor", key("Group", 1)))),
            putting(SIBLING),
            True,
        ),
        (Unvalidated, looking_up(KEY), putting(KEY), False),  # the negative control
    ],
)
def test_what_was_read_and_has_changed_aborts(
    control: ControlFactory,
    read: Callable[[Subject, bytes], object],
    change: Callable[[Subject], object],
    aborted: bool,
) -> None:
    with subjects.subject(control) as engine:
        engine.put(*(entity(key("K", i), n=i) for i in (1, 3, 4, 5, 6)), entity(CHILD, n=1))
        transaction = engine.begin()
        read(engine, transaction)
        change(engine)
        if aborted:
            assert_aborted(engine, transaction)
            assert engine.lookup(key("Written", 1)).missing
        else:
            engine.commit(WRITE, transaction=transaction)


def test_a_query_in_a_namespace_that_did_not_exist(engine: Subject) -> None:
    transaction = engine.begin()
    engine.run(query(), transaction=transaction, namespace="fresh")
    engine.put(entity(FRESH))
    assert_aborted(engine, transaction)


def test_a_transaction_whose_history_was_dropped_aborts(
    engine: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "MAX_REMEMBERED_CHANGES", 10)
    old = engine.begin()
    engine.lookup(OTHER, transaction=old)
    for n in range(12):
        engine.put(entity(KEY, n=n))
    assert_aborted(engine, old)
    young = engine.begin()
    engine.lookup(OTHER, transaction=young)
    engine.commit(WRITE, transaction=young)


class TestEntityGroups:
    @pytest.fixture
    def engine(self) -> Iterator[Subject]:
        with subjects.subject(OptimisticWithEntityGroups) as running:
            running.put(entity(CHILD, n=1))
            yield running

    def test_two_writers_of_a_group_conflict_without_reading(self, engine: Subject) -> None:
        first, second = engine.begin(), engine.begin()
        engine.commit(Mutation(upsert=entity(CHILD, n=2)), transaction=first)
        assert_aborted(engine, second, Mutation(upsert=entity(SIBLING)))

    def test_a_query_needs_an_ancestor(self, engine: Subject) -> None:
        transaction = engine.begin()
        after = where(("__key__", "ancestor", key("Group", 1)), ("__key__", ">", CHILD))
        engine.run(query("Child", filters=after), transaction=transaction)
        for wide in (query("Child"), query("Child", filters=where(("__key__", ">", CHILD)))):
            engine.run(wide)
            with refused("ancestor"):
                engine.run(wide, transaction=transaction)

    def test_a_transaction_touches_a_limited_number_of_groups(self, engine: Subject) -> None:
        transaction = engine.begin()
        allowed = [key("Group", i + 1) for i in range(MAX_GROUPS)]
        engine.lookup(*allowed, CHILD, SIBLING, transaction=transaction)
        with refused("too many entity groups"):
            engine.lookup(key("Group", 99), transaction=transaction)


class TestReads:
    @pytest.mark.parametrize("read_only", [False, True])
    def test_they_see_the_database_as_it_was_at_the_beginning(
        self, engine: Subject, read_only: bool
    ) -> None:
        engine.put(entity(KEY, n=1), entity(OTHER, n=1))
        transaction = engine.begin(read_only=read_only)
        engine.put(entity(KEY, n=2), entity(key("K", 3), n=1))
        engine.delete(OTHER)
        assert engine.n_of(KEY, transaction=transaction) == 1
        assert engine.lookup(OTHER, transaction=transaction).found
        seen = engine.run(query(orders=("n",)), transaction=transaction)
        assert [r.entity.key.path[0].id for r in seen.entity_results] == [1, 2]
        assert engine.n_of(KEY) == 2
        if read_only:
            with refused("read-only"):
                engine.commit(WRITE, transaction=transaction)
            engine.commit(transaction=engine.begin(read_only=True))

    @pytest.mark.parametrize(
        ("rpc", "asked"), [("Lookup", {"keys": [KEY]}), ("RunQuery", {"query": query()})]
    )
    def test_one_can_begin_a_transaction(
        self, engine: Subject, rpc: str, asked: dict[str, Any]
    ) -> None:
        new: Any = {"new_transaction": {"read_write": {}}}
        transaction = engine.ask(rpc, read_options=new, **asked).transaction
        engine.put(entity(KEY, n=1))
        assert_aborted(engine, transaction)

    @pytest.mark.parametrize(
        ("shift_seconds", "nanos", "code", "text"),
        [
            (60, 0, Code.INVALID_ARGUMENT, "future"),
            (-3700, 0, Code.FAILED_PRECONDITION, "past"),
            (-1, 1, Code.INVALID_ARGUMENT, "microsecond"),
        ],
    )
    def test_refused_times(
        self, engine: Subject, shift_seconds: int, nanos: int, code: Code, text: str
    ) -> None:
        time = timestamp(engine.storage.clock.now() + 1_000_000 * shift_seconds)
        time.nanos += nanos
        with refused(text, code):
            engine.lookup(KEY, read_time=time)


class TestIds:
    @pytest.mark.parametrize(
        ("mutation", "code"), [(WRITE, None), (Mutation(update=entity(KEY)), Code.NOT_FOUND)]
    )
    def test_a_commit_ends_the_transaction_also_if_it_fails(
        self, engine: Subject, mutation: Message, code: Code | None
    ) -> None:
        transaction = engine.begin()
        with refused("incomplete"):
            engine.commit(Mutation(delete=key("K")), transaction=transaction)  # malformed
        if code is None:
            engine.commit(mutation, transaction=transaction)
            with refused(EXPIRED):
                engine.rollback(transaction)
        else:
            with refused("entity", code):
                engine.commit(mutation, transaction=transaction)
        assert_expired(engine, transaction)

    def test_a_rollback_succeeds_after_another_one_and_after_an_abort(
        self, engine: Subject
    ) -> None:
        first, second = engine.begin(), engine.begin()
        engine.n_of(KEY, transaction=second)
        engine.rollback(first)
        engine.put(entity(KEY, n=2))
        assert_aborted(engine, second)
        for transaction in (first, second):
            assert_expired(engine, transaction)
            engine.rollback(transaction)

    def test_a_transaction_names_the_one_that_it_retries(self, engine: Subject) -> None:
        begin = BeginTransactionRequest(project_id=PROJECT)
        options = begin.transaction_options.read_write
        options.previous_transaction = engine.begin()
        engine.rollback(options.previous_transaction)
        assert engine.engine.begin_transaction(begin).transaction
        options.previous_transaction = engine.begin(read_only=True)
        text = "^Cannot retry a read-only transaction.$"
        with refused(text):
            engine.engine.begin_transaction(begin)

    def test_a_transaction_belongs_to_its_database(self, engine: Subject) -> None:
        with refused(EXPIRED):
            engine.get(key("K", 1, project="another"), transaction=engine.begin())

    def test_reset_ends_all(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        version = engine.lookup(KEY).found[0].version
        transaction = engine.begin()
        engine.engine.reset()
        assert_expired(engine, transaction)
        assert engine.lookup(KEY).missing[0].version > version
        stale = Mutation(upsert=entity(KEY, n=2), base_version=version)
        assert engine.commit(stale).mutation_results[0].conflict_detected


class TestExpiry:
    DATABASE = ("p", "")

    def table(self, seconds: list[float]) -> TransactionTable:
        return TransactionTable(VersionClock(), b"secret", lambda: seconds[0])

    def test_idle_and_busy_transactions_expire(self) -> None:
        seconds = [0.0]
        table = self.table(seconds)
        idle, busy = table.begin(self.DATABASE), table.begin(self.DATABASE)
        while seconds[0] < transactions.LIFETIME_SECONDS:
            table.get(busy.id, self.DATABASE)
            seconds[0] += transactions.IDLE_SECONDS
            if seconds[0] > transactions.IDLE_SECONDS:
                with refused("expired"):
                    table.get(idle.id, self.DATABASE)
        seconds[0] = transactions.LIFETIME_SECONDS + 1
        with refused("expired"):
            table.get(busy.id, self.DATABASE)
        table.roll_back(idle.id, self.DATABASE)

    def test_an_id_from_before_a_restart_can_be_rolled_back(self) -> None:
        transaction = self.table([0.0]).begin(self.DATABASE)
        self.table([0.0]).roll_back(transaction.id, self.DATABASE)
        stranger = TransactionTable(VersionClock(), b"another secret")
        with refused(UNKNOWN):
            stranger.roll_back(transaction.id, self.DATABASE)

    def test_one_request_sent_twice_commits_once(self) -> None:
        table = self.table([0.0])
        transaction = table.begin(self.DATABASE)
        table.check_active(transaction)
        table.finish(transaction, State.COMMITTED)
        with refused("expired"):
            table.check_active(transaction)
