"""Execution of a parsed query on index rows: choosing an access path, sorting, merging.

The access paths of a conjunction:

* by key: if equalities fix all orders, the index entries of one equality, or of the kind, are
  scanned in key order;
* ordered scan: the index of the first order that is not fixed is scanned in order. It stops as soon
  as the caller has enough rows. Many entries with one value become a query of their own, with that
  order fixed; few are sorted by the other orders;
* sorted: the most selective filter's entries are collected, their entities loaded, and the rows
  sorted in memory.

SQL checks entries for the other equalities. If that proves the match and the indexes hold a
complete row, no entity is loaded. With arrays, or with inequalities without an order, each
candidate is loaded. No query scans a kind if a filter or an order names an indexed property.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from userlock_emulator.datastore.access import FEW, Driver, StoreClient
from userlock_emulator.datastore.catalog import KIND_INDEX
from userlock_emulator.datastore.cursors import Place
from userlock_emulator.datastore.encoding import successor
from userlock_emulator.datastore.query import Conjunction, Row
from userlock_emulator.datastore.rows import EVERYTHING, Span

# Up to this many matches need no choice between access paths.
VERY_FEW = 32
# The number of index entries that can be read and skipped in the time it takes to load and check
# one entity.
PROBES_PER_LOAD = 16

by_position = attrgetter("position")


class QueryRunner(StoreClient):
    """The runner of one query on one view of the database."""

    def rows(
        self, start: Place | None = None, end: Place | None = None, wanted: int | None = None
    ) -> Iterator[Row]:
        """Yield the query's rows in order, after `start` and up to `end`.

        `wanted` is roughly the number of rows that the caller will take; None means all.
        """
        # DISTINCT compares all rows, from the first one on.
        streams = self._streams(None if self._query.distinct_on else start, wanted)
        merged: Iterable[Row]
        merged = streams[0] if len(streams) == 1 else _merge(streams)
        if self._query.distinct_on:
            merged = self._distinct(merged)
        for row in merged:
            if end is not None and end.is_before(row.position):
                return
            if start is None or start.is_before(row.position):
                yield row

    def count(self, limit: int) -> int | None:
        """Return the number of rows, at most `limit`, or None if only a scan can tell."""
        query = self._query
        if query.partition is None or query.kind is None or query.projection:
            return None
        if len(query.disjunction) != 1 or not self._known(query.disjunction[0]):
            return None
        (conjunction,) = query.disjunction
        names = [order.name for order in query.orders if order.name not in conjunction.equal]
        if len(names) > 1 or not self._plain(conjunction):
            return None
        if names:
            values = conjunction.spans.get(names[0], EVERYTHING)
            driver = Driver(self._known_scope(names[0]), values)
        elif conjunction.spans:
            return None
        else:
            driver = self._equality_driver(conjunction) or self._kind_driver()
        having = self._equalities(conjunction, driver)
        return self._reader.count_entries(
            driver.scope, driver.values, conjunction.keys, having, limit
        )

    def tally(self, names: Sequence[str]) -> Iterable[tuple[tuple[bytes, ...], int]] | None:
        """Return the combinations of values of these properties in the rows, with the number of
        rows with each, or None if only a scan can tell.
        """
        query = self._query
        if query.partition is None or query.kind is None or len(query.disjunction) != 1:
            return None
        (conjunction,) = query.disjunction
        needed = {*query.projection, *conjunction.spans, *(order.name for order in query.orders)}
        if not needed - conjunction.equal.keys() <= set(names) or not self._known(conjunction):
            return None
        if not conjunction.equal.keys().isdisjoint(names) or query.distinct_on:
            return None
        ranges = [(self._known_scope(n), conjunction.spans.get(n, EVERYTHING)) for n in names]
        having, keys = self._equalities(conjunction), conjunction.keys
        if len(names) == 1:
            found = self._reader.count_values(*ranges[0], keys, having)
            return (((value,), times) for value, times in found)
        columns = []
        for scope, values in ranges:
            column: dict[bytes, list[bytes]] = defaultdict(list)
            for value, key in self._reader.scan_index(scope, values, keys, having=having):
                column[key].append(value)
            columns.append(column)
        common = set.intersection(*map(set, columns))
        return (
            (combination, 1)
            for key in common
            for combination in itertools.product(*(column[key] for column in columns))
        )

    def _streams(self, start: Place | None, wanted: int | None) -> list[Iterator[Row]]:
        """Return rows in order, in one stream or several."""
        if self._query.partition is None:
            return []
        return [self._stream(each, start, wanted) for each in self._query.disjunction]

    def _distinct(self, rows: Iterable[Row]) -> Iterator[Row]:
        places = [self._query.projection.index(name) for name in self._query.distinct_on]
        seen = set()
        for row in rows:
            combination = tuple(row.projected[place] for place in places)
            if combination not in seen:
                seen.add(combination)
                yield row

    def _stream(
        self, conjunction: Conjunction, start: Place | None, wanted: int | None
    ) -> Iterator[Row]:
        query = self._query
        if query.kind is None:
            return self._kindless(conjunction, start)
        if not self._known(conjunction):
            return iter(())
        if query.projection and not self._plain(conjunction):
            return self._sorted(conjunction)
        return self._in_order(conjunction, start, wanted)

    def _known(self, conjunction: Conjunction) -> bool:
        """Return whether the kind ever had all the relevant indexes."""
        query = self._query
        names = {
            KIND_INDEX, *conjunction.equal, *conjunction.spans, *query.projection,
            *(order.name for order in query.orders),
        }  # fmt: skip
        return all(self._scope(name) is not None for name in names)

    def _in_order(
        self, conjunction: Conjunction, start: Place | None, wanted: int | None
    ) -> Iterator[Row]:
        """Return the rows of a conjunction by the cheapest access path."""
        if all(order.name in conjunction.equal for order in self._query.orders):
            return self._by_key(conjunction, start)
        driver = self._equality_driver(conjunction)
        if driver is None:
            return self._ordered_scan(conjunction, start, wanted)
        matches = self._size(driver, conjunction, FEW)
        if matches >= FEW:
            return self._ordered_scan(conjunction, start, wanted)
        if wanted is None or matches <= max(wanted, VERY_FEW) or not self._plain(conjunction):
            return self._sorted(conjunction)
        return self._scanned_or_sorted(conjunction, start, wanted, matches)

    def _kindless(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        partition = self._query.partition
        assert partition is not None
        keys = conjunction.keys.intersect(self._keys_after(start, ()))
        for key in self._reader.scan_keys(partition, keys):
            if self._query.projection:
                yield from self._rows_of(key)
            else:
                yield self._query.row((), key)

    def _by_key(self, conjunction: Conjunction, start: Place | None) -> Iterator[Row]:
        query = self._query
        constants = self._components(conjunction)
        driver = self._equality_driver(conjunction) or self._kind_driver()
        met = all(
            any(span.holds(value) for value in conjunction.equal.get(name, ()))
            for name, span in conjunction.spans.items()
        )
        proven = met and self._plain(conjunction)
        for _, key in self._reader.scan_index(
            driver.scope,
            driver.values,
            conjunction.keys.intersect(self._keys_after(start, constants)),
            keys_descending=query.key_descending,
            having=self._equalities(conjunction, driver),
        ):
            if proven:
                yield self._plain_row(constants, key)
                continue
            for row in self._rows_of(key):
                # Another conjunction may place the entity earlier; then that conjunction reports
                # it.
                if row.components[: len(constants)] == constants:
                    yield row

    def _ordered_scan(
        self,
        conjunction: Conjunction,
        start: Place | None,
        wanted: int | None,
        within: Span = EVERYTHING,
    ) -> Iterator[Row]:
        """Scan a range of the index of the first order that no equality fixes."""
        leading = self._leading(conjunction)
        order = self._query.orders[leading]
        values = within.intersect(conjunction.spans.get(order.name, EVERYTHING))
        before = self._components(conjunction)
        after = _after(start, before, descending=order.descending)
        values = values.intersect(after)
        narrowed = self._components(_fixed(conjunction, order.name, b""))
        if len(narrowed) < len(self._query.orders) or not self._plain(conjunction):
            return self._grouped_scan(conjunction, values, start, wanted)
        behind = narrowed[leading + 1 :]
        if start is None or after == EVERYTHING:
            return self._plain_scan(conjunction, values, before, behind)
        # Entries with the same value as the start continue after its key.
        value = start.components[leading]
        same = _fixed(conjunction, order.name, value)
        rest = values.beyond(value, descending=order.descending)
        return itertools.chain(
            self._by_key(same, start) if values.holds(value) else (),
            self._plain_scan(conjunction, rest, before, behind),
        )

    def _entries(self, conjunction: Conjunction, values: Span) -> Iterator[tuple[bytes, bytes]]:
        """Yield the values, in order, of the first order that no equality fixes, with keys."""
        order = self._query.orders[self._leading(conjunction)]
        return self._reader.scan_index(
            self._known_scope(order.name),
            values,
            conjunction.keys,
            descending=order.descending,
            keys_descending=self._query.key_descending,
            having=self._equalities(conjunction),
        )

    def _plain_scan(
        self,
        conjunction: Conjunction,
        values: Span,
        before: tuple[bytes, ...],
        behind: tuple[bytes, ...],
    ) -> Iterator[Row]:
        """Yield rows from entries alone; the other orders have the values `before` and `behind`."""
        ordered = self._query.orders[: len(before) + 1]
        distinct = self._query.distinct_on
        if not distinct or not {order.name for order in ordered}.issuperset(distinct):
            for value, key in self._entries(conjunction, values):
                yield self._plain_row((*before, value, *behind), key)
            return
        # Of the entries with one value only the first counts.
        while (entry := next(self._entries(conjunction, values), None)) is not None:
            value, key = entry
            yield self._plain_row((*before, value, *behind), key)
            values = values.beyond(value, descending=ordered[-1].descending)

    def _grouped_scan(
        self, conjunction: Conjunction, values: Span, start: Place | None, wanted: int | None
    ) -> Iterator[Row]:
        """Yield one value's entities after the other's, each group sorted by the other orders."""
        leading = self._leading(conjunction)
        order = self._query.orders[leading]
        divisible = self._plain(conjunction)
        while True:
            group: list[bytes] = []
            current = b""
            for value, key in self._entries(conjunction, values):
                if value != current:
                    yield from self._group(group, leading, current)
                    group, current = [], value
                group.append(key)
                if divisible and len(group) > VERY_FEW:
                    break
            else:
                yield from self._group(group, leading, current)
                return
            # This many entries with one value become a query of their own, with one order less.
            yield from self._in_order(_fixed(conjunction, order.name, current), start, wanted)
            values = values.beyond(current, descending=order.descending)

    def _group(self, keys: list[bytes], leading: int, value: bytes) -> list[Row]:
        """Return the rows of entities that have one value of the leading order in common."""
        rows = [row for key in keys for row in self._rows_of(key)]
        # An array has several entries; only the one that the entity sorts by counts.
        return sorted((row for row in rows if row.components[leading] == value), key=by_position)

    def _scanned_or_sorted(
        self, conjunction: Conjunction, start: Place | None, wanted: int, matches: int
    ) -> Iterator[Row]:
        """Scan the index of the first order for a while, then collect and sort the rest.

        The distance between matches in the index is unknown. This way costs not much more than the
        cheaper one of the two.
        """
        leading = self._leading(conjunction)
        order = self._query.orders[leading]
        boundary = self._reader.nth_value(
            self._known_scope(order.name),
            conjunction.spans.get(order.name, EVERYTHING),
            conjunction.keys,
            matches * PROBES_PER_LOAD,
            descending=order.descending,
        )
        if boundary is None:
            yield from self._ordered_scan(conjunction, start, wanted)
            return
        behind = Span(high=successor(boundary)) if order.descending else Span(low=boundary)
        near = Span(low=behind.high) if order.descending else Span(high=behind.low)
        yield from self._ordered_scan(conjunction, start, wanted, near)
        for row in self._sorted(conjunction):
            if behind.holds(row.components[leading]):
                yield row

    def _sorted(self, conjunction: Conjunction) -> Iterator[Row]:
        driver = self._equality_driver(conjunction) or self._span_driver(conjunction)
        if driver is None:
            names = [*self._query.projection, *(order.name for order in self._query.orders)]
            driver = Driver(self._known_scope(names[0]), EVERYTHING)
        rows: list[Row] = []
        seen: set[bytes] = set()
        for _, key in self._reader.scan_index(
            driver.scope,
            driver.values,
            conjunction.keys,
            having=self._equalities(conjunction, driver),
        ):
            if key not in seen:
                seen.add(key)
                rows += self._rows_of(key)
        rows.sort(key=by_position)
        return iter(rows)

    def _keys_after(self, start: Place | None, fixed: tuple[bytes, ...]) -> Span:
        """Return the keys that may come after `start` if all orders have fixed values."""
        keys = _after(start, fixed, descending=self._query.key_descending)
        # In a place the key has a two-byte terminator.
        if keys.low:
            return Span(low=keys.low[:-2])
        return keys if keys == EVERYTHING else Span(high=successor(keys.high[:-3]))


def _after(start: Place | None, fixed: tuple[bytes, ...], *, descending: bool) -> Span:
    """Return the values of the next component that may come after `start`, or equal it.

    `fixed` are the components before it.
    """
    if start is None or len(start.components) <= len(fixed):
        return EVERYTHING
    if start.components[: len(fixed)] != fixed:
        return EVERYTHING
    bound = start.components[len(fixed)]
    return Span(high=successor(bound)) if descending else Span(low=bound)


def _fixed(conjunction: Conjunction, name: str, value: bytes) -> Conjunction:
    """Return the conjunction with one property fixed to a value."""
    return replace(conjunction, equal={**conjunction.equal, name: frozenset([value])})


def _merge(streams: list[Iterator[Row]]) -> Iterator[Row]:
    """Merge the rows of several conjunctions in order, each once."""
    previous: bytes | None = None
    for row in heapq.merge(*streams, key=by_position):
        if row.position != previous:
            yield row
        previous = row.position
