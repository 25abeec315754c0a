"""The documented order of values and keys, as queries see it."""

import math

import pytest

from tests.unit.emulator.builders import GeoPoint, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.protos import KeyPb, QueryPb, Value

# Ascending, across and within types: "Entity property reference".
VALUES_IN_ORDER = [
    None,
    -(2**63),
    -1,
    0,
    1,
    Timestamp(1),  # shares the scale of integers, but does not equal 1
    2**62,
    2**63 - 1,
    False,
    True,
    b"",
    "",
    "\x00",
    "\x00\x00",
    "\x01",
    b"a",
    "a",
    "a\x00",
    "ab",
    "b",
    "é",
    "\uffff",
    "\U0001f600",
    math.nan,
    -math.inf,
    -1.5,
    -5e-324,
    0.0,
    5e-324,
    1.5,
    math.inf,
    GeoPoint((-90.0, 0.0)),
    GeoPoint((1.0, -180.0)),
    GeoPoint((1.0, 180.0)),
    key("A", 1),
    key("A", 1, "A", 1),
    key("A", 2),
    key("A", "a"),
    key("B", 1),
]

KEYS_IN_ORDER = [
    key("A", -5),
    key("A", 1),
    key("A", 1, "A", 1),
    key("A", 1, "A", 1, "Z", "z"),
    key("A", 1, "B", 1),
    key("A", 2),
    key("A", 10),
    key("A", "\x00"),
    key("A", "a"),
    key("A", "a", "\x00", 1),
    key("A", "a", "A", 1),
    key("A", "a\x00"),
    key("A", "ab"),
    key("A\x00", 1),
    key("AA", 1),
    key("B", 1),
]


@pytest.fixture
def values(engine: Subject) -> Subject:
    """Provide an entity for each value. Their identifiers fall while the values rise."""
    for number, item in enumerate(reversed(VALUES_IN_ORDER), 1):
        engine.put(entity(key("K", number), v=value(item)))
    return engine


def test_values_sort_and_compare_as_documented(values: Subject) -> None:
    """A value is compared with those of other types, too."""
    ascending = list(range(len(VALUES_IN_ORDER), 0, -1))
    assert values.identifiers(query(orders=("v",))) == ascending
    assert values.identifiers(query(orders=("-v",))) == ascending[::-1]
    for place, item in enumerate(VALUES_IN_ORDER):
        for operator, expected in (
            ("=", ascending[place : place + 1]),
            ("<", ascending[:place]),
            (">", ascending[place + 1 :]),
        ):
            asked = query(filters=where(("v", operator, item)), orders=("v",))
            assert values.identifiers(asked) == expected, (operator, item)
    zeros = (query(filters=where(("v", "=", zero))) for zero in (0.0, -0.0))
    assert len({tuple(values.identifiers(each)) for each in zeros}) == 1


def test_values_in_an_index_are_those_that_were_stored(values: Subject) -> None:
    found = values.run(query(orders=("v",), projection=("v",))).entity_results
    for item, result in zip(VALUES_IN_ORDER, found, strict=True):
        projected = result.entity.properties["v"]
        assert projected.meaning == 18, "a value from an index"
        projected.meaning = 0
        if isinstance(item, Timestamp):
            assert projected == Value(integer_value=item), "a date is its microseconds"
        elif isinstance(item, float) and math.isnan(item):
            assert math.isnan(projected.double_value)
        else:
            assert projected == value(item)


def test_keys_sort_as_documented(engine: Subject) -> None:
    engine.put(*(entity(each) for each in reversed(KEYS_IN_ORDER)))

    def found(message: QueryPb) -> list[KeyPb]:
        return [result.entity.key for result in engine.run(message).entity_results]

    assert found(query(None)) == KEYS_IN_ORDER
    of_a_kind = [each for each in KEYS_IN_ORDER if each.path[-1].kind == "A"]
    assert found(query("A", orders=("-__key__",))) == of_a_kind[::-1]
    for place, each in enumerate(KEYS_IN_ORDER):
        assert found(query(None, where(("__key__", ">", each)))) == KEYS_IN_ORDER[place + 1 :]
    assert found(query(None, where(("__key__", "ancestor", key("A", 1))))) == KEYS_IN_ORDER[1:5]
