"""Datastore queries evaluated naively, as a reference for the emulator.

Entities are dictionaries in memory, and a query reads all of them. No code is shared with the
emulator: values compare as Python tuples, not as encoded bytes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cmp_to_key
from typing import Any

KEY = "__key__"

Path = tuple[str | int, ...]
Comparable = tuple[Any, ...]


def value_rank(value: Any) -> Comparable:
    """Return a rank that compares as the documentation orders values across types."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int):
        return (1, value)
    if isinstance(value, str):
        return (3, value.encode())
    if isinstance(value, float):
        return (4, -math.inf, 0) if math.isnan(value) else (4, value, 1)
    raise AssertionError(value)


def path_rank(path: Path) -> Comparable:
    """Return a rank that compares keys: kind, numeric ids before names, ancestors first."""
    return tuple(
        (0, item.encode())
        if index % 2 == 0 and isinstance(item, str)
        else ((0, item) if isinstance(item, int) else (1, str(item).encode()))
        for index, item in enumerate(path)
    )


def _rank(name: str, operand: Any) -> Comparable:
    return path_rank(operand) if name == KEY else value_rank(operand)


@dataclass(frozen=True)
class NaiveFilter:
    """A filter. The operand of "in" and "not in" is a tuple, that of `__key__` a path."""

    name: str
    op: str
    operand: Any

    @property
    def ranges(self) -> bool:
        """Return whether it must hold for the same array element as the property's other ranges."""
        return self.op in _COMPARE

    def holds(self, rank: Comparable) -> bool:
        return _COMPARE[self.op](rank, self.rank)

    @property
    def rank(self) -> Any:
        if self.op == "not in":
            return tuple(_rank(self.name, item) for item in self.operand)
        return _rank(self.name, self.operand)


@dataclass(frozen=True)
class NaiveQuery:
    """Alternatives of filters that must all hold. The last `hidden` projections serve DISTINCT."""

    alternatives: tuple[tuple[NaiveFilter, ...], ...]
    orders: tuple[tuple[str, bool], ...] = ()
    ancestor: Path | None = None
    kind: str | None = "K"
    projection: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    hidden: int = 0

    @property
    def shown(self) -> tuple[str, ...]:
        return self.projection[: len(self.projection) - self.hidden]


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
    "not in": lambda rank, ranks: rank not in ranks,
}

# Path to the indexed values of each property.
Entities = dict[Path, dict[str, list[Any]]]
# A result: the path, and the ranks of its projected values.
Result = tuple[Path, tuple[Comparable, ...]]


def run(entities: Entities, query: NaiveQuery) -> list[Path]:
    return [path for path, _ in results(entities, query)]


def results(entities: Entities, query: NaiveQuery) -> list[Result]:
    """Return the results in order: one per entity, or one per combination of projected values."""
    query = _expanded(query)
    orders = effective_orders(query)
    # The projected values distinguish the results of one entity.
    key = _sort_key([*orders, *((name, orders[-1][1]) for name in query.projection)])
    best: dict[Result, list[Comparable]] = {}
    for path, properties in entities.items():
        if query.kind not in (None, path[-2]):
            continue
        if query.ancestor is not None and path[: len(query.ancestor)] != query.ancestor:
            continue
        for alternative in query.alternatives:
            for chosen in _combinations(path, properties, alternative, orders, query.projection):
                projected = tuple(chosen[name] for name in query.projection)
                rank = [*(chosen[name] for name, _ in orders), *projected]
                known = best.get((path, projected))
                if known is None or key(rank) < key(known):
                    best[path, projected] = rank
    found = sorted(best, key=lambda result: key(best[result]))
    if not query.distinct:
        return found
    places = [query.projection.index(name) for name in query.distinct]
    first: dict[tuple[Comparable, ...], Result] = {}
    for result in found:
        first.setdefault(tuple(result[1][place] for place in places), result)
    return list(first.values())


def _expanded(query: NaiveQuery) -> NaiveQuery:
    """Expand `IN`: one alternative for each value."""
    # By rank: 1 and True are equal in Python alone.
    alternatives = {
        tuple((f.name, f.op, f.rank) for f in combination): combination
        for alternative in query.alternatives
        for combination in itertools.product(
            *(
                [NaiveFilter(f.name, "=", item) for item in f.operand] if f.op == "in" else [f]
                for f in alternative
            )
        )
    }
    return replace(query, alternatives=tuple(alternatives.values()))


def effective_orders(query: NaiveQuery) -> list[tuple[str, bool]]:
    """Return the orders of a query, implied ones included; the key is the last."""
    query = _expanded(query)
    orders = [order for order in query.orders if not _is_fixed(query, order[0])]
    implied = set.intersection(
        *({f.name for f in alternative if f.ranges} for alternative in query.alternatives)
    ) - {KEY}
    if KEY not in dict(orders):
        orders += [(name, False) for name in sorted(implied - set(dict(orders)))]
        orders += [(name, False) for name in query.projection if name not in dict(orders)]
        orders.append((KEY, False))
    return orders[: [name for name, _ in orders].index(KEY) + 1]


def _is_fixed(query: NaiveQuery, name: str) -> bool:
    return len(query.alternatives) == 1 and any(
        f.name == name != KEY and f.op == "=" for f in query.alternatives[0]
    )


def _sort_key(orders: list[tuple[str, bool]]) -> Callable[[list[Comparable]], Any]:
    def compare(one: list[Comparable], other: list[Comparable]) -> int:
        for (_, descending), left, right in zip(orders, one, other, strict=True):
            if left != right:
                return (-1 if left < right else 1) * (-1 if descending else 1)
        return 0

    return cmp_to_key(compare)


def _combinations(
    path: Path,
    properties: dict[str, list[Any]],
    filters: Iterable[NaiveFilter],
    orders: list[tuple[str, bool]],
    projection: tuple[str, ...],
) -> Iterable[dict[str, Comparable]]:
    """Yield the values by which the entity can sort and be projected; none if it does not match."""
    choices: dict[str, list[Comparable]] = {
        name: [value_rank(v) for v in values] for name, values in properties.items()
    }
    choices[KEY] = [path_rank(path)]
    equal: dict[str, list[Comparable]] = {}
    matching: dict[str, list[Comparable]] = {}
    for item in filters:
        if item.op == "=":
            equal.setdefault(item.name, []).append(item.rank)
        else:
            remaining = matching.get(item.name, choices.get(item.name, []))
            matching[item.name] = [rank for rank in remaining if item.holds(rank)]
    for name, wanted in equal.items():
        if any(rank not in choices.get(name, []) for rank in wanted):
            return []
    if not all(matching.values()):
        return []
    choices |= matching
    choices |= {name: [min(wanted)] for name, wanted in equal.items()}
    names = list(dict.fromkeys([*(name for name, _ in orders), *projection]))
    return [
        dict(zip(names, combination, strict=True))
        for combination in itertools.product(*(choices.get(name, []) for name in names))
    ]
