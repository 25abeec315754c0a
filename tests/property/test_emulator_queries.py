"""The emulator's queries against a naive evaluation, on random data and queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.datastore.encoding import encode_value
from emulator.datastore.engine import Engine
from emulator.datastore.errors import Code, DatastoreError
from emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    Filter,
    KeyPb,
    Message,
    PropertyFilter,
    PropertyOrder,
    Query,
    QueryResultBatch,
    RunQueryRequest,
)
from emulator.datastore.storage import Storage
from tests.property.naive_datastore import (
    Entities,
    NaiveFilter,
    NaiveQuery,
    Path,
    run,
    value_rank,
)
from tests.unit.emulator.builders import PROJECT, entity, key, value

OPERATORS = {
    "=": PropertyFilter.EQUAL,
    "<": PropertyFilter.LESS_THAN,
    "<=": PropertyFilter.LESS_THAN_OR_EQUAL,
    ">": PropertyFilter.GREATER_THAN,
    ">=": PropertyFilter.GREATER_THAN_OR_EQUAL,
}

# Few values, so that ties, duplicates and matches are common.
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.0, -1.5, 2.0, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "ab", "b", "\x00"]),
)
any_values = st.one_of(
    values,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
)
paths = st.one_of(
    st.tuples(st.just("K"), st.integers(1, 8)),
    st.tuples(st.just("K"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("P"), st.integers(1, 2), st.just("K"), st.integers(1, 4)),
)
properties = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        values.map(lambda item: [item]),
        st.lists(values, min_size=2, max_size=3),
        st.lists(values, max_size=1),
        st.just("unindexed"),
    ),
    min_size=1,
)
# A step stores an entity, or removes it (None).
steps = st.lists(
    st.tuples(paths, st.one_of(properties, properties, st.none())), min_size=3, max_size=25
)
filters = st.builds(NaiveFilter, st.sampled_from("abc"), st.sampled_from(list(OPERATORS)), values)
orders = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "__key__"]), st.booleans()),
    max_size=3,
    unique_by=lambda order: order[0],
).map(tuple)
ancestors = st.one_of(st.none(), st.none(), st.just(("P", 1)))
# One plain kind of query per access path of the emulator, and anything at all.
queries = st.one_of(
    st.builds(NaiveQuery, st.just(((),)), orders, ancestors),
    st.builds(NaiveQuery, st.tuples(st.tuples(filters)), orders, ancestors),
    st.builds(
        NaiveQuery,
        st.lists(st.tuples(filters), min_size=2, max_size=3).map(tuple),
        orders,
        ancestors,
    ),
    st.builds(
        NaiveQuery,
        st.lists(st.lists(filters, max_size=3).map(tuple), min_size=1, max_size=2).map(tuple),
        orders,
        ancestors,
    ),
)

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Subject:
    """An engine beside the naive model of what is in it."""

    def __init__(self) -> None:
        self.storage = Storage()
        self.engine = Engine(self.storage)
        self.model: Entities = {}

    def apply(self, path: Path, content: dict[str, Any] | None) -> None:
        request = CommitRequest(project_id=PROJECT, mode=CommitRequest.NON_TRANSACTIONAL)
        mutation = request.mutations.add()
        if content is None:
            mutation.delete.CopyFrom(key(*path))
            self.model.pop(path, None)
        else:
            stored = entity(key(*path))
            for name, items in content.items():
                message = value(1, indexed=False) if items == "unindexed" else value(items)
                stored.properties[name].CopyFrom(message)
            mutation.upsert.CopyFrom(stored)
            self.model[path] = {
                name: items for name, items in content.items() if items != "unindexed"
            }
        self.engine.commit(request)

    def run(self, query: Message, **read_options: Any) -> Message:
        request = RunQueryRequest(project_id=PROJECT, query=query)
        request.read_options.SetInParent()
        for name, option in read_options.items():
            if name == "read_time":
                request.read_options.read_time.CopyFrom(option)
            else:
                setattr(request.read_options, name, option)
        return self.engine.run_query(request).batch

    def close(self) -> None:
        self.storage.close()


def to_message(query: NaiveQuery) -> Message:
    message = Query()
    message.kind.add(name="K")
    for name, descending in query.orders:
        order = message.order.add()
        order.property.name = name
        order.direction = PropertyOrder.DESCENDING if descending else PropertyOrder.ASCENDING
    parts = []
    for alternative in query.alternatives:
        part = Filter()
        part.composite_filter.op = part.composite_filter.AND
        for item in alternative:
            leaf = part.composite_filter.filters.add().property_filter
            leaf.property.name, leaf.op = item.name, OPERATORS[item.op]
            leaf.value.CopyFrom(value(item.operand))
        if query.ancestor is not None:
            leaf = part.composite_filter.filters.add().property_filter
            leaf.property.name, leaf.op = "__key__", PropertyFilter.HAS_ANCESTOR
            leaf.value.key_value.CopyFrom(key(*query.ancestor))
        parts.append(part)
    if any(not part.composite_filter.filters for part in parts):
        # An alternative without filters makes the others pointless.
        return message
    message.filter.composite_filter.op = message.filter.composite_filter.OR
    message.filter.composite_filter.filters.extend(parts)
    return message


def simplified(query: NaiveQuery) -> NaiveQuery:
    """What `to_message` can express."""
    if query.ancestor is None and not all(query.alternatives):
        return replace(query, alternatives=((),))
    return replace(query, alternatives=tuple(dict.fromkeys(query.alternatives)))


def path_of(message: KeyPb) -> Path:
    flat: list[str | int] = []
    for element in message.path:
        flat += [element.kind, element.name or element.id]
    return tuple(flat)


def paths_of(batch: Message) -> list[Path]:
    return [path_of(result.entity.key) for result in batch.entity_results]


@settings(relaxed, max_examples=400)
@given(steps, queries, st.data())
def test_queries_answer_as_a_naive_evaluation(
    changes: list[Any], query: NaiveQuery, data: st.DataObject
) -> None:
    query = simplified(query)
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
    """Pages joined by end cursors, and by cursors of single results, lose nothing."""
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
@given(steps, queries)
def test_a_cursor_works_in_the_reverse_query(changes: list[Any], query: NaiveQuery) -> None:
    # Only with the key as the last order is the reverse of a query fully determined.
    orders = tuple(order for order in query.orders if order[0] != "__key__")
    query = simplified(replace(query, orders=(*orders, ("__key__", False))))
    if len({f.name for a in query.alternatives for f in a if f.op not in "="}) > 0:
        return
    backwards = replace(query, orders=tuple((name, not desc) for name, desc in query.orders))
    subject = Subject()
    try:
        for path, content in changes:
            # Several values sort by another one in each direction.
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
    finally:
        subject.close()


@relaxed
@given(steps, queries, st.tuples(paths, st.one_of(properties, st.none())), st.booleans())
def test_a_transaction_is_aborted_exactly_if_its_query_would_answer_otherwise(
    changes: list[Any], query: NaiveQuery, change: Any, keys_only: bool
) -> None:
    message = to_message(simplified(query))
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
