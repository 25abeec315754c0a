"""Writing versioned rows: every SQL statement that changes entities and indexes."""

import functools
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from userlock_emulator.datastore.catalog import KIND_INDEX, Catalog
from userlock_emulator.datastore.indexing import IndexedValues
from userlock_emulator.datastore.rows import CURRENT, StoredEntity

# A commit removes at most this many rows, or more if it has superseded more itself. Otherwise
# commits of many entities would outrun the removal.
_PRUNE_ROWS = 1000
_Row = TypeVar("_Row")

# More rows in a statement would save little, and every number of them is a statement of its own.
_ROWS_PER_STATEMENT = 64


def _batches(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Yield the rows of one statement each."""
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        yield rows[start : start + _ROWS_PER_STATEMENT]


@functools.cache
def _selection(places: int) -> str:
    # CROSS JOIN keeps this order: a seek for each place, not a scan of the table.
    return (
        'SELECT "partition", key, version, created, data'  # noqa: S608 - no values
        f" FROM (VALUES {', '.join(['(?, ?)'] * places)}) AS wanted CROSS JOIN entities"
        ' ON "partition" = column1 AND key = column2'
    )


@functools.cache
def _insertion(table: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 - fixed names


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
        # The entities as they are now, as far as this commit knows them.
        self._now: dict[tuple[int, bytes], StoredEntity | None] = {}
        # New rows wait for each other: a statement for many takes less time than one for each.
        self._new: list[tuple[int, bytes, int, int, bytes]] = []
        self._new_entries: list[tuple[int, bytes, bytes, int]] = []

    def flush(self) -> None:
        """Write the rows that wait."""
        self._insert("entities", self._new)
        self._insert("index_rows", self._new_entries)
        self._new = []
        self._new_entries = []

    def load(self, places: Sequence[tuple[int, bytes]]) -> None:
        """Read the entities with these partitions and keys: less work than `get` for each."""
        self._now = dict.fromkeys(places)
        for some in _batches(places):
            found = self._execute(_selection(len(some)), list(itertools.chain.from_iterable(some)))
            for partition, key, *entity in found:
                self._now[partition, key] = StoredEntity(*entity)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for some in _batches(rows):
            statement = _insertion(table, len(some), len(some[0]))
            self._execute(statement, list(itertools.chain.from_iterable(some)))

    def get(self, partition: int, key: bytes) -> StoredEntity | None:
        """Return the entity as it is now, this commit's own changes included."""
        place = (partition, key)
        if place not in self._now:
            row = self._execute(CURRENT, place).fetchone()
            self._now[place] = None if row is None else StoredEntity(*row)
        return self._now[place]

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
        entries = self._entries(partition, kind, key, values)
        created = self.version if old is None else old[0].created
        self._now[partition, key] = StoredEntity(self.version, created, data)
        if old is None:
            self._new.append((partition, key, self.version, created, data))
            self._add_entries(entries)
            return created
        self.flush()
        self._supersede(partition, key, old[0])
        self._execute(
            "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?)",
            (partition, key, self.version, created, data),
        )
        old_entries = set(self._entries(partition, kind, key, old[1]))
        self._drop_entries(old_entries.difference(entries))
        self._add_entries(entry for entry in entries if entry not in old_entries)
        return created

    def delete(
        self, partition: int, kind: str, key: bytes, old: tuple[StoredEntity, IndexedValues]
    ) -> None:
        """Remove an entity and its index entries."""
        self.flush()
        self.changed = True
        self._now[partition, key] = None
        self._supersede(partition, key, old[0])
        self._execute('DELETE FROM entities WHERE "partition" = ? AND key = ?', (partition, key))
        self._execute(
            "INSERT OR REPLACE INTO deletions VALUES (?, ?, ?)", (partition, key, self.version)
        )
        self._drop_entries(set(self._entries(partition, kind, key, old[1])))

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
    ) -> list[tuple[int, bytes, bytes]]:
        intern = self.catalog.intern_scope
        entries = [(intern(partition, kind, KIND_INDEX), b"", key)]
        for name, encoded in values.items():
            scope = intern(partition, kind, name)
            if len(encoded) > 1:
                self.catalog.mark_multi(scope)
            for value in encoded:
                entries.append((scope, value, key))
        return entries

    def _add_entries(self, entries: Iterable[tuple[int, bytes, bytes]]) -> None:
        rows = [(*entry, self.version) for entry in entries]
        self.index_updates += len(rows)
        self._new_entries += rows

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
