"""The composite indexes that the service would need for a query.

The emulator answers each query without composite indexes. This module works out the service's
requirements, by "Indexes, index definition and structure". The built-in indexes answer queries with
only equalities and ancestors, with inequalities on one property, or with one order. Every other
query needs a composite index. Its properties are those with equalities first, then the ordered
ones. An equality may also be answered by another index with the same orders (merge join).
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from userlock_emulator.datastore.query import KEY, Conjunction, Order, ParsedQuery


@dataclass(frozen=True, order=True)
class CompositeIndex:
    """An index as index.yaml defines it."""

    kind: str
    ancestor: bool
    properties: tuple[Order, ...]

    @property
    def identity(self) -> str:
        """Return a name that only this definition has."""
        digest = hashlib.sha256(str(self).encode()).digest()
        return base64.urlsafe_b64encode(digest[:9]).decode()

    def __str__(self) -> str:
        """Return the definition as index.yaml has it."""
        lines = [f"- kind: {_quoted(self.kind)}"]
        if self.ancestor:
            lines.append("  ancestor: yes")
        lines.append("  properties:")
        for name, descending in self.properties:
            lines.append(f"  - name: {_quoted(name)}")
            if descending:
                lines.append("    direction: desc")
        return "\n".join(lines)


@dataclass(frozen=True)
class Requirement:
    """The index requirement of one conjunction of a query.

    `equal` are the properties with equalities, which may come first in any order. `orders` must
    follow as given, `free` in any order and direction.
    """

    kind: str | None
    ancestor: bool
    equal: tuple[str, ...]
    orders: tuple[Order, ...]
    free: tuple[str, ...]

    @property
    def composite(self) -> CompositeIndex | None:
        """Return the recommended index, or None if the built-in ones suffice."""
        ordered = (*self.orders, *(Order(name) for name in self.free))
        if self.kind is None or not ordered:
            return None
        alone = len(ordered) == 1 and not self.equal and not self.ancestor
        if alone and ordered[0] != Order(KEY, descending=True):
            return None
        equal = tuple(Order(name) for name in self.equal)
        return CompositeIndex(self.kind, self.ancestor, (*equal, *ordered))

    def met_by(self, indexes: Iterable[CompositeIndex]) -> bool:
        """Return whether some of these indexes together answer the conjunction."""
        covered: set[str] = set()
        found = False
        for index in indexes:
            prefix = self._prefix(index)
            if prefix is not None:
                found = True
                covered |= prefix
        return found and covered.issuperset(self.equal)

    def _prefix(self, index: CompositeIndex) -> set[str] | None:
        """Return the equalities that an index answers, or None if the index is of no use."""
        if (index.kind, index.ancestor) != (self.kind, self.ancestor):
            return None
        behind = len(self.orders) + len(self.free)
        first = len(index.properties) - behind
        if first < 0:
            return None
        ordered = index.properties[first : first + len(self.orders)]
        names = {name for name, _ in index.properties[first + len(self.orders) :]}
        prefix = {name for name, _ in index.properties[:first]}
        if ordered != self.orders or names != set(self.free) or not prefix <= set(self.equal):
            return None
        return prefix


def requirements(query: ParsedQuery) -> list[Requirement]:
    """Return the index requirements of a query, each once."""
    return list(dict.fromkeys(_requirement(query, each) for each in query.disjunction))


def _requirement(query: ParsedQuery, conjunction: Conjunction) -> Requirement:
    open_orders = [order for order in query.orders if order.name not in conjunction.equal]
    orders = [order for order in open_orders if order.name not in query.implied]
    if query.key_descending:
        orders.append(Order(KEY, descending=True))
    free = [order.name for order in open_orders if order.name in query.implied]
    shown = {order.name for order in open_orders} | set(conjunction.equal)
    # The key comes before them in the order, so it is not one of them.
    free += [name for name in query.projection if name not in shown]
    return Requirement(
        query.kind, query.ancestor, tuple(sorted(conjunction.equal)), tuple(orders), tuple(free)
    )


def _quoted(name: str) -> str:
    """Return a name so quoted that YAML reads it back unchanged."""
    plain = name.replace("_", "a").replace(".", "a").isalnum() and not name[0].isdigit()
    if plain and name.isascii() and name.lower() not in _YAML_WORDS:
        return name
    if not name.isprintable():
        return json.dumps(name)
    return "'" + name.replace("'", "''") + "'"


_YAML_WORDS = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
