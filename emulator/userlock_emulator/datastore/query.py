"""The meaning of a query, independent of its execution.

A parsed query is a disjunction of conjunctions over encoded values. For one entity it yields
*rows*: one for an ordinary query, one per combination of values for a projection. Each row has a
*position*, a byte string that compares in the query's order. Sorting, merging, cursors and the
ranges that a transaction has read are all comparisons of positions.

Arrays follow the documented rules ("Datastore queries, properties with array values"). Several
inequality filters on one property must hold for one and the same element. Several equality filters
may each be met by a different one. An entity sorts by its smallest (descending: greatest) element
among those that match the filters. An order on a property that an equality filter fixes is ignored.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from userlock_emulator.datastore.encoding import complement, delimited
from userlock_emulator.datastore.indexing import IndexedValues
from userlock_emulator.datastore.rows import EVERYTHING, Span

KEY = "__key__"

NAMESPACE_METADATA = "__namespace__"
KIND_METADATA = "__kind__"
PROPERTY_METADATA = "__property__"
_METADATA = (NAMESPACE_METADATA, KIND_METADATA, PROPERTY_METADATA)


class Order(NamedTuple):
    """One sort order."""

    name: str
    descending: bool = False


@dataclass(frozen=True)
class Conjunction:
    """Filters that must all hold.

    `equal` maps a property to its required values. `spans` maps a property to the range that one of
    its values must be in. `keys` bounds the entity's key (filters on `__key__` and the ancestor).
    """

    equal: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    keys: Span = EVERYTHING

    @property
    def impossible(self) -> bool:
        """Return whether no entity can match, whatever its values."""
        return self.keys.empty or any(span.empty for span in self.spans.values())

    def matches(self, key: bytes, values: IndexedValues) -> bool:
        """Return whether an entity meets all filters."""
        if not self.keys.holds(key):
            return False
        for name, wanted in self.equal.items():
            if not wanted.issubset(values.get(name, ())):
                return False
        return all(
            any(span.holds(value) for value in values.get(name, ()))
            for name, span in self.spans.items()
        )

    def candidates(self, name: str, values: IndexedValues) -> tuple[bytes, ...]:
        """Return the values of a property by which a matching entity may sort, ascending."""
        wanted = self.equal.get(name)
        if wanted is not None:
            return (min(wanted),)
        present = values.get(name, ())
        span = self.spans.get(name)
        if span is None:
            return present
        return tuple(value for value in present if span.holds(value))


class Row(NamedTuple):
    """One result before its entity is loaded."""

    position: bytes
    components: tuple[bytes, ...]
    key: bytes
    projected: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class ParsedQuery:
    """A checked query, without its cursors, offset and limit.

    `orders` never contains `__key__`: the key always comes last, in the direction `key_descending`,
    and makes positions unique. `projection` has the properties whose values make rows of their own.
    `distinct_on` is a part of it, and so are the aggregated properties and `shown`, those in the
    results (empty: whole entities, or keys). `ancestor` tells that the query has an ancestor
    filter. `implied` are the orders that follow from filters and from aggregated properties.
    """

    partition: int | None
    kind: str | None
    disjunction: tuple[Conjunction, ...] = (Conjunction(),)
    orders: tuple[Order, ...] = ()
    key_descending: bool = False
    keys_only: bool = False
    projection: tuple[str, ...] = ()
    distinct_on: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    ancestor: bool = False
    implied: frozenset[str] = frozenset()

    @property
    def on_metadata(self) -> bool:
        """Return whether the entities are virtual, derived from the stored ones."""
        return self.kind in _METADATA

    @property
    def directions(self) -> tuple[bool, ...]:
        """Return whether each component of a position is descending."""
        directions = tuple(order.descending for order in self.orders)
        # The components that distinguish the rows of one entity follow the key's direction.
        return (*directions, *(self.key_descending for _ in (KEY, *self.projection)))

    def aggregating(self, names: Sequence[str], *, ordered: bool) -> "ParsedQuery":
        """Return the query that also projects these properties, without showing them.

        Args:
            ordered: it is ordered by them, after its own orders. These orders are implied: an
                index may have them in any order.
        """
        projection = tuple(dict.fromkeys([*self.projection, *names]))
        known = {order.name for order in self.orders}
        further = [name for name in projection if ordered and name not in known]
        return replace(
            self,
            projection=projection,
            orders=(*self.orders, *map(Order, further)),
            implied=self.implied.union(further),
        )

    def row(
        self, components: tuple[bytes, ...], key: bytes, projected: tuple[bytes, ...] = ()
    ) -> Row:
        """Return the row with these order values, key and projected values."""
        everything = (*components, delimited(key), *projected)
        return Row(position(everything, self.directions), everything, key, projected)

    def rows(self, key: bytes, values: IndexedValues) -> list[Row]:
        """Return the rows of one entity of this kind and partition: none if it does not match."""
        if self.projection:
            return self._projected_rows(key, values)
        best: Row | None = None
        for conjunction in self.disjunction:
            if not conjunction.matches(key, values):
                continue
            components = []
            for order in self.orders:
                candidates = conjunction.candidates(order.name, values)
                if not candidates:
                    break
                components.append(candidates[-1] if order.descending else candidates[0])
            else:
                row = self.row(tuple(components), key)
                if best is None or row.position < best.position:
                    best = row
        return [] if best is None else [best]

    def _projected_rows(self, key: bytes, values: IndexedValues) -> list[Row]:
        rows: dict[tuple[bytes, ...], Row] = {}
        for conjunction in self.disjunction:
            if not conjunction.matches(key, values):
                continue
            names = list(self.projection)
            names += [order.name for order in self.orders if order.name not in self.projection]
            choices = [conjunction.candidates(name, values) for name in names]
            for combination in itertools.product(*choices):
                chosen = dict(zip(names, combination, strict=True))
                projected = tuple(chosen[name] for name in self.projection)
                components = tuple(chosen[order.name] for order in self.orders)
                row = self.row(components, key, projected)
                other = rows.get(projected)
                if other is None or row.position < other.position:
                    rows[projected] = row
        return list(rows.values())


def position(components: tuple[bytes, ...], directions: tuple[bool, ...]) -> bytes:
    """Return order values, key and projected values as one byte string in the query's order."""
    return b"".join(
        complement(component) if descending else component
        for component, descending in zip(components, directions, strict=True)
    )
