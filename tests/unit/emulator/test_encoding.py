"""The byte order of encoded keys and values is the documented order."""

import itertools
import math

import pytest

from tests.unit.emulator.builders import GeoPoint, Timestamp, key, value
from userlock_emulator.datastore.encoding import (
    after_descendants,
    complement,
    decode_path,
    decode_value,
    delimited,
    encode_key,
    encode_value,
    root_of,
    successor,
)
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.protos import Key, Value

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


def test_values_sort_as_documented() -> None:
    encoded = [encode_value(value(item)) for item in VALUES_IN_ORDER]
    assert all(one < successor(one) <= other for one, other in itertools.pairwise(encoded))
    reverse = [complement(each) for each in encoded]
    assert reverse == sorted(reverse, reverse=True)
    assert not any(a.startswith(b) for a, b in itertools.permutations(encoded, 2))
    assert encode_value(value(-0.0)) == encode_value(value(0.0))


def test_keys_sort_as_documented() -> None:
    encoded = [encode_key(item) for item in KEYS_IN_ORDER]
    assert all(one < other for one, other in itertools.pairwise(encoded))
    reverse = [complement(delimited(each)) for each in encoded]
    assert reverse == sorted(reverse, reverse=True)
    assert [decode_path(each, Key()).path for each in encoded] == [k.path for k in KEYS_IN_ORDER]


def test_descendants_are_the_keys_in_the_ancestor_range() -> None:
    ancestor = encode_key(key("A", 1))
    inside = [
        encode_key(item)
        for item in KEYS_IN_ORDER
        if ancestor <= encode_key(item) < after_descendants(ancestor)
    ]
    assert inside == [encode_key(item) for item in KEYS_IN_ORDER[1:5]]


def test_values_survive_a_round_trip() -> None:
    for item in VALUES_IN_ORDER:
        original = value(item)
        decoded = decode_value(encode_value(original))
        assert decoded.meaning == 18, "a value from an index"
        decoded.meaning = 0
        if isinstance(item, Timestamp):
            # A projected date is its microseconds.
            assert decoded == Value(integer_value=item)
        elif isinstance(item, float) and math.isnan(item):
            assert math.isnan(decoded.double_value)
        else:
            assert decoded == original


def test_root_of_is_the_first_path_element() -> None:
    for identifier in (7, "a\x00b"):
        root = encode_key(key("A", identifier))
        assert root_of(encode_key(key("A", identifier, "B", 2, "C", "c"))) == root
        assert root_of(root) == root


def test_composite_values_have_no_encoding() -> None:
    for item in ([1, 2], {"a": 1}):
        with pytest.raises(DatastoreError, match="value is not allowed"):
            encode_value(value(item))
