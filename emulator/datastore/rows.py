"""Reading and writing versioned rows: every SQL statement on entities and indexes.

A `Reader` sees the database at one time. It reads the current rows first, and the history only if
newer rows may be in view. A read of the present costs one seek per key.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from emulator.datastore.catalog import KIND_INDEX, Catalog
from emulator.datastore.indexing import IndexedValues

_CURRENT = 'SELECT version, created, data FROM entities WHERE "partition" = ? AND key = ?'
_PAST = (
    "SELECT version, created, data FROM entity_history"
    ' WHERE "partition" = ? AND key = ? AND version <= ? AND until > ?'
)
_KEYS = 'SELECT key FROM entities WHERE "partition" = ? AND key >= ? AND key < ? AND version <= ?'
_PAST_KEYS = (
    'SELECT key FROM entity_history WHERE "partition" = ? AND key >= ? AND key < ?'
    " AND version <= ? AND until > ?"
)
_ROWS = "SELECT value, key FROM index_rows WHERE {range} AND since <= ?"
_PAST_ROWS = "SELECT value, key FROM index_history WHERE {range} AND since <= ? AND until > ?"
_RANGE = "scope = ? AND value >= ? AND value < ? AND key >= ? AND key < ?"
# With a single value SQLite can seek directly to the first key.
_ONE_VALUE = "scope = ? AND value = ? AND key >= ? AND key < ?"
# Conditions on entries of the index T: the same entity has an entry in another index.
_HAVING = (
    "EXISTS (SELECT 1 FROM index_rows AS other WHERE other.scope = ? AND other.value = ?"
    " AND other.key = T.key AND other.since <= ?)"
)
_PAST_HAVING = (
    "EXISTS (SELECT 1 FROM index_history AS other WHERE other.scope = ? AND other.value = ?"
    " AND other.key = T.key AND other.since <= ? AND other.until > ?)"
)
_VALUES = "SELECT value FROM index_rows WHERE {range}"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM index_rows WHERE {range} LIMIT ?)"

# Above every encoded value and every encoded key.
TOP = b"\xff\xff"

# A commit removes at most this many rows, or more if it has superseded more itself. Otherwise
# commits of many entities would outrun the removal.
_PRUNE_ROWS = 1000


# An index and a value in it.
Entry = tuple[int, bytes]


class StoredEntity(NamedTuple):
    """An entity as stored: `version` is also its update time (microseconds)."""

    version: int
    created: int
    data: bytes


class Span(NamedTuple):
    """A half-open range of encoded values or keys: low <= x < high."""

    low: bytes = b""
    high: bytes = TOP

    def holds(self, item: bytes) -> bool:
        """Return whether `item` is in the range."""
        return self.low <= item < self.high

    def intersect(self, other: "Span") -> "Span":
        """Return the intersection of both ranges."""
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def empty(self) -> bool:
        """Return whether the range is empty."""
        return self.low >= self.high


EVERYTHING = Span()


def _within(scope: int, values: Span, keys: Span) -> tuple[str, tuple[object, ...]]:
    """Return the condition that index entries lie in a range, and its arguments."""
    if values.high == values.low + b"\x00":
        return _ONE_VALUE, (scope, values.low, *keys)
    return _RANGE, (scope, *values, *keys)


class Reader:
    """A view of the database at `time`."""

    def __init__(
        self, connection: sqlite3.Connection, catalog: Catalog, time: int, newest: int
    ) -> None:
        self._execute = connection.execute
        self.catalog = catalog
        self.time = time
        self._past = newest > time

    def get(self, partition: int, key: bytes) -> StoredEntity | None:
        """Return the entity as it was at the reader's time."""
        row = self._execute(_CURRENT, (partition, key)).fetchone()
        if row is not None and row[0] <= self.time:
            return StoredEntity(*row)
        if not self._past:
            return None
        row = self._execute(_PAST, (partition, key, self.time, self.time)).fetchone()
        return None if row is None else StoredEntity(*row)

    def scan_keys(
        self, partition: int, keys: Span = EVERYTHING, *, descending: bool = False
    ) -> Iterator[bytes]:
        """Yield the keys of all kinds in a range, in order."""
        order = " ORDER BY key DESC" if descending else " ORDER BY key"
        arguments: tuple[object, ...] = (partition, keys.low, keys.high, self.time)
        statement = _KEYS
        if self._past:
            statement = f"{_KEYS} UNION ALL {_PAST_KEYS}"
            arguments += (*arguments, self.time)
        for (key,) in self._execute(statement + order, arguments):
            yield key

    def scan_index(
        self,
        scope: int,
        values: Span = EVERYTHING,
        keys: Span = EVERYTHING,
        *,
        descending: bool = False,
        keys_descending: bool = False,
        having: Iterable[Entry] = (),
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the (value, key) entries of one index in a range, in order.

        Keys are ascending even if values are descending, unless `keys_descending` is set. Only
        entities with all the entries `having` in other indexes are included.
        """
        order = (
            f" ORDER BY value{' DESC' if descending else ''},"
            f" key{' DESC' if keys_descending else ''}"
        )
        statement, arguments = self._entries(scope, values, keys, having)
        yield from self._execute(statement + order, arguments)

    def count_entries(
        self, scope: int, values: Span, keys: Span, having: Iterable[Entry], limit: int
    ) -> int:
        """Count the entries that `scan_index` would find, up to `limit`."""
        statement, arguments = self._entries(scope, values, keys, having)
        counted = f"SELECT count(*) FROM ({statement} LIMIT ?)"  # noqa: S608 - fixed names
        row = self._execute(counted, (*arguments, limit)).fetchone()
        return int(row[0])

    def _entries(
        self, scope: int, values: Span, keys: Span, having: Iterable[Entry]
    ) -> tuple[str, tuple[object, ...]]:
        """Return the statement that finds index entries, without an order, and its arguments."""
        within, arguments = _within(scope, values, keys)
        condition, others = self._having(having)
        arguments += (self.time,)
        statement = _ROWS.format(range=within) + condition.replace("T.key", "index_rows.key")
        if not self._past:
            return statement, arguments + others
        past = _PAST_ROWS.format(range=within) + condition.replace("T.key", "index_history.key")
        arguments += (*others, *arguments, self.time, *others)
        return f"{statement} UNION ALL {past}", arguments

    def _having(self, entries: Iterable[Entry]) -> tuple[str, tuple[object, ...]]:
        """Return the condition that an entity has these entries, and its arguments."""
        condition = ""
        arguments: tuple[object, ...] = ()
        for entry in entries:
            if self._past:
                condition += f" AND ({_HAVING} OR {_PAST_HAVING})"
                arguments += (*entry, self.time, *entry, self.time, self.time)
            else:
                condition += f" AND {_HAVING}"
                arguments += (*entry, self.time)
        return condition, arguments

    def nth_value(
        self, scope: int, values: Span, keys: Span, n: int, *, descending: bool
    ) -> bytes | None:
        """Return approximately the n-th value in a range, in order; None if there are fewer.

        For planning only: it reads the current rows, whatever the reader's time.
        """
        direction = " DESC" if descending else ""
        condition, arguments = _within(scope, values, keys)
        statement = f"{_VALUES.format(range=condition)} ORDER BY value{direction} LIMIT 1 OFFSET ?"
        row = self._execute(statement, (*arguments, n)).fetchone()
        return None if row is None else bytes(row[0])

    def count_up_to(self, scope: int, values: Span, keys: Span, limit: int) -> int:
        """Return approximately the number of entries in a range, up to `limit`.

        For planning only: it reads the current rows, whatever the reader's time.
        """
        condition, arguments = _within(scope, values, keys)
        row = self._execute(_COUNT.format(range=condition), (*arguments, limit)).fetchone()
        return int(row[0])


class Writer:
    """The changes of one commit, at `version`. Its own reads see them at once."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, version: int) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self.catalog = catalog
        self.version = version
        self.changed = False
        self.index_updates = 0
        self._superseded = 0

    def get(self, partition: int, key: bytes) -> StoredEntity | None:
        """Return the entity as it is now, this commit's own changes included."""
        row = self._execute(_CURRENT, (partition, key)).fetchone()
        return None if row is None else StoredEntity(*row)

    def deleted_at(self, partition: int, key: bytes) -> int:
        """Return the version of the last deletion of a key; 0 if there is none on record.

        Deletion records are removed with the history. For keys whose record may have been removed,
        the result is the time up to which records were removed.
        """
        row = self._execute(
            'SELECT version FROM deletions WHERE "partition" = ? AND key = ?', (partition, key)
        ).fetchone()
        if row is not None:
            return int(row[0])
        row = self._execute("SELECT value FROM meta WHERE name = 'forgotten_until'").fetchone()
        return 0 if row is None else int(row[0])

    def put(
        self,
        partition: int,
        kind: str,
        key: bytes,
        data: bytes,
        values: IndexedValues,
        old: tuple[StoredEntity, IndexedValues] | None,
    ) -> int:
        """Store an entity and its index entries, and return its creation time.

        `old` is the replaced version, from `get` and `indexed_values`.
        """
        self.changed = True
        created = self.version
        if old is not None:
            created = old[0].created
            self._supersede(partition, key, old[0])
        self._execute(
            "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?)",
            (partition, key, self.version, created, data),
        )
        entries = self._entries(partition, kind, key, values)
        if old is None:
            self._add_entries(entries)
        else:
            old_entries = self._entries(partition, kind, key, old[1])
            self._drop_entries(old_entries - entries)
            self._add_entries(entries - old_entries)
        return created

    def delete(
        self, partition: int, kind: str, key: bytes, old: tuple[StoredEntity, IndexedValues]
    ) -> None:
        """Remove an entity and its index entries."""
        self.changed = True
        self._supersede(partition, key, old[0])
        self._execute('DELETE FROM entities WHERE "partition" = ? AND key = ?', (partition, key))
        self._execute(
            "INSERT OR REPLACE INTO deletions VALUES (?, ?, ?)", (partition, key, self.version)
        )
        self._drop_entries(self._entries(partition, kind, key, old[1]))

    def _supersede(self, partition: int, key: bytes, old: StoredEntity) -> None:
        self._superseded += 1
        # A version that this same commit wrote was never visible to a reader.
        if old.version < self.version:
            self._execute(
                "INSERT INTO entity_history VALUES (?, ?, ?, ?, ?, ?)",
                (partition, key, old.version, old.created, old.data, self.version),
            )

    def _entries(
        self, partition: int, kind: str, key: bytes, values: IndexedValues
    ) -> set[tuple[int, bytes, bytes]]:
        intern = self.catalog.intern_scope
        entries = {(intern(partition, kind, KIND_INDEX), b"", key)}
        for name, encoded in values.items():
            scope = intern(partition, kind, name)
            if len(encoded) > 1:
                self.catalog.mark_multi(scope)
            for value in encoded:
                entries.add((scope, value, key))
        return entries

    def _add_entries(self, entries: Iterable[tuple[int, bytes, bytes]]) -> None:
        rows = [(*entry, self.version) for entry in entries]
        self.index_updates += len(rows)
        self._executemany("INSERT INTO index_rows VALUES (?, ?, ?, ?)", rows)

    def _drop_entries(self, entries: set[tuple[int, bytes, bytes]]) -> None:
        if not entries:
            return
        self.index_updates += len(entries)
        self._superseded += len(entries)
        history = [(self.version, *entry, self.version) for entry in entries]
        self._executemany(
            "INSERT INTO index_history SELECT scope, value, key, since, ? FROM index_rows"
            " WHERE scope = ? AND value = ? AND key = ? AND since < ?",
            history,
        )
        self._executemany(
            "DELETE FROM index_rows WHERE scope = ? AND value = ? AND key = ?", list(entries)
        )

    def reserve(self, partition: int, key: bytes) -> None:
        """Keep an identifier from ever being allocated."""
        self._execute("INSERT OR IGNORE INTO reserved_ids VALUES (?, ?)", (partition, key))

    def is_taken(self, partition: int, key: bytes) -> bool:
        """Return whether an identifier is reserved or in use."""
        return (
            self._execute(
                'SELECT 1 FROM reserved_ids WHERE "partition" = ? AND key = ?', (partition, key)
            ).fetchone()
            is not None
            or self.get(partition, key) is not None
        )

    def read_meta(self, name: str) -> int:
        """Return a number stored beside the data; 0 if never set."""
        row = self._execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def write_meta(self, name: str, number: int) -> None:
        """Store a number beside the data."""
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, number))

    def prune(self, before: int) -> bool:
        """Remove a bounded number of rows that were superseded before `before`.

        Returns whether that was all such rows.
        """
        finished = True
        limit = max(_PRUNE_ROWS, 2 * self._superseded)
        for statement in (
            'DELETE FROM entity_history WHERE ("partition", key, version) IN (SELECT "partition",'
            " key, version FROM entity_history WHERE until < ? ORDER BY until LIMIT ?)",
            "DELETE FROM index_history WHERE (scope, value, key, since) IN (SELECT scope, value,"
            " key, since FROM index_history WHERE until < ? ORDER BY until LIMIT ?)",
        ):
            finished &= self._execute(statement, (before, limit)).rowcount < limit
        row = self._execute(
            "SELECT max(version), count(*) FROM (SELECT version FROM deletions WHERE version < ?"
            " ORDER BY version LIMIT ?)",
            (before, limit),
        ).fetchone()
        if row[0] is not None:
            self._execute("DELETE FROM deletions WHERE version <= ?", (row[0],))
            self.write_meta("forgotten_until", row[0])
            finished &= row[1] < limit
        return finished
