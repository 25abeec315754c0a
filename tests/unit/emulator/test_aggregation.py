"""count, sum and avg: what tests/property/test_emulator_projections.py does not try."""

from typing import Any

import pytest

from tests.unit.emulator.builders import Timestamp, entity, key, value
from tests.unit.emulator.subject import Conditions, Subject, aggregation, query
from userlock_emulator.datastore.protos import Message, ValuePb
from userlock_emulator.datastore.rows import Reader


def answer(engine: Subject, message: Message) -> dict[str, ValuePb]:
    (result,) = engine.engine.run_aggregation_query(message).batch.aggregation_results
    return dict(result.aggregate_properties)


def run(engine: Subject, *aggregations: tuple[str, object, str]) -> dict[str, ValuePb]:
    return answer(engine, aggregation(query(), *aggregations))


def put(engine: Subject, *numbers: object) -> None:
    engine.put(*(entity(key("K", i + 1), n=value(n)) for i, n in enumerate(numbers)))


def test_a_limit_takes_entities_in_the_order_of_the_property(engine: Subject) -> None:
    """After a cursor, in the order of the query."""
    put(engine, 30, 20, 10)
    after = query(limit=1, start_cursor=engine.run(query(limit=1)).end_cursor)
    for nested, total in ((query(limit=2), 30), (after, 20)):
        assert answer(engine, aggregation(nested, ("sum", "n", "s")))["s"] == value(total)


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


def test_of_nothing_and_of_dates(engine: Subject) -> None:
    wanted = ("sum", "n", "s"), ("avg", "n", "a")
    assert run(engine, *wanted) == {"s": value(0), "a": value(None)}, "the namespace is not there"
    put(engine, Timestamp(1_500_000), Timestamp(500_000))
    assert run(engine, *wanted) == {"s": value(2_000_000), "a": value(1_000_000.0)}


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
    filters: Conditions,
    orders: tuple[str, ...],
    counted: int,
) -> None:
    engine.put(*(entity(key("K", i), n=i, odd=bool(i % 2), tags=["x", "y"]) for i in range(1, 41)))
    nested = query("K", filters, orders)
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
