"""Small numbers for partitions and indexes, whose names would be long in each row.

The commit that first needs a number allocates it. Numbers are cached for all threads. If the commit
is rolled back, they are removed from the cache.
"""

import sqlite3
from typing import NamedTuple


class Partition(NamedTuple):
    """The scope of an entity's key: project, database and namespace."""

    project: str
    database: str
    namespace: str


# The property name of the index that lists the entities of a kind.
KIND_INDEX = "__key__"


class Catalog:
    """Ids of partitions and scopes (see `schema`).

    `find_*` may be called by any thread. `intern_*` and `mark_multi` belong to the
    writer, inside its commit.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._load()

    def _load(self) -> None:
        execute = self._connection.execute
        partitions = {
            Partition(project, database, namespace): number
            for number, project, database, namespace in execute("SELECT * FROM partitions")
        }
        scopes: dict[tuple[int, str, str], int] = {}
        multi: set[int] = set()
        for number, partition, kind, name, has_several in execute("SELECT * FROM scopes"):
            scopes[partition, kind, name] = number
            if has_several:
                multi.add(number)
        # Readers look up numbers at the same time, so they must only see complete tables.
        self._partitions, self._scopes, self._multi = partitions, scopes, multi
        self._fresh = False

    def committed(self) -> None:
        """Keep the allocated numbers: their commit succeeded."""
        self._fresh = False

    def rolled_back(self) -> None:
        """Drop the numbers that were allocated by a commit that failed."""
        if self._fresh:
            self._load()

    def find_partition(self, partition: Partition) -> int | None:
        """Return the partition's number, or None if nothing was ever stored there."""
        return self._partitions.get(partition)

    def partitions(self) -> dict[Partition, int]:
        """Return all known partitions with their numbers."""
        return dict(self._partitions)

    def scopes_of(self, partition: int) -> list[tuple[str, str, int]]:
        """Return all indexes of a partition: kind, property and number. Some may be empty."""
        return [
            (kind, name, number)
            for (owner, kind, name), number in list(self._scopes.items())
            if owner == partition
        ]

    def kinds(self) -> list[tuple[Partition, str, int]]:
        """Return the index of the entities of each kind in all partitions. Some may be empty."""
        names = {number: partition for partition, number in list(self._partitions.items())}
        return [
            (names[owner], kind, number)
            for (owner, kind, name), number in list(self._scopes.items())
            if name == KIND_INDEX and owner in names
        ]

    def find_scope(self, partition: int, kind: str, name: str) -> int | None:
        """Return the index's number, or None if it never had an entry."""
        return self._scopes.get((partition, kind, name))

    def is_multi(self, scope: int) -> bool:
        """Return whether any entity has, or had, several entries in this index."""
        return scope in self._multi

    def intern_partition(self, partition: Partition) -> int:
        """Return the partition's number, allocating one if needed."""
        number = self._partitions.get(partition)
        if number is None:
            number = self._insert(
                'INSERT INTO partitions (project, "database", namespace) VALUES (?, ?, ?)',
                partition,
            )
            self._partitions[partition] = number
        return number

    def intern_scope(self, partition: int, kind: str, name: str) -> int:
        """Return the index's number, allocating one if needed."""
        key = (partition, kind, name)
        number = self._scopes.get(key)
        if number is None:
            number = self._insert(
                'INSERT INTO scopes ("partition", kind, property) VALUES (?, ?, ?)', key
            )
            self._scopes[key] = number
        return number

    def _insert(self, statement: str, values: tuple[object, ...]) -> int:
        self._fresh = True
        number = self._connection.execute(statement, values).lastrowid
        assert number is not None
        return number

    def mark_multi(self, scope: int) -> None:
        """Record that an entity has several entries in this index."""
        if scope not in self._multi:
            self._fresh = True
            self._connection.execute("UPDATE scopes SET multi = 1 WHERE id = ?", (scope,))
            self._multi.add(scope)
