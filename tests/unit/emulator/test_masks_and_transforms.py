"""Property masks of lookups, queries and mutations; property transforms."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.emulator.builders import Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, refused
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import (
    ArrayValue,
    EntityPb,
    Message,
    Mutation,
    PropertyTransform,
    ValuePb,
    microseconds,
)

KEY = key("K", 1)
PERSON: dict[str, Any] = {
    "name": "Ada",
    "address": {"city": "Rome", "zip": "00100", "geo": {"lat": 1, "lon": 2}},
    "tags": ["x", "y"],
    "a.b": 7,
}


def masked(engine: Subject, *paths: str) -> EntityPb:
    engine.put(entity(KEY, **PERSON))
    (found,) = engine.ask("Lookup", keys=[KEY], property_mask={"paths": paths}).found
    return found.entity


def write(operation: str, content: EntityPb, *paths: str) -> Message:
    return Mutation(**{operation: content}, property_mask={"paths": paths})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ((), {}),
        (("name",), {"name": "Ada"}),
        (("address",), {"address": PERSON["address"]}),
        (("address.city", "address.geo.lat"), {"address": {"city": "Rome", "geo": {"lat": 1}}}),
        (("address.city", "address"), {"address": PERSON["address"]}),
        (("address", "address.city"), {"address": PERSON["address"]}),
        (("address.missing", "name.x"), {}),
        (("a\\.b",), {"a.b": 7}),
        (("a.b",), {}),
    ],
)
def test_a_lookup_returns_what_its_mask_covers(
    engine: Subject, paths: tuple[str, ...], expected: dict[str, Any]
) -> None:
    assert masked(engine, *paths) == entity(KEY, **expected)


def test_a_query_returns_what_its_mask_covers(engine: Subject) -> None:
    engine.put(entity(KEY, **PERSON))
    mask = {"paths": ["address.city"]}
    (result,) = engine.ask("RunQuery", query=query(), property_mask=mask).batch.entity_results
    assert result.entity == entity(KEY, address={"city": "Rome"})
    assert result.version == engine.lookup(KEY).found[0].version
    keys = query(projection=("__key__",))
    (result,) = engine.ask("RunQuery", query=keys, property_mask=mask).batch.entity_results
    assert result.entity == entity(KEY)
    with refused("projection"):
        engine.ask("RunQuery", query=query(projection=("name",)), property_mask=mask)


class TestWriting:
    @pytest.mark.parametrize(
        ("operation", "before", "change", "paths", "after"),
        [
            # Masked properties are updated or removed.
            ("update", {"a": 1, "b": 2, "c": 3}, {"a": 10, "c": 30}, "a b", {"a": 10, "c": 3}),
            ("upsert", {"a": 1}, {"a": 2}, "__key__ a", {"a": 2}),
            ("upsert", {"a": 1, "b": 2}, {"a": 5}, None, {"a": 5}),  # the negative control
            # A new entity has what is masked.
            ("upsert", None, {"a": 1, "b": 2}, "a", {"a": 1}),
            (
                "upsert",
                PERSON,
                {"address": {"city": "Oslo", "zip": "1"}},
                "address.city address.geo.lon name.x",
                {**PERSON, "address": {"city": "Oslo", "zip": "00100", "geo": {"lat": 1}}},
            ),
            # An embedded entity is made where there is none.
            (
                "upsert",
                {"address": "somewhere"},
                {"address": value({"city": "Oslo", "zip": "1"}, indexed=False)},
                "address.city",
                {"address": value({"city": "Oslo"}, indexed=False)},
            ),
            (
                "upsert",
                {r"c\d": {"x.y": 1, "z": 1}},
                {r"c\d": {"x.y": 2}},
                r"c\\d.x\.y",
                {r"c\d": {"x.y": 2, "z": 1}},
            ),
        ],
    )
    def test_what_is_written(
        self,
        engine: Subject,
        operation: str,
        before: dict[str, Any] | None,
        change: dict[str, Any],
        paths: str | None,
        after: dict[str, Any],
    ) -> None:
        if before is not None:
            engine.put(entity(KEY, **before))
        content = entity(KEY, **change)
        engine.commit(
            Mutation(**{operation: content})
            if paths is None
            else write(operation, content, *paths.split())
        )
        assert engine.get(KEY) == entity(KEY, **after)

    def test_indexes_and_versions_follow(self, engine: Subject) -> None:
        engine.put(entity(KEY, a=1, b=2))
        engine.commit(write("upsert", entity(KEY, a=5), "a"))
        assert engine.identifiers(query(orders=("a", "b"))) == [1]
        (changed,) = engine.commit(write("upsert", entity(KEY), "b")).mutation_results
        assert engine.identifiers(query(orders=("b",))) == []
        (same,) = engine.commit(write("upsert", entity(KEY, a=5, b=9), "a")).mutation_results
        assert same.version == changed.version, "nothing has changed"
        engine.commit(Mutation(delete=KEY, property_mask={"paths": ["a"]}))
        assert engine.lookup(KEY).missing, "a deletion ignores it"

    def test_refused_paths(self, engine: Subject) -> None:
        with refused():
            engine.commit(write("upsert", entity(KEY, a=1, list=[{"b": 1}]), "list.b"))
        with pytest.raises(DatastoreError) as caught:
            engine.commit(write("update", entity(KEY, a=1), "a"))
        assert caught.value.code is Code.NOT_FOUND, "an update still needs the entity"


MAX, MIN = 2**63 - 1, -(2**63)


def transform(name: str, kind: str, operand: Any = None) -> Message:
    message = PropertyTransform(property=name)
    if kind == "set_to_server_value":
        message.set_to_server_value = PropertyTransform.REQUEST_TIME
    elif kind in ("increment", "maximum", "minimum"):
        getattr(message, kind).CopyFrom(value(operand))
    else:
        getattr(message, kind).CopyFrom(value(operand).array_value)
    return message


def apply(engine: Subject, *transforms: Message, **properties: Any) -> Message:
    mutation = Mutation(upsert=entity(KEY, **properties))
    mutation.property_transforms.extend(transforms)
    (result,) = engine.commit(mutation).mutation_results
    return result


def same(one: ValuePb, other: ValuePb) -> bool:
    return bool(one == other) or (math.isnan(one.double_value) and math.isnan(other.double_value))


NUMBERS: list[tuple[str, Any, Any, Any]] = [
        ("increment", 1, 2, 3), ("increment", "x", 2, 2), ("increment", None, 2, 2),
        ("increment", 1, 0.5, 1.5), ("increment", 0.5, 1, 1.5), ("increment", MAX, 1, MAX),
        ("increment", MIN, -1, MIN), ("increment", math.inf, -math.inf, math.nan),
        ("maximum", 1, 2, 2), ("maximum", 2, 1, 2), ("maximum", 3, 3.0, 3),
        ("maximum", 3.0, 3, 3.0), ("maximum", 3, 3.5, 3.5), ("maximum", 0.0, -0.0, 0.0),
        ("maximum", 1, math.nan, math.nan), ("maximum", math.nan, 1, math.nan),
        ("maximum", [5], 1, 1), ("minimum", 1, 2, 1), ("minimum", 2, 1.5, 1.5),
        ("minimum", MAX, float(MAX), MAX), ("minimum", 1, math.nan, math.nan),
        ("minimum", True, 7, 7),
]  # fmt: skip


def test_numbers(engine: Subject) -> None:
    for kind, before, operand, after in NUMBERS:
        result = apply(engine, transform("n", kind, operand), n=before)
        assert same(engine.get(KEY).properties["n"], value(after)), (kind, before, operand)
        assert same(result.transform_results[0], value(after)), (kind, before, operand)


ARRAYS: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("append_missing_elements", [1, "a"], ["b", 1, "b"], [1, "a", "b"]),
    ("append_missing_elements", [3], [3.0, None, None], [3, None]),
    ("append_missing_elements", [math.nan], [math.nan, 1, True], [math.nan, 1, True]),
    ("append_missing_elements", [1, 1], [2], [1, 1, 2]),
    ("append_missing_elements", "x", ["y"], ["y"]),
    ("append_missing_elements", "x", [], []),
    ("remove_all_from_array", [1, 2, 1, "1"], [1.0], [2, "1"]),
    ("remove_all_from_array", [None, math.nan, 1], [math.nan, None], [1]),
    ("remove_all_from_array", "x", ["x"], []),
]


def test_arrays(engine: Subject) -> None:
    for kind, before, operand, after in ARRAYS:
        result = apply(engine, transform("n", kind, operand), n=before)
        elements = engine.get(KEY).properties["n"].array_value.values
        assert len(elements) == len(after), (kind, before, operand)
        assert all(same(one, value(other)) for one, other in zip(elements, after, strict=True))
        assert list(result.transform_results) == [value(None)]


def test_a_property_that_does_not_exist(engine: Subject) -> None:
    apply(
        engine,
        transform("a", "increment", 5),
        transform("b", "append_missing_elements", [1]),
        transform("c.d.e", "maximum", 7),
    )
    assert engine.get(KEY) == entity(KEY, a=5, b=[1], c={"d": {"e": 7}})


def test_the_servers_time_is_one_for_the_whole_commit(engine: Subject) -> None:
    now = transform("t", "set_to_server_value")
    mutations = [Mutation(upsert=entity(key("K", i))) for i in (1, 2)]
    for mutation in mutations:
        mutation.property_transforms.extend([now, transform("u", "set_to_server_value")])
    response = engine.commit(*mutations, transactional=True)
    times = {
        microseconds(result.timestamp_value)
        for mutation_result in response.mutation_results
        for result in mutation_result.transform_results
    }
    (time,) = times
    assert time % 1000 == 0
    assert 0 <= microseconds(response.commit_time) - time < 1000
    assert microseconds(engine.get(KEY).properties["t"].timestamp_value) == time


def test_they_follow_the_operation_in_order_and_whatever_the_mask(engine: Subject) -> None:
    engine.put(entity(KEY, a=1, n=10, hidden=value(1, indexed=False)))
    mutation = Mutation(update=entity(KEY, a=2, n=99))
    mutation.property_mask.paths.append("a")
    mutation.property_transforms.extend(
        [
            transform("n", "increment", 1),
            transform("n", "maximum", 3),
            transform("hidden", "increment", 1),
        ]
    )
    (result,) = engine.commit(mutation).mutation_results
    unindexed = value(2, indexed=False)  # it stays so
    assert engine.get(KEY) == entity(KEY, a=2, n=11, hidden=unindexed)
    assert list(result.transform_results) == [value(11), value(11), unindexed]
    assert engine.identifiers(query(orders=("n",))) == [1]
    engine.commit(mutation, mutation, transactional=True)  # each sees the one before
    assert engine.get(KEY).properties["n"] == value(13)


def _with(*transforms: Message) -> Message:
    mutation = Mutation(upsert=entity(KEY, n=1))
    mutation.property_transforms.extend(transforms)
    return mutation


@pytest.mark.parametrize(
    ("mutation", "text"),
    [
        (_with(transform("", "increment", 1)), "empty string"),
        (_with(transform("__n__", "increment", 1)), "reserved"),
        (_with(transform("n", "append_missing_elements", [["x"]])), "another list_value"),
        (_with(*[transform("n", "increment", 1)] * 501), "500"),
        (_with(transform("n", "append_missing_elements", list(range(501)))), "500"),
        (
            Mutation(
                upsert=entity(KEY, tags=[str(i) for i in range(20_000)]),
                property_transforms=[transform("tags", "append_missing_elements", ["more"])],
            ),
            "20000 index entries",
        ),
    ],
)
def test_refused(engine: Subject, mutation: Message, text: str) -> None:
    with refused(text):
        engine.commit(mutation)
    assert engine.lookup(KEY).missing


def test_elements_are_compared_as_they_are_stored(engine: Subject) -> None:
    """An earlier request stored a key without its project, and nanoseconds."""
    unfinished = key("K", 2)
    unfinished.ClearField("partition_id")
    at = value(Timestamp(5))
    at.timestamp_value.nanos += 1
    elements = ArrayValue(values=[value(unfinished), at])
    append = PropertyTransform(property="seen", append_missing_elements=elements)
    for _ in range(2):
        apply(engine, append, seen=[key("K", 2), Timestamp(5)])
        assert engine.get(KEY) == entity(KEY, seen=[key("K", 2), Timestamp(5)])
    apply(engine, PropertyTransform(property="seen", remove_all_from_array=elements))
    assert engine.get(KEY) == entity(KEY, seen=[])
