"""Property masks of lookups, queries and mutations."""

from typing import Any

import pytest

from tests.unit.emulator.builders import entity, key, value
from tests.unit.emulator.subject import Subject, query, refused
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import EntityPb, Message, Mutation

KEY = key("K", 1)
PERSON: dict[str, Any] = {
    "name": "Ada",
    "address": {"city": "Rome", "zip": "00100", "geo": {"lat": 1, "lon": 2}},
    "tags": ["x", "y"],
    "a.b": 7,
}


def masked(engine: Subject, *paths: str) -> EntityPb:
    engine.put(entity(KEY, **PERSON))
    (found,) = engine.ask("Lookup", keys=[KEY], property_mask={"paths": paths}).found
    return found.entity


def write(operation: str, content: EntityPb, *paths: str) -> Message:
    return Mutation(**{operation: content}, property_mask={"paths": paths})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ((), {}),
        (("name",), {"name": "Ada"}),
        (("address",), {"address": PERSON["address"]}),
        (("address.city", "address.geo.lat"), {"address": {"city": "Rome", "geo": {"lat": 1}}}),
        (("address.city", "address"), {"address": PERSON["address"]}),
        (("address", "address.city"), {"address": PERSON["address"]}),
        (("address.missing", "name.x"), {}),
        (("a\\.b",), {"a.b": 7}),
        (("a.b",), {}),
    ],
)
def test_a_lookup_returns_what_its_mask_covers(
    engine: Subject, paths: tuple[str, ...], expected: dict[str, Any]
) -> None:
    assert masked(engine, *paths) == entity(KEY, **expected)


def test_a_query_returns_what_its_mask_covers(engine: Subject) -> None:
    engine.put(entity(KEY, **PERSON))
    mask = {"paths": ["address.city"]}
    (result,) = engine.ask("RunQuery", query=query(), property_mask=mask).batch.entity_results
    assert result.entity == entity(KEY, address={"city": "Rome"})
    assert result.version == engine.lookup(KEY).found[0].version
    keys = query(projection=("__key__",))
    (result,) = engine.ask("RunQuery", query=keys, property_mask=mask).batch.entity_results
    assert result.entity == entity(KEY)
    with refused("projection"):
        engine.ask("RunQuery", query=query(projection=("name",)), property_mask=mask)


class TestWriting:
    @pytest.mark.parametrize(
        ("operation", "before", "change", "paths", "after"),
        [
            # Masked properties are updated or removed.
            ("update", {"a": 1, "b": 2, "c": 3}, {"a": 10, "c": 30}, "a b", {"a": 10, "c": 3}),
            ("upsert", {"a": 1}, {"a": 2}, "__key__ a", {"a": 2}),
            ("upsert", {"a": 1, "b": 2}, {"a": 5}, None, {"a": 5}),  # the negative control
            # A new entity has what is masked.
            ("upsert", None, {"a": 1, "b": 2}, "a", {"a": 1}),
            (
                "upsert",
                PERSON,
                {"address": {"city": "Oslo", "zip": "1"}},
                "address.city address.geo.lon name.x",
                {**PERSON, "address": {"city": "Oslo", "zip": "00100", "geo": {"lat": 1}}},
            ),
            # An embedded entity is made where there is none.
            (
                "upsert",
                {"address": "somewhere"},
                {"address": value({"city": "Oslo", "zip": "1"}, indexed=False)},
                "address.city",
                {"address": value({"city": "Oslo"}, indexed=False)},
            ),
            (
                "upsert",
                {r"c\d": {"x.y": 1, "z": 1}},
                {r"c\d": {"x.y": 2}},
                r"c\\d.x\.y",
                {r"c\d": {"x.y": 2, "z": 1}},
            ),
        ],
    )
    def test_what_is_written(
        self,
        engine: Subject,
        operation: str,
        before: dict[str, Any] | None,
        change: dict[str, Any],
        paths: str | None,
        after: dict[str, Any],
    ) -> None:
        if before is not None:
            engine.put(entity(KEY, **before))
        content = entity(KEY, **change)
        engine.commit(
            Mutation(**{operation: content})
            if paths is None
            else write(operation, content, *paths.split())
        )
        assert engine.get(KEY) == entity(KEY, **after)

    def test_indexes_and_versions_follow(self, engine: Subject) -> None:
        engine.put(entity(KEY, a=1, b=2))
        engine.commit(write("upsert", entity(KEY, a=5), "a"))
        assert engine.identifiers(query(orders=("a", "b"))) == [1]
        (changed,) = engine.commit(write("upsert", entity(KEY), "b")).mutation_results
        assert engine.identifiers(query(orders=("b",))) == []
        (same,) = engine.commit(write("upsert", entity(KEY, a=5, b=9), "a")).mutation_results
        assert same.version == changed.version, "nothing has changed"
        engine.commit(Mutation(delete=KEY, property_mask={"paths": ["a"]}))
        assert engine.lookup(KEY).missing, "a deletion ignores it"

    def test_refused_paths(self, engine: Subject) -> None:
        with refused():
            engine.commit(write("upsert", entity(KEY, a=1, list=[{"b": 1}]), "list.b"))
        with pytest.raises(DatastoreError) as caught:
            engine.commit(write("update", entity(KEY, a=1), "a"))
        assert caught.value.code is Code.NOT_FOUND, "an update still needs the entity"
