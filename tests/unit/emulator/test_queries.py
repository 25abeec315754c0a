"""The meaning of queries: the documented rules, one by one."""

import pytest

from tests.unit.emulator.builders import Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import EntityResult, Mutation, QueryPb, QueryResultBatch


@pytest.fixture
def numbers(engine: Subject) -> Subject:
    """Provide entities K:1 … K:6 with n = 10, 20 … and a parity."""
    engine.put(
        *(entity(key("K", i), n=10 * i, parity="odd" if i % 2 else "even") for i in range(1, 7))
    )
    return engine


def test_a_kind_is_returned_in_key_order(numbers: Subject) -> None:
    assert numbers.identifiers(query()) == [1, 2, 3, 4, 5, 6]
    assert numbers.identifiers(query("Other")) == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("n", "=", 30)], [3]),
        ([("n", "<", 30)], [1, 2]),
        ([("n", "<=", 30)], [1, 2, 3]),
        ([("n", ">", 30)], [4, 5, 6]),
        ([("n", ">=", 30)], [3, 4, 5, 6]),
        ([("n", ">", 10), ("n", "<", 40)], [2, 3]),
        ([("n", ">", 40), ("n", "<", 10)], []),
        ([("parity", "=", "odd"), ("n", ">", 10)], [3, 5]),
        ([("parity", "=", "odd"), ("n", "=", 20)], []),
        ([("n", "!=", 30)], [1, 2, 4, 5, 6]),
        ([("n", "in", [30, 10, 99])], [1, 3]),
        ([("n", "not in", [30, 10, 99])], [2, 4, 5, 6]),
        ([("parity", "in", ["odd"]), ("n", "!=", 30)], [1, 5]),
        ([("missing", "=", 1)], []),
        ([("__key__", "=", key("K", 3))], [3]),
        ([("__key__", ">", key("K", 3)), ("__key__", "<=", key("K", 5))], [4, 5]),
        ([("__key__", "in", [key("K", 5), key("K", 2)])], [2, 5]),
        ([("__key__", "!=", key("K", 1)), ("parity", "=", "odd")], [3, 5]),
    ],
)
def test_filters(
    numbers: Subject, filters: list[tuple[str, str, object]], expected: list[int]
) -> None:
    assert numbers.identifiers(query(filters=where(*filters))) == expected


def test_any_of_several_filters(numbers: Subject) -> None:
    either = where(("n", "=", 20), ("parity", "=", "odd"), any_of=True)
    assert numbers.identifiers(query(filters=either)) == [1, 2, 3, 5]
    assert numbers.identifiers(query(filters=either, orders=("-n",))) == [5, 3, 2, 1]


@pytest.mark.parametrize(("ranges", "fits"), [(10, True), (11, False)])
def test_ranges_are_ten_at_most(numbers: Subject, ranges: int, fits: bool) -> None:
    wanted = where(*((f"p{number}", ">", 1) for number in range(ranges)))
    if fits:
        assert not numbers.run(query(filters=wanted)).entity_results
        return
    with pytest.raises(DatastoreError, match="at most 10 range or inequality filters"):
        numbers.run(query(filters=wanted))


def test_the_gaps_of_an_inequality_are_no_disjunctions(numbers: Subject) -> None:
    most = where(("n", "in", list(range(10, 40))), ("n", "!=", 20))
    assert numbers.identifiers(query(filters=most)) == [1, 3]


def test_several_orders(numbers: Subject) -> None:
    assert numbers.identifiers(query(orders=("parity", "-n"))) == [6, 4, 2, 5, 3, 1]
    assert numbers.identifiers(query(orders=("-parity", "-__key__"))) == [5, 3, 1, 6, 4, 2]
    # Keys break ties in ascending order, in a descending query too.
    assert numbers.identifiers(query(orders=("-parity",))) == [1, 3, 5, 2, 4, 6]


def test_an_inequality_is_the_first_order(numbers: Subject) -> None:
    numbers.put(entity(key("K", 7), n=5))
    assert numbers.identifiers(query(filters=where(("n", "<", 30)))) == [7, 1, 2]


def test_unindexed_properties_are_invisible(engine: Subject) -> None:
    engine.put(
        entity(key("K", 1), n=value(1, indexed=False)),
        entity(key("K", 2), n=1),
        entity(key("K", 3)),
    )
    assert engine.identifiers(query(filters=where(("n", "=", 1)))) == [2]
    assert engine.identifiers(query(orders=("n",))) == [2]
    # No longer indexed: removed from the index, and added again.
    engine.put(entity(key("K", 2), n=value(1, indexed=False)))
    assert engine.identifiers(query(orders=("n",))) == []
    engine.put(entity(key("K", 2), n=1))
    assert engine.identifiers(query(orders=("n",))) == [2]


def test_types_sort_in_the_documented_order(engine: Subject) -> None:
    ascending = [None, -1, Timestamp(5), 7, False, True, b"a", "b", -2.5, 1.0]
    for index, item in enumerate(reversed(ascending)):
        engine.put(entity(key("K", index + 1), v=value(item)))
    assert engine.identifiers(query(orders=("-v",))) == list(range(1, 11))
    assert engine.identifiers(query(orders=("v",))) == list(range(10, 0, -1))
    # Values of other types take part in inequalities by that order.
    assert engine.identifiers(query(filters=where(("v", "<", False)))) == [10, 9, 8, 7]


class TestArrays:
    @pytest.fixture(autouse=True)
    def arrays(self, engine: Subject) -> None:
        engine.put(
            entity(key("K", 1), tags=[1, 9]),
            entity(key("K", 2), tags=[2, 3]),
            entity(key("K", 3), tags=[]),
            entity(key("K", 4), tags=[5, 5]),
        )

    def test_one_element_must_meet_all_inequalities(self, engine: Subject) -> None:
        between = where(("tags", ">", 1), ("tags", "<", 9))
        assert engine.identifiers(query(filters=between)) == [2, 4]

    def test_each_equality_may_be_met_by_another_element(self, engine: Subject) -> None:
        assert engine.identifiers(query(filters=where(("tags", "=", 1), ("tags", "=", 9)))) == [1]

    def test_an_entity_sorts_by_its_smallest_or_greatest_element(self, engine: Subject) -> None:
        assert engine.identifiers(query(orders=("tags",))) == [1, 2, 4]
        assert engine.identifiers(query(orders=("-tags",))) == [1, 4, 2]

    def test_it_sorts_by_the_elements_that_match(self, engine: Subject) -> None:
        assert engine.identifiers(query(filters=where(("tags", ">", 2)))) == [2, 4, 1]

    def test_alternatives_report_each_entity_once_at_its_first_place(self, engine: Subject) -> None:
        engine.put(entity(key("K", 5), tags=[9]), entity(key("K", 6), tags=[1]))
        wanted = where(("tags", "in", [9, 1, 5]))
        assert engine.identifiers(query(filters=wanted, orders=("tags",))) == [1, 6, 4, 5]
        assert engine.identifiers(query(filters=wanted, orders=("tags",), limit=3)) == [1, 6, 4]

    def test_a_cursor_in_the_middle_of_an_array_does_not_repeat_it(self, engine: Subject) -> None:
        first = engine.run(query(orders=("tags",), limit=2))
        rest = query(orders=("tags",), start_cursor=first.end_cursor)
        assert engine.identifiers(rest) == [4]

    def test_an_order_beside_an_inequality_on_an_array(self, engine: Subject) -> None:
        engine.put(entity(key("K", 7), tags=[4, 6], n=1), entity(key("K", 8), tags=[4], n=0))
        ordered = query(filters=where(("tags", ">", 3)), orders=("tags", "n"))
        assert engine.identifiers(ordered) == [8, 7]


def test_properties_of_embedded_entities_have_dotted_names(engine: Subject) -> None:
    engine.put(
        entity(key("K", 1), address={"city": "Rome"}),
        entity(key("K", 2), **{"address.city": "Rome"}),
        entity(key("K", 3), address=[{"city": "Oslo"}, {"city": "Rome"}]),
        entity(key("K", 4), address=value({"city": "Rome"}, indexed=False)),
    )
    assert engine.identifiers(query(filters=where(("address.city", "=", "Rome")))) == [1, 2, 3]


def test_ancestor_queries(engine: Subject) -> None:
    engine.put(
        entity(key("K", 1), n=3),
        entity(key("K", 1, "K", 2), n=2),
        entity(key("K", 1, "Z", 1, "K", 3), n=1),
        entity(key("K", 1, "Z", 1), n=4),
        entity(key("K", 10), n=5),
    )
    below = where(("__key__", "ancestor", key("K", 1)))
    assert engine.identifiers(query(filters=below)) == [1, 2, 3]
    assert engine.identifiers(query(filters=below, orders=("n",))) == [3, 2, 1]
    assert engine.identifiers(query(None, filters=below)) == [1, 2, 1, 3]
    deep = where(("__key__", "ancestor", key("K", 1)), ("n", ">", 1))
    assert engine.identifiers(query(filters=deep)) == [2, 1]


def test_kindless_queries_see_all_kinds(engine: Subject) -> None:
    engine.put(entity(key("B", 1)), entity(key("A", 2)), entity(key("A", "x", "C", 3)))
    assert engine.identifiers(query(None)) == [2, 3, 1]
    after = where(("__key__", ">", key("A", 2)))
    assert engine.identifiers(query(None, filters=after)) == [3, 1]


def test_namespaces_are_kept_apart(engine: Subject) -> None:
    engine.put(entity(key("K", 1), n=1), entity(key("K", 2, namespace="other"), n=1))
    everything = query(filters=where(("n", "=", 1)))
    assert engine.identifiers(everything) == [1]
    (found,) = engine.run(everything, namespace="other").entity_results
    assert found.entity.key == key("K", 2, namespace="other")
    assert not engine.run(everything, namespace="empty").entity_results


def test_keys_only_results_have_no_properties(numbers: Subject) -> None:
    batch = numbers.run(query(projection=("__key__",), limit=1))
    assert batch.entity_result_type == EntityResult.KEY_ONLY
    (result,) = batch.entity_results
    assert result.entity == entity(key("K", 1))
    assert result.cursor


def test_full_results_carry_version_and_times(engine: Subject) -> None:
    committed = engine.put(entity(key("K", 1), n=1)).mutation_results[0]
    engine.put(entity(key("K", 2), n=1))
    changed = engine.put(entity(key("K", 1), n=2)).mutation_results[0]
    result = engine.run(query()).entity_results[0]
    assert result.version == changed.version > committed.version
    assert result.create_time == committed.create_time
    assert result.update_time == changed.update_time != committed.update_time


def test_a_projection_fans_out_over_arrays(engine: Subject) -> None:
    engine.put(
        entity(key("K", 1), a=[1, 2], b=["x", "y"], c=7),
        entity(key("K", 2), a=3, b="x"),
        entity(key("K", 3), a=3),
    )
    batch = engine.run(query(projection=("a", "b"), orders=("-a", "b")))
    assert batch.entity_result_type == EntityResult.PROJECTION
    rows = [
        (
            result.entity.key.path[0].id,
            result.entity.properties["a"].integer_value,
            result.entity.properties["b"].string_value,
        )
        for result in batch.entity_results
    ]
    assert rows == [(2, 3, "x"), (1, 2, "x"), (1, 2, "y"), (1, 1, "x"), (1, 1, "y")]
    # Only values that match the filters are projected, and cursors find their place.
    small = query(projection=("a",), filters=where(("a", "<", 3)), limit=1)
    first = engine.run(small)
    small.start_cursor = first.end_cursor
    second = engine.run(small)
    assert [r.entity.properties["a"].integer_value for r in first.entity_results] == [1]
    assert [r.entity.properties["a"].integer_value for r in second.entity_results] == [2]


def test_distinct_on_keeps_the_first_of_each_combination(engine: Subject) -> None:
    engine.put(*(entity(key("K", i), color="red" if i % 2 else "blue", n=i) for i in range(1, 7)))
    message = query(projection=("color", "n"), orders=("color", "-n"))
    message.distinct_on.add().name = "color"
    assert engine.identifiers(message) == [6, 5]


def test_dates_are_projected_as_microseconds(engine: Subject) -> None:
    engine.put(entity(key("K", 1), at=Timestamp(1_700_000_000_123_456)))
    (result,) = engine.run(query(projection=("at",))).entity_results
    assert result.entity.properties["at"].integer_value == 1_700_000_000_123_456
    assert result.entity.properties["at"].meaning == 18


def test_offset_and_limit(numbers: Subject) -> None:
    batch = numbers.run(query(offset=2, limit=3))
    assert [r.entity.key.path[0].id for r in batch.entity_results] == [3, 4, 5]
    assert batch.skipped_results == 2
    assert batch.more_results == QueryResultBatch.MORE_RESULTS_AFTER_LIMIT
    skipped = query(start_cursor=batch.skipped_cursor)
    assert numbers.identifiers(skipped) == [3, 4, 5, 6]
    beyond = numbers.run(query(offset=9))
    assert (beyond.skipped_results, len(beyond.entity_results)) == (6, 0)
    assert beyond.more_results == QueryResultBatch.NO_MORE_RESULTS


def test_an_end_cursor_ends_the_query(numbers: Subject) -> None:
    results = numbers.run(query()).entity_results
    middle = query(start_cursor=results[1].cursor, end_cursor=results[3].cursor)
    batch = numbers.run(middle)
    assert [r.entity.key.path[0].id for r in batch.entity_results] == [3, 4]
    assert batch.more_results == QueryResultBatch.MORE_RESULTS_AFTER_CURSOR
    last = query(end_cursor=results[5].cursor)
    assert numbers.run(last).more_results == QueryResultBatch.NO_MORE_RESULTS


def test_cursors_survive_inserts_and_deletions(numbers: Subject) -> None:
    by_n = query(orders=("n",), limit=3)
    by_n.start_cursor = numbers.run(by_n).end_cursor
    numbers.put(entity(key("K", 100), n=5), entity(key("K", 101), n=35))
    numbers.delete(key("K", 3))
    numbers.delete(key("K", 4))
    assert numbers.identifiers(by_n) == [101, 5, 6]


def test_an_empty_result_has_a_usable_cursor(engine: Subject) -> None:
    empty = engine.run(query(orders=("n",)))
    engine.put(entity(key("K", 1), n=1))
    assert engine.identifiers(query(orders=("n",), start_cursor=empty.end_cursor)) == [1]


def test_big_results_come_in_batches_below_the_clients_limit(engine: Subject) -> None:
    for index in range(6):
        engine.put(entity(key("K", index + 1), blob=value(b"x" * 1_000_000, indexed=False)))
    message = query()
    found = []
    while True:
        batch = engine.run(message)
        assert batch.ByteSize() < 4 * 1024 * 1024
        assert batch.entity_results
        found += [result.entity.key.path[0].id for result in batch.entity_results]
        if batch.more_results != QueryResultBatch.NOT_FINISHED:
            break
        message.start_cursor = batch.end_cursor
    assert found == [1, 2, 3, 4, 5, 6]
    assert batch.more_results == QueryResultBatch.NO_MORE_RESULTS


def test_many_results_come_in_batches(engine: Subject) -> None:
    engine.commit(*_upserts(700))
    message = query(limit=650, offset=20)
    sizes = []
    while True:
        batch = engine.run(message)
        sizes.append(len(batch.entity_results))
        if batch.more_results != QueryResultBatch.NOT_FINISHED:
            break
        message.start_cursor = batch.end_cursor
        message.offset = 0
        message.limit.value -= len(batch.entity_results)
    assert sizes == [300, 300, 50]
    assert batch.more_results == QueryResultBatch.MORE_RESULTS_AFTER_LIMIT


def _upserts(count: int) -> list[object]:
    return [Mutation(upsert=entity(key("K", i + 1), n=i)) for i in range(count)]


def _gap(name: str, values: int) -> QueryPb:
    return query(filters=where((name, "not in", list(range(values)))))


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (query(offset=-1), Code.INVALID_ARGUMENT, "offset"),
        (query(limit=-1), Code.INVALID_ARGUMENT, "limit"),
        (query(""), Code.INVALID_ARGUMENT, "empty"),
        (query(None, orders=("n",)), Code.INVALID_ARGUMENT, "kind is required"),
        (query(None, filters=where(("n", "=", 1))), Code.INVALID_ARGUMENT, "kind is required"),
        (query(None, orders=("-__key__",)), Code.INVALID_ARGUMENT, "kind is required"),
        (query(filters=where(("__key__", "=", 1))), Code.INVALID_ARGUMENT, "needs a key"),
        (query(filters=where(("n", "ancestor", key("K", 1)))), Code.INVALID_ARGUMENT, "__key__"),
        (query(filters=where(("n", "in", []))), Code.INVALID_ARGUMENT, "non-empty"),
        (query(filters=where(("n", "in", 1))), Code.INVALID_ARGUMENT, "non-empty"),
        (query(filters=where(("n", "in", list(range(31))))), Code.INVALID_ARGUMENT, "30"),
        (
            query(filters=where(("a", "in", list(range(6))), ("b", "in", list(range(6))))),
            Code.INVALID_ARGUMENT,
            "30",
        ),
        (
            query(filters=where(("a", "!=", 1), ("b", "!=", 1))),
            Code.INVALID_ARGUMENT,
            "at most one",
        ),
        (
            query(filters=where(("a", "not in", [1]), ("b", "in", [1]))),
            Code.INVALID_ARGUMENT,
            "as IN or OR",
        ),
        (
            query(filters=where(("a", "not in", [1]), ("b", "=", 1), any_of=True)),
            Code.INVALID_ARGUMENT,
            "as IN or OR",
        ),
        (
            query(filters=where(("__key__", "ancestor", key("K", 1)), ("b", "=", 1), any_of=True)),
            Code.INVALID_ARGUMENT,
            "same HAS_ANCESTOR",
        ),
        (_gap("n", 11), Code.INVALID_ARGUMENT, "at most 10"),
        (query(filters=where(("n", "=", {"a": 1}))), Code.INVALID_ARGUMENT, "compared"),
        (query(filters=where(("", "=", 1))), Code.INVALID_ARGUMENT, "empty"),
        (query(orders=("n", "-n")), Code.INVALID_ARGUMENT, "multiple orders"),
        (
            query(projection=("n",), filters=where(("n", "=", 1))),
            Code.INVALID_ARGUMENT,
            "equality filter",
        ),
        (
            query(filters=where(("__key__", "=", key("K", 1, namespace="x")))),
            Code.INVALID_ARGUMENT,
            "namespace",
        ),
        (query(start_cursor=b"nonsense"), Code.INVALID_ARGUMENT, "cursor"),
        (query(start_cursor=b"\x01"), Code.INVALID_ARGUMENT, "cursor"),
    ],
)
def test_refused_queries(engine: Subject, message: QueryPb, code: Code, text: str) -> None:
    with pytest.raises(DatastoreError, match=text) as caught:
        engine.run(message)
    assert caught.value.code is code


def test_a_cursor_of_another_query_is_refused(numbers: Subject) -> None:
    cursor = numbers.run(query(limit=1)).end_cursor
    with pytest.raises(DatastoreError, match="another query"):
        numbers.run(query(orders=("n",), start_cursor=cursor))
    truncated = query(start_cursor=cursor[:-1])
    with pytest.raises(DatastoreError, match="not valid"):
        numbers.run(truncated)


def test_a_cursor_does_not_mind_the_order_of_alternatives(numbers: Subject) -> None:
    one, other = (query(filters=where(("n", "in", values))) for values in ([10, 30], [30, 10]))
    other.start_cursor = numbers.run(one).entity_results[0].cursor
    assert numbers.identifiers(other) == [3]
