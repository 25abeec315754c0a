"""Queries on __namespace__, __kind__ and __property__."""

from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import (
    EntityResult,
    KeyPb,
    Mutation,
    QueryPb,
    QueryResultBatch,
    RunQueryRequest,
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
    """Provide two kinds in the default namespace, one in another."""
    engine.put(
        entity(key("Book", 1), title="t", price=7, notes=value("n", indexed=False)),
        entity(key("Book", 2), title=None, price=1.5, tags=["x", 1]),
        entity(key("Author", "ada"), name="Ada", home={"city": "Rome"}),
        entity(key("Cart", 1, namespace="eu"), total=1),
    )
    return engine


class TestNamespaces:
    def test_all_that_have_entities(self, shop: Subject) -> None:
        assert keys(shop, query(NAMESPACES)) == [key(NAMESPACES, 1), key(NAMESPACES, "eu")]

    def test_they_are_seen_from_an_empty_one(self, shop: Subject) -> None:
        assert len(keys(shop, query(NAMESPACES), namespace="empty")) == 2

    def test_a_range(self, shop: Subject) -> None:
        shop.put(entity(key("K", 1, namespace="us")), entity(key("K", 1, namespace="asia")))
        named = where(
            ("__key__", ">=", key(NAMESPACES, "b")), ("__key__", "<", key(NAMESPACES, "u"))
        )
        assert keys(shop, query(NAMESPACES, named)) == [key(NAMESPACES, "eu")]

    def test_those_of_other_projects_are_not_seen(self, shop: Subject) -> None:
        request = RunQueryRequest(project_id="another-project", query=query(NAMESPACES))
        assert not shop.engine.run_query(request).batch.entity_results

    def test_an_emptied_one_is_gone(self, shop: Subject) -> None:
        shop.delete(key("Cart", 1, namespace="eu"))
        assert keys(shop, query(NAMESPACES)) == [key(NAMESPACES, 1)]


class TestKinds:
    def test_all_of_a_namespace(self, shop: Subject) -> None:
        assert keys(shop, query(KINDS)) == [kind("Author"), kind("Book")]
        in_eu = key(KINDS, "Cart", namespace="eu")
        assert keys(shop, query(KINDS), namespace="eu") == [in_eu]
        assert keys(shop, query(KINDS), namespace="empty") == []

    def test_a_range_a_limit_and_the_rest(self, shop: Subject) -> None:
        shop.put(entity(key("Zoo", 1)))
        from_b = where(("__key__", ">=", kind("B")))
        first = shop.run(query(KINDS, from_b, limit=1))
        assert first.more_results == QueryResultBatch.MORE_RESULTS_AFTER_LIMIT
        assert first.entity_results[0].entity.key == kind("Book")
        rest = query(KINDS, from_b, start_cursor=first.end_cursor)
        assert keys(shop, rest) == [kind("Zoo")]

    def test_the_orders(self, shop: Subject) -> None:
        assert keys(shop, query(KINDS, orders=("__key__",))) == [kind("Author"), kind("Book")]
        assert keys(shop, query(KINDS, orders=("-__key__",))) == [kind("Book"), kind("Author")]

    def test_a_kind_without_entities_is_gone_and_was_there(self, shop: Subject) -> None:
        before = shop.run(query(KINDS)).read_time
        shop.delete(key("Author", "ada"))
        assert keys(shop, query(KINDS)) == [kind("Book")]
        past = RunQueryRequest(project_id=PROJECT, query=query(KINDS))
        past.read_options.read_time.CopyFrom(before)
        assert len(shop.engine.run_query(past).batch.entity_results) == 2

    def test_a_result_is_an_entity_without_properties(self, shop: Subject) -> None:
        batch = shop.run(query(KINDS, limit=1))
        assert batch.entity_result_type == EntityResult.FULL
        (result,) = batch.entity_results
        assert result.entity == entity(kind("Author"))
        assert result.version == microseconds(batch.read_time)
        assert result.cursor


class TestProperties:
    def test_those_that_are_indexed(self, shop: Subject) -> None:
        assert keys(shop, query(PROPERTIES, projection=("__key__",))) == [
            prop("Author", "home.city"),
            prop("Author", "name"),
            prop("Book", "price"),
            prop("Book", "tags"),
            prop("Book", "title"),
        ]

    def test_those_of_one_kind(self, shop: Subject) -> None:
        of_authors = where(("__key__", "ancestor", kind("Author")))
        assert keys(shop, query(PROPERTIES, of_authors)) == [
            prop("Author", "home.city"),
            prop("Author", "name"),
        ]

    def test_a_range_over_several_kinds(self, shop: Subject) -> None:
        between = where(("__key__", ">=", prop("Author", "i")), ("__key__", "<", prop("Book", "t")))
        assert keys(shop, query(PROPERTIES, between)) == [
            prop("Author", "name"),
            prop("Book", "price"),
        ]

    @pytest.mark.parametrize(
        ("items", "representations"),
        [
            ([1, Timestamp(5)], ["INT64"]),
            ([1.5], ["DOUBLE"]),
            ([True], ["BOOLEAN"]),
            (["x", b"x"], ["STRING"]),
            ([None], ["NULL"]),
            ([GeoPoint((1.0, 2.0))], ["POINT"]),
            ([key("K", 1)], ["REFERENCE"]),
            ([1, 1.0, "x", None], ["DOUBLE", "INT64", "NULL", "STRING"]),
        ],
    )
    def test_representations(
        self, engine: Subject, items: list[Any], representations: list[str]
    ) -> None:
        for index, item in enumerate(items):
            engine.put(entity(key("K", index + 1), p=value(item)))
        (result,) = engine.run(query(PROPERTIES)).entity_results
        assert result.entity == entity(prop("K", "p"), property_representation=representations)

    def test_representations_can_be_projected(self, shop: Subject) -> None:
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


def test_a_kind_with_statistics_is_empty(shop: Subject) -> None:
    assert keys(shop, query("__Stat_Total__")) == []


def test_nothing_can_be_stored_under_these_kinds(engine: Subject) -> None:
    with pytest.raises(DatastoreError, match="reserved"):
        engine.put(entity(kind("K")))


def commit(engine: Subject, transaction: bytes, written: KeyPb) -> None:
    engine.commit(Mutation(upsert=entity(written)), transaction=transaction)


def test_a_transaction_that_listed_kinds_is_aborted_by_a_new_one(shop: Subject) -> None:
    transaction = shop.begin()
    shop.run(query(KINDS), transaction=transaction)
    shop.put(entity(key("New", 1)))
    with pytest.raises(DatastoreError) as caught:
        commit(shop, transaction, key("Book", 9))
    assert caught.value.code is Code.ABORTED


def test_a_transaction_that_did_not_is_not(shop: Subject) -> None:
    """The negative control."""
    transaction = shop.begin()
    shop.put(entity(key("New", 1)))
    commit(shop, transaction, key("Book", 9))
