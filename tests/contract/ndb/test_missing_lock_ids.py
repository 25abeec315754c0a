"""Entities that do not say which lock guards them."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import DELETES, PUTS, Elsewhere, Put

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


def nobodys() -> ndb.Key:
    return ndb.Key(Shelf, "nobody's")


FAILED = r"_lock_id_from_key\(\) failed \(ValueError: substring not found\)"


def arranged() -> None:
    with userlock.suppress("arranging data"):
        Loan(id="old", days=1).put()
        Shelf(key=nobodys(), books=1).put()
    ndb.get_context().clear_cache()


class TestPuts:
    @pytest.mark.parametrize(
        ("value", "gives"), [(None, "None"), ("", "''")], ids=["none", "empty"]
    )
    def test_a_property_that_is_not_set(self, value: str | None, gives: str, put: Put) -> None:
        loan = Loan(id="new", reader=value)
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing) as caught:
            put(loan)
        assert isinstance(caught.value, userlock.LockIdError)
        assert f"'reader' gives {gives}" in caught.value.reason
        assert caught.value.reason in str(caught.value)
        assert caught.value.lock_id is None
        assert caught.value.key == loan.key
        assert caught.value.put_at is not None
        assert loan.key.get(use_cache=False) is None

    def test_a_rule_that_fails(self, put: Put) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing, match=FAILED):
            put(Shelf(key=nobodys()))

    def test_it_can_be_corrected_and_put(self) -> None:
        loan = Loan(id="new")
        with userlock.global_lock("ann"):
            with pytest.raises(userlock.LockIdMissing):
                loan.put()
            loan.reader = "ann"
            loan.put()
        assert loan.key.get(use_cache=False) is not None


class TestDeletes:
    def test_a_rule_that_fails(self, delete: Put) -> None:
        arranged()
        shelf = nobodys().get()
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdMissing, match=FAILED):
            delete(shelf)
        assert nobodys().get(use_cache=False) is not None


def test_reads_are_silent() -> None:
    arranged()
    with userlock.global_lock("ann"):
        for _ in range(2):  # from the context cache, the second time
            assert nobodys().get().books == 1
            assert Shelf.get_by_id("nobody else's") is None
            assert Loan.get_by_id("old").days == 1


@pytest.fixture(params=["log", "off"])
def _let_pass(request: pytest.FixtureRequest) -> None:
    userlock.configure(enforcement=request.param)


@pytest.mark.usefixtures("_let_pass")
class TestToleratedWrites:
    """Data from before there was a lock is written as before, and fenced."""

    def test_puts(self, put: Put) -> None:
        arranged()
        for entity in (Loan.get_by_id("old"), nobodys().get()):
            entity.populate(**{name: 2 for name in ("days", "books") if hasattr(entity, name)})
            put(entity)
        assert Loan.get_by_id("old", use_cache=False).days == 2
        assert nobodys().get(use_cache=False).books == 2

    def test_deletes(self, delete: Put) -> None:
        arranged()
        for entity in (Loan.get_by_id("old"), nobodys().get()):
            delete(entity)
            assert entity.key.get(use_cache=False) is None

    def test_they_are_fenced(self, elsewhere: Elsewhere) -> None:
        arranged()
        loan = Loan.get_by_id("old")

        def change() -> None:
            other = Loan.get_by_id("old")
            other.days = 100
            with userlock.suppress("of somebody else"):
                other.put()

        elsewhere(change)
        with pytest.raises(userlock.StaleWriteError):
            loan.put()
        assert Loan.get_by_id("old", use_cache=False).days == 100


def test_a_part_without_a_lock_id_is_reported_as_a_part_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not put either: Datastore reports no version of a part, so it cannot be fenced."""
    arranged()
    userlock.configure(enforcement="log")
    with pytest.raises(userlock.WriteNotFenced, match="without its version"):
        Loan.query().get(projection=["days"]).put()
    (record,) = caplog.records
    assert "PartialEntityPut" in record.getMessage()


def test_each_site_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    arranged()
    userlock.configure(enforcement="log")
    caplog.set_level(logging.INFO, logger="userlock")
    for _ in range(3):
        PUTS["put"](Loan.get_by_id("old"))
    (record,) = caplog.records
    assert "LockIdMissing" in record.getMessage()
    assert "'reader' gives None" in record.getMessage()
    caplog.clear()
    DELETES["delete"](nobodys().get())
    (record,) = caplog.records
    assert "deleted at: " in record.getMessage()


def test_the_traceback_is_not_longer_than_it_needs_to_be() -> None:
    with pytest.raises(userlock.LockIdMissing) as caught:
        Loan(id="new", days=1).put()
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1
