"""Queries of google-cloud-ndb that need more than entities: metadata, GQL, distinct results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google.cloud.ndb as ndb
import pytest
from google.cloud.ndb import metadata


class Book(ndb.Model):
    title = ndb.StringProperty()
    pages = ndb.IntegerProperty()
    price = ndb.FloatProperty()
    notes = ndb.TextProperty()


class Author(ndb.Model):
    name = ndb.StringProperty()


@pytest.fixture(autouse=True)
def context(ndb_client: ndb.Client) -> Iterator[Any]:
    with ndb_client.context() as context:
        context.set_cache_policy(lambda key: False)
        ndb.put_multi(
            [Book(id=i, title="ab"[i % 2], pages=i, price=i / 2, notes="n") for i in range(1, 7)]
        )
        Author(id="ada", name="Ada").put()
        Author(id="eva", name="Eva", namespace="eu").put()
        yield context


def test_kinds() -> None:
    assert metadata.get_kinds() == ["Author", "Book"]
    assert metadata.get_kinds(start="B") == ["Book"]
    assert metadata.get_kinds(end="B") == ["Author"]
    assert metadata.get_kinds(start="C") == []


def test_namespaces() -> None:
    assert metadata.get_namespaces() == ["", "eu"]
    assert metadata.get_namespaces(start="a") == ["eu"]
    assert metadata.get_namespaces(end="a") == [""]


def test_properties() -> None:
    assert metadata.get_properties_of_kind("Book") == ["pages", "price", "title"]
    assert metadata.get_properties_of_kind("Book", start="pb", end="q") == ["price"]
    assert metadata.get_representations_of_kind("Book") == {
        "pages": ["INT64"],
        "price": ["DOUBLE"],
        "title": ["STRING"],
    }


def test_gql() -> None:
    found = ndb.gql("SELECT * FROM Book WHERE title = :1 AND pages > 1 ORDER BY pages DESC", "b")
    assert [book.key.id() for book in found.fetch()] == [5, 3]


def test_distinct_titles() -> None:
    query = Book.query(projection=["title"], distinct_on=["title"])
    assert [book.title for book in query.fetch()] == ["a", "b"]
    first = Book.query(projection=["title", "pages"], distinct_on=["title"])
    ordered = first.order(Book.title, -Book.pages)
    assert [(book.title, book.pages) for book in ordered.fetch()] == [("a", 6), ("b", 5)]


def test_pages_go_on_where_they_ended() -> None:
    query = Book.query(Book.title == "a").order(-Book.pages)
    page, cursor, more = query.fetch_page(2)
    assert more
    Book(id=7, title="a", pages=5).put()
    rest, _, _ = query.fetch_page(5, start_cursor=cursor)
    assert [book.key.id() for book in (*page, *rest)] == [6, 4, 2]
