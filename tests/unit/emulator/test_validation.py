"""The limits: the table of boundaries, and what it has not: sizes in bytes, whole entities."""

from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.subject import Subject, query, refused, where
from tools.compare.boundaries import boundaries
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.protos import Key, KeyPb, Mutation, PartitionId, Value, ValuePb

KEY = key("K", 1)
ALL = list(boundaries(PROJECT))


@pytest.mark.parametrize("rule", dict.fromkeys(each.rule for each in ALL))
def test_each_rule_in_each_place(engine: Subject, rule: str) -> None:
    """Refused in the service's words, or taken."""
    engine.put(entity(key("A", "x"), a=1, s="x"))
    for boundary in ALL:
        if boundary.rule == rule:
            code, said = "OK", ""
            try:
                engine.call(boundary.rpc, boundary.request)
            except DatastoreError as error:
                code, said = error.code.name, error.message
            assert (code, boundary.said in said) == (boundary.code, True), boundary


def bare(*path: dict[str, Any]) -> KeyPb:
    message = Key()
    for element in path:
        message.path.add(**element)
    return message


def dated(seconds: int, nanos: int = 0) -> ValuePb:
    message = Value()
    message.timestamp_value.seconds, message.timestamp_value.nanos = seconds, nanos
    return message


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (bare({"kind": "K", "name": "ü" * 751}), "1500 bytes"),
        (bare(*[{"kind": "K", "name": "n" * 700}] * 9), "6144 bytes"),
    ],
)
def test_malformed_keys(engine: Subject, wrong: KeyPb, text: str) -> None:
    with refused(text):
        engine.commit(Mutation(delete=wrong))


def _nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels - 1):
        inner = {"x": inner}
    return inner


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"s": "ü" * 751}, "longer than 1500"),
        ({"b": value(b"x" * 1_048_488, indexed=False)}, "longer than 1048487"),
        ({each: value(b"x" * 600_000, indexed=False) for each in "ab"}, "larger than 1048572"),
        ({"at": dated(253_402_300_800)}, "outside|exceeds"),
        ({"at": dated(-62_135_596_801)}, "outside|exceeds"),
        ({"at": dated(0, 1_000_000_000)}, "outside|exceeds"),
        ({"many": list(range(20_001))}, "20000 index entries"),
    ],
)
def test_refused_properties(engine: Subject, properties: dict[str, Any], text: str) -> None:
    with refused(text):
        engine.put(entity(KEY, **properties))
    if "at" in properties:  # a filter is checked as a value is
        with refused(text):
            engine.run(query(filters=where(("at", "<", properties["at"]))))


def test_allowed_extremes(engine: Subject) -> None:
    for allowed in (
        key("k" * 1500, 1),
        key("K", "ü" * 750),
        key("K", -1),
        bare(*[{"kind": "K", "id": 1}] * 100),
        key("K", "__almost", "__reserved_", 1),
    ):
        engine.put(entity(allowed))
        assert len(engine.lookup(allowed).found) == 1
    engine.put(
        entity(
            KEY,
            indexed="x" * 1500,
            unindexed=value(b"x" * 1_000_000, indexed=False),
            inside=value({"text": value("x" * 1501, indexed=False)}, indexed=False),
            nested=_nested(20),
            first=dated(-62_135_596_800),
            last=dated(253_402_300_799, 999_999_999),
        )
    )


def test_commits_are_limited(engine: Subject) -> None:
    megabyte = value(b"x" * 1_048_000, indexed=False)
    commit = [Mutation(upsert=entity(key("K", i + 1), b=megabyte)) for i in range(11)]
    engine.commit(*commit[:10])
    with refused("too big"):
        engine.commit(*commit)


def test_lookups_are_limited(engine: Subject) -> None:
    thousand = [key("K", i + 1) for i in range(1000)]
    assert len(engine.lookup(*thousand).missing) == 1000
    with refused("at most 1000"):
        engine.lookup(*thousand, KEY)
    with refused("at least one"):
        engine.lookup()


def test_keys_are_completed_and_kept_apart(engine: Subject) -> None:
    """Clients may omit the project: both keys are the same, in values too."""
    incomplete = bare({"kind": "K", "id": 1})
    foreign = key("K", 1, project="another")
    inner = value({"in": incomplete})
    inner.entity_value.key.CopyFrom(incomplete)
    many = [incomplete, foreign]
    engine.put(entity(KEY, one=incomplete, many=many, inner=inner))
    expected = value({"in": KEY})
    expected.entity_value.key.CopyFrom(KEY)
    stored = entity(KEY, one=KEY, many=[KEY, foreign], inner=expected)
    assert engine.lookup(KEY).found[0].entity == stored
    for asked in (incomplete, KEY):
        assert engine.identifiers(query(filters=where(("one", "=", asked)))) == [1]
        assert engine.identifiers(query(filters=where(("inner.in", "in", [asked])))) == [1]
    assert engine.identifiers(query(filters=where(("one", "=", foreign)))) == []
    for project, database in ((PROJECT, "named"), ("another", "")):
        place = {"project_id": project, "database_id": database}
        assert len(engine.ask("Lookup", **place, keys=[incomplete]).missing) == 1
    unfinished = bare({"kind": "K"})
    (result,) = engine.commit(Mutation(insert=entity(unfinished))).mutation_results
    (allocated,) = engine.ask("AllocateIds", database_id="named", keys=[unfinished]).keys
    assert result.key.partition_id == PartitionId(project_id=PROJECT)
    assert allocated.partition_id == PartitionId(project_id=PROJECT, database_id="named")
