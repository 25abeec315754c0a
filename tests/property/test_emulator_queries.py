"""The emulator's queries compared with a naive evaluation, on random data and queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.emulator_cases import (
    Subject,
    allowed,
    alternatives,
    any_values,
    orders,
    paths,
    paths_of,
    properties,
    queries,
    relaxed,
    steps,
    to_message,
)
from tests.property.naive_datastore import (
    NaiveFilter,
    NaiveQuery,
    Path,
    effective_orders,
    run,
    value_rank,
)
from tests.property.thresholds import low_thresholds
from tests.unit.emulator.builders import PROJECT, key, value
from userlock_emulator.datastore.encoding import encode_value
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    Message,
    Query,
    QueryResultBatch,
)

__all__ = ["low_thresholds"]


# One value per property: rows come from the indexes alone.
plain_values = st.sampled_from([0, 1, "a"]).map(lambda item: [item])
plain_steps = st.lists(
    st.tuples(paths, st.fixed_dictionaries({"a": plain_values, "b": plain_values}) | st.none()),
    min_size=6,
    max_size=30,
)
plain_filters = st.builds(
    NaiveFilter, st.sampled_from("ab"), st.sampled_from(["=", "=", ">="]), st.sampled_from([0, 1])
)
plain_queries = st.builds(
    NaiveQuery, st.tuples(st.lists(plain_filters, max_size=2).map(tuple)), orders
) | st.builds(NaiveQuery, alternatives(plain_filters, size=2), orders).map(allowed)


@settings(relaxed, max_examples=300)
@given(st.tuples(steps, queries) | st.tuples(plain_steps, plain_queries), st.data())
def test_queries_answer_as_a_naive_evaluation(
    case: tuple[list[Any], NaiveQuery], data: st.DataObject
) -> None:
    changes, query = case
    message = to_message(query)
    subject = Subject()
    try:
        moments = []
        for path, content in changes:
            subject.apply(path, content)
            time = subject.run(Query()).read_time
            moments.append((time, dict(subject.model)))
        expected = run(subject.model, query)
        batch = subject.run(message)
        assert paths_of(batch) == expected
        assert batch.more_results == QueryResultBatch.NO_MORE_RESULTS

        check_pages(subject, message, expected, data.draw(st.integers(1, 4), "page size"))
        check_offset_and_limit(subject, message, expected, data)
        if moments:
            time, past = data.draw(st.sampled_from(moments), "read time")
            assert paths_of(subject.run(message, read_time=time)) == run(past, query)
    finally:
        subject.close()


def check_pages(subject: Subject, message: Message, expected: list[Path], size: int) -> None:
    """Check that pages joined by end cursors, and by cursors of single results, lose nothing."""
    paged = Query()
    paged.CopyFrom(message)
    paged.limit.value = size
    found: list[Path] = []
    while True:
        batch = subject.run(paged)
        found += paths_of(batch)
        for index, result in enumerate(batch.entity_results[:3]):
            after = Query()
            after.CopyFrom(message)
            after.start_cursor = result.cursor
            position = len(found) - len(batch.entity_results) + index + 1
            assert paths_of(subject.run(after)) == expected[position:]
            until = Query()
            until.CopyFrom(message)
            until.end_cursor = result.cursor
            assert paths_of(subject.run(until)) == expected[:position]
        if batch.more_results != QueryResultBatch.MORE_RESULTS_AFTER_LIMIT:
            break
        paged.start_cursor = batch.end_cursor
    assert found == expected


def check_offset_and_limit(
    subject: Subject, message: Message, expected: list[Path], data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, 5), "offset")
    limit = data.draw(st.integers(0, 5), "limit")
    part = Query()
    part.CopyFrom(message)
    part.offset = offset
    part.limit.value = limit
    batch = subject.run(part)
    assert paths_of(batch) == expected[offset : offset + limit]
    assert batch.skipped_results == min(offset, len(expected))
    more = len(expected) > offset + limit
    assert (batch.more_results == QueryResultBatch.MORE_RESULTS_AFTER_LIMIT) == more


@relaxed
@given(steps | plain_steps, queries | plain_queries)
def test_a_cursor_works_in_the_reverse_query(changes: list[Any], query: NaiveQuery) -> None:
    if query.kind is None:
        return  # has only one order
    # The reverse of a query is fully determined only if all orders are named.
    query = replace(query, orders=tuple(effective_orders(query)))
    backwards = replace(query, orders=tuple((name, not desc) for name, desc in query.orders))
    subject = Subject()
    try:
        for path, content in changes:
            # With several values, the entity sorts by another one in each direction.
            if content is not None:
                content = {
                    name: items[:1] if isinstance(items, list) else items
                    for name, items in content.items()
                }
            subject.apply(path, content)
        forwards = subject.run(to_message(query))
        for index, result in enumerate(forwards.entity_results):
            message = to_message(backwards)
            message.start_cursor = result.cursor
            expected = paths_of(forwards)[: index + 1][::-1]
            assert paths_of(subject.run(message)) == expected
            until = to_message(backwards)
            until.end_cursor = result.cursor
            assert paths_of(subject.run(until)) == paths_of(forwards)[index + 1 :][::-1]
    finally:
        subject.close()


@relaxed
@given(steps, queries, st.tuples(paths, st.one_of(properties, st.none())), st.booleans())
def test_a_transaction_is_aborted_exactly_if_its_query_would_answer_otherwise(
    changes: list[Any], query: NaiveQuery, change: Any, keys_only: bool
) -> None:
    message = to_message(query)
    if keys_only:
        message.projection.add().property.name = "__key__"
    subject = Subject()
    try:
        for step in changes:
            subject.apply(*step)
        begin = BeginTransactionRequest(project_id=PROJECT)
        transaction = subject.engine.begin_transaction(begin).transaction
        before = subject.run(message, transaction=transaction)
        subject.apply(*change)
        again = subject.run(message, transaction=transaction)
        assert again.entity_results == before.entity_results, "not a snapshot"
        after = subject.run(message)
        commit = CommitRequest(project_id=PROJECT, transaction=transaction)
        commit.mutations.add().upsert.key.CopyFrom(key("Other", 1))
        try:
            subject.engine.commit(commit)
            aborted = False
        except DatastoreError as error:
            if error.code is not Code.ABORTED:
                raise
            aborted = True
        assert aborted == (list(before.entity_results) != list(after.entity_results))
    finally:
        subject.close()


@given(any_values, any_values)
def test_encoded_values_compare_as_values_do(one: Any, other: Any) -> None:
    left, right = encode_value(value(one)), encode_value(value(other))
    assert (left < right) == (value_rank(one) < value_rank(other))
    assert (left == right) == (value_rank(one) == value_rank(other))
