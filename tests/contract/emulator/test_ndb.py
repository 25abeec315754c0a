"""The package google-cloud-ndb with the emulator."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import google.cloud.ndb as ndb
import pytest
from google.cloud.ndb import metadata


class PostalAddress(ndb.Model):
    city = ndb.StringProperty()
    zip_code = ndb.IntegerProperty()


class Person(ndb.Model):
    name = ndb.StringProperty()
    age = ndb.IntegerProperty()
    tags = ndb.StringProperty(repeated=True)
    joined = ndb.DateTimeProperty()
    address = ndb.StructuredProperty(PostalAddress)
    local = ndb.LocalStructuredProperty(PostalAddress)
    notes = ndb.TextProperty()
    picture = ndb.BlobProperty()
    settings = ndb.JsonProperty()
    weight = ndb.FloatProperty()
    active = ndb.BooleanProperty()
    friend = ndb.KeyProperty()
    place = ndb.GeoPtProperty()
    day = ndb.DateProperty()
    moment = ndb.TimeProperty()
    twice = ndb.ComputedProperty(lambda self: (self.age or 0) * 2)


class Counter(ndb.Model):
    n = ndb.IntegerProperty(default=0)


@pytest.fixture
def context(ndb_client: ndb.Client) -> Iterator[Any]:
    with ndb_client.context() as context:
        # Without this ndb would answer from its own writes.
        context.set_cache_policy(lambda key: False)
        yield context


@pytest.fixture
def people(context: Any) -> list[Any]:
    people = [
        Person(
            id=i,
            name=f"p{i}",
            age=20 + i % 5,
            tags=[f"t{i % 2}", f"u{i % 3}"],
            joined=datetime.datetime(2024, 1, 1 + i),  # noqa: DTZ001 - ndb wants naive dates
            address=PostalAddress(city="Rome" if i % 2 else "Oslo", zip_code=i),
        )
        for i in range(1, 13)
    ]
    assert len(ndb.put_multi(people)) == 12
    return people


def ids(query: Any, **options: Any) -> list[int]:
    return [person.key.id() for person in query.fetch(**options)]


def test_every_property_type_survives(context: Any) -> None:
    person = Person(
        id="ü",
        name="Ann",
        age=7,
        tags=["a", "b"],
        joined=datetime.datetime(2024, 5, 6, 7, 8, 9, 123456),  # noqa: DTZ001
        address=PostalAddress(city="Rome", zip_code=1),
        local=PostalAddress(city="Oslo"),
        notes="x" * 3000,
        picture=b"\x00\xff" * 1000,
        settings={"deep": [1, {"er": None}]},
        weight=1.5,
        active=True,
        friend=ndb.Key(Person, 5),
        place=ndb.GeoPt(1.5, -2.5),
        day=datetime.date(2024, 2, 29),
        moment=datetime.time(1, 2, 3, 4),
    )
    key = person.put()
    loaded = key.get()
    assert loaded is not person
    assert loaded.to_dict() == person.to_dict()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Person.query(Person.age >= 21, Person.age < 22), [1, 6, 11]),
        (lambda: Person.query(Person.age != 20, Person.tags == "t0"), [6, 2, 12, 8, 4]),
        (lambda: Person.query(Person.age.IN([20, 24])).order(Person.name), [10, 4, 5, 9]),
        (lambda: Person.query(Person.address.city == "Rome", Person.age == 20), [5]),
        (
            lambda: Person.query(
                ndb.OR(Person.name == "p1", ndb.AND(Person.age == 22, Person.tags == "t1"))
            ).order(Person.key),
            [1, 7],
        ),
        (
            lambda: Person.query().order(-Person.age, Person.name).filter(Person.age > 22),
            [4, 9, 3, 8],
        ),
        (lambda: Person.query(Person.joined > datetime.datetime(2024, 1, 11)), [11, 12]),  # noqa: DTZ001
    ],
)
def test_queries(people: list[Any], make: Any, expected: list[int]) -> None:
    assert ids(make()) == expected


def test_counting_paging_and_projections(people: list[Any]) -> None:
    query = Person.query().order(-Person.joined)
    assert query.count() == 12
    assert query.count(limit=5) == 5
    page, cursor, more = query.fetch_page(5)
    assert more
    Person(id=20, age=20, joined=datetime.datetime(2024, 2, 1)).put()  # noqa: DTZ001
    rest, _, _ = query.fetch_page(20, start_cursor=cursor)
    assert [person.key.id() for person in (*page, *rest)] == list(range(12, 0, -1))
    assert [key.id() for key in query.fetch(2, offset=1, keys_only=True)] == [12, 11]
    rows = Person.query(projection=["age", "joined"]).order(-Person.age, Person.joined).fetch(2)
    assert [(row.age, row.joined.day) for row in rows] == [(24, 5), (24, 10)]
    distinct = Person.query(projection=["age"], distinct_on=["age"]).fetch()
    assert [row.age for row in distinct] == [20, 21, 22, 23, 24]
    gql = ndb.gql("SELECT * FROM Person WHERE age = :1 AND twice > 1 ORDER BY twice DESC", 24)
    assert ids(gql) == [4, 9]


def test_metadata_and_namespaces(context: Any) -> None:
    Counter(id=1, n=1, namespace="eu").put()
    Counter(id=1, n=2).put()
    PostalAddress(city="Rome").put()
    assert [c.n for c in Counter.query(namespace="eu")] == [1]
    assert [c.n for c in Counter.query()] == [2]
    assert metadata.get_kinds() == ["Counter", "PostalAddress"]
    assert metadata.get_kinds(end="D") == ["Counter"]
    assert metadata.get_namespaces() == ["", "eu"]
    assert metadata.get_namespaces(start="a") == ["eu"]
    assert metadata.get_properties_of_kind("PostalAddress") == ["city", "zip_code"]
    assert metadata.get_representations_of_kind("Counter") == {"n": ["INT64"]}
