"""Datastore queries evaluated the obvious way, as a yardstick for the emulator.

Entities are dictionaries in memory; a query looks at every one of them. Nothing
here is shared with the emulator: values compare as Python tuples, not as encoded
bytes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

Path = tuple[str | int, ...]
Comparable = tuple[Any, ...]


def value_rank(value: Any) -> Comparable:
    """Compares as the documentation orders values across types."""
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
    """Compares keys: kind, numeric ids before names, ancestors first."""
    return tuple(
        (0, item.encode())
        if index % 2 == 0 and isinstance(item, str)
        else ((0, item) if isinstance(item, int) else (1, str(item).encode()))
        for index, item in enumerate(path)
    )


@dataclass(frozen=True)
class NaiveFilter:
    name: str
    op: str
    operand: Any


@dataclass(frozen=True)
class NaiveQuery:
    """Alternatives of filters that must all hold; orders are (name, descending)."""

    alternatives: tuple[tuple[NaiveFilter, ...], ...]
    orders: tuple[tuple[str, bool], ...]
    ancestor: Path | None = None


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# Path to the indexed values of each property.
Entities = dict[Path, dict[str, list[Any]]]


def run(entities: Entities, query: NaiveQuery) -> list[Path]:
    """The keys of the results, in order. All entities are of the query's kind."""
    ranked = []
    orders = [order for order in query.orders if not _is_fixed(query, order[0])]
    implied = set.intersection(
        *({f.name for f in alternative if f.op in _COMPARE} for alternative in query.alternatives)
    )
    if "__key__" not in dict(orders):
        orders += [(name, False) for name in sorted(implied - set(dict(orders)))]
        orders.append(("__key__", False))
    orders = orders[: [name for name, _ in orders].index("__key__") + 1]
    for path, properties in entities.items():
        if query.ancestor is not None and path[: len(query.ancestor)] != query.ancestor:
            continue
        ranks = [
            rank
            for alternative in query.alternatives
            for rank in _ranks(path, properties, alternative, orders)
        ]
        if ranks:
            ranked.append((min(ranks, key=_sort_key(orders)), path))
    return [path for _, path in sorted(ranked, key=lambda item: _sort_key(orders)(item[0]))]


def _is_fixed(query: NaiveQuery, name: str) -> bool:
    return len(query.alternatives) == 1 and any(
        f.name == name and f.op == "=" for f in query.alternatives[0]
    )


def _sort_key(orders: list[tuple[str, bool]]) -> Callable[[list[Comparable]], Any]:
    def compare(one: list[Comparable], other: list[Comparable]) -> int:
        for (_, descending), left, right in zip(orders, one, other, strict=True):
            if left != right:
                return (-1 if left < right else 1) * (-1 if descending else 1)
        return 0

    return cmp_to_key(compare)


def _ranks(
    path: Path,
    properties: dict[str, list[Any]],
    filters: Iterable[NaiveFilter],
    orders: list[tuple[str, bool]],
) -> list[list[Comparable]]:
    """All the places at which the entity could sort; none if it does not match."""
    equal: dict[str, list[Comparable]] = {}
    ranges: dict[str, list[NaiveFilter]] = {}
    for item in filters:
        if item.op == "=":
            equal.setdefault(item.name, []).append(value_rank(item.operand))
        else:
            ranges.setdefault(item.name, []).append(item)
    for name, wanted in equal.items():
        present = [value_rank(v) for v in properties.get(name, [])]
        if any(rank not in present for rank in wanted):
            return []
    choices: dict[str, list[Comparable]] = {
        name: [value_rank(v) for v in values] for name, values in properties.items()
    }
    for name, items in ranges.items():
        choices[name] = [
            rank
            for rank in choices.get(name, [])
            if all(_COMPARE[item.op](rank, value_rank(item.operand)) for item in items)
        ]
        if not choices[name]:
            return []
    for name, wanted in equal.items():
        choices[name] = [min(wanted)]
    columns = [
        [path_rank(path)] if name == "__key__" else choices.get(name, []) for name, _ in orders
    ]
    return [list(combination) for combination in itertools.product(*columns)]
