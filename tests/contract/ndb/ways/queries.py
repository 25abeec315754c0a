"""Ways in: by query."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from tests.contract.ndb.ways.lookups import household
from tests.contract.ndb.ways.models import Being, Home, Household, Person, Pupil
from tests.contract.ndb.ways.tables import Gives, way_in


def query(user: str) -> Any:
    return Person.query(Person.name == user)


fetch = way_in("query, fetch", "Query.fetch")(lambda user: query(user).fetch())
way_in("query, fetch_async", "Query.fetch_async", is_async=True, sent_at_once=True)(
    lambda user: query(user).fetch_async()
)
way_in("query, get", "Query.get")(lambda user: query(user).get())
way_in("query, get_async", "Query.get_async", is_async=True, sent_at_once=True)(
    lambda user: query(user).get_async()
)


@way_in("query, fetch_page", "Query.fetch_page")
def fetch_page(user: str) -> Any:
    people, _, _ = query(user).fetch_page(10)
    return people


way_in("query, fetch_page_async", "Query.fetch_page_async", is_async=True, sent_at_once=True)(
    lambda user: query(user).fetch_page_async(10)
)
way_in("query, iterated")(lambda user: list(query(user)))


@way_in("query, iter", "Query.iter", "QueryIterator.next", "QueryIterator.has_next")
def iterator(user: str) -> Any:
    results = query(user).iter()
    assert results.has_next()
    return results.next()


@way_in(
    "query, iter in a tasklet", "QueryIterator.has_next_async", is_async=True, sent_at_once=True
)
def iterator_in_a_tasklet(user: str) -> Any:
    @ndb.tasklet
    def first() -> Any:
        results = query(user).iter()
        assert (yield results.has_next_async())
        return results.next()

    return first()


way_in("query, map", "Query.map")(lambda user: query(user).map(lambda person: person))
way_in("query, map_async", "Query.map_async", is_async=True, sent_at_once=True)(
    lambda user: query(user).map_async(lambda person: person)
)
way_in("query with OR")(
    lambda user: Person.query(ndb.OR(Person.name == user, Person.name == f"{user}, too")).fetch()
)
way_in("query filtered by ndb", model=Household, arrange=household)(
    lambda user: Household.query(Household.homes == Home(street="Mill Lane", town=user)).fetch()
)
way_in("query of a PolyModel", model=Pupil, arrange=lambda user: [Pupil(id=user, name=user)])(
    lambda user: Being.query(Being.name == user).fetch()
)
way_in("query without a kind")(lambda user: ndb.Query(ancestor=ndb.Key(Person, user)).fetch())
way_in("keys_only, then get")(lambda user: query(user).get(keys_only=True).get())
way_in("GQL", "ndb.gql")(
    lambda user: ndb.gql("SELECT * FROM WaysPerson WHERE name = :1", user).get()
)
way_in("GQL of a model", "Model.gql")(lambda user: Person.gql("WHERE name = :1", user).get())
projection = way_in("projection", gives=Gives.PARTIAL)(
    lambda user: query(user).fetch(projection=[Person.points])
)
way_in("distinct", gives=Gives.PARTIAL)(
    lambda user: Person.query(
        Person.name == user, projection=[Person.points], distinct=True
    ).fetch()
)
way_in("GQL, projection", gives=Gives.PARTIAL)(
    lambda user: ndb.gql("SELECT points FROM WaysPerson WHERE name = :1", user).get()
)
