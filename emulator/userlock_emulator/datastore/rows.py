"""Reading versioned rows: every SQL statement that reads entities and indexes.

A `Reader` sees the database at one time. It reads the current rows first, and the history only if
newer rows may be in view. A read of the present costs one seek per key.

Each statement is over when its rows are returned. Scans fetch their rows piece by piece, each with
a statement of its own. So a long read leaves its connection to others in between.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from userlock_emulator.datastore.catalog import Catalog
from userlock_emulator.datastore.clock import VersionClock

CURRENT = 'SELECT version, created, data FROM entities WHERE "partition" = ? AND key = ?'
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

# The first piece of a scan, and the largest.
_FIRST_ROWS = 32
_MOST_ROWS = 2048

# Above every encoded value and every encoded key.
TOP = b"\xff\xff"

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

    def beyond(self, item: bytes, *, descending: bool) -> "Span":
        """Return the part of the range that comes after an item."""
        return self.intersect(Span(high=item) if descending else Span(low=item + b"\x00"))

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
    """A view of the database at `time`.

    Args:
        turn: held during each statement.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        catalog: Catalog,
        time: int,
        clock: VersionClock,
        turn: AbstractContextManager[Any],
    ) -> None:
        self._execute = connection.execute
        self.catalog = catalog
        self.time = time
        self._clock = clock
        self._turn = turn

    @property
    def _past(self) -> bool:
        """Return whether rows newer than `time` may be in view. Stays so while it is one's turn."""
        return self._clock.last_commit > self.time

    def get(self, partition: int, key: bytes) -> StoredEntity | None:
        """Return the entity as it was at the reader's time."""
        with self._turn:
            row = self._execute(CURRENT, (partition, key)).fetchone()
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
        order = f" ORDER BY key{' DESC' if descending else ''} LIMIT ?"
        rows = _FIRST_ROWS
        while True:
            arguments: tuple[object, ...] = (partition, keys.low, keys.high, self.time)
            statement = _KEYS
            with self._turn:
                if self._past:
                    statement = f"{_KEYS} UNION ALL {_PAST_KEYS}"
                    arguments += (*arguments, self.time)
                found = self._execute(statement + order, (*arguments, rows)).fetchall()
            for (key,) in found:
                yield key
            if len(found) < rows:
                return
            keys = keys.beyond(found[-1][0], descending=descending)
            rows = min(4 * rows, _MOST_ROWS)

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
            f" key{' DESC' if keys_descending else ''} LIMIT ?"
        )
        rows = _FIRST_ROWS
        ranges = [(values, keys)]
        while ranges:
            within = ranges.pop()
            with self._turn:
                statement, arguments = self._entries(scope, *within, having)
                found = self._execute(statement + order, (*arguments, rows)).fetchall()
            yield from found
            if len(found) == rows:
                value, key = found[-1]
                later = within[0].beyond(value, descending=descending)
                if not later.empty:
                    ranges.append((later, keys))
                # First the others with the same value.
                same = Span(value, value + b"\x00")
                ranges.append((same, keys.beyond(key, descending=keys_descending)))
            rows = min(4 * rows, _MOST_ROWS)

    def count_entries(
        self, scope: int, values: Span, keys: Span, having: Iterable[Entry], limit: int
    ) -> int:
        """Count the entries that `scan_index` would find, up to `limit`."""
        with self._turn:
            statement, arguments = self._entries(scope, values, keys, having)
            counted = f"SELECT count(*) FROM ({statement} LIMIT ?)"  # noqa: S608 - fixed names
            row = self._execute(counted, (*arguments, limit)).fetchone()
        return int(row[0])

    def count_values(
        self, scope: int, values: Span, keys: Span, having: Iterable[Entry]
    ) -> list[tuple[bytes, int]]:
        """Return the values of the entries that `scan_index` would find, and how many have each."""
        with self._turn:
            statement, arguments = self._entries(scope, values, keys, having)
            counted = f"SELECT value, count(*) FROM ({statement}) GROUP BY value"  # noqa: S608 - fixed names
            return self._execute(counted, arguments).fetchall()

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
        with self._turn:
            row = self._execute(statement, (*arguments, n)).fetchone()
        return None if row is None else bytes(row[0])

    def count_up_to(self, scope: int, values: Span, keys: Span, limit: int) -> int:
        """Return approximately the number of entries in a range, up to `limit`.

        For planning only: it reads the current rows, whatever the reader's time.
        """
        condition, arguments = _within(scope, values, keys)
        with self._turn:
            row = self._execute(_COUNT.format(range=condition), (*arguments, limit)).fetchone()
        return int(row[0])
