"""The database: in memory, or in a file that survives the process.

A change is all or nothing. In a file it is on disk when the block ends (write-ahead log,
synchronous=FULL), so neither a killed process nor a power cut loses an acknowledged task.
"""

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from userlock_emulator.data_folder import TASKS, claim
from userlock_emulator.port.status import StorageError
from userlock_emulator.tasks.tables import Tables, prepare


class Storage:
    """A database in memory, or in the folder `data_dir`.

    Raises:
        StorageError: the folder or the file cannot be used.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        path = None if data_dir is None else data_dir / TASKS
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._claimed: IO[bytes] | None = None
        try:
            if data_dir is not None:
                self._claimed = claim(data_dir, TASKS)
            self._connection = sqlite3.connect(
                path or ":memory:", isolation_level=None, check_same_thread=False, timeout=10
            )
            # Of a storage that is dropped, Python 3.13 would warn.
            weakref.finalize(self, self._connection.close)
            if path is not None:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
            prepare(self._connection)
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise StorageError(f"cannot use {path or 'memory'}: {error}") from error
        except StorageError as error:
            self.close()
            raise StorageError(f"cannot use {path}: {error}") from None
        self._tables = Tables(self._connection)
        with self.change() as tables:
            tables.nothing_runs()

    @contextmanager
    def change(self) -> Iterator[Tables]:
        """Make the statements in the block atomic. The block runs alone."""
        with self._lock:
            connection = self._connection
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._tables
                connection.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may have rolled back by itself already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def look(self) -> Iterator[Tables]:
        """Read in the block, which runs alone."""
        with self._lock:
            yield self._tables

    def close(self) -> None:
        """Close the file. The storage is unusable afterwards."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            if self._claimed is not None:
                self._claimed.close()
