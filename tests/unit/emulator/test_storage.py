"""Storage: files, restarts, history, and no scan of a kind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, refused, where
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.data_folder import DATASTORE
from userlock_emulator.datastore.errors import Code, StorageError
from userlock_emulator.datastore.protos import BeginTransactionRequest, Mutation, timestamp
from userlock_emulator.datastore.rows import EVERYTHING, Reader, StoredEntity
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transfer import Transfer

KEY = key("K", 1)
# An hour, and the lifetime of a transaction that reads the state of that time.
FORGOTTEN_MICROSECONDS = 3_901_000_000


@pytest.fixture
def clock() -> list[int]:
    return [1_700_000_000_000_000]


@pytest.fixture
def timed(clock: list[int]) -> Iterator[Subject]:
    storage = Storage(history_seconds=3600, now=lambda: clock[0])
    yield Subject(storage)
    storage.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Subject]:
    storage = Storage(tmp_path)
    yield Subject(storage)
    storage.close()


class TestFiles:
    def test_data_survives_a_restart(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path / "new" / "folder", now=lambda: 2_000_000)
        engine = Subject(storage)
        version = engine.put(entity(KEY, n=1, at=Timestamp(5))).mutation_results[0].version
        allocated = engine.ask("AllocateIds", keys=[key("K")]).keys[0]
        storage.close()
        # The clock was set back; versions grow all the same.
        storage = Storage(tmp_path / "new" / "folder", now=lambda: 1_000_000)
        engine = Subject(storage)
        (found,) = engine.lookup(KEY).found
        assert (found.version, found.entity) == (version, entity(KEY, n=1, at=Timestamp(5)))
        assert engine.identifiers(query(filters=where(("n", "=", 1)))) == [1]
        assert engine.put(entity(KEY, n=2)).mutation_results[0].version > version
        assert engine.ask("AllocateIds", keys=[key("K")]).keys[0] != allocated
        storage.close()

    def test_readers_that_come_and_go_leave_no_open_files(
        self, on_disk: Subject, tmp_path: Path
    ) -> None:
        """Each HTTP connection has a thread of its own."""
        on_disk.put(entity(KEY, n=1))
        for _ in range(10):
            assert Started(lambda: on_disk.lookup(KEY)).result().found
        opened = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
        assert opened.count(str(tmp_path / DATASTORE)) == 2

        # If a reader fails, its snapshot ends with it.
        left_open = []
        with contextlib.suppress(RuntimeError), on_disk.storage.read() as reader:
            left_open.append(reader.scan_keys(1))
            next(left_open[0])
            raise RuntimeError
        on_disk.put(entity(KEY, n=2))
        assert on_disk.lookup(KEY).found[0].entity == entity(KEY, n=2)

    def test_readers_do_not_wait_for_a_commit(self, on_disk: Subject) -> None:
        on_disk.put(entity(KEY, n=1))
        with on_disk.storage.write() as writer:
            writer.write_meta("unrelated", 1)
            assert Started(lambda: on_disk.lookup(KEY)).result().found

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("PRAGMA user_version = 99", "newer version"),
            ("CREATE TABLE somebody_elses (x)", "not an emulator database"),
            (b"not a database" * 1000, "not a database"),
            (None, "cannot use"),
        ],
    )
    def test_other_files_are_refused(
        self, tmp_path: Path, content: str | bytes | None, text: str
    ) -> None:
        if content is None:
            tmp_path /= "file"
            tmp_path.touch()
        elif isinstance(content, bytes):
            (tmp_path / DATASTORE).write_bytes(content)
        else:
            if "version" in content:
                Storage(tmp_path).close()
            with contextlib.closing(sqlite3.connect(tmp_path / DATASTORE)) as connection:
                connection.execute(content)
        with pytest.raises(StorageError, match=text) as caught:
            Storage(tmp_path)
        assert "\n" not in str(caught.value)


class Disk:
    def __init__(self) -> None:
        self.fast = threading.Event()
        self.began = threading.Semaphore(0)
        self.syncs = 0

    def fdatasync(self, file: int) -> None:
        self.syncs += 1
        self.began.release()
        assert self.fast.wait(10)


class TestDurability:
    @pytest.fixture
    def disk(self, on_disk: Subject, monkeypatch: pytest.MonkeyPatch) -> Disk:
        disk = Disk()
        monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
        return disk

    @pytest.mark.parametrize("clients", [1, 8])
    def test_clients_share_an_fsync(self, on_disk: Subject, disk: Disk, clients: int) -> None:
        numbers = range(2, clients + 2)
        commits = [Started(partial(on_disk.put, entity(key("K", n), n=n))) for n in numbers]
        disk.began.acquire(timeout=10)
        # Each is visible before it is durable, and none is acknowledged.
        wait_until(lambda: len(on_disk.identifiers(query())) == clients)
        assert not any(commit.done for commit in commits)
        disk.fast.set()
        for commit in commits:
            commit.result()
        # Some may have come after the first fsync had begun.
        assert disk.syncs <= 2
        on_disk.lookup(KEY)
        on_disk.put(entity(key("K", 2), n=2))  # changes nothing
        assert disk.syncs <= 2
        on_disk.put(entity(key("K", 2), n=3))
        assert disk.syncs <= 3

    def test_a_commit_after_an_fsync_has_begun_waits_for_the_next(
        self, on_disk: Subject, disk: Disk
    ) -> None:
        first = Started(lambda: on_disk.put(entity(key("K", 1), n=1)))
        disk.began.acquire(timeout=10)
        second = Started(lambda: on_disk.put(entity(key("K", 2), n=1)))
        wait_until(lambda: bool(on_disk.lookup(key("K", 2)).found))
        disk.fast.set()
        first.result()
        second.result()
        assert disk.syncs == 2

    def test_a_commit_that_cannot_be_made_durable_is_not_acknowledged(
        self, on_disk: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(file: int) -> None:
            raise OSError(errno.EIO, "the disk is broken")

        with monkeypatch.context() as changed:
            changed.setattr(os, "fdatasync", broken)
            with pytest.raises(OSError, match="broken"):
                on_disk.put(entity(KEY, n=1))
        on_disk.put(entity(KEY, n=2))


class TestTurns:
    @pytest.mark.parametrize("place", ["engine", "on_disk"])
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("keys_descending", [False, True])
    def test_a_long_read_holds_nobody_up_and_sees_one_state(
        self, request: pytest.FixtureRequest, place: str, descending: bool, keys_descending: bool
    ) -> None:
        engine: Subject = request.getfixturevalue(place)
        storage = engine.storage
        engine.put(*(entity(key("K", i), n=i // 40) for i in range(1, 201)))
        scope = storage.catalog.find_scope(1, "K", "n")
        assert scope is not None

        def change() -> None:
            for i in range(1, 201, 10):
                engine.put(entity(key("K", i), n=9 - i % 7), entity(key("K", i + 1000), n=2))
                engine.delete(key("K", i + 1))
            engine.lookup(KEY)

        def entries_of(reader: Reader) -> Iterator[tuple[bytes, bytes]]:
            return reader.scan_index(scope, descending=descending, keys_descending=keys_descending)

        with storage.read() as reader:
            whole = list(entries_of(reader))
            keys = list(reader.scan_keys(1))
            entries = entries_of(reader)
            others = reader.scan_keys(1)
            begun = [next(entries) for _ in range(50)], [next(others) for _ in range(50)]
            Started(change).result()  # in the middle of the read
            assert [*begun[0], *entries] == whole
            assert [*begun[1], *others] == keys
            assert reader.count_values(scope, EVERYTHING, EVERYTHING, ()) == sorted(
                Counter(value for value, _ in whole).items()
            )
        with storage.read() as reader:
            assert list(entries_of(reader)) != whole, "the negative control"

    def test_a_reset_ends_a_long_read(
        self, engine: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine.put(*(entity(key("K", i), n=i) for i in range(1, 5)))
        get = Reader.get

        def get_later(reader: Reader, *place: Any) -> StoredEntity | None:
            engine.engine.reset()
            return get(reader, *place)

        monkeypatch.setattr(Reader, "get", get_later)
        with refused("reset", Code.ABORTED):
            engine.run(query())


class TestHistory:
    def test_each_state_stays_readable(self, timed: Subject, clock: list[int]) -> None:
        moments = []
        for n in range(5):
            timed.put(entity(KEY, n=n))
            moments.append(clock[0])
            clock[0] += 1000
        for n, moment in enumerate(moments):
            assert timed.n_of(KEY, read_time=timestamp(moment)) == n

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

    def test_one_commit_removes_a_bounded_number(self, timed: Subject, clock: list[int]) -> None:
        for step in range(2):
            timed.commit(*(Mutation(upsert=entity(key("K", i + 1), n=step)) for i in range(1600)))
        clock[0] += FORGOTTEN_MICROSECONDS
        timed.put(entity(key("Other", 1)))
        assert rows(timed, "entity_history") == 600
        timed.put(entity(key("Other", 2)))
        timed.put(entity(key("Other", 3)))
        assert rows(timed, "entity_history") == 0


def rows(engine: Subject, table: str) -> int:
    with engine.storage.write() as writer:
        (count,) = writer._execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
        assert isinstance(count, int)
        return count


class TestAtomicity:
    def test_a_full_disk_leaves_the_database_as_it_was(self, on_disk: Subject) -> None:
        engine, connection = on_disk, on_disk.storage._connection
        engine.put(entity(KEY, n=1))
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        huge = value(b"x" * 1_000_000, indexed=False)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                engine.put(entity(key("New", 2), a=1, huge=huge))
        assert not engine.lookup(key("New", 2)).found
        assert engine.lookup(KEY).found[0].entity == entity(KEY, n=1)
        connection.execute("PRAGMA max_page_count = 100000")
        engine.put(entity(key("New", 3), a=1))
        assert engine.identifiers(query("New", where(("a", "=", 1)))) == [3]

    @pytest.mark.parametrize("at_its_end", [False, True])
    def test_a_failing_commit_leaves_nothing(
        self, timed: Subject, monkeypatch: pytest.MonkeyPatch, at_its_end: bool
    ) -> None:
        connection = timed.storage._connection

        class Unable:
            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

            def execute(self, statement: str, *arguments: Any) -> Any:
                if statement == "COMMIT":
                    raise sqlite3.OperationalError("disk I/O error")
                return connection.execute(statement, *arguments)

        def half_a_commit() -> None:
            with timed.storage.write() as writer:
                partition = writer.catalog.intern_partition(("p", "", "n"))  # type: ignore[arg-type]
                writer.put(partition, "K", b"key", b"", {"n": (b"1",)}, None)
                if not at_its_end:
                    raise sqlite3.OperationalError

        with monkeypatch.context() as patched:
            patched.setattr(timed.storage, "_connection", Unable())
            with pytest.raises(sqlite3.OperationalError):
                half_a_commit()
        for table in ("entities", "index_rows", "partitions", "scopes"):
            assert rows(timed, table) == 0
        assert timed.storage.catalog.partitions() == {}
        timed.put(entity(KEY, n=1))
        assert timed.identifiers(query(filters=where(("n", "=", 1)))) == [1]


def test_an_export_comes_in_chunks_of_whole_entities(engine: Subject) -> None:
    """A client that does not read its export keeps one chunk in memory."""
    for number in range(1, 6):
        engine.put(entity(key("K", number), text=value("x" * 700_000, indexed=False)))
    chunks = list(Transfer(engine.storage, engine.engine.commit).lines())
    assert [len(chunk.splitlines()) for chunk in chunks] == [2, 2, 1]
    names = [
        json.loads(line)["key"]["path"][0]["id"] for each in chunks for line in each.splitlines()
    ]
    assert names == ["1", "2", "3", "4", "5"]
