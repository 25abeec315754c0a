"""The tables, and the statements on them.

    queues      number, name, Queue message without tasks
    tasks       number, queue, id -> times, counts, and the attempts in flight
    specs       task -> Task message as it was created, with its body
    tombstones  name -> end of the time in which the name cannot be used again
    operations  name -> Operation message

A number is never used twice, so that the end of an attempt cannot be taken for another task's.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields

from userlock_emulator.port.status import StorageError

# Raised with each change of the tables or of the encodings in them.
SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE queues (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, data BLOB NOT NULL
);
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL, id TEXT NOT NULL,
    created INTEGER NOT NULL, scheduled INTEGER NOT NULL, due INTEGER NOT NULL,
    delayed INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
    dispatches INTEGER NOT NULL DEFAULT 0, responses INTEGER NOT NULL DEFAULT 0,
    executions INTEGER NOT NULL DEFAULT 0, previous INTEGER, first_dispatch INTEGER, last BLOB,
    UNIQUE (queue, id)
);
CREATE INDEX tasks_next ON tasks (queue, running, due, number);
CREATE INDEX tasks_created ON tasks (created);
CREATE TABLE specs (task INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE tombstones (name TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX tombstones_until ON tombstones (until);
CREATE TABLE operations (name TEXT PRIMARY KEY, until INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX operations_until ON operations (until);
"""
_ALL = ("queues", "tasks", "specs", "tombstones", "operations")


@dataclass
class TaskRow:
    """The state of a task. Times are microseconds since the epoch.

    Attributes:
        scheduled: the time that is shown, and sent as the ETA.
        due: the time of the next attempt; another one only because of a fault.
        delayed: a fault has moved `due`.
        running: number of attempts in flight.
        executions: number of responses that count as executions.
        previous: status code of the last response.
        last: the last Attempt message, or None.
    """

    number: int
    queue: int
    id: str
    created: int
    scheduled: int
    due: int
    delayed: int = 0
    running: int = 0
    dispatches: int = 0
    responses: int = 0
    executions: int = 0
    previous: int | None = None
    first_dispatch: int | None = None
    last: bytes | None = None


_COLUMNS = ", ".join(field.name for field in fields(TaskRow))
_PROGRESS = (
    "scheduled", "due", "delayed", "running", "dispatches", "responses", "executions", "previous",
    "first_dispatch", "last",
)  # fmt: skip
_UPDATE = (
    f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in _PROGRESS)}"  # noqa: S608 - fixed names
    " WHERE number = ?"
)


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database; check the version of any other.

    Raises:
        StorageError: the file is from another version, or of another program.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables == 0:
        connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    elif version != SCHEMA_VERSION:
        raise StorageError(
            f"the data file is not of this version of the emulator (format {version}, not"
            f" {SCHEMA_VERSION})"
        )


class Tables:
    """The statements. They run in the transaction of the caller."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    # --- queues -----------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield number, name and message of all queues, ordered by name."""
        yield from self._execute("SELECT number, name, data FROM queues ORDER BY name")

    def queue(self, name: str) -> tuple[int, bytes] | None:
        """Return number and message of a queue, or None."""
        found: tuple[int, bytes] | None = self._execute(
            "SELECT number, data FROM queues WHERE name = ?", (name,)
        ).fetchone()
        return found

    def put_queue(self, name: str, data: bytes) -> None:
        """Store a queue."""
        self._execute(
            "INSERT INTO queues (name, data) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET data = excluded.data",
            (name, data),
        )

    def delete_queue(self, number: int) -> None:
        """Delete a queue and its tasks, without tombstones."""
        self.delete_tasks(number, None)
        self._execute("DELETE FROM queues WHERE number = ?", (number,))

    # --- tasks ------------------------------------------------------------------------------------

    def add_task(self, row: TaskRow, spec: bytes) -> None:
        """Store a new task; it gets its number here."""
        cursor = self._execute(
            "INSERT INTO tasks (queue, id, created, scheduled, due) VALUES (?, ?, ?, ?, ?)",
            (row.queue, row.id, row.created, row.scheduled, row.due),
        )
        assert cursor.lastrowid is not None
        row.number = cursor.lastrowid
        self._execute("INSERT INTO specs VALUES (?, ?)", (row.number, spec))

    def task(self, queue: int, task_id: str) -> TaskRow | None:
        """Return a task by its id, or None."""
        return self._one("queue = ? AND id = ?", (queue, task_id))

    def task_numbered(self, number: int) -> TaskRow | None:
        """Return a task by its number, or None."""
        return self._one("number = ?", (number,))

    def next_task(self, queue: int) -> TaskRow | None:
        """Return the task with the earliest due time that has no attempt in flight, or None."""
        return self._one("queue = ? AND running = 0 ORDER BY due, number LIMIT 1", (queue,))

    def _one(self, condition: str, values: tuple[object, ...]) -> TaskRow | None:
        found = self._execute(
            f"SELECT {_COLUMNS} FROM tasks WHERE {condition}",  # noqa: S608 - fixed texts
            values,
        ).fetchone()
        return None if found is None else TaskRow(*found)

    def tasks(self, queue: int, after: str, count: int) -> list[TaskRow]:
        """Return tasks of a queue with ids above `after`, ordered by id."""
        found = self._execute(
            f"SELECT {_COLUMNS} FROM tasks WHERE queue = ? AND id > ?"  # noqa: S608
            " ORDER BY id LIMIT ?",
            (queue, after, count),
        )
        return [TaskRow(*each) for each in found]

    def ids(self, queue: int, created_until: int | None) -> list[str]:
        """Return the ids of a queue's tasks, or of those created until a time."""
        found = self._execute(
            "SELECT id FROM tasks WHERE queue = ? AND created <= ?",
            (queue, 2**63 - 1 if created_until is None else created_until),
        )
        return [each for (each,) in found]

    def count(self, queue: int | None) -> int:
        """Return the number of tasks in a queue, or in all."""
        (number,) = self._execute(
            "SELECT count(*) FROM tasks WHERE ? IS NULL OR queue = ?", (queue, queue)
        ).fetchone()
        return int(number)

    def spec(self, number: int) -> bytes:
        """Return the Task message of a task as it was created."""
        (data,) = self._execute("SELECT data FROM specs WHERE task = ?", (number,)).fetchone()
        return bytes(data)

    def update_task(self, row: TaskRow) -> None:
        """Store the progress of a task."""
        self._execute(_UPDATE, (*(getattr(row, name) for name in _PROGRESS), row.number))

    def delete_task(self, number: int) -> None:
        """Delete a task, without a tombstone."""
        self._execute("DELETE FROM specs WHERE task = ?", (number,))
        self._execute("DELETE FROM tasks WHERE number = ?", (number,))

    def delete_tasks(self, queue: int, created_until: int | None) -> None:
        """Delete a queue's tasks, or those created until a time, without tombstones."""
        values = (queue, 2**63 - 1 if created_until is None else created_until)
        self._execute(
            "DELETE FROM specs WHERE task IN"
            " (SELECT number FROM tasks WHERE queue = ? AND created <= ?)",
            values,
        )
        self._execute("DELETE FROM tasks WHERE queue = ? AND created <= ?", values)

    def old_tasks(self, created_before: int) -> list[int]:
        """Return the numbers of the tasks created before a time."""
        found = self._execute("SELECT number FROM tasks WHERE created < ?", (created_before,))
        return [number for (number,) in found]

    def nothing_runs(self) -> None:
        """Forget the attempts in flight: their process has ended."""
        self._execute("UPDATE tasks SET running = 0 WHERE running")

    # --- names and operations ---------------------------------------------------------------------

    def bury(self, name: str, until: int) -> None:
        """Keep a name from being used again until a time."""
        self._execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (name, until))

    def buried(self, name: str, now: int) -> bool:
        """Return whether a name cannot be used again yet."""
        found = self._execute(
            "SELECT 1 FROM tombstones WHERE name = ? AND until > ?", (name, now)
        ).fetchone()
        return found is not None

    def add_operation(self, name: str, until: int, data: bytes) -> None:
        """Store an operation until a time."""
        self._execute("INSERT OR REPLACE INTO operations VALUES (?, ?, ?)", (name, until, data))

    def operation(self, name: str) -> bytes | None:
        """Return an operation, or None."""
        found = self._execute("SELECT data FROM operations WHERE name = ?", (name,)).fetchone()
        return None if found is None else bytes(found[0])

    def prune(self, now: int) -> None:
        """Remove tombstones and operations whose time is over."""
        self._execute("DELETE FROM tombstones WHERE until <= ?", (now,))
        self._execute("DELETE FROM operations WHERE until <= ?", (now,))

    def setting(self, name: str) -> bytes | None:
        """Return a stored setting, or None."""
        found = self._execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if found is None else bytes(found[0])

    def set(self, name: str, value: bytes) -> None:
        """Store a setting."""
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def clear(self) -> None:
        """Delete everything but the settings."""
        for table in _ALL:
            self._execute(f"DELETE FROM {table}")  # noqa: S608 - fixed names
