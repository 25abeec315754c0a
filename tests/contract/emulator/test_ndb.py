"""The package google-cloud-ndb with the emulator."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import google.cloud.ndb as ndb
import pytest


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
    ndb.put_multi(people)
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


def test_get_and_delete_multi(people: list[Any]) -> None:
    keys = [person.key for person in people] + [ndb.Key(Person, 999)]
    loaded = ndb.get_multi(keys)
    assert [person and person.name for person in loaded] == [p.name for p in people] + [None]
    ndb.delete_multi(keys[:6])
    assert Person.query().count() == 6


def test_allocated_ids(context: Any) -> None:
    key = Person(name="new").put()
    assert isinstance(key.id(), int)
    assert key.get().name == "new"
    allocated = Person.allocate_ids(size=5, parent=key)
    assert len({k.id() for k in allocated}) == 5


def test_get_or_insert(context: Any) -> None:
    assert Person.get_or_insert("x", age=1).age == 1
    assert Person.get_or_insert("x", age=2).age == 1


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Person.query(Person.age == 22), [2, 7, 12]),
        (lambda: Person.query(Person.age > 23), [4, 9]),
        (lambda: Person.query(Person.age >= 21, Person.age < 22), [1, 6, 11]),
        (lambda: Person.query(Person.age != 20, Person.tags == "t0"), [6, 2, 12, 8, 4]),
        (lambda: Person.query(Person.age.IN([20, 24])).order(Person.name), [10, 4, 5, 9]),
        (lambda: Person.query(Person.tags == "t0", Person.tags == "u1"), [4, 10]),
        (lambda: Person.query(Person.address.city == "Rome", Person.age == 20), [5]),
        (
            lambda: Person.query(
                ndb.OR(Person.name == "p1", ndb.AND(Person.age == 22, Person.tags == "t1"))
            ).order(Person.key),
            [1, 7],
        ),
        (lambda: Person.query(Person.twice == 44), [2, 7, 12]),
        (
            lambda: Person.query().order(-Person.age, Person.name).filter(Person.age > 22),
            [4, 9, 3, 8],
        ),
        (lambda: Person.query(Person.key > ndb.Key(Person, 10)), [11, 12]),
        (lambda: Person.query(Person.joined > datetime.datetime(2024, 1, 11)), [11, 12]),  # noqa: DTZ001
    ],
)
def test_queries(people: list[Any], make: Any, expected: list[int]) -> None:
    assert ids(make()) == expected


def test_counting_and_paging(people: list[Any]) -> None:
    query = Person.query().order(-Person.joined)
    assert query.count() == 12
    assert query.count(limit=5) == 5
    found, cursor, more = [], None, True
    while more:
        page, cursor, more = query.fetch_page(5, start_cursor=cursor)
        found += [person.key.id() for person in page]
    assert found == list(range(12, 0, -1))
    assert ids(query, offset=3, limit=2) == [9, 8]
    assert [key.id() for key in query.fetch(2, keys_only=True)] == [12, 11]


def test_projection(people: list[Any]) -> None:
    rows = Person.query(projection=["age", "joined"]).order(-Person.age, Person.joined).fetch(2)
    assert [(row.age, row.joined.day) for row in rows] == [(24, 5), (24, 10)]
    distinct = Person.query(projection=["age"], distinct_on=["age"]).fetch()
    assert [row.age for row in distinct] == [20, 21, 22, 23, 24]


def test_ancestors(context: Any) -> None:
    parent = Person(id="parent").put()
    child = Person(id="child", parent=parent, age=1).put()
    Person(id="stranger", age=1).put()
    assert {p.key for p in Person.query(ancestor=parent)} == {parent, child}
    assert [p.key for p in Person.query(Person.age == 1, ancestor=parent)] == [child]


def test_more_results_than_one_batch(context: Any) -> None:
    ndb.put_multi([Counter(id=i, n=i) for i in range(1, 701)])
    assert [c.n for c in Counter.query().order(Counter.n)] == list(range(1, 701))
    assert len(Counter.query().fetch(650)) == 650
    assert len(Counter.query().fetch(300)) == 300
    assert Counter.query().count() == 700


def test_namespaces(context: Any) -> None:
    Counter(id=1, n=1, namespace="red").put()
    Counter(id=1, n=2).put()
    assert Counter.get_by_id(1).n == 2
    assert Counter.get_by_id(1, namespace="red").n == 1
    assert [c.n for c in Counter.query(namespace="red")] == [1]
    assert [c.n for c in Counter.query()] == [2]


def test_databases(context: Any, server: Any) -> None:
    Counter(id=1, n=1).put()
    other = ndb.Client(database="other")
    context.eventloop.run()
    found: list[Any] = []

    def look() -> None:
        with other.context():
            found.append(Counter.get_by_id(1))
            Counter(id=1, n=5).put()
            found.append(Counter.query().get().n)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None, 5]
    assert Counter.get_by_id(1).n == 1


def test_a_transaction_commits_or_leaves_nothing(context: Any) -> None:
    @ndb.transactional()
    def create(*, fail: bool) -> Any:
        key = Counter(n=1).put()
        Counter(id="other", n=2).put()
        if fail:
            raise ZeroDivisionError
        return key

    with pytest.raises(ZeroDivisionError):
        create(fail=True)
    assert Counter.query().count() == 0
    assert create(fail=False).get().n == 1
    assert Counter.query().count() == 2


def test_read_only_transactions(context: Any) -> None:
    Counter(id=1, n=1).put()
    assert ndb.transaction(lambda: Counter.get_by_id(1).n, read_only=True) == 1


def test_a_transaction_is_retried_after_contention(context: Any, ndb_client: ndb.Client) -> None:
    Counter(id=1, n=0).put()
    attempts = []

    def interfere() -> None:
        with ndb_client.context():
            Counter(id=1, n=100).put()

    @ndb.transactional()
    def increment() -> None:
        counter = Counter.get_by_id(1)
        attempts.append(counter.n)
        if len(attempts) == 1:
            thread = threading.Thread(target=interfere)
            thread.start()
            thread.join()
        counter.n += 1
        counter.put()

    increment()
    assert attempts == [0, 100]
    assert Counter.get_by_id(1).n == 101


def test_concurrent_increments_are_all_counted(context: Any, ndb_client: ndb.Client) -> None:
    Counter(id=1, n=0).put()

    def work() -> None:
        with ndb_client.context():
            for _ in range(3):

                @ndb.transactional(retries=20)
                def increment() -> None:
                    counter = Counter.get_by_id(1)
                    counter.n += 1
                    counter.put()

                increment()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter.get_by_id(1).n == 9
