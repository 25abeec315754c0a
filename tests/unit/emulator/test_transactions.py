"""Transactions: snapshots, validation, the life cycle of an id."""

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore import concurrency, transactions
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.concurrency import Unvalidated
from userlock_emulator.datastore.errors import CONTENTION, EXPIRED, Code, DatastoreError
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Mutation,
    RunAggregationQueryRequest,
    RunQueryRequest,
)
from userlock_emulator.datastore.transactions import State, TransactionTable

KEY = key("Counter", 1)
OTHER = key("Counter", 2)


def n_of(engine: Subject, transaction: bytes = b"") -> int | None:
    found = engine.lookup(KEY, transaction=transaction).found
    return found[0].entity.properties["n"].integer_value if found else None


def write(n: int) -> object:
    return Mutation(upsert=entity(OTHER, n=n))


def assert_aborted(engine: Subject, transaction: bytes) -> None:
    with pytest.raises(DatastoreError) as caught:
        engine.commit(write(1), transaction=transaction)
    assert (caught.value.code, caught.value.message) == (Code.ABORTED, CONTENTION)


def assert_expired(engine: Subject, transaction: bytes) -> None:
    for use in (
        lambda: engine.lookup(KEY, transaction=transaction),
        lambda: engine.run(query(), transaction=transaction),
        lambda: engine.commit(write(1), transaction=transaction),
    ):
        with pytest.raises(DatastoreError) as caught:
            use()
        assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, EXPIRED)


class TestSnapshots:
    def test_reads_see_the_database_as_it_was_at_the_beginning(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        engine.put(entity(OTHER, n=1))
        transaction = engine.begin()
        engine.put(entity(KEY, n=2))
        engine.delete(OTHER)
        engine.put(entity(key("Counter", 3), n=1))
        assert n_of(engine, transaction) == 1
        assert len(engine.lookup(OTHER, transaction=transaction).found) == 1
        seen = engine.run(query("Counter", orders=("n",)), transaction=transaction)
        assert [r.entity.key.path[0].id for r in seen.entity_results] == [1, 2]
        assert n_of(engine) == 2

    def test_new_transaction_in_a_read(self, engine: Subject) -> None:
        request = LookupRequest(project_id=PROJECT, keys=[KEY])
        request.read_options.new_transaction.read_write.SetInParent()
        transaction = engine.engine.lookup(request).transaction
        engine.put(entity(KEY, n=1))
        assert_aborted(engine, transaction)
        query_request = RunQueryRequest(project_id=PROJECT, query=query("Counter"))
        query_request.read_options.new_transaction.read_write.SetInParent()
        transaction = engine.engine.run_query(query_request).transaction
        engine.put(entity(KEY, n=2))
        assert_aborted(engine, transaction)


class TestValidation:
    def test_a_changed_entity_aborts(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        transaction = engine.begin()
        n_of(engine, transaction)
        engine.put(entity(KEY, n=2))
        assert_aborted(engine, transaction)
        assert len(engine.lookup(OTHER).missing) == 1

    def test_a_deleted_entity_and_a_filled_gap_abort(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        deleted, gap = engine.begin(), engine.begin()
        engine.lookup(KEY, transaction=deleted)
        engine.lookup(OTHER, transaction=gap)
        engine.delete(KEY)
        engine.put(entity(OTHER, n=1))
        assert_aborted(engine, deleted)
        assert_aborted(engine, gap)

    def test_a_gap_in_a_namespace_that_did_not_exist(self, engine: Subject) -> None:
        elsewhere = key("Counter", 1, namespace="fresh")
        transaction, by_query = engine.begin(), engine.begin()
        engine.lookup(elsewhere, transaction=transaction)
        engine.run(query("Counter"), transaction=by_query, namespace="fresh")
        engine.put(entity(elsewhere))
        assert_aborted(engine, transaction)
        assert_aborted(engine, by_query)

    def test_changes_before_the_transaction_do_not_matter(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        transaction = engine.begin()
        n_of(engine, transaction)
        engine.put(entity(OTHER, n=1))
        engine.commit(Mutation(upsert=entity(KEY, n=2)), transaction=transaction)
        assert n_of(engine) == 2

    def test_the_first_of_two_transactions_wins(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        first, second = engine.begin(), engine.begin()
        n_of(engine, first)
        n_of(engine, second)
        engine.commit(Mutation(upsert=entity(KEY, n=2)), transaction=first)
        assert_aborted(engine, second)
        assert n_of(engine) == 2

    def test_blind_writes_do_not_conflict(self, engine: Subject) -> None:
        first, second = engine.begin(), engine.begin()
        engine.commit(Mutation(upsert=entity(KEY, n=1)), transaction=first)
        engine.commit(Mutation(upsert=entity(KEY, n=2)), transaction=second)
        assert n_of(engine) == 2

    def test_write_skew_is_prevented(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1), entity(OTHER, n=1))
        first, second = engine.begin(), engine.begin()
        for transaction in (first, second):
            engine.lookup(KEY, OTHER, transaction=transaction)
        engine.commit(Mutation(upsert=entity(KEY, n=0)), transaction=first)
        assert_aborted(engine, second)

    def test_a_phantom_aborts(self, engine: Subject) -> None:
        engine.put(entity(key("Counter", 5), n=5))
        transaction = engine.begin()
        above = query("Counter", filters=where(("n", ">", 3)))
        assert len(engine.run(above, transaction=transaction).entity_results) == 1
        engine.put(entity(key("Counter", 7), n=7))
        assert_aborted(engine, transaction)

    def test_a_change_beyond_the_limit_does_not_abort(self, engine: Subject) -> None:
        engine.put(*(entity(key("Counter", i), n=i) for i in range(3, 8)))
        inside, outside = engine.begin(), engine.begin()
        for transaction in (inside, outside):
            engine.run(query("Counter", orders=("n",), limit=2), transaction=transaction)
        engine.put(entity(key("Counter", 6), n=60))
        engine.commit(write(100), transaction=outside)
        engine.put(entity(key("Counter", 9), n=-1))
        assert_aborted(engine, inside)

    def test_an_aggregation_is_validated(self, engine: Subject) -> None:
        transaction = engine.begin()
        request = RunAggregationQueryRequest(project_id=PROJECT)
        request.aggregation_query.nested_query.CopyFrom(query("Counter"))
        request.aggregation_query.aggregations.add().count.SetInParent()
        request.read_options.transaction = transaction
        engine.engine.run_aggregation_query(request)
        engine.put(entity(KEY, n=1))
        assert_aborted(engine, transaction)

    def test_without_validation_an_update_is_lost(self) -> None:
        """The negative control of the tests above."""
        with subjects.subject(Unvalidated) as engine:
            engine.put(entity(KEY, n=1))
            transaction = engine.begin()
            n_of(engine, transaction)
            engine.put(entity(KEY, n=2))
            engine.commit(write(1), transaction=transaction)

    def test_a_transaction_whose_history_was_dropped_aborts(
        self, engine: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(concurrency, "MAX_REMEMBERED_CHANGES", 10)
        old = engine.begin()
        engine.lookup(key("Never", "written"), transaction=old)
        for n in range(12):
            engine.put(entity(KEY, n=n))
        assert_aborted(engine, old)
        young = engine.begin()
        engine.lookup(key("Never", "written"), transaction=young)
        engine.commit(write(1), transaction=young)


class TestIds:
    def test_a_committed_transaction_is_over(self, engine: Subject) -> None:
        transaction = engine.begin()
        engine.commit(write(1), transaction=transaction)
        assert_expired(engine, transaction)
        with pytest.raises(DatastoreError, match="expired"):
            engine.rollback(transaction)

    def test_rolling_back_twice_succeeds(self, engine: Subject) -> None:
        transaction = engine.begin()
        engine.rollback(transaction)
        engine.rollback(transaction)
        assert_expired(engine, transaction)

    def test_rolling_back_what_was_aborted_succeeds(self, engine: Subject) -> None:
        transaction = engine.begin()
        n_of(engine, transaction)
        engine.put(entity(KEY, n=2))
        assert_aborted(engine, transaction)
        assert_expired(engine, transaction)
        engine.rollback(transaction)

    @pytest.mark.parametrize("made_up", [b"x", b"x" * 20, b"x" * 40])
    def test_made_up_ids_are_refused(self, engine: Subject, made_up: bytes) -> None:
        assert_expired(engine, made_up)
        with pytest.raises(DatastoreError, match="expired"):
            engine.rollback(made_up)

    def test_a_transaction_belongs_to_its_database(self, engine: Subject) -> None:
        transaction = engine.begin()
        request = LookupRequest(project_id="another", keys=[key("K", 1, project="another")])
        request.read_options.transaction = transaction
        with pytest.raises(DatastoreError, match="expired"):
            engine.engine.lookup(request)
        engine.lookup(KEY, transaction=transaction)

    def test_a_failed_commit_ends_the_transaction(self, engine: Subject) -> None:
        transaction = engine.begin()
        with pytest.raises(DatastoreError) as caught:
            engine.commit(Mutation(update=entity(KEY)), transaction=transaction)
        assert caught.value.code is Code.NOT_FOUND
        assert_expired(engine, transaction)

    def test_a_malformed_commit_does_not(self, engine: Subject) -> None:
        transaction = engine.begin()
        with pytest.raises(DatastoreError, match="incomplete"):
            engine.commit(Mutation(delete=key("K")), transaction=transaction)
        engine.commit(write(1), transaction=transaction)

    def test_reset_ends_all(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        version = engine.lookup(KEY).found[0].version
        transaction = engine.begin()
        engine.engine.reset()
        assert_expired(engine, transaction)
        missing = engine.lookup(KEY).missing[0]
        assert missing.version > version
        (result,) = engine.commit(
            Mutation(upsert=entity(KEY, n=2), base_version=version)
        ).mutation_results
        assert result.conflict_detected, "from before the reset"


class TestReadOnly:
    def test_it_reads_its_snapshot_and_takes_no_part_in_validation(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        transaction = engine.begin(read_only=True)
        engine.put(entity(KEY, n=2))
        assert n_of(engine, transaction) == 1
        engine.commit(transaction=transaction)

    def test_it_cannot_write(self, engine: Subject) -> None:
        transaction = engine.begin(read_only=True)
        with pytest.raises(DatastoreError, match="read-only"):
            engine.commit(write(1), transaction=transaction)

    def test_it_can_read_in_the_past(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        then = engine.lookup(KEY).read_time
        engine.put(entity(KEY, n=2))
        request = BeginTransactionRequest(project_id=PROJECT)
        request.transaction_options.read_only.read_time.CopyFrom(then)
        transaction = engine.engine.begin_transaction(request).transaction
        assert n_of(engine, transaction) == 1

    def test_a_single_use_transaction_must_write(self, engine: Subject) -> None:
        request = CommitRequest(project_id=PROJECT)
        request.single_use_transaction.read_only.SetInParent()
        with pytest.raises(DatastoreError, match="read-write"):
            engine.engine.commit(request)


class TestReadTime:
    def test_a_past_state_can_be_read(self, engine: Subject) -> None:
        engine.put(entity(KEY, n=1))
        then = engine.lookup(KEY).read_time
        engine.put(entity(KEY, n=2))
        request = LookupRequest(project_id=PROJECT, keys=[KEY])
        request.read_options.read_time.CopyFrom(then)
        response = engine.engine.lookup(request)
        assert response.found[0].entity.properties["n"].integer_value == 1
        assert response.read_time == then

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
        request = LookupRequest(project_id=PROJECT, keys=[KEY])
        request.read_options.read_time.FromMicroseconds(engine.storage.clock.now())
        request.read_options.read_time.seconds += shift_seconds
        request.read_options.read_time.nanos += nanos
        with pytest.raises(DatastoreError, match=text) as caught:
            engine.engine.lookup(request)
        assert caught.value.code is code


class ManualMonotonic:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TestExpiry:
    DATABASE = ("p", "")

    def table(self) -> tuple[TransactionTable, ManualMonotonic]:
        clock = ManualMonotonic()
        return TransactionTable(VersionClock(), b"secret", clock), clock

    def test_idle_transactions_expire(self) -> None:
        table, clock = self.table()
        transaction = table.begin(self.DATABASE)
        clock.seconds += transactions.IDLE_SECONDS
        table.get(transaction.id, self.DATABASE)
        clock.seconds += transactions.IDLE_SECONDS + 1
        with pytest.raises(DatastoreError, match="expired"):
            table.get(transaction.id, self.DATABASE)
        table.roll_back(transaction.id, self.DATABASE)

    def test_busy_ones_expire_too(self) -> None:
        table, clock = self.table()
        transaction = table.begin(self.DATABASE)
        while clock.seconds < transactions.LIFETIME_SECONDS:
            table.get(transaction.id, self.DATABASE)
            clock.seconds += transactions.IDLE_SECONDS
        clock.seconds = transactions.LIFETIME_SECONDS + 1
        with pytest.raises(DatastoreError, match="expired"):
            table.get(transaction.id, self.DATABASE)

    def test_an_id_from_before_a_restart_can_be_rolled_back(self) -> None:
        table, _ = self.table()
        transaction = table.begin(self.DATABASE)
        restarted, _ = self.table()
        restarted.roll_back(transaction.id, self.DATABASE)
        stranger = TransactionTable(VersionClock(), b"another secret")
        with pytest.raises(DatastoreError, match="expired"):
            stranger.roll_back(transaction.id, self.DATABASE)

    def test_one_request_sent_twice_commits_once(self) -> None:
        table, _ = self.table()
        transaction = table.begin(self.DATABASE)
        table.check_active(transaction)
        table.finish(transaction, State.COMMITTED)
        with pytest.raises(DatastoreError, match="expired"):
            table.check_active(transaction)
