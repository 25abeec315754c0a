"""The access paths of queries: correct on each path, and without reading everything."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore import access, query_runner
from userlock_emulator.datastore.protos import QueryPb, QueryResultBatch
from userlock_emulator.datastore.query_runner import QueryRunner
from userlock_emulator.datastore.rows import Reader

ORDERS = [("a",), ("-a",), ("a", "b"), ("-b", "a"), ("c", "-a", "b"), ("b", "-__key__")]
FILTERS: list[tuple[tuple[str, str, Any], ...]] = [
    (),
    (("a", "=", 1),),
    (("b", "=", 2),),
    (("a", "=", 0), ("c", "=", 1)),
    (("b", ">=", 2),),
    (("a", "=", 1), ("c", ">", 3)),
    (("b", "in", [1, 3]),),
    (("c", "!=", 4), ("a", "=", 0)),
]

COMPARE: dict[str, Callable[[int, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "in": lambda number, numbers: number in numbers,
}


def numbers(i: int) -> dict[str, int]:
    """Return values that are equal for many, for some and for few entities."""
    return {"a": i * 7 % 2, "b": i * 3 % 5, "c": i * 11 % 13}


def fill(engine: Subject, kind: str, count: int) -> None:
    engine.put(*(entity(key(kind, i), **numbers(i)) for i in range(1, count + 1)))


def expected(
    count: int, filters: tuple[tuple[str, str, Any], ...], orders: tuple[str, ...]
) -> list[int]:
    found = [
        i
        for i in range(1, count + 1)
        if all(COMPARE[op](numbers(i)[name], operand) for name, op, operand in filters)
    ]
    implied = [name for name, op, _ in filters if op not in ("=", "in")]
    wanted = list(orders)
    if not any(name.endswith("__key__") for name in orders):
        wanted += [name for name in implied if name not in (o.removeprefix("-") for o in orders)]
    if not any(name.endswith("__key__") for name in wanted):
        wanted.append("__key__")
    for order in reversed(wanted):
        name = order.removeprefix("-")
        found.sort(
            key=lambda i: i if name == "__key__" else numbers(i)[name],
            reverse=order.startswith("-"),
        )
    return found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the used access paths; few entities count as many."""
    for module, name, low in (
        (query_runner, "FEW", 20),
        (access, "FEW", 20),
        (query_runner, "VERY_FEW", 2),
        (query_runner, "PROBES_PER_LOAD", 1),
    ):
        monkeypatch.setattr(module, name, low)
    gone: Counter[str] = Counter()
    for name in ("_by_key", "_ordered_scan", "_scanned_or_sorted", "_sorted", "_group"):
        method = getattr(QueryRunner, name)

        def counted(self: Any, *args: Any, name: str = name, method: Any = method) -> Any:
            gone[name] += 1
            return method(self, *args)

        monkeypatch.setattr(QueryRunner, name, counted)
    return gone


def test_each_way_leads_to_the_same(engine: Subject, ways: Counter[str]) -> None:
    fill(engine, "K", 60)
    for filters, orders, limit in itertools.product(FILTERS, ORDERS, (1, 4, 60)):
        right = expected(60, filters, orders)
        message = query("K", where(*filters) if filters else None, orders, limit=limit)
        found: list[Any] = []
        while page := engine.run(message).entity_results:
            found += [result.entity.key.path[0].id for result in page]
            message.start_cursor = page[-1].cursor
        assert found == right, (filters, orders, limit)
    assert all(ways[name] > 10 for name in ("_by_key", "_ordered_scan", "_sorted", "_group")), ways
    assert ways["_scanned_or_sorted"] > 10, ways


def test_the_past_is_found_on_each_way(engine: Subject, ways: Counter[str]) -> None:
    fill(engine, "K", 60)
    then = engine.begin(read_only=True)
    engine.put(*(entity(key("K", i), a=9, b=9, c=9) for i in range(1, 30)))
    for filters, orders in itertools.product(FILTERS, ORDERS):
        message = query("K", where(*filters) if filters else None, orders, limit=4)
        found = engine.run(message, transaction=then).entity_results
        assert [r.entity.key.path[0].id for r in found] == expected(60, filters, orders)[:4]
    assert ways["_scanned_or_sorted"] > 1, ways


@pytest.mark.parametrize(
    ("filters", "orders", "projection"),
    [
        ((("a", "=", 1),), ("c",), ()),
        ((("a", "=", 1), ("b", "=", 2)), (), ()),
        ((), ("a", "c"), ()),
        ((), ("a", "-b", "c"), ()),
        ((("b", "=", 2),), ("a", "c"), ()),
        ((("a", "=", 1), ("c", ">", 2)), (), ()),
        ((("b", "in", [1, 2]),), ("c",), ()),
        ((("c", "!=", 5),), ("c", "a"), ()),
        ((("a", "=", 1),), ("c",), ("c",)),
        ((), (), ("c", "a")),
    ],
)
def test_a_page_of_a_large_kind_takes_as_little_as_of_a_small_one(
    engine: Subject,
    monkeypatch: pytest.MonkeyPatch,
    filters: tuple[tuple[str, str, Any], ...],
    orders: tuple[str, ...],
    projection: tuple[str, ...],
) -> None:
    # As if the large one were really large.
    monkeypatch.setattr(query_runner, "FEW", 100)
    monkeypatch.setattr(access, "FEW", 100)
    fill(engine, "Small", 130)
    fill(engine, "Large", 1300)
    looked_at: list[bytes] = []
    get, scan = Reader.get, Reader.scan_index

    def counted_get(self: Reader, partition: int, key: bytes) -> Any:
        looked_at.append(key)
        return get(self, partition, key)

    def counted_scan(self: Reader, *args: Any, **kwargs: Any) -> Any:
        for entry in scan(self, *args, **kwargs):
            looked_at.append(entry[1])
            yield entry

    monkeypatch.setattr(Reader, "get", counted_get)
    monkeypatch.setattr(Reader, "scan_index", counted_scan)
    cost = {}
    for kind in ("Small", "Large"):
        message = query(kind, where(*filters) if filters else None, orders, projection, limit=5)
        looked_at.clear()
        assert len(engine.run(message).entity_results) == 5
        cost[kind] = len(looked_at)
    assert cost["Large"] <= 2 * cost["Small"], cost


@pytest.mark.parametrize(
    ("filters", "orders"),
    [
        ((), ()),
        ((), ("-__key__",)),
        ((("all", "=", 1),), ()),
        ((), ("all",)),
        ((), ("-all",)),
        ((), ("a",)),
        ((), ("a", "c")),
        ((("all", "=", 1),), ("-a", "b")),
        ((("b", "in", [0, 1, 2]),), ("all",)),
        ((("__key__", ">", key("K", 900)),), ()),
    ],
)
def test_the_last_page_takes_as_little_as_the_first(
    engine: Subject, filters: tuple[tuple[str, str, Any], ...], orders: tuple[str, ...]
) -> None:
    engine.put(*(entity(key("K", i), all=1, **numbers(i)) for i in range(1, 1001)))
    message = query("K", where(*filters) if filters else None, orders, limit=10)
    everything = query("K", where(*filters) if filters else None, orders)
    *_, before_last = pages(engine, everything, 50)
    # Counts SQLite's work, in units of some hundred steps.
    steps: list[int] = []
    connection = engine.storage._connection
    connection.set_progress_handler(lambda: steps.append(1), 100)
    engine.run(message)
    first = len(steps)
    steps.clear()
    message.start_cursor = before_last
    engine.run(message)
    connection.set_progress_handler(None, 0)
    assert len(steps) <= 2 * first + 5, (len(steps), first)


def pages(engine: Subject, message: QueryPb, size: int) -> Iterator[bytes]:
    """Yield the beginnings of a query's pages, except the first one."""
    message.limit.value = size
    while True:
        batch = engine.run(message)
        if batch.more_results != QueryResultBatch.MORE_RESULTS_AFTER_LIMIT:
            return
        yield batch.end_cursor
        message.start_cursor = batch.end_cursor
