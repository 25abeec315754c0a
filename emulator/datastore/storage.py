"""Versioned entities and index rows in SQLite.

Guarantees:

* A commit is all or nothing. In a file it is on disk when `write()` returns
  (write-ahead log, synchronous=FULL), so that neither a killed process nor a power
  cut loses an acknowledged commit or leaves half of one.
* A read at time T gives the same answer for as long as the history reaches back
  to T, whatever is committed meanwhile. The history reaches back at least
  `history_seconds`; older versions are removed a little with each commit.
* One writer at a time. Readers of a file never wait for it. In memory there is one
  connection, which readers and the writer take in turn.

`Reader` and `Writer` (in `rows`) hold the statements; this file holds connections,
locks and the interned ids of partitions and indexes.
"""

import contextlib
import fcntl
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from emulator.datastore import schema
from emulator.datastore.catalog import Catalog
from emulator.datastore.clock import VersionClock, wall_clock_microseconds
from emulator.datastore.errors import StorageError
from emulator.datastore.rows import Reader, Writer

FILE_NAME = "datastore.sqlite3"

# The service reads at most one hour into the past ("ReadOptions.read_time").
HISTORY_SECONDS = 3600
# A read-only transaction that began at the oldest time reads on for as long as it lives.
_LEEWAY_SECONDS = 300


class Storage:
    """A database in memory, or in the folder `data_dir`.

    Args:
        data_dir: the folder that holds the data file; created if missing. None
            keeps everything in memory.
        history_seconds: how long superseded versions stay readable.
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
        self._path = None if data_dir is None else data_dir / FILE_NAME
        self._history = int(history_seconds * 1_000_000)
        self._now = now
        self.writer_lock = threading.RLock()
        self._connections: set[sqlite3.Connection] = set()
        # Those that nobody reads with: as many as there were readers at one time.
        self._idle: list[sqlite3.Connection] = []
        self._connections_lock = threading.Lock()
        self._claimed: IO[bytes] | None = None
        try:
            if data_dir is not None:
                data_dir.mkdir(parents=True, exist_ok=True)
                self._claim(data_dir)
            self._connection = self._connect()
            self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise StorageError(f"cannot use {self._path or 'memory'}: {error}") from error
        except StorageError as error:
            self.close()
            raise StorageError(f"cannot use {self._path}: {error}") from None

    def _claim(self, data_dir: Path) -> None:
        """Hold the folder for as long as this process lives.

        Two emulators on one file would hand out the same ids and versions.
        """
        self._claimed = (data_dir / "lock").open("ab")
        try:
            fcntl.flock(self._claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError("another emulator is using it") from None

    def _open(self) -> None:
        connection = self._connection
        if self._path is not None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        schema.prepare(connection)
        self.catalog = Catalog(connection)
        row = connection.execute("SELECT value FROM meta WHERE name = 'last_version'").fetchone()
        self.clock = VersionClock(row[0] if row else 0, self._now)
        self.secret = self._persistent_secret()
        self._next_prune = 0

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
            cached_statements=256,
            timeout=10,
        )
        with self._connections_lock:
            self._connections.add(connection)
        return connection

    @contextmanager
    def read(self, at: int | None = None) -> Iterator[Reader]:
        """A consistent view of the database at time `at` (default: now).

        Later commits do not show in it. Keep it short: in memory it holds up
        every other read and commit.
        """
        if self._path is None:
            with self.writer_lock:
                time = self.clock.read_time() if at is None else at
                yield Reader(self._connection, self.catalog, time, self.clock.last_commit)
            return
        time = self.clock.read_time() if at is None else at
        connection = self._reading_connection()
        try:
            connection.execute("BEGIN")
            # The first statement fixes SQLite's snapshot. Every commit in it has
            # been announced to the clock before, so `last_commit` taken afterwards
            # tells reliably whether rows newer than `time` may be in view.
            connection.execute("SELECT 1 FROM meta LIMIT 1").fetchone()
            yield Reader(connection, self.catalog, time, self.clock.last_commit)
            connection.execute("COMMIT")
        except BaseException:
            # Where it failed a statement may still be open, which holds its snapshot.
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
        """One atomic commit: rolled back if the block raises, else made durable.

        The block runs alone; wrap it in `writer_lock` to do something under the
        same exclusion before or after it.
        """
        with self._committing() as version:
            writer = Writer(self._connection, self.catalog, version)
            yield writer
            if writer.changed:
                self._connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('last_version', ?)", (version,)
                )
                self._prune(writer)

    @contextmanager
    def _committing(self) -> Iterator[int]:
        """The statements in the block stand together or not at all; gives their version."""
        with self.writer_lock:
            connection = self._connection
            version = self.clock.start_commit()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield version
                    connection.execute("COMMIT")
                except BaseException:
                    # Where the disk is full SQLite has rolled back by itself, or has not.
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
        # An unfinished job goes on with the next commit.
        self._next_prune = now + 10_000_000 if finished else now

    @property
    def oldest_readable(self) -> int:
        """The earliest time a read may name."""
        return self.clock.now() - self._history

    def reset(self) -> None:
        """Forget all entities, of every project. Versions keep growing."""
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
        """Close all connections. The storage cannot be used afterwards."""
        with self.writer_lock, self._connections_lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            if self._claimed is not None:
                self._claimed.close()
