"""Ways in: by key."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from tests.contract.ndb.ways.models import Household, Open, Person, Pupil
from tests.contract.ndb.ways.tables import Gives, way_in


def key_of(user: str) -> Any:
    return ndb.Key(Person, user)


get = way_in("get", "Key.get")(lambda user: key_of(user).get())
way_in("get_async", "Key.get_async", is_async=True)(lambda user: key_of(user).get_async())
way_in("get_multi", "ndb.get_multi")(lambda user: ndb.get_multi([key_of(user)]))
way_in("get_multi_async", "ndb.get_multi_async", is_async=True)(
    lambda user: ndb.get_multi_async([key_of(user)])
)
way_in("get_by_id", "Model.get_by_id")(lambda user: Person.get_by_id(user))
way_in("get_by_id_async", "Model.get_by_id_async", is_async=True)(
    lambda user: Person.get_by_id_async(user)
)
way_in("get_or_insert, found", "Model.get_or_insert")(
    lambda user: Person.get_or_insert(user, points=7)
)
way_in("get_or_insert_async, found", "Model.get_or_insert_async", is_async=True)(
    lambda user: Person.get_or_insert_async(user, points=7)
)


def _nothing(user: str) -> list[Any]:
    return []


get_or_insert_created = way_in("get_or_insert, created", gives=Gives.CREATED, arrange=_nothing)(
    lambda user: Person.get_or_insert(user, name=user)
)
get_or_insert_async_created = way_in(
    "get_or_insert_async, created", gives=Gives.CREATED, arrange=_nothing
)(lambda user: Person.get_or_insert_async(user, name=user))


def household(user: str) -> list[Any]:
    person = Person(id=user, name=user)
    home = {"street": "Mill Lane", "town": user}
    return [
        person,
        Household(
            id=user,
            name=user,
            homes=[home],
            head=person,
            guest=person,
            kept=person,
            friend=person.key,
        ),
    ]


@way_in("get of a KeyProperty", arrange=household)
def key_property(user: str) -> Any:
    holder = Household.get_by_id(user)
    return holder.friend.get()


@way_in("entity with structured values", model=Household, arrange=household)
def holder_of_structured(user: str) -> Any:
    holder = Household.get_by_id(user)
    assert holder.head.name == holder.guest.name == holder.kept.name == user
    return holder


way_in("value of a LocalStructuredProperty", gives=Gives.NEW, arrange=household)(
    lambda user: Household.get_by_id(user).kept
)
way_in("PolyModel", model=Pupil, arrange=lambda user: [Pupil(id=user, name=user)])(
    lambda user: ndb.Key("Being", user).get()
)


@way_in("Expando", model=Open, arrange=lambda user: [Open(id=user, name=user, mood="good")])
def expando(user: str) -> Any:
    found = Open.get_by_id(user)
    assert found.mood == "good"
    return found
