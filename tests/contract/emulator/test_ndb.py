"""The package google-cloud-ndb with the emulator."""

from __future__ import annotations

import datetime
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


@pytest.fixture
def context(ndb_client: ndb.Client) -> Iterator[Any]:
    with ndb_client.context() as context:
        # Without this ndb would answer from its own writes.
        context.set_cache_policy(lambda key: False)
        yield context


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
