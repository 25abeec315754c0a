"""Entities that do not say which lock guards them."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from userlock.constraints import Unique
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context")


class Loan(userlock.UserModel):
    """Of the user that a property names; in old data the property is missing."""

    _lock_id = "reader"

    reader = ndb.StringProperty()
    days = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedLoan"


class Shelf(userlock.UserModel):
    """Of the user whose number its key begins with."""

    books = ndb.IntegerProperty(default=0)

    @classmethod
    def _lock_id_from_key(cls, key: Any) -> str:
        number: str = key.id()[: key.id().index("/")]
        return number

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedShelf"


class OwnedShelf(Shelf):
    """Has a claim in its owner's group."""

    _unique = (Unique("books"),)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedOwnedShelf"


def nobodys() -> ndb.Key:
    return ndb.Key(Shelf, "nobody's")


FAILED = r"_lock_id_from_key\(\) failed \(ValueError: substring not found\)"


def arranged() -> None:
    with allow_unlocked("arranging data"):
        Loan(id="old", days=1).put()
        Shelf(key=nobodys(), books=1).put()
    ndb.get_context().clear_cache()


class TestPuts:
    @pytest.mark.parametrize(
        ("value", "gives"), [(None, "None"), ("", "''")], ids=["none", "empty"]
    )
    def test_a_property_that_is_not_set(self, value: str | None, gives: str) -> None:
        loan = Loan(id="new", reader=value)
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing) as caught:
            loan.put()
        assert isinstance(caught.value, userlock.LockIdError)
        assert f"'reader' gives {gives}" in caught.value.reason
        assert caught.value.reason in str(caught.value)
        assert caught.value.lock_id is None
        assert caught.value.key == loan.key
        assert caught.value.put_at is not None
        assert loan.key.get(use_cache=False) is None

    @pytest.mark.parametrize("model", [Shelf, OwnedShelf])
    def test_a_rule_that_fails(self, model: type[Shelf]) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing, match=FAILED):
            model(id="nobody's", books=1).put()


def test_a_delete_by_a_rule_that_fails() -> None:
    arranged()
    shelf = nobodys().get()
    with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing, match=FAILED):
        shelf.key.delete()
    assert nobodys().get(use_cache=False) is not None


@pytest.fixture(params=["log", "off"])
def _let_pass(request: pytest.FixtureRequest) -> None:
    userlock.configure(enforcement=request.param)


@pytest.mark.usefixtures("_let_pass")
class TestToleratedWrites:
    """Data from before there was a lock is written as before, and fenced."""

    def test_puts(self) -> None:
        arranged()
        for entity in (Loan.get_by_id("old"), nobodys().get()):
            entity.populate(**{name: 2 for name in ("days", "books") if hasattr(entity, name)})
            entity.put()
        assert Loan.get_by_id("old", use_cache=False).days == 2
        assert nobodys().get(use_cache=False).books == 2

    def test_deletes(self) -> None:
        arranged()
        for entity in (Loan.get_by_id("old"), nobodys().get()):
            entity.key.delete()
            assert entity.key.get(use_cache=False) is None


@pytest.mark.parametrize("fencing", [True, False])
def test_a_part_without_a_lock_id_is_refused_as_a_part_alone(
    fencing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where violations are only logged: the put would lose the other properties."""
    arranged()
    userlock.configure(enforcement="log", fencing=fencing)
    with pytest.raises(userlock.PartialEntityPut):
        Loan.query().get(projection=["days"]).put()
    assert Loan.get_by_id("old", use_cache=False).days == 1
    (record,) = caplog.records
    assert "PartialEntityPut" in record.getMessage()
