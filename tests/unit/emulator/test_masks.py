"""Property masks of lookups, queries and mutations."""

from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.subject import Subject, query
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.masks import parse_path
from userlock_emulator.datastore.protos import (
    Entity,
    EntityPb,
    LookupRequest,
    Message,
    Mutation,
    RunQueryRequest,
)

KEY = key("K", 1)
PERSON: dict[str, Any] = {
    "name": "Ada",
    "address": {"city": "Rome", "zip": "00100", "geo": {"lat": 1, "lon": 2}},
    "tags": ["x", "y"],
    "a.b": 7,
}


def masked(engine: Subject, *paths: str) -> EntityPb:
    """Return the result of a lookup of `PERSON`."""
    engine.put(entity(KEY, **PERSON))
    request = LookupRequest(project_id=PROJECT, keys=[KEY])
    request.property_mask.paths.extend(paths)
    request.property_mask.SetInParent()
    (found,) = engine.engine.lookup(request).found
    return found.entity


def stored(engine: Subject) -> EntityPb:
    return engine.lookup(KEY).found[0].entity


def write(operation: str, content: EntityPb, *paths: str) -> Message:
    mutation = Mutation(**{operation: content})
    mutation.property_mask.paths.extend(paths)
    mutation.property_mask.SetInParent()
    return mutation


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ((), {}),
        (("__key__",), {}),
        (("name",), {"name": "Ada"}),
        (("name", "missing"), {"name": "Ada"}),
        (("address",), {"address": PERSON["address"]}),
        (("address.city",), {"address": {"city": "Rome"}}),
        (("address.city", "address.geo.lat"), {"address": {"city": "Rome", "geo": {"lat": 1}}}),
        (("address.city", "address"), {"address": PERSON["address"]}),
        (("address", "address.city"), {"address": PERSON["address"]}),
        (("address.missing", "name.x"), {}),
        (("tags.x",), {}),
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
    request = RunQueryRequest(project_id=PROJECT, query=query())
    request.property_mask.paths.append("address.city")
    (result,) = engine.engine.run_query(request).batch.entity_results
    assert result.entity == entity(KEY, address={"city": "Rome"})
    assert result.version == engine.lookup(KEY).found[0].version


@pytest.mark.parametrize("projection", ["__key__", "name"])
def test_a_projection_has_no_mask(engine: Subject, projection: str) -> None:
    request = RunQueryRequest(project_id=PROJECT, query=query(projection=(projection,)))
    request.property_mask.paths.append("name")
    with pytest.raises(DatastoreError, match="projection") as caught:
        engine.engine.run_query(request)
    assert caught.value.code is Code.INVALID_ARGUMENT


class TestWriting:
    @pytest.mark.parametrize("operation", ["update", "upsert"])
    def test_masked_properties_are_updated_or_removed(
        self, engine: Subject, operation: str
    ) -> None:
        engine.put(entity(KEY, a=1, b=2, c=3))
        engine.commit(write(operation, entity(KEY, a=10, c=30), "a", "b"))
        assert stored(engine) == entity(KEY, a=10, c=3)

    @pytest.mark.parametrize("operation", ["insert", "upsert"])
    def test_a_new_entity_has_what_is_masked(self, engine: Subject, operation: str) -> None:
        engine.commit(write(operation, entity(KEY, a=1, b=2), "a"))
        assert stored(engine) == entity(KEY, a=1)

    def test_an_update_still_needs_the_entity(self, engine: Subject) -> None:
        with pytest.raises(DatastoreError) as caught:
            engine.commit(write("update", entity(KEY, a=1), "a"))
        assert caught.value.code is Code.NOT_FOUND

    def test_paths_into_embedded_entities(self, engine: Subject) -> None:
        engine.put(entity(KEY, **PERSON))
        change = entity(KEY, address={"city": "Oslo", "zip": "1"})
        engine.commit(write("upsert", change, "address.city", "address.geo.lon", "name.x"))
        changed = {"city": "Oslo", "zip": "00100", "geo": {"lat": 1}}
        assert stored(engine) == entity(KEY, **{**PERSON, "address": changed})

    def test_an_embedded_entity_is_made_where_there_is_none(self, engine: Subject) -> None:
        engine.put(entity(KEY, address="somewhere"))
        change = entity(KEY, address=value({"city": "Oslo", "zip": "1"}, indexed=False))
        engine.commit(write("upsert", change, "address.city"))
        assert stored(engine) == entity(KEY, address=value({"city": "Oslo"}, indexed=False))

    def test_indexes_follow(self, engine: Subject) -> None:
        engine.put(entity(KEY, a=1, b=2))
        engine.commit(write("upsert", entity(KEY, a=5), "a"))
        assert engine.identifiers(query(orders=("a", "b"))) == [1]
        engine.commit(write("upsert", entity(KEY), "b"))
        assert engine.identifiers(query(orders=("b",))) == []

    def test_one_that_changes_nothing_keeps_the_version(self, engine: Subject) -> None:
        first = engine.put(entity(KEY, a=1, b=2)).mutation_results[0]
        (again,) = engine.commit(write("upsert", entity(KEY, a=1, b=9), "a")).mutation_results
        assert again.version == first.version

    def test_a_deletion_ignores_it(self, engine: Subject) -> None:
        engine.put(entity(KEY, a=1, b=2))
        deletion = Mutation(delete=KEY)
        deletion.property_mask.paths.append("a")
        engine.commit(deletion)
        assert engine.lookup(KEY).missing

    def test_the_key_may_be_in_it(self, engine: Subject) -> None:
        engine.commit(write("upsert", entity(KEY, a=1), "__key__", "a"))
        assert stored(engine) == entity(KEY, a=1)

    @pytest.mark.parametrize("path", ["__secret__", "a.__b__", "", "a..b", ".a", "a.", "a\\b"])
    def test_refused_paths(self, engine: Subject, path: str) -> None:
        with pytest.raises(DatastoreError) as caught:
            engine.commit(write("upsert", entity(KEY, a=1), path))
        assert caught.value.code is Code.INVALID_ARGUMENT

    def test_a_path_into_an_array_is_refused(self, engine: Subject) -> None:
        with pytest.raises(DatastoreError, match="array"):
            engine.commit(write("upsert", entity(KEY, a=[{"b": 1}]), "a.b"))


def test_escapes_in_paths() -> None:
    assert parse_path(r"a\.b.c\\d") == ("a.b", "c\\d")


def test_without_a_mask_everything_is_written(engine: Subject) -> None:
    """The negative control."""
    engine.put(entity(KEY, a=1, b=2))
    engine.commit(Mutation(upsert=entity(KEY, a=5)))
    assert stored(engine) == Entity(key=KEY, properties={"a": value(5)})
