"""Queries on __namespace__, __kind__ and __property__."""

from typing import Any

import pytest

from tests.unit.emulator.builders import GeoPoint, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.protos import (
    EntityResult,
    KeyPb,
    Message,
    QueryPb,
    QueryResultBatch,
    microseconds,
)

NAMESPACES, KINDS, PROPERTIES = "__namespace__", "__kind__", "__property__"


def kind(name: str) -> KeyPb:
    return key(KINDS, name)


def prop(of: str, name: str) -> KeyPb:
    return key(KINDS, of, PROPERTIES, name)


def keys(engine: Subject, message: QueryPb, namespace: str = "") -> list[KeyPb]:
    return [result.entity.key for result in engine.run(message, namespace=namespace).entity_results]


@pytest.fixture
def shop(engine: Subject) -> Subject:
    engine.put(
        entity(key("Book", 1), title="t", price=7, notes=value("n", indexed=False)),
        entity(key("Book", 2), title=None, price=1.5, tags=["x", 1]),
        entity(key("Author", "ada"), name="Ada", home={"city": "Rome"}),
        entity(key("Cart", 1, namespace="eu"), total=1),
    )
    return engine


BOOK_PROPERTIES = [prop("Book", "price"), prop("Book", "tags"), prop("Book", "title")]
AUTHOR_PROPERTIES = [prop("Author", "home.city"), prop("Author", "name")]


def between(least: KeyPb, below: KeyPb) -> Message:
    return where(("__key__", ">=", least), ("__key__", "<", below))


@pytest.mark.parametrize(
    ("message", "namespace", "expected"),
    [
        (query(NAMESPACES), "", [key(NAMESPACES, 1), key(NAMESPACES, "eu")]),
        (
            query(NAMESPACES),
            "empty",
            [key(NAMESPACES, each, namespace="empty") for each in (1, "eu")],
        ),
        (
            query(NAMESPACES, between(key(NAMESPACES, "b"), key(NAMESPACES, "u"))),
            "",
            [key(NAMESPACES, "eu")],
        ),
        (query(KINDS), "", [kind("Author"), kind("Book")]),
        (query(KINDS), "eu", [key(KINDS, "Cart", namespace="eu")]),
        (query(KINDS, where(("__key__", ">=", kind("B")))), "", [kind("Book")]),
        (query(KINDS, orders=("-__key__",)), "", [kind("Book"), kind("Author")]),
        (query(PROPERTIES, projection=("__key__",)), "", AUTHOR_PROPERTIES + BOOK_PROPERTIES),
        (query(PROPERTIES, where(("__key__", "ancestor", kind("Author")))), "", AUTHOR_PROPERTIES),
        (
            query(PROPERTIES, between(prop("Author", "i"), prop("Book", "t"))),
            "",
            [prop("Author", "name"), prop("Book", "price")],
        ),
        (query("__Stat_Total__"), "", []),
    ],
)
def test_queries(shop: Subject, message: QueryPb, namespace: str, expected: list[KeyPb]) -> None:
    assert keys(shop, message, namespace) == expected
    if message == query(NAMESPACES):
        another = shop.ask("RunQuery", project_id="another-project", query=message)
        assert not another.batch.entity_results


def test_what_has_no_entities_is_gone_and_was_there(shop: Subject) -> None:
    before = shop.run(query(KINDS)).read_time
    shop.delete(key("Author", "ada"))
    shop.delete(key("Cart", 1, namespace="eu"))
    assert keys(shop, query(KINDS)) == [kind("Book")]
    assert keys(shop, query(NAMESPACES)) == [key(NAMESPACES, 1)]
    assert len(shop.run(query(KINDS), read_time=before).entity_results) == 2


def test_a_result_is_an_entity_without_properties(shop: Subject) -> None:
    batch = shop.run(query(KINDS, limit=1))
    assert batch.entity_result_type == EntityResult.FULL
    assert batch.more_results == QueryResultBatch.MORE_RESULTS_AFTER_LIMIT
    (result,) = batch.entity_results
    assert result.entity == entity(kind("Author"))
    assert result.version == microseconds(batch.read_time)
    assert keys(shop, query(KINDS, start_cursor=result.cursor)) == [kind("Book")]
    with pytest.raises(DatastoreError, match="reserved"):
        shop.put(entity(kind("K")))


@pytest.mark.parametrize(
    ("items", "representations"),
    [
        ([1, Timestamp(5)], ["INT64"]),
        (["x", b"x"], ["STRING"]),
        ([GeoPoint((1.0, 2.0))], ["POINT"]),
        ([key("K", 1)], ["REFERENCE"]),
        ([1, 1.0, "x", None], ["DOUBLE", "INT64", "NULL", "STRING"]),
    ],
)
def test_representations(engine: Subject, items: list[Any], representations: list[str]) -> None:
    for index, item in enumerate(items):
        engine.put(entity(key("K", index + 1), p=value(item)))
    (result,) = engine.run(query(PROPERTIES)).entity_results
    assert result.entity == entity(prop("K", "p"), property_representation=representations)


def test_representations_can_be_projected(shop: Subject) -> None:
    of_books = where(("__key__", "ancestor", kind("Book")))
    projected = query(
        PROPERTIES, of_books, projection=("property_representation",), orders=("__key__",)
    )
    rows = [
        (
            result.entity.key.path[-1].name,
            result.entity.properties["property_representation"].string_value,
        )
        for result in shop.run(projected).entity_results
    ]
    assert rows == [
        ("price", "DOUBLE"),
        ("price", "INT64"),
        ("tags", "INT64"),
        ("tags", "STRING"),
        ("title", "NULL"),
        ("title", "STRING"),
    ]
