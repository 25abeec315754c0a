"""Running a parsed query on index rows: choosing an access path, sorting, merging.

Three access paths, from cheap to dear:

* by key: filters that leave the key as the only order are answered by scanning one
  equality's index entries, or the kind's, in key order;
* ordered scan: the index of the first order is scanned in order, and entries
  with the same value are sorted by the remaining orders. It stops as soon as the
  caller has enough;
* sorted: the most selective filter's entries are collected, their entities loaded
  and checked, and the rows sorted in memory.

Entries are checked against the whole query by loading the entity, except where the
scan alone proves the match. Nothing scans a kind if a filter or an order names an
indexed property.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from emulator.datastore.catalog import KIND_INDEX
from emulator.datastore.cursors import Place
from emulator.datastore.encoding import successor
from emulator.datastore.indexing import indexed_values
from emulator.datastore.protos import Entity
from emulator.datastore.query import Conjunction, ParsedQuery, Row
from emulator.datastore.rows import EVERYTHING, Reader, Span, StoredEntity

# Up to this many entities are rather sorted in memory than found by walking the
# index of their order.
_FEW = 1000

_NO_VALUE = Span(b"", b"\x00")
by_position = attrgetter("position")


@dataclass(frozen=True)
class _Driver:
    """An index and the range of it that holds all candidates."""

    scope: int
    values: Span


class QueryRunner:
    """Runs one query on one view of the database."""

    def __init__(self, reader: Reader, query: ParsedQuery) -> None:
        self._reader = reader
        self._query = query
        # With one conjunction, and entries that prove the match, nothing is loaded.
        self._single = len(query.disjunction) == 1

    def rows(self, start: Place | None = None, end: Place | None = None) -> Iterator[Row]:
        """The query's rows in order, after `start` and up to `end`. Lazy."""
        streams = self._streams(start)
        merged: Iterable[Row]
        merged = streams[0] if len(streams) == 1 else _merge(streams)
        if self._query.distinct_on:
            merged = self._distinct(merged)
        for row in merged:
            if end is not None and end.is_before(row.position):
                return
            if start is None or start.is_before(row.position):
                yield row

    def load(self, key: bytes) -> StoredEntity:
        """The entity of one of the rows."""
        assert self._query.partition is not None
        stored = self._reader.get(self._query.partition, key)
        if stored is None:
            raise AssertionError("an index entry without an entity")
        return stored

    def _streams(self, start: Place | None) -> list[Iterator[Row]]:
        """Rows in order, in one stream or several."""
        if self._query.partition is None:
            return []
        return [self._stream(conjunction, start) for conjunction in self._query.disjunction]

    def _distinct(self, rows: Iterable[Row]) -> Iterator[Row]:
        places = [self._query.projection.index(name) for name in self._query.distinct_on]
        seen = set()
        for row in rows:
            combination = tuple(row.projected[place] for place in places)
            if combination not in seen:
                seen.add(combination)
                yield row

    def _stream(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        query = self._query
        if query.kind is None:
            return self._kindless(conjunction, start)
        names = {
            *conjunction.equal, *conjunction.spans, *query.projection,
            *(order.name for order in query.orders),
        }  # fmt: skip
        if any(self._scope(name) is None for name in (KIND_INDEX, *names)):
            # No entity of the kind ever had that property indexed.
            return iter(())
        if query.projection:
            return self._sorted(conjunction)
        if all(order.name in conjunction.equal for order in query.orders):
            return self._by_key(conjunction, start)
        driver = self._equality_driver(conjunction)
        if driver is not None and self._size(driver, conjunction, _FEW) < _FEW:
            return self._sorted(conjunction)
        return self._ordered_scan(conjunction, start)

    def _kindless(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        partition = self._query.partition
        assert partition is not None
        keys = self._keys_after(conjunction, start)
        for key in self._reader.scan_keys(partition, keys):
            yield self._query.row((), key)

    def _by_key(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        query = self._query
        constants = tuple(min(conjunction.equal[order.name]) for order in query.orders)
        driver = self._equality_driver(conjunction) or self._kind_driver()
        filters = sum(len(values) for values in conjunction.equal.values())
        proven = self._single and filters <= 1 and not conjunction.spans
        keys = conjunction.keys if query.orders else self._keys_after(conjunction, start)
        entries = self._reader.scan_index(
            driver.scope, driver.values, keys, keys_descending=query.key_descending
        )
        for _, key in entries:
            if proven:
                yield query.row(constants, key)
                continue
            for row in self._rows_of(key):
                # Another conjunction may place the entity earlier: then it is that
                # conjunction's to report.
                if row.components[:-1] == constants:
                    yield row

    def _ordered_scan(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        query = self._query
        leading = next(
            index for index, order in enumerate(query.orders) if order.name not in conjunction.equal
        )
        order = query.orders[leading]
        scope = self._scope(order.name)
        assert scope is not None
        values = conjunction.spans.get(order.name, EVERYTHING)
        if start is not None and start.components and leading == 0:
            bound = start.components[0]
            after = Span(high=successor(bound)) if order.descending else Span(low=bound)
            values = values.intersect(after)
        others = set(conjunction.spans) - {order.name}
        proven = (
            self._single
            and len(query.orders) == 1
            and not conjunction.equal
            and not others
            and not self._reader.catalog.is_multi(scope)
        )
        entries = self._reader.scan_index(
            scope,
            values,
            conjunction.keys,
            descending=order.descending,
            keys_descending=query.key_descending,
        )
        if proven:
            for value, key in entries:
                yield query.row((value,), key)
            return
        group: list[Row] = []
        current: bytes | None = None
        for value, key in entries:
            if value != current:
                yield from sorted(group, key=by_position)
                group, current = [], value
            # An array has several entries; only the one it sorts by counts.
            group += [row for row in self._rows_of(key) if row.components[leading] == value]
        yield from sorted(group, key=by_position)

    def _sorted(self, conjunction: Conjunction) -> Iterator[Row]:
        driver = self._equality_driver(conjunction) or self._span_driver(conjunction)
        if driver is None:
            names = [*self._query.projection, *(order.name for order in self._query.orders)]
            scope = self._scope(names[0])
            driver = self._kind_driver() if scope is None else _Driver(scope, EVERYTHING)
        rows: list[Row] = []
        seen: set[bytes] = set()
        for _, key in self._reader.scan_index(driver.scope, driver.values, conjunction.keys):
            if key not in seen:
                seen.add(key)
                rows += self._rows_of(key)
        rows.sort(key=by_position)
        return iter(rows)

    def _rows_of(self, key: bytes) -> list[Row]:
        """The rows of the entity at `key`, checked against the whole query."""
        return self._query.rows(key, indexed_values(Entity.FromString(self.load(key).data)))

    def _scope(self, name: str) -> int | None:
        assert self._query.partition is not None
        assert self._query.kind is not None
        return self._reader.catalog.find_scope(self._query.partition, self._query.kind, name)

    def _kind_driver(self) -> _Driver:
        scope = self._scope(KIND_INDEX)
        assert scope is not None
        return _Driver(scope, _NO_VALUE)

    def _equality_driver(self, conjunction: Conjunction) -> _Driver | None:
        """The equality filter with the fewest entries."""
        return self._smallest(
            conjunction,
            [
                (name, Span(value, successor(value)))
                for name, values in conjunction.equal.items()
                for value in values
            ],
        )

    def _span_driver(self, conjunction: Conjunction) -> _Driver | None:
        return self._smallest(conjunction, list(conjunction.spans.items()))

    def _smallest(self, conjunction: Conjunction, ranges: list[tuple[str, Span]]) -> _Driver | None:
        drivers = []
        for name, span in ranges:
            scope = self._scope(name)
            assert scope is not None
            drivers.append(_Driver(scope, span))
        if len(drivers) < 2:
            return drivers[0] if drivers else None
        # Doubling the limit compares two huge ranges without counting either.
        limit = 64
        while True:
            sizes = [self._size(driver, conjunction, limit) for driver in drivers]
            if min(sizes) < limit or limit > _FEW:
                return drivers[sizes.index(min(sizes))]
            limit *= 4

    def _size(self, driver: _Driver, conjunction: Conjunction, limit: int) -> int:
        return self._reader.count_up_to(driver.scope, driver.values, conjunction.keys, limit)

    def _keys_after(self, conjunction: Conjunction, start: Place | None) -> Span:
        """The key range, cut at the start cursor when the key is the only order."""
        if start is None or not start.components:
            return conjunction.keys
        # The last component is the key with a two-byte terminator.
        key = start.components[-1][:-2]
        after = Span(high=successor(key)) if self._query.key_descending else Span(low=key)
        return conjunction.keys.intersect(after)


def _merge(streams: list[Iterator[Row]]) -> Iterator[Row]:
    """Rows of several conjunctions in order, each once."""
    previous: bytes | None = None
    for row in heapq.merge(*streams, key=by_position):
        if row.position != previous:
            yield row
        previous = row.position
