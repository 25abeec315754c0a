"""Versioned entities and index rows in SQLite.

Guarantees:

* A commit is all or nothing. In a file it is on disk when `write()` returns (write-ahead log,
  synchronous=FULL). Neither a killed process nor a power cut loses an acknowledged commit or leaves
  half of one.
* A read at time T gives the same answer as long as the history reaches back to T, whatever is
  committed meanwhile. The history reaches back at least `history_seconds`; each commit removes a
  few older versions.
* One writer at a time. Commits of several clients to a file share an fsync. Readers of a file never
  wait for the writer. In memory there is one connection, which readers and the writer share: a
  commit has it as a whole, a read for one statement at a time.

`Reader` (in `rows`) and `Writer` hold the statements; this file holds connections, locks and the
interned ids of partitions and indexes.
"""

import contextlib
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from userlock_emulator.data_folder import DATASTORE, claim
from userlock_emulator.datastore import schema
from userlock_emulator.datastore.catalog import Catalog
from userlock_emulator.datastore.clock import VersionClock, wall_clock_microseconds
from userlock_emulator.datastore.errors import StorageError
from userlock_emulator.datastore.rows import Reader
from userlock_emulator.datastore.writer import Writer

# The service reads at most one hour into the past ("ReadOptions.read_time").
HISTORY_SECONDS = 3600
# A read-only transaction that began at the oldest time still reads until its own end.
_LEEWAY_SECONDS = 300
_NO_TURN = contextlib.nullcontext()


class WriterLock:
    """The lock of the writer, reentrant. Leaving it makes durable what was committed under it.

    Several clients share an fsync: it covers all that was committed before it, and those who come
    to it later find it done.

        client A    commit ─ leave ─ fsync ───────────┐
        client B             commit ─ leave ─ wait ───┴─ fsync ─┐
        client C                      commit ─ leave ─ wait ────┴─ done

    Attributes:
        log: SQLite's log; None in memory.
    """

    def __init__(self) -> None:
        self.log: IO[bytes] | None = None
        self._lock = threading.RLock()
        self._depth = 0
        # Numbers of commits: the last one, and the last that is on the disk.
        self._committed = 0
        self._durable = 0
        self._dirty = False
        self._syncing = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        number = self._committed
        leaves_dirty = self._dirty and not self._depth
        if leaves_dirty:
            self._dirty = False
        self._lock.release()
        if leaves_dirty:
            self._sync(number)

    def committed(self) -> None:
        """Record a commit; called by the holder."""
        if self.log is not None:
            self._committed += 1
            self._dirty = True

    def _sync(self, number: int) -> None:
        with self._syncing:
            if self._durable < number and self.log is not None:
                covered = self._committed
                os.fdatasync(self.log.fileno())
                self._durable = covered


class Storage:
    """A database in memory, or in the folder `data_dir`.

    Args:
        data_dir: the folder that holds the data file; created if missing. None
            keeps everything in memory.
        history_seconds: time for which superseded versions stay readable.
        now: microseconds since the epoch.

    Raises:
        StorageError: the folder or the file cannot be used.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        history_seconds: float = HISTORY_SECONDS,
        now: Callable[[], int] = wall_clock_microseconds,
    ) -> None:
        self._path = None if data_dir is None else data_dir / DATASTORE
        self._history = int(history_seconds * 1_000_000)
        self._now = now
        self.writer_lock = WriterLock()
        self._connections: set[sqlite3.Connection] = set()
        # Connections without a reader: as many as there were concurrent readers.
        self._idle: list[sqlite3.Connection] = []
        self._connections_lock = threading.Lock()
        # Of a storage that is dropped, Python 3.13 would warn.
        weakref.finalize(self, _close_each, self._connections)
        self._claimed: IO[bytes] | None = None
        try:
            if data_dir is not None:
                self._claimed = claim(data_dir, DATASTORE)
            self._connection = self._connect()
            self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise StorageError(f"cannot use {self._path or 'memory'}: {error}") from error
        except StorageError as error:
            self.close()
            raise StorageError(f"cannot use {self._path}: {error}") from None

    def _open(self) -> None:
        connection = self._connection
        if self._path is not None:
            connection.execute("PRAGMA journal_mode = WAL")
            # The log is written to the disk by `WriterLock`, for several commits at once.
            connection.execute("PRAGMA synchronous = NORMAL")
        schema.prepare(connection)
        self.catalog = Catalog(connection)
        row = connection.execute("SELECT value FROM meta WHERE name = 'last_version'").fetchone()
        self.clock = VersionClock(row[0] if row else 0, self._now)
        self.secret = self._persistent_secret()
        self._next_prune = 0
        if self._path is not None:
            # SQLite keeps this file while a connection is open. Its name must last, too.
            self.writer_lock.log = Path(f"{self._path}-wal").open("rb")  # noqa: SIM115
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _persistent_secret(self) -> bytes:
        row = self._connection.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        if row is not None:
            return bytes(row[0])
        secret = secrets.token_bytes(16)
        self._connection.execute("INSERT INTO meta VALUES ('secret', ?)", (secret,))
        return secret

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if self._path is None else self._path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
            timeout=10,
        )
        with self._connections_lock:
            self._connections.add(connection)
        return connection

    @contextmanager
    def read(self, at: int | None = None) -> Iterator[Reader]:
        """Yield a consistent view of the database at time `at` (default: now).

        It does not show later commits.
        """
        time = self.clock.read_time() if at is None else at
        if self._path is None:
            yield Reader(self._connection, self.catalog, time, self.clock, self.writer_lock)
            return
        connection = self._reading_connection()
        try:
            connection.execute("BEGIN")
            # The first statement fixes SQLite's snapshot. Every commit in it was announced to the
            # clock before. The clock therefore tells reliably whether rows newer than `time` may be
            # in view.
            connection.execute("SELECT 1 FROM meta LIMIT 1").fetchone()
            yield Reader(connection, self.catalog, time, self.clock, _NO_TURN)
            connection.execute("COMMIT")
        except BaseException:
            # After a failure a statement may still be open, which holds its snapshot.
            with self._connections_lock:
                self._connections.discard(connection)
                connection.close()
            raise
        self._idle.append(connection)

    def _reading_connection(self) -> sqlite3.Connection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """Yield the writer of one atomic commit: rolled back if the block raises.

        The block runs alone. Hold `writer_lock` around it to extend the same exclusion to code
        before or after it. When that lock is left, the commit is durable.
        """
        with self._committing() as version:
            writer = Writer(self._connection, self.catalog, version)
            yield writer
            writer.flush()
            if writer.changed:
                self._connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('last_version', ?)", (version,)
                )
                self._prune(writer)

    @contextmanager
    def _committing(self) -> Iterator[int]:
        """Make the statements in the block atomic; yield their version."""
        with self.writer_lock:
            connection = self._connection
            version = self.clock.start_commit()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    changes = connection.total_changes
                    yield version
                    connection.execute("COMMIT")
                    if connection.total_changes != changes:
                        self.writer_lock.committed()
                except BaseException:
                    # On a full disk SQLite may have rolled back by itself already.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    self.catalog.rolled_back()
                    raise
                self.catalog.committed()
            finally:
                self.clock.finish_commit()

    def _prune(self, writer: Writer) -> None:
        """Remove a bounded number of versions that no reader can ask for."""
        now = self.clock.now()
        if now < self._next_prune:
            return
        finished = writer.prune(now - self._history - _LEEWAY_SECONDS * 1_000_000)
        # An unfinished removal continues with the next commit.
        self._next_prune = now + 10_000_000 if finished else now

    @property
    def oldest_readable(self) -> int:
        """Return the earliest time that a read may name."""
        return self.clock.now() - self._history

    def reset(self) -> None:
        """Delete all entities of every project. Versions keep growing."""
        with self._committing() as version:
            for table in (
                "entities", "entity_history", "deletions", "index_rows", "index_history",
                "reserved_ids",
            ):  # fmt: skip
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - fixed names
            self._connection.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [("last_version", version), ("forgotten_until", version)],
            )

    def close(self) -> None:
        """Close all connections. The storage is unusable afterwards."""
        with self.writer_lock, self._connections_lock:
            _close_each(self._connections)
            for file in (self._claimed, self.writer_lock.log):
                if file is not None:
                    file.close()
            self.writer_lock.log = None


def _close_each(connections: set[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
