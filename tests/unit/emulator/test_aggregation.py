"""count, sum and avg, with their corner cases from the proto's comments."""

import math
from typing import Any

import pytest

from tests.unit.emulator.builders import Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, aggregation, query, where
from userlock_emulator.datastore.protos import Message, QueryPb, ValuePb
from userlock_emulator.datastore.rows import Reader


def answer(engine: Subject, message: Message) -> dict[str, ValuePb]:
    (result,) = engine.engine.run_aggregation_query(message).batch.aggregation_results
    return dict(result.aggregate_properties)


def run(engine: Subject, *aggregations: tuple[str, object, str]) -> dict[str, ValuePb]:
    return answer(engine, aggregation(query(), *aggregations))


def put(engine: Subject, *numbers: object) -> None:
    engine.put(*(entity(key("K", i + 1), n=value(n)) for i, n in enumerate(numbers)))


@pytest.mark.parametrize(
    ("nested", "total"),
    [
        (query(limit=2), 30),
        (query(orders=("-n",), limit=2), 50),
        (query(orders=("-__key__",), limit=2), 30),
        (query(orders=("g",), limit=2), 40),
        (query(filters=where(("n", ">", 10)), limit=1), 20),
        (query(filters=where(("g", "in", [1, 2])), limit=2), 30),
        (query(), 60),
    ],
)
def test_a_limit_takes_entities_in_the_order_of_the_property(
    engine: Subject, nested: QueryPb, total: int
) -> None:
    """As they are in the index that the service reads, after the orders of the query."""
    for name, n, g in (("a", 30, 1), ("b", 20, 2), ("c", 10, 1)):
        engine.put(entity(key("K", name), n=value(n), g=value(g)))
    assert answer(engine, aggregation(nested, ("sum", "n", "s")))["s"] == value(total)
    # After a cursor, in the order of the query.
    nested = query(limit=1, start_cursor=engine.run(query(limit=1)).end_cursor)
    assert answer(engine, aggregation(nested, ("sum", "n", "s")))["s"] == value(20)


@pytest.mark.parametrize("limit", [None, 10])
def test_an_entity_without_one_of_the_properties_is_in_no_aggregation(
    engine: Subject, limit: int | None
) -> None:
    """The clients of Firestore test it: "documents with all aggregated fields"."""
    books: dict[str, dict[str, Any]] = {
        "a": {"pages": 100, "year": 1980},
        "b": {"pages": 50, "year": 2020},
        "c": {"pages": 150, "year": 2021},
        "d": {"pages": 50},
        "e": {"pages": 50, "year": []},
    }
    engine.put(*(entity(key("K", name), **content) for name, content in books.items()))
    wanted = [("sum", "pages", "s"), ("avg", "pages", "p"), ("avg", "year", "y")]
    found = answer(engine, aggregation(query(limit=limit), *wanted, ("count", None, "c")))
    assert {alias: found[alias] for alias in "spyc"} == {
        "s": value(300),
        "p": value(100.0),
        "y": value(2007.0),
        "c": value(3),
    }
    alone = run(engine, ("count", None, "c"), ("count", 2, "two"), ("count", 0, ""))
    assert alone == {"c": value(5), "two": value(2), "property_1": value(0)}


@pytest.mark.parametrize(
    ("numbers", "total", "average"),
    [
        ([], 0, None),
        ([1, 2.5], 3.5, 1.75),
        ([1, "x", None, [5, "y"]], 6, 3.0),
        ([[1, 2, 3], 10, [10]], 26, 5.2),
        ([[2, 2, 2.5], []], 4.5, 2.25),
        ([Timestamp(1_500_000), Timestamp(500_000)], 2_000_000, 1_000_000.0),
        ([2**63 - 1, 1], float(2**63), float(2**62)),
        ([math.inf, -math.inf], math.nan, math.nan),
        ([math.nan, 1], math.nan, math.nan),
    ],
)
def test_sums_and_averages(
    engine: Subject, numbers: list[object], total: object, average: object
) -> None:
    put(engine, *numbers)
    found = run(engine, ("sum", "n", "s"), ("avg", "n", "a"))
    for alias, expected in (("s", total), ("a", average)):
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(found[alias].double_value)
        else:
            assert found[alias] == value(expected)


@pytest.mark.parametrize(
    ("filters", "orders", "counted"),
    [
        ((("odd", "=", True),), ("n",), 20),
        ((("odd", "=", True), ("n", ">", 30)), (), 5),
        ((("tags", "=", "x"),), (), 40),
    ],
)
def test_a_count_looks_at_no_entity_and_at_any_time(
    engine: Subject,
    monkeypatch: pytest.MonkeyPatch,
    filters: tuple[tuple[str, str, Any], ...],
    orders: tuple[str, ...],
    counted: int,
) -> None:
    engine.put(*(entity(key("K", i), n=i, odd=bool(i % 2), tags=["x", "y"]) for i in range(1, 41)))
    nested = query("K", where(*filters) if filters else None, orders)
    message = aggregation(nested, ("count", None, "c"))
    then = engine.run(query()).read_time
    with monkeypatch.context() as blind:
        blind.setattr(Reader, "get", None)
        blind.setattr(Reader, "scan_index", None)
        assert answer(engine, message)["c"] == value(counted)
    engine.put(*(entity(key("K", i), n=100) for i in range(1, 21)))
    engine.delete(key("K", 40))
    message.read_options.read_time.CopyFrom(then)
    assert answer(engine, message)["c"] == value(counted)


@pytest.mark.parametrize("orders", [(), ("other",), ("__key__",), ("-__key__",)])
def test_a_cursor_is_behind_all_values_of_its_entity(
    engine: Subject, orders: tuple[str, ...]
) -> None:
    """A cursor is of the query without the aggregation, whose results are entities."""
    items = [[1, 2], [30, 40], [5, 6], [70, 80]]
    engine.put(*(entity(key("K", i), n=list(each), other=i) for i, each in enumerate(items, 1)))
    found = engine.run(query(orders=orders, limit=2))
    nested = query(orders=orders, start_cursor=found.end_cursor)
    total = answer(engine, aggregation(nested, ("sum", "n", "s")))["s"]
    assert total == value(1 + 2 + 30 + 40 if orders == ("-__key__",) else 5 + 6 + 70 + 80)
