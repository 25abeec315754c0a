"""Constraints that cannot hold are refused when the class is defined."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import polymodel

import userlock
from userlock.constraints import Unique
from userlock.constraints.claims import ClaimRow


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open a context without a server, for keys."""
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
    with ndb.Client(project="p").context():
        yield


def define(unique: Any, base: Any = userlock.UserModel, **more: Any) -> Any:
    """Define a model with a title, under the lock of its root."""
    names = {
        "_lock_id_from_key": userlock.root_id,
        "_unique": unique,
        "title": ndb.StringProperty(),
        "tags": ndb.StringProperty(repeated=True),
        **more,
    }
    return type("DefinedModel", (base,), {k: v for k, v in names.items() if v is not None})


async def _later(entity: Any) -> bool:
    return False


PLAIN = {"base": userlock.Model, "_lock_id_from_key": None}


@pytest.mark.parametrize(
    ("unique", "more", "message"),
    [
        (Unique("title"), {}, "must be a list"),
        (["title"], {}, "must be a list"),
        ([Unique("nothing")], {}, "names no property: 'nothing'"),
        ([Unique("title", unless="nothing")], {}, "names no property: 'nothing'"),
        ([Unique("tags")], {}, "'tags' is repeated"),
        ([Unique("title"), Unique("title")], {}, "two constraints of one name"),
        ([Unique("title", name="é" * 400)], {}, None),
        ([Unique("title", name="🔒" * 400)], {}, "more than 1500 bytes"),
        ([Unique("title")], {"userlock_claims": ndb.StringProperty()}, "rename the property"),
        ([Unique("title")], {"_lock_id_from_key": userlock.key_id}, "its own owner"),
        ([Unique("title", per="all")], {"_lock_id_from_key": userlock.key_id}, None),
        (
            [Unique("title")],
            {**PLAIN, "_write_policy": userlock.WritePolicy.IN_TRANSACTION},
            "have no owner",
        ),
        (
            [Unique("title", per="all")],
            {**PLAIN, "_write_policy": userlock.WritePolicy.STRUCTURED_ONLY},
            "never put",
        ),
    ],
)
def test_constraints_that_do_not_fit(
    unique: Any, more: dict[str, Any], message: str | None
) -> None:
    if message is None:
        define(unique, **more)
        return
    with pytest.raises(userlock.ConfigurationError, match=message):
        define(unique, **more)


@pytest.mark.parametrize(
    "arguments",
    [
        {"properties": ()},
        {"properties": (1,)},
        {"properties": ("title", "title")},
        {"properties": ("title",), "per": "site"},
        {"properties": ("title",), "fold": 7},
        {"properties": ("title",), "fold": {"other": str.casefold}},
        {"properties": ("title",), "fold": {"title": "casefold"}},
        {"properties": ("title",), "unless": 7},
        {"properties": ("title",), "unless": _later},
        {"properties": ("title",), "name": ""},
        {"properties": ("title",), "name": "a=b"},
        {"properties": ("title",), "name": 3},
        {"properties": ("title",), "name": "x" * 401},
        {"properties": ("title",), "name": "of.another"},  # as of the kind "DefinedModel.of"
    ],
)
def test_arguments_of_no_use(arguments: dict[str, Any]) -> None:
    properties = arguments.pop("properties")
    with pytest.raises(userlock.ConfigurationError):
        Unique(*properties, **arguments)


def test_a_hierarchy_has_the_constraints_of_its_root() -> None:
    root = define([Unique("title")], userlock.UserModel)

    animal: Any = type("Animal", (root, polymodel.PolyModel), {})
    dog: Any = type("Dog", (animal,), {})
    assert dog._unique is animal._unique
    with pytest.raises(userlock.ConfigurationError, match="root of its PolyModel"):
        type("Cat", (animal,), {"_unique": [Unique("title")]})


def test_an_abstract_base_may_have_them() -> None:
    base = define(
        [Unique("title")],
        _write_policy=userlock.WritePolicy.ABSTRACT,
        _lock_id_from_key=None,
    )

    concrete: Any = type("Concrete", (base,), {"_lock_id_from_key": userlock.root_id})
    entity = concrete(parent=ndb.Key("User", "ann"), title="Summer")
    assert concrete._unique[0].claim_of(entity, "ann") is not None


# --- the rows ---------------------------------------------------------------------------------


def row(value: Any, kind: Any = ndb.GenericProperty, **options: Any) -> Any:
    """Return the key of a row, of an entity with that value."""
    model = define([Unique("thing", per="all", **options)], thing=kind())
    claim = model._unique[0].claim_of(model(parent=ndb.Key("User", "ann"), thing=value), "ann")
    return None if claim is None else claim.key


def test_different_values_have_different_rows() -> None:
    moment = datetime.datetime.fromisoformat("2024-03-14 09:30")
    values = ["1", 1, True, b"1", moment, moment.date(), moment.time(), ndb.Key("A", 1), ""]
    values += [
        ndb.Key("A", 1, **of) for of in ({"database": "d"}, {"namespace": "d"}, {"app": "d"})
    ]
    rows = [row(value) for value in values]
    assert len(set(rows)) == len(values)
    assert all(each.kind() == ClaimRow._get_kind() for each in rows)


class Lower(ndb.StringProperty):
    def _to_base_type(self, value: str) -> str:
        return value.lower()


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (Lower, "Ann", "ann"),
        (ndb.StringProperty, b"Caf\xc3\xa9", "Café"),
        (ndb.TextProperty, b"Summer", "Summer"),
        (
            ndb.DateProperty,
            datetime.datetime.fromisoformat("2024-03-14 09:30"),
            datetime.date(2024, 3, 14),
        ),
        (ndb.TimeProperty, datetime.time(9, 30, tzinfo=datetime.UTC), datetime.time(9, 30)),
    ],
)
def test_a_value_that_is_stored_as_another(kind: Any, value: Any, stored: Any) -> None:
    assert row(value, kind) == row(stored, kind)


def test_long_and_unprintable_values_have_rows() -> None:
    keys = {row("x" * 5_000), row("x" * 5_001), row("a\nb"), row("\N{GRINNING FACE}" * 400)}
    assert len(keys) == 4
    assert all(len(key.id().encode()) <= 1_500 for key in keys)


def test_none_has_no_row() -> None:
    assert row(None) is None
    assert row("x", fold=lambda value: None) is None
    for value in (1.5, {"a": 1}):
        with pytest.raises(TypeError, match="fold="):
            row(value)


def test_the_scope_is_part_of_the_row() -> None:
    for per in ("owner", "parent", "all"):
        model = define([Unique("title", per=per)])
        parents = [ndb.Key("User", "ann"), ndb.Key("User", "bob")]
        parents += [ndb.Key("User", "ann", namespace="other")]
        rows = {
            model._unique[0].claim_of(model(parent=parent, title="x"), parent.id()).key
            for parent in parents
        }
        assert len(rows) == (2 if per == "all" else 3)


@pytest.mark.parametrize(
    "property_", [ndb.FloatProperty(), ndb.GeoPtProperty(), ndb.StructuredProperty(ndb.Model)]
)
def test_properties_whose_values_cannot_be_unique(property_: Any) -> None:
    with pytest.raises(userlock.ConfigurationError, match=r"fold=\{'price': function\}"):
        define([Unique("price")], price=property_)
    define([Unique("price", fold={"price": str})], price=property_)


def test_a_function_for_texts_where_there_are_none() -> None:
    day = ndb.DateTimeProperty()
    with pytest.raises(userlock.ConfigurationError, match=r"fold=\{'day': function\}"):
        define([Unique("day", fold=lambda day: day.date())], day=day)
    define([Unique("day", fold={"day": lambda day: day.date()})], day=day)
    define([Unique("day", "title", fold=str.casefold)], day=day)


def test_a_new_entity_without_an_owner() -> None:
    model = define([Unique("title")])
    with pytest.raises(userlock.LockIdError, match="no owner yet"):
        model._unique[0].claim_of(model(title="x"), None)
