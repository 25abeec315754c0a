"""Each write policy: the writes that it allows and refuses."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import DELETES, PUTS, Elsewhere, Put, arranged, check_policy_message

pytestmark = pytest.mark.usefixtures("context")

#: Where a policy is checked, all ways of writing meet.
EACH_PUT = pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
EACH_DELETE = pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES)


class Receipt(userlock.Model):
    _write_policy = userlock.WritePolicy.WRITE_ONCE
    _overwrites = True  # which has no say here
    cents = ndb.IntegerProperty(default=0, required=True)


class Imported(userlock.Model):
    _write_policy = userlock.WritePolicy.NEVER_WRITTEN
    cents = ndb.IntegerProperty(default=0)


class Badge(userlock.Model):
    _write_policy = userlock.WritePolicy.BATCH_ONLY
    days = ndb.IntegerProperty(default=0)


class Base(userlock.Model):
    _write_policy = userlock.WritePolicy.ABSTRACT


class Address(userlock.Model):
    _write_policy = userlock.WritePolicy.STRUCTURED_ONLY
    city = ndb.StringProperty()


class LastSeen(userlock.UserModel):
    _write_policy = userlock.WritePolicy.unsafe("a lost one does not matter")
    page = ndb.StringProperty()


class School(userlock.Model):
    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    address = ndb.StructuredProperty(Address)
    others = ndb.LocalStructuredProperty(Address, repeated=True)


def see_the_badges() -> None:
    """Look at the badges, as a request."""
    seen = LastSeen.get_by_id("ann")
    seen.page = "/badges"
    seen.put()


class TestWriteOnce:
    def test_created_without_a_lock(self) -> None:
        receipt = Receipt(id="r1", cents=5)
        receipt.put()
        assert receipt.key.get(use_cache=False).cents == 5

    @EACH_PUT
    def test_put_again(self, put: Put) -> None:
        receipt = Receipt(id="r1", cents=5)
        receipt.put()
        receipt.cents = 6
        with pytest.raises(userlock.ImmutableEntityRewritten) as caught:
            put(receipt)
        check_policy_message(caught.value, receipt)
        assert receipt.key.get(use_cache=False).cents == 5

    def test_put_twice_in_a_transaction(self) -> None:
        def twice() -> None:
            receipt = Receipt(id="r1")
            receipt.put()
            receipt.put()

        with pytest.raises(userlock.ImmutableEntityRewritten):
            ndb.transaction(twice)

    def test_a_retried_transaction_may_put_its_object_again(self) -> None:
        receipt = Receipt(id="r1")
        attempts: list[int] = []

        @ndb.transactional(retries=1)
        def create() -> None:
            attempts.append(1)
            receipt.put()
            if len(attempts) == 1:
                raise google_errors.Aborted("contention")

        create()
        assert len(attempts) == 2

    def test_a_new_object_of_a_key_that_exists_is_refused_by_the_insert(self) -> None:
        arranged(Receipt(id="r1", cents=5))
        with pytest.raises(userlock.EntityExistsError):
            Receipt(id="r1", cents=6).put()
        assert Receipt.get_by_id("r1", use_cache=False).cents == 5

    def test_may_be_deleted(self) -> None:
        arranged(Receipt(id="r1")).key.delete()
        assert Receipt.get_by_id("r1", use_cache=False) is None


class TestNeverWritten:
    @EACH_PUT
    def test_puts(self, put: Put) -> None:
        for entity in (arranged(Imported(id="i1")), Imported(id="i2"), Imported()):
            with pytest.raises(userlock.ReadOnlyModelWritten) as caught:
                put(entity)
            check_policy_message(caught.value, entity)
        assert Imported.query().count() == 1

    @EACH_DELETE
    def test_deletes(self, delete: Put) -> None:
        with pytest.raises(userlock.ReadOnlyModelWritten):
            delete(arranged(Imported(id="i1")))
        assert Imported.query().count() == 1


class TestBatchOnly:
    def test_in_a_batch_scope(self) -> None:
        with userlock.scope(priority="batch"):
            badge = Badge(id="b1")
            badge.put()
            badge.days = 2
            badge.put()
            badge.key.delete()

    def test_in_a_request(self) -> None:
        with (
            userlock.scope(request="POST /badges"),
            pytest.raises(
                userlock.BatchOnlyModelWritten, match="POST /badges is interactive"
            ) as caught,
        ):
            Badge(id="b1").put()
        check_policy_message(caught.value, Badge(id="b1"))

    def test_in_a_request_that_is_batch_by_a_header_alone(self) -> None:
        with userlock.scope(priority="batch", request="POST /badges") as scope:
            scope.batch_work = False  # as integrations do where a header alone says so
            with pytest.raises(
                userlock.BatchOnlyModelWritten,
                match="POST /badges is batch by a header that anybody",
            ) as caught:
                Badge(id="b1").put()
            for option in ("batch_prefixes", "trusted_headers"):
                assert option in str(caught.value)
            with userlock.global_lock("ann"), pytest.raises(userlock.BatchOnlyModelWritten):
                Badge(id="b1").put()
            with userlock.scope(), pytest.raises(userlock.BatchOnlyModelWritten):
                Badge(id="b1").put()
            with userlock.scope(priority="batch"):  # the code's own word
                Badge(id="b1").put()

    def test_a_batch_lock_in_a_request_makes_no_batch(self) -> None:
        with (
            userlock.scope(),
            userlock.global_lock("ann", priority="batch"),
            pytest.raises(userlock.BatchOnlyModelWritten),
        ):
            Badge(id="b1").put()

    def test_outside_any_scope(self) -> None:
        with pytest.raises(userlock.BatchOnlyModelWritten, match="there is no scope here"):
            Badge(id="b1").put()
        with pytest.raises(userlock.BatchOnlyModelWritten):
            arranged(Badge(id="b1")).key.delete()


class TestNoEntities:
    def test_abstract(self) -> None:
        with pytest.raises(userlock.AbstractModelWritten):
            Base(id="b").put()
        with pytest.raises(userlock.AbstractModelWritten):
            ndb.Key(Base, "b").delete()
        with pytest.raises(userlock.AbstractModelWritten):
            userlock.UserModel().put()

    def test_structured_only(self) -> None:
        with pytest.raises(userlock.StructuredModelWritten):
            Address(city="Berlin").put()
        with pytest.raises(userlock.StructuredModelWritten):
            ndb.Key(Address, "b").delete()

    def test_as_values_they_are_no_puts(self) -> None:
        School(address=Address(city="Berlin"), others=[Address(city="Bonn")]).put()
        (school,) = School.query().fetch()
        assert school.address.city == "Berlin"
        assert school.others[0].city == "Bonn"


class TestUnsafe:
    def test_nothing_is_checked(self) -> None:
        seen = LastSeen(id="ann", page="/")
        seen.put()
        seen.page = "/badges"
        seen.put()
        LastSeen.get_by_id("ann").put()
        seen.key.delete()

    def test_it_is_fenced_all_the_same(self, elsewhere: Elsewhere) -> None:
        seen = arranged(LastSeen(id="ann"))
        elsewhere(see_the_badges)
        with pytest.raises(userlock.StaleWriteError):
            seen.put()

    def test_it_needs_a_reason(self) -> None:
        with pytest.raises(ValueError, match="needs a reason"):
            userlock.WritePolicy.unsafe(" ")

    def test_it_has_no_lock(self) -> None:
        with pytest.raises(userlock.LockIdError, match="unsafe \\(a lost one does not matter\\)"):
            userlock.lock_id_of(LastSeen(id="ann"))


@pytest.mark.parametrize("model", [Receipt, LastSeen])
def test_a_lock_waits_for_writes_that_need_none(model: type[userlock.Model]) -> None:
    with userlock.global_lock("ann"):
        put = model(id="r1").put_async()
    assert put.done()
    with userlock.global_lock("ann"):
        deleted = ndb.Key(model, "r1").delete_async()
    assert deleted.done()
