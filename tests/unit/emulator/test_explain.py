"""Query explain: plans without results, and statistics with them."""

from contextlib import nullcontext

import pytest

from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Conditions, Subject, aggregation, query
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.protos import EntityResult, Message, Mutation, QueryPb


@pytest.fixture(autouse=True)
def numbers(engine: Subject) -> None:
    engine.put(*(entity(key("K", i), a=i % 2, b=i, c=i) for i in range(1, 7)))


def explain(
    engine: Subject, message: QueryPb, *, analyze: bool, transaction: bytes = b""
) -> Message:
    read_options = {"transaction": transaction} if transaction else None
    options = {"analyze": analyze}
    return engine.ask("RunQuery", query=message, explain_options=options, read_options=read_options)


def plan(response: Message) -> list[tuple[str, str]]:
    return [
        (index["query_scope"], index["properties"])
        for index in response.explain_metrics.plan_summary.indexes_used
    ]


BELOW = ("__key__", "ancestor", key("K", 1))


@pytest.mark.parametrize(
    ("filters", "orders", "projection", "indexes"),
    [
        ((), (), (), ["(__name__ ASC)"]),
        ((), ("-__key__",), (), ["(__name__ DESC)"]),
        (
            (("b", "=", 1), ("a", "=", 1)), (), (),
            ["(a ASC, __name__ ASC)", "(b ASC, __name__ ASC)"],
        ),
        ((), ("-b", "a"), (), ["(b DESC, a ASC, __name__ ASC)"]),
        ((BELOW,), ("b",), (), ["(b ASC, __name__ ASC)"]),
        # Built-in indexes know no ancestors.
        ((BELOW,), (), (), ["(__name__ ASC)"]),
    ],
)  # fmt: skip
def test_the_plan_names_the_indexes_that_the_service_would_use(
    engine: Subject,
    filters: Conditions,
    orders: tuple[str, ...],
    projection: tuple[str, ...],
    indexes: list[str],
) -> None:
    message = query("K", filters, orders, projection)
    response = explain(engine, message, analyze=False)
    scope = "Includes ancestors" if BELOW in filters and orders else "Collection group"
    assert plan(response) == [(scope, index) for index in indexes]
    assert not response.HasField("batch"), "a plan alone has no results"
    assert not response.explain_metrics.HasField("execution_stats")


@pytest.mark.parametrize("analyze", [False, True])
def test_only_an_analyzed_query_is_read_by_its_transaction(engine: Subject, analyze: bool) -> None:
    transaction = engine.begin()
    explain(engine, query(), analyze=analyze, transaction=transaction)
    engine.put(entity(key("K", 1), a=9))
    write = Mutation(upsert=entity(key("Other", 1)))
    with pytest.raises(DatastoreError, match="contention") if analyze else nullcontext():
        engine.commit(write, transaction=transaction)


@pytest.mark.parametrize(
    ("message", "results", "documents", "entries", "reads"),
    [
        (query(), 6, 6, 6, 6),
        (query(limit=2, offset=1), 2, 3, 3, 3),
        (query(projection=("__key__",)), 6, 0, 6, 1),
        (query(projection=("b",)), 6, 0, 6, 1),
    ],
)
def test_statistics(
    engine: Subject, message: QueryPb, results: int, documents: int, entries: int, reads: int
) -> None:
    response = explain(engine, message, analyze=True)
    assert len(response.batch.entity_results) == results
    stats = response.explain_metrics.execution_stats
    assert stats.results_returned == results
    assert stats.read_operations == reads
    assert stats.execution_duration.ToNanoseconds() > 0
    assert stats.debug_stats["documents_scanned"] == str(documents)
    assert stats.debug_stats["index_entries_scanned"] == str(entries)
    details = stats.debug_stats["billing_details"]
    assert details["documents_billable"] == str(documents)
    keys = response.batch.entity_result_type == EntityResult.KEY_ONLY
    assert details["small_ops"] == str(results if keys else 0)
    assert plan(response)


def test_an_aggregation(engine: Subject) -> None:
    request = aggregation(query("K", (("b", ">", 2),)), ("count", None, "n"))
    request.explain_options.analyze = False
    planned = engine.engine.run_aggregation_query(request)
    assert not planned.HasField("batch")
    assert plan(planned) == [("Collection group", "(b ASC, __name__ ASC)")]
    request.explain_options.analyze = True
    analyzed = engine.engine.run_aggregation_query(request)
    stats = analyzed.explain_metrics.execution_stats
    assert stats.results_returned == 1
    assert stats.read_operations == 1
    assert stats.debug_stats["index_entries_scanned"] == "4"
    (result,) = analyzed.batch.aggregation_results
    assert result.aggregate_properties["n"].integer_value == 4
