"""Claim and entity change in one commit: creations, renames, moves, deletes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.constraints.models import (
    Campaign,
    Owner,
    Screen,
    Seat,
    campaign,
    check_claims,
    claims,
    put,
)
from userlock.constraints.rows import ClaimRow

pytestmark = [pytest.mark.usefixtures("context", "_quick_retries")]


def refused(title: str, **values: Any) -> userlock.NotUnique:
    with pytest.raises(userlock.NotUnique) as caught:
        put(title, **values)
    return caught.value


def test_the_error_names_constraint_value_and_holder() -> None:
    first = put("Summer")
    error = refused("SUMMER")
    assert error.constraint == "TestedCampaign.title"
    assert error.value == "title 'SUMMER'"
    assert error.holder == first.key
    message = str(error)
    assert "TestedCampaign.title" in message
    assert "title 'SUMMER'" in message
    assert repr(first.key) in message
    assert "constraints/models.py" in str(error.put_at)
    assert [each.title for each in Campaign.query()] == ["Summer"]
    check_claims(Campaign)


def test_another_owner_may_have_the_name() -> None:
    put("Summer")
    put("Summer", owner="bob")
    check_claims(Campaign)


def test_archived_ones_do_not_count() -> None:
    for _ in range(3):
        put("Summer", archived=True)
    assert claims() == {}
    first = put("Summer")
    with userlock.global_lock("ann"):
        first = first.key.get(use_cache=False)
        first.archived = True
        first.put()
        assert claims() == {}
        second = campaign("summer")
        second.put()
        first.archived = False
        with pytest.raises(userlock.NotUnique):
            first.put()
        first.title = "Winter"
        first.put()
    check_claims(Campaign)
    assert len(claims()) == 2


def test_after_a_refusal_the_same_object_can_be_put_again_or_not() -> None:
    """A refused value is not stored, and is refused again."""
    put("Summer")
    second = put("Winter")
    with userlock.global_lock("ann"):
        second = second.key.get(use_cache=False)
        second.title = "Summer"
        for _ in range(3):
            with pytest.raises(userlock.NotUnique):
                second.put()
        second.title = "Winter"
        second.points = 3
        second.put()
    check_claims(Campaign)


def test_a_rename_frees_the_old_name() -> None:
    first = put("Summer")
    with userlock.global_lock("ann"):
        first = first.key.get(use_cache=False)
        first.title = "Winter"
        first.put()
        first.title = "Spring"
        first.put()
        campaign("Summer").put()
        campaign("winter").put()
    check_claims(Campaign)
    assert len(claims()) == 3


def test_a_delete_frees_it() -> None:
    first = put("Summer")
    with userlock.global_lock("ann"):
        first.key.delete()
        assert claims() == {}
        campaign("Summer").put()
        second = campaign("Winter")
        second.put()
        ndb.delete_multi([second.key, ndb.Key(Owner, "ann", Campaign, "never there")])
    check_claims(Campaign)
    assert len(claims()) == 1


def test_deleted_and_put_again() -> None:
    key = put("Summer").key
    ndb.get_context().clear_cache()
    with userlock.global_lock("ann"):
        first = key.get()
        key.delete()
        first.put()
    check_claims(Campaign)
    assert len(claims()) == 1


def test_values_that_are_none_do_not_count() -> None:
    Seat(id="a", row="A").put()
    Seat(id="b", row="A").put()
    Seat(id="c", row="A", number=1).put()
    with pytest.raises(userlock.NotUnique):
        Seat(id="d", row="A", number=1).put()
    check_claims(Seat)


def test_two_constraints() -> None:
    Seat(id="a", row="A", number=1, code="x").put()
    with pytest.raises(userlock.NotUnique, match="by code"):
        Seat(id="b", row="A", number=2, code="x").put()
    Seat(id="b", row="A", number=2, code="y").put()
    with pytest.raises(userlock.NotUnique, match=r"row 'A', number 2"):
        Seat(id="a", row="A", number=2, code="z").put()
    check_claims(Seat)
    assert len(claims()) == 4


def test_an_entity_that_is_overwritten_leaves_its_claims() -> None:
    Seat(id="a", row="A", number=1).put()
    Seat(id="a", row="B", number=1).put()
    check_claims(Seat)
    assert len(claims()) == 1


def test_per_parent_by_a_computed_name() -> None:
    parent = ndb.Key(Owner, "ann", Campaign, "summer")
    other = ndb.Key(Owner, "ann", Campaign, "winter")

    @ndb.transactional()
    def upload(below: Any, file_name: str, state: str = "active") -> Any:
        made = Screen(parent=below, file_name=file_name, state=state)
        made.put()
        return made

    upload(parent, "home.png")
    upload(other, "home.png")
    for same in ("home.jpg", "Home@2x.png", "home@3x.gif"):
        with pytest.raises(userlock.NotUnique):
            upload(parent, same)
    for _ in range(2):
        upload(parent, "home.jpg", state="archived")
    check_claims(Screen)
    assert Screen.query(Screen.base == "home", ancestor=parent).count() == 3


def test_in_a_transaction_the_commit_refuses() -> None:
    put("Summer")
    second = put("Winter")

    @ndb.transactional()
    def rename() -> None:
        found = second.key.get()
        found.title = "summer"
        found.put()
        ndb.Key(Owner, "ann").get()

    with userlock.global_lock("ann"), pytest.raises(userlock.NotUnique) as caught:
        rename()
    assert "test_unique.py" in str(caught.value.put_at)
    check_claims(Campaign)
    assert sorted(each.title for each in Campaign.query()) == ["Summer", "Winter"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_two_exchange_their_names(in_transaction: bool) -> None:
    first, second = put("Summer"), put("Winter")

    def exchange() -> None:
        one, two = ndb.get_multi([first.key, second.key], use_cache=False)
        one.title, two.title = two.title, one.title
        ndb.put_multi([one, two])

    with userlock.global_lock("ann"):
        if in_transaction:
            ndb.transaction(exchange)
        else:
            exchange()
    check_claims(Campaign)
    assert first.key.get(use_cache=False).title == "Winter"


def test_two_of_one_put_multi_want_a_name() -> None:
    with userlock.global_lock("ann"):
        ones = [campaign("Summer"), campaign("Winter"), campaign("summer")]
        futures = ndb.put_multi_async(ones)
        errors = [future.exception() for future in futures if future.wait() is None]
        assert [type(error) for error in errors] == [
            type(None),
            type(None),
            userlock.NotUnique,
        ]
        assert ones[0].key.id()
        assert errors[2].holder == ones[0].key
    check_claims(Campaign)


def test_two_of_one_transaction_want_a_name() -> None:
    with userlock.global_lock("ann"), pytest.raises(userlock.NotUnique):
        ndb.transaction(lambda: ndb.put_multi([campaign("Summer"), campaign("summer")]))
    assert claims() == {}
    assert Campaign.query().count() == 0


def test_many_at_once() -> None:
    with userlock.global_lock("ann"):
        made = [campaign(f"number {number}") for number in range(250)]
        ndb.put_multi(made)
        check_claims(Campaign)
        ndb.delete_multi([each.key for each in made])
    assert claims() == {}
    assert Campaign.query().count() == 0


@EACH_MODE
def test_more_groups_than_a_transaction_may_have() -> None:
    seats = [Seat(id=f"seat-{number}", row="A", number=number) for number in range(70)]
    ndb.put_multi(seats)
    check_claims(Seat)
    assert Seat.query().count() == 70
    with pytest.raises(userlock.NotUnique):
        Seat(row="A", number=69).put()


def test_an_entity_that_moves_to_another_owner() -> None:
    class Note(userlock.UserModel):
        _lock_id = "user_id"
        _unique = (userlock.constraints.Unique("title"),)
        user_id = ndb.StringProperty()
        title = ndb.StringProperty()

    with userlock.global_locks(["ann", "bob"]):
        Note(id="a", user_id="ann", title="list").put()
        Note(id="b", user_id="bob", title="list").put()
        moved = Note.get_by_id("a", use_cache=False)
        moved.user_id = "bob"
        with pytest.raises(userlock.NotUnique):
            moved.put()
        moved.title = "other"
        moved.put()
        Note(id="c", user_id="ann", title="list").put()
    check_claims(Note)


def test_get_or_insert() -> None:
    put("Summer")
    with userlock.global_lock("ann"):
        parent = ndb.Key(Owner, "ann")
        with pytest.raises(userlock.NotUnique):
            Campaign.get_or_insert("x", parent=parent, title="summer")
        made = Campaign.get_or_insert("x", parent=parent, title="winter")
        again = Campaign.get_or_insert("x", parent=parent, title="winter")
        assert made == again
    check_claims(Campaign)


def test_the_lists_are_no_part_of_the_dict() -> None:
    made = put("Summer")
    assert set(made.to_dict()) == {"title", "archived", "points", "note"}
    assert len(made.userlock_claims) == 1


def test_no_other_code_writes_the_rows() -> None:
    put("Summer")
    (row,) = ClaimRow.query(namespace="").fetch(use_cache=False)
    with pytest.raises(userlock.NotInTransaction):
        row.key.delete()


class TestViolations:
    """The checks of the model layer come first, with claims as without."""

    def test_put_without_lock(self) -> None:
        with pytest.raises(userlock.CreatedWithoutLock):
            campaign("Summer").put()
        assert claims() == {}

    def test_stale_write(self, store: Any) -> None:
        first = put("Summer")
        with userlock.global_lock("ann"):
            old = first.key.get(use_cache=False)
            store.evict("ann")
            with userlock.suppress("the other one of two"):
                fresh = first.key.get(use_cache=False)
                fresh.title = "Winter"
                fresh.put()
            old.title = "Spring"
            with pytest.raises(userlock.StaleObjectPut):
                old.put()
        check_claims(Campaign)

    def test_existing(self) -> None:
        with userlock.global_lock("ann"):
            Campaign(id="x", parent=ndb.Key(Owner, "ann"), title="a").put()
            with pytest.raises(userlock.EntityExistsError):
                Campaign(id="x", parent=ndb.Key(Owner, "ann"), title="b").put()
        check_claims(Campaign)
