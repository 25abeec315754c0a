"""Index access for a query's conjunctions: drivers, sizes, rows."""

import itertools
from dataclasses import dataclass

from userlock_emulator.datastore.catalog import KIND_INDEX
from userlock_emulator.datastore.encoding import successor
from userlock_emulator.datastore.errors import contention
from userlock_emulator.datastore.indexing import indexed_values
from userlock_emulator.datastore.protos import Entity
from userlock_emulator.datastore.query import Conjunction, ParsedQuery, Row
from userlock_emulator.datastore.rows import Entry, Reader, Span, StoredEntity

# Up to this many entities are sorted in memory. More are found by scanning the index of their
# order.
FEW = 1000

_NO_VALUE = Span(b"", b"\x00")


@dataclass(frozen=True)
class Driver:
    """An index and the range of it that contains all candidates."""

    scope: int
    values: Span


class StoreClient:
    """The indexes of one query on one view of the database."""

    def __init__(self, reader: Reader, query: ParsedQuery) -> None:
        self._reader = reader
        self._query = query

    def load(self, key: bytes) -> StoredEntity:
        """Return the entity of one of the rows."""
        assert self._query.partition is not None
        stored = self._reader.get(self._query.partition, key)
        if stored is None:
            raise contention("The data was reset meanwhile.")
        return stored

    def _plain(self, conjunction: Conjunction) -> bool:
        """Return whether index entries of the orders are rows as they are, without loading the
        entity.
        """
        query = self._query
        ordered = {order.name for order in query.orders}
        if not ordered.issuperset(conjunction.spans) or not ordered.issuperset(query.projection):
            return False
        # An entity sorts by one element of an array. The alternatives that the entity matches may
        # decide which element.
        names = ordered.difference(conjunction.equal)
        if len(query.disjunction) > 1:
            names = ordered.union(*({*each.equal, *each.spans} for each in query.disjunction))
        return not any(self._may_be_array(name) for name in names)

    def _may_be_array(self, name: str) -> bool:
        scope = self._scope(name)
        return scope is not None and self._reader.catalog.is_multi(scope)

    def _rows_of(self, key: bytes) -> list[Row]:
        """Return the rows of the entity at `key`, checked against the whole query."""
        return self._query.rows(key, indexed_values(Entity.FromString(self.load(key).data)))

    def _leading(self, conjunction: Conjunction) -> int:
        """Return the position of the first order that no equality fixes."""
        return len(self._components(conjunction))

    def _components(self, conjunction: Conjunction) -> tuple[bytes, ...]:
        """Return the values of the leading orders that equalities fix."""
        fixed = itertools.takewhile(
            lambda order: order.name in conjunction.equal, self._query.orders
        )
        return tuple(min(conjunction.equal[order.name]) for order in fixed)

    def _plain_row(self, components: tuple[bytes, ...], key: bytes) -> Row:
        """Return the row of an entity with these order values, which cover all projected values."""
        query = self._query
        if not query.projection:
            return query.row(components, key)
        names = [order.name for order in query.orders]
        projected = tuple(components[names.index(name)] for name in query.projection)
        return query.row(components, key, projected)

    def _equalities(self, conjunction: Conjunction, driver: Driver | None = None) -> list[Entry]:
        """Return the index entries that all matches have, apart from the scanned one."""
        entries = [
            (self._known_scope(name), value)
            for name, values in conjunction.equal.items()
            for value in values
        ]
        if driver is not None and (driver.scope, driver.values.low) in entries:
            entries.remove((driver.scope, driver.values.low))
        return entries

    def _known_scope(self, name: str) -> int:
        scope = self._scope(name)
        assert scope is not None
        return scope

    def _scope(self, name: str) -> int | None:
        assert self._query.partition is not None
        assert self._query.kind is not None
        return self._reader.catalog.find_scope(self._query.partition, self._query.kind, name)

    def _kind_driver(self) -> Driver:
        scope = self._scope(KIND_INDEX)
        assert scope is not None
        return Driver(scope, _NO_VALUE)

    def _equality_driver(self, conjunction: Conjunction) -> Driver | None:
        """Return the equality filter with the fewest entries."""
        return self._smallest(
            conjunction,
            [
                (name, Span(value, successor(value)))
                for name, values in conjunction.equal.items()
                for value in values
            ],
        )

    def _span_driver(self, conjunction: Conjunction) -> Driver | None:
        return self._smallest(conjunction, list(conjunction.spans.items()))

    def _smallest(self, conjunction: Conjunction, ranges: list[tuple[str, Span]]) -> Driver | None:
        drivers = []
        for name, span in ranges:
            scope = self._scope(name)
            assert scope is not None
            drivers.append(Driver(scope, span))
        if len(drivers) < 2:
            return drivers[0] if drivers else None
        # Doubling the limit compares two huge ranges without counting either completely.
        limit = 64
        while True:
            sizes = [self._size(driver, conjunction, limit) for driver in drivers]
            if min(sizes) < limit or limit > FEW:
                return drivers[sizes.index(min(sizes))]
            limit *= 4

    def _size(self, driver: Driver, conjunction: Conjunction, limit: int) -> int:
        return self._reader.count_up_to(driver.scope, driver.values, conjunction.keys, limit)
