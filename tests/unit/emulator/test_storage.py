"""Storage: files, restarts, history, and no scan of a kind."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, where
from tests.unit.emulator.waiting import Started
from userlock_emulator.data_folder import DATASTORE
from userlock_emulator.datastore.errors import StorageError
from userlock_emulator.datastore.protos import (
    AllocateIdsRequest,
    BeginTransactionRequest,
    LookupRequest,
    Mutation,
    QueryPb,
    ReadOptions,
    RunQueryRequest,
)
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transfer import Transfer

KEY = key("K", 1)
# An hour, and the lifetime of a transaction that reads the state of that time.
FORGOTTEN_MICROSECONDS = 3_901_000_000


@pytest.fixture
def clock() -> list[int]:
    """Provide the time of day in microseconds, set by the test."""
    return [1_700_000_000_000_000]


@pytest.fixture
def timed(clock: list[int]) -> Iterator[Subject]:
    storage = Storage(history_seconds=3600, now=lambda: clock[0])
    yield Subject(storage)
    storage.close()


class TestFiles:
    def test_data_survives_a_restart(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path / "new" / "folder")
        engine = Subject(storage)
        version = engine.put(entity(KEY, n=1, at=Timestamp(5))).mutation_results[0].version
        allocate = AllocateIdsRequest(project_id=PROJECT, keys=[key("K")])
        allocated = engine.engine.allocate_ids(allocate).keys[0]
        storage.close()

        storage = Storage(tmp_path / "new" / "folder")
        engine = Subject(storage)
        (found,) = engine.lookup(KEY).found
        assert (found.version, found.entity) == (version, entity(KEY, n=1, at=Timestamp(5)))
        assert engine.identifiers(query(filters=where(("n", "=", 1)))) == [1]
        assert engine.put(entity(KEY, n=2)).mutation_results[0].version > version
        assert engine.engine.allocate_ids(allocate).keys[0] != allocated
        storage.close()

    def test_readers_that_come_and_go_leave_no_open_files(self, tmp_path: Path) -> None:
        """Each HTTP connection has a thread of its own."""
        storage = Storage(tmp_path)
        engine = Subject(storage)
        engine.put(entity(KEY, n=1))
        for _ in range(10):
            assert Started(lambda: engine.lookup(KEY)).result().found
        (connection,) = storage._connections - {storage._connection}
        assert storage._idle == [connection]

        # If a reader fails, its snapshot ends with it.
        left_open = []
        with contextlib.suppress(RuntimeError), storage.read() as reader:
            left_open.append(reader.scan_keys(1))
            next(left_open[0])
            raise RuntimeError
        engine.put(entity(KEY, n=2))
        assert engine.lookup(KEY).found[0].entity == entity(KEY, n=2)
        assert connection not in storage._connections
        storage.close()

    def test_versions_grow_even_if_the_clock_was_set_back(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path, now=lambda: 2_000_000)
        version = Subject(storage).put(entity(KEY, n=1)).mutation_results[0].version
        storage.close()
        storage = Storage(tmp_path, now=lambda: 1_000_000)
        engine = Subject(storage)
        assert engine.lookup(KEY).found[0].version == version
        assert engine.put(entity(KEY, n=2)).mutation_results[0].version > version
        storage.close()

    def test_readers_do_not_wait_for_a_commit(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        engine = Subject(storage)
        engine.put(entity(KEY, n=1))
        answered = []
        with storage.write() as writer:
            writer.write_meta("unrelated", 1)
            reader = threading.Thread(target=lambda: answered.append(engine.lookup(KEY)))
            reader.start()
            reader.join(10)
            assert len(answered) == 1
        assert len(answered[0].found) == 1
        storage.close()

    def test_a_file_from_a_newer_version_is_refused(self, tmp_path: Path) -> None:
        Storage(tmp_path).close()
        connection = sqlite3.connect(tmp_path / DATASTORE)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(StorageError, match="newer version") as caught:
            Storage(tmp_path)
        assert "\n" not in str(caught.value)

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / DATASTORE).write_bytes(b"not a database" * 1000)
        with pytest.raises(StorageError, match="not a database"):
            Storage(tmp_path)
        (tmp_path / DATASTORE).unlink()
        connection = sqlite3.connect(tmp_path / DATASTORE)
        connection.execute("CREATE TABLE somebody_elses (x)")
        connection.close()
        with pytest.raises(StorageError, match="not an emulator database"):
            Storage(tmp_path)

    def test_a_path_that_is_no_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="cannot use"):
            Storage(tmp_path / "file")

    def test_two_emulators_cannot_share_a_folder(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        with pytest.raises(StorageError, match="another emulator"):
            Storage(tmp_path)
        storage.close()
        Storage(tmp_path).close()


class TestHistory:
    def test_each_state_stays_readable(self, timed: Subject, clock: list[int]) -> None:
        moments = []
        for n in range(5):
            timed.put(entity(KEY, n=n))
            moments.append(clock[0])
            clock[0] += 1000
        for n, moment in enumerate(moments):
            request = LookupRequest(project_id=PROJECT, keys=[KEY])
            request.read_options.read_time.FromMicroseconds(moment)
            (found,) = timed.engine.lookup(request).found
            assert found.entity.properties["n"].integer_value == n
            past = RunQueryRequest(
                project_id=PROJECT,
                query=query(filters=where(("n", ">=", 0))),
                read_options=ReadOptions(read_time=request.read_options.read_time),
            )
            (result,) = timed.engine.run_query(past).batch.entity_results
            assert result.entity.properties["n"].integer_value == n

    def test_old_versions_are_removed(self, timed: Subject, clock: list[int]) -> None:
        for n in range(10):
            timed.put(entity(KEY, n=n))
        timed.put(entity(key("K", 2)))
        timed.delete(key("K", 2))
        assert rows(timed, "entity_history") == 10
        assert rows(timed, "index_history") == 10
        clock[0] += FORGOTTEN_MICROSECONDS
        timed.put(entity(KEY, n=10))
        assert rows(timed, "entity_history") == 1
        assert rows(timed, "index_history") == 1
        assert rows(timed, "deletions") == 0

    def test_a_forgotten_deletion_is_still_a_conflict(
        self, timed: Subject, clock: list[int]
    ) -> None:
        version = timed.put(entity(KEY, n=1)).mutation_results[0].version
        timed.delete(KEY)
        clock[0] += FORGOTTEN_MICROSECONDS
        timed.put(entity(key("K", 2)))
        assert rows(timed, "deletions") == 0
        stale = Mutation(upsert=entity(KEY, n=2), base_version=version)
        assert timed.commit(stale).mutation_results[0].conflict_detected
        fresh = Mutation(upsert=entity(KEY, n=2), base_version=timed.lookup(KEY).missing[0].version)
        assert not timed.commit(fresh).mutation_results[0].conflict_detected

    def test_a_transaction_reads_on_at_the_oldest_time(
        self, timed: Subject, clock: list[int]
    ) -> None:
        timed.put(entity(KEY, n=1))
        request = BeginTransactionRequest(project_id=PROJECT)
        request.transaction_options.read_only.read_time.FromMicroseconds(clock[0])
        clock[0] += 1_000_000
        timed.put(entity(KEY, n=2))
        clock[0] += 3_599_000_000
        transaction = timed.engine.begin_transaction(request).transaction
        clock[0] += 269_000_000
        timed.put(entity(KEY, n=3))
        (found,) = timed.lookup(KEY, transaction=transaction).found
        assert found.entity == entity(KEY, n=1)

    def test_large_commits_do_not_outrun_what_is_removed(
        self, timed: Subject, clock: list[int]
    ) -> None:
        """Each supersedes 1200 index entries; an hour and five minutes contain seven of them."""
        for step in range(15):
            numbers = [f"{step}.{i}" for i in range(3)]
            timed.commit(*(Mutation(upsert=entity(key("K", i + 1), n=numbers)) for i in range(400)))
            clock[0] += 600_000_000
        assert rows(timed, "entity_history") == 7 * 400
        assert rows(timed, "index_history") == 7 * 1200

    def test_one_commit_removes_a_bounded_number(self, timed: Subject, clock: list[int]) -> None:
        for step in range(2):
            timed.commit(*(Mutation(upsert=entity(key("K", i + 1), n=step)) for i in range(2500)))
        clock[0] += FORGOTTEN_MICROSECONDS
        timed.put(entity(key("Other", 1)))
        assert rows(timed, "entity_history") == 1500
        timed.put(entity(key("Other", 2)))
        timed.put(entity(key("Other", 3)))
        assert rows(timed, "entity_history") == 0


def rows(engine: Subject, table: str) -> int:
    with engine.storage.write() as writer:
        (count,) = writer._execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
        assert isinstance(count, int)
        return count


SMALL, LARGE = 100, 2000


@pytest.fixture(scope="module")
def sizes() -> Iterator[tuple[Subject, Subject]]:
    """Provide two databases with kinds of different sizes; each value of g occurs 20 times."""
    storages = Storage(), Storage()
    for storage, size in zip(storages, (SMALL, LARGE), strict=True):
        Subject(storage).commit(
            *(
                Mutation(upsert=entity(key("K", i + 1), n=i, g=i % (size // 20)))
                for i in range(size)
            )
        )
    yield Subject(storages[0]), Subject(storages[1])
    for storage in storages:
        storage.close()


class TestCost:
    """The work of SQLite, in virtual machine steps, on kinds of different sizes."""

    def steps(self, engine: Subject, act: str) -> int:
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        connection = engine.storage._connection
        connection.set_progress_handler(count, 1)
        getattr(self, act)(engine)
        connection.set_progress_handler(None, 1)
        return counted[0]

    def look_up(self, engine: Subject) -> None:
        assert len(engine.lookup(key("K", 50)).found) == 1

    def look_up_a_gap(self, engine: Subject) -> None:
        assert len(engine.lookup(key("K", 10**9)).missing) == 1

    def change(self, engine: Subject) -> None:
        engine.put(entity(key("K", 60), n=-1, g=-1))

    def remove(self, engine: Subject) -> None:
        engine.delete(key("K", 61))

    def query_equality(self, engine: Subject) -> None:
        self.expect(engine, query(filters=where(("n", "=", 50))), 1)

    def query_range(self, engine: Subject) -> None:
        self.expect(engine, query(filters=where(("n", ">", 10), ("n", "<", 31))), 20)

    def query_order(self, engine: Subject) -> None:
        self.expect(engine, query(orders=("-n",), limit=20), 20)

    def query_two_orders(self, engine: Subject) -> None:
        self.expect(engine, query(orders=("n", "g"), limit=20), 20)

    def query_filter_and_order(self, engine: Subject) -> None:
        self.expect(engine, query(filters=where(("g", "=", 3)), orders=("-n",)), 20)

    def query_two_filters(self, engine: Subject) -> None:
        self.expect(engine, query(filters=where(("g", "=", 3), ("n", "=", 3))), 1)

    def query_page(self, engine: Subject) -> None:
        self.expect(engine, query(limit=20), 20)

    def expect(self, engine: Subject, message: QueryPb, count: int) -> None:
        assert len(engine.run(message).entity_results) == count

    @pytest.mark.parametrize(
        "act",
        [
            "look_up",
            "look_up_a_gap",
            "change",
            "remove",
            "query_equality",
            "query_range",
            "query_order",
            "query_two_orders",
            "query_filter_and_order",
            "query_two_filters",
            "query_page",
        ],
    )
    def test_it_does_not_grow_with_the_kind(self, sizes: tuple[Subject, Subject], act: str) -> None:
        small, large = (self.steps(engine, act) for engine in sizes)
        assert large <= 1.5 * small, f"{small} steps became {large}"


class TestAtomicity:
    def test_a_full_disk_leaves_the_database_as_it_was(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        engine = Subject(storage)
        engine.put(entity(KEY, n=1))
        pages = storage._connection.execute("PRAGMA page_count").fetchone()[0]
        storage._connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        huge = value(b"x" * 1_000_000, indexed=False)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                engine.put(entity(key("New", 2), a=1, huge=huge))
        assert not engine.lookup(key("New", 2)).found
        assert engine.lookup(KEY).found[0].entity == entity(KEY, n=1)
        storage._connection.execute("PRAGMA max_page_count = 100000")
        engine.put(entity(key("New", 3), a=1))
        assert engine.identifiers(query("New", where(("a", "=", 1)))) == [3]
        storage.close()

    def test_a_commit_that_fails_at_its_end_leaves_nothing(
        self, timed: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Unable:
            """A connection that cannot commit."""

            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

            def execute(self, statement: str, *arguments: Any) -> Any:
                if statement == "COMMIT":
                    raise sqlite3.OperationalError("disk I/O error")
                return connection.execute(statement, *arguments)

        connection = timed.storage._connection
        with monkeypatch.context() as patched:
            patched.setattr(timed.storage, "_connection", Unable())
            with pytest.raises(sqlite3.OperationalError):
                timed.put(entity(KEY, n=1))
            with pytest.raises(sqlite3.OperationalError):
                timed.storage.reset()
        timed.put(entity(key("K", 2), n=2))
        assert timed.identifiers(query(orders=("n",))) == [2]

    def test_a_failing_commit_leaves_nothing(self, timed: Subject) -> None:
        class Failure(Exception):
            pass

        def half_a_commit() -> None:
            with timed.storage.write() as writer:
                partition = writer.catalog.intern_partition(("p", "", "n"))  # type: ignore[arg-type]
                writer.put(partition, "K", b"key", b"", {"n": (b"1",)}, None)
                raise Failure

        with pytest.raises(Failure):
            half_a_commit()
        for table in ("entities", "index_rows", "partitions", "scopes"):
            assert rows(timed, table) == 0
        assert timed.storage.catalog.partitions() == {}
        timed.put(entity(KEY, n=1))
        assert timed.identifiers(query(filters=where(("n", "=", 1)))) == [1]


def test_an_export_comes_in_chunks_of_whole_entities() -> None:
    """A client that does not read its export keeps one chunk in memory."""
    storage = Storage()
    subject = Subject(storage)
    for number in range(1, 6):
        subject.put(entity(key("K", number), text=value("x" * 700_000, indexed=False)))
    chunks = list(Transfer(storage, subject.engine.commit).lines())
    assert [len(chunk.splitlines()) for chunk in chunks] == [2, 2, 1]
    names = [
        json.loads(line)["key"]["path"][0]["id"] for each in chunks for line in each.splitlines()
    ]
    assert names == ["1", "2", "3", "4", "5"]
    storage.close()
