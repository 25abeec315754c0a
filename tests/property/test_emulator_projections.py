"""Projections, DISTINCT and aggregations compared with a naive evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.property.emulator_cases import (
    Subject,
    orders,
    path_of,
    paths,
    properties,
    queries,
    relaxed,
    steps,
    to_message,
)
from tests.property.naive_datastore import (
    KEY,
    NaiveFilter,
    NaiveQuery,
    Path,
    Result,
    results,
    run,
    value_rank,
)
from tests.property.thresholds import low_thresholds
from tests.unit.emulator.builders import PROJECT, value
from userlock_emulator.datastore import aggregation
from userlock_emulator.datastore.encoding import encode_value
from userlock_emulator.datastore.protos import (
    Message,
    Query,
    QueryResultBatch,
    RunAggregationQueryRequest,
    ValuePb,
)
from userlock_emulator.datastore.query import Conjunction
from userlock_emulator.datastore.query_runner import QueryRunner

# Mostly arrays, so that most filters on them hold for one element and not for another.
arrays = st.lists(st.sampled_from([None, 1, 2, 3, True, "a", 2.0]), min_size=1, max_size=3)
arrayed_steps = st.lists(
    st.tuples(paths, st.fixed_dictionaries({"a": arrays, "b": arrays}, optional={"c": arrays})),
    min_size=2,
    max_size=8,
)
ranges = st.builds(
    NaiveFilter,
    st.sampled_from("ab"),
    st.sampled_from(["<=", ">=", "!="]),
    st.sampled_from([1, 2, True, "a"]),
)
range_queries = st.builds(NaiveQuery, st.tuples(st.tuples(ranges)), orders)

__all__ = ["low_thresholds"]


@st.composite
def projections(draw: st.DrawFn) -> NaiveQuery:
    """Draw a query with a projection of properties without equality, perhaps with DISTINCT."""
    query = draw(range_queries | queries.filter(lambda asked: asked.kind is not None))
    fixed = {f.name for a in query.alternatives for f in a if f.op in ("=", "in")}
    names = draw(st.permutations(sorted({"a", "b", "c"} - fixed)))
    if not names:
        return query
    projection = tuple(names[: draw(st.integers(1, 2))])
    distinct = tuple(names[: draw(st.integers(0, len(projection)))])
    hidden = int(len(names) > len(projection) and draw(st.booleans()))
    if hidden:
        projection = (*projection, names[-1])
        distinct = (*distinct, names[-1])
    # DISTINCT properties come first in the orders.
    leading = [(name, draw(st.booleans())) for name in draw(st.permutations(distinct))]
    others = [order for order in query.orders if order[0] not in distinct]
    return replace(
        query,
        projection=projection,
        distinct=distinct,
        hidden=hidden,
        orders=tuple(leading + others) if query.orders else (),
    )


def found(batch: Message) -> list[tuple[Path, dict[str, bytes]]]:
    """Return paths, and projected values in a unique encoding."""
    return [
        (
            path_of(result.entity.key),
            {name: encode_value(item) for name, item in result.entity.properties.items()},
        )
        for result in batch.entity_results
    ]


def expected(
    subject: Subject, query: NaiveQuery, shown: list[Result]
) -> list[tuple[Path, dict[str, bytes]]]:
    by_rank = {
        value_rank(item): encode_value(value(item))
        for entity in subject.model.values()
        for items in entity.values()
        for item in items
    }
    return [
        (path, {name: by_rank[rank] for name, rank in zip(query.shown, projected, strict=False)})
        for path, projected in shown
    ]


ANY_PROJECTION = (steps | arrayed_steps, projections(), st.integers(1, 3))


@settings(relaxed, max_examples=120)
@given(*ANY_PROJECTION)
def test_projections_answer_as_a_naive_evaluation(
    changes: list[Any], query: NaiveQuery, size: int
) -> None:
    subject = Subject()
    try:
        for path, content in changes:
            subject.apply(path, content)
        message = to_message(query)
        batch = subject.run(message)
        if not query.projection:
            return
        wanted = expected(subject, query, results(subject.model, query))
        assert found(batch) == wanted
        assert pages(subject, message, size) == wanted
    finally:
        subject.close()


def pages(subject: Subject, message: Message, size: int) -> list[tuple[Path, dict[str, bytes]]]:
    paged = Query()
    paged.CopyFrom(message)
    paged.limit.value = size
    collected = []
    while True:
        batch = subject.run(paged)
        collected += found(batch)
        if batch.more_results != QueryResultBatch.MORE_RESULTS_AFTER_LIMIT:
            return collected
        paged.start_cursor = batch.end_cursor


numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**63 - 1, -(2**63), 2**62]),
    # Sums of these are exact, in any order.
    st.sampled_from([0.5, -1.25, 8.0, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from([None, True, "a"]),
)
numeric_steps = st.lists(
    st.tuples(
        paths, st.one_of(properties, st.fixed_dictionaries({"a": st.lists(numbers, min_size=1)}))
    ),
    max_size=12,
)


def naive_sum(numbers: list[Any]) -> Any:
    if all(isinstance(number, int) for number in numbers):
        total = sum(numbers)
        return total if -(2**63) <= total < 2**63 else float(total)
    if any(math.isnan(number) for number in numbers):
        return math.nan
    infinite = {number for number in numbers if math.isinf(number)}
    if infinite:
        return infinite.pop() if len(infinite) == 1 else math.nan
    return float(sum(Fraction(number) for number in numbers))


def naive_average(numbers: list[Any]) -> Any:
    if not numbers:
        return None
    total = naive_sum(numbers)
    if math.isfinite(total):
        return float(sum(Fraction(number) for number in numbers) / len(numbers))
    return float(total)


def same(found: ValuePb, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return found.HasField("double_value") and (
            math.isclose(found.double_value, wanted)
            or (math.isnan(found.double_value) and math.isnan(wanted))
        )
    return bool(found == value(wanted))


ANY_AGGREGATION = (
    numeric_steps,
    queries | range_queries,
    st.integers(0, 4) | st.just(0),
    st.integers(0, 12) | st.none(),
    st.integers(0, 4),
    st.booleans(),
)


@settings(relaxed, max_examples=120)
@given(*ANY_AGGREGATION)
def test_aggregations_answer_as_a_naive_evaluation(
    changes: list[Any],
    query: NaiveQuery,
    offset: int,
    limit: int | None,
    up_to: int,
    another: bool,
) -> None:
    subject = Subject()
    try:
        for path, content in changes:
            subject.apply(path, content)
        request = RunAggregationQueryRequest(project_id=PROJECT)
        nested = request.aggregation_query.nested_query
        nested.CopyFrom(to_message(query))
        nested.offset = offset
        if limit is not None:
            nested.limit.value = limit
        stop = None if limit is None else offset + limit
        add = request.aggregation_query.aggregations.add
        add(alias="sum").sum.property.name = "a"
        add(alias="avg").avg.property.name = "a"
        if another:
            add(alias="another").sum.property.name = "b"
        add(alias="count").count.SetInParent()
        add(alias="up_to").count.up_to.value = up_to
        batch = subject.engine.run_aggregation_query(request).batch
        (result,) = batch.aggregation_results
        answer = result.aggregate_properties

        # As a projection of the property: one result for each of its values.
        by_a = replace(query, projection=("a", "b") if another else ("a",))
        if query.kind is None:
            by_a = replace(by_a, orders=((KEY, False),))
        matching = results(subject.model, by_a)[offset:stop]
        by_rank = {
            value_rank(item): item
            for stored in subject.model.values()
            for item in stored.get("a", [])
        }
        values = [by_rank[projected[0]] for _, projected in matching]
        aggregated = [
            item for item in values if isinstance(item, int | float) and not isinstance(item, bool)
        ]
        assert answer["count"] == value(len(matching))
        assert answer["up_to"] == value(min(len(matching), up_to))
        assert same(answer["sum"], naive_sum(aggregated))
        assert same(answer["avg"], naive_average(aggregated))

        # Without those two, no entities are needed, and those without the property count.
        entities = run(subject.model, query)[offset:stop]
        del request.aggregation_query.aggregations[: 3 if another else 2]
        batch = subject.engine.run_aggregation_query(request).batch
        answer = batch.aggregation_results[0].aggregate_properties
        assert answer["count"] == value(len(entities))
        assert answer["up_to"] == value(min(len(entities), up_to))
    finally:
        subject.close()


first_failure = settings(
    relaxed, max_examples=300, phases=[Phase.generate], database=None, derandomize=True
)


@pytest.mark.parametrize(
    ("test", "examples", "owner", "name", "broken"),
    [
        (
            test_projections_answer_as_a_naive_evaluation,
            ANY_PROJECTION,
            Conjunction,
            "candidates",
            lambda self, name, values: values.get(name, ()),
        ),
        (
            test_projections_answer_as_a_naive_evaluation,
            ANY_PROJECTION,
            QueryRunner,
            "_distinct",
            lambda self, rows: rows,
        ),
        (
            test_aggregations_answer_as_a_naive_evaluation,
            ANY_AGGREGATION,
            aggregation,
            "_total",
            lambda found, column: aggregation._Total(7, 1),
        ),
    ],
)
def test_broken_code_is_found(
    test: Any, examples: Any, owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(owner, name, broken)
    again = first_failure(given(*examples)(test.hypothesis.inner_test))
    with pytest.raises(AssertionError):
        again()
