"""Claim and entity change in one commit.

Creations, renames, archiving, exchanges, deletes in any order: `tests/property/test_claims.py`.
"""

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
from userlock.constraints import Unique
from userlock.constraints.audit import Audit
from userlock.constraints.claims import ClaimRow
from userlock.testing import allow_unlocked

pytestmark = [pytest.mark.usefixtures("context", "quick_retries")]


def test_the_error_names_constraint_value_and_holder() -> None:
    first = put("Summer")
    with pytest.raises(userlock.NotUnique) as caught:
        put("SUMMER")
    error = caught.value
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


def test_a_refused_value_is_not_stored_by_a_later_put() -> None:
    put("Summer")
    second = put("Winter")
    with userlock.global_lock("ann"):
        second = second.key.get(use_cache=False)
        second.title = "Summer"
        for _ in range(2):
            with pytest.raises(userlock.NotUnique):
                second.put()
        second = second.key.get(use_cache=False)
        second.points = 3
        second.put()
        ndb.Key(Owner, "ann", Campaign, "never there").delete()
    with pytest.raises(userlock.NotUnique):
        put("winter")
    check_claims(Campaign)


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


@EACH_MODE
def test_more_groups_than_a_transaction_may_have() -> None:
    seats = [Seat(id=f"seat-{number}", row="A", number=number) for number in range(30)]
    ndb.put_multi(seats)
    check_claims(Seat)
    assert Seat.query().count() == 30
    with pytest.raises(userlock.NotUnique):
        Seat(row="A", number=29).put()


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


@pytest.mark.parametrize(
    ("error", "existing"),
    [(userlock.CreatedWithoutLock, False), (userlock.EntityExistsError, True)],
)
def test_the_checks_of_the_model_layer_come_first(error: type[Exception], existing: bool) -> None:
    if existing:
        put("Summer", id="x")
    with userlock.global_lock("ann" if existing else "bob"), pytest.raises(error):
        campaign("Winter", id="x").put()
    check_claims(Campaign)


def test_a_stale_write(store: Any) -> None:
    first = put("Summer")
    with userlock.global_lock("ann"):
        old = first.key.get(use_cache=False)
        store.evict("ann")
        with allow_unlocked("the other one of two"):
            fresh = first.key.get(use_cache=False)
            fresh.title = "Winter"
            fresh.put()
        old.title = "Spring"
        with pytest.raises(userlock.StaleObjectPut):
            old.put()
    check_claims(Campaign)


# --- the claim is that of what is stored: namespace, parent, last value --------------------------


class Note(userlock.UserModel):
    """New ones have no key until they are put."""

    _lock_id = "owner"
    _unique = (Unique("title", unless="archived"),)
    owner = ndb.StringProperty()
    title = ndb.StringProperty()
    archived = ndb.BooleanProperty(default=False)


class Top(userlock.UserModel):
    """Has no parent: it is its own owner."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", per="parent"),)
    title = ndb.StringProperty()


def test_an_entity_that_moves_to_another_owner() -> None:
    with userlock.global_locks(["ann", "bob"]):
        Note(id="a", owner="ann", title="list").put()
        Note(id="b", owner="bob", title="list").put()
        moved = Note.get_by_id("a", use_cache=False)
        moved.owner = "bob"
        with pytest.raises(userlock.NotUnique):
            moved.put()
        moved.title = "other"
        moved.put()
        Note(id="c", owner="ann", title="list").put()
    check_claims(Note)


def problems(model: Any) -> list[str]:
    return [f"{each.what} {each.value}" for each in Audit().run(model)]


def test_each_namespace_has_its_own() -> None:
    for name in ("one", "two"):
        tenant = ndb.get_context().new(namespace=name)
        with tenant.use(), userlock.global_lock("ann"):
            Note(owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                Note(owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                Note(id="a", owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                ndb.transaction(lambda: Note(owner="ann", title="x").put())
            assert problems(Note) == []


def test_one_scope_without_a_parent() -> None:
    Top(title="new").put()
    with userlock.global_locks(["a", "b"]):
        Top(id="a", title="x").put()
        for id_ in ("b", None):
            with pytest.raises(userlock.NotUnique):
                Top(id=id_, title="x").put()
    assert problems(Top) == []


def test_a_tasklet_changes_it_while_a_put_waits() -> None:
    """
    this code                    ndb's loop                the tasklet
    put_async, "a"
    title "z"; put: waits for the first one ──────────────▶ title "w"
    stores "w", with the claim of "w"
    """
    with userlock.global_lock("ann"):
        note = Note(id="k", owner="ann", title="a")
        note.put()

        @ndb.tasklet
        def change() -> Any:
            yield ndb.sleep(0)
            note.title = "w"

        first, running = note.put_async(), change()
        note.title = "z"
        note.put()
        running.result()
        first.result()
        stored = ndb.Key(Note, "k").get(use_cache=False).title
        with pytest.raises(userlock.NotUnique):
            Note(id="k2", owner="ann", title=stored).put()
    assert problems(Note) == []


def test_deleted_and_created_again_in_one_transaction() -> None:
    with userlock.global_lock("ann"):
        key = Note(id="k", owner="ann", title="x").put()

        def replace(**values: Any) -> None:
            key.delete()
            Note(key=key, owner="ann", **values).put()

        ndb.transaction(lambda: replace(title="x", archived=True))
        assert problems(Note) == []
        assert ClaimRow.query(namespace="").count() == 0
        ndb.transaction(lambda: replace(title="y"))
        assert problems(Note) == []
        ndb.transaction(lambda: replace(title="y"))
        with pytest.raises(userlock.NotUnique):
            Note(owner="ann", title="y").put()
    check_claims(Note)


def test_many_names_move_in_one_call() -> None:
    with userlock.global_lock("ann"):
        made = [campaign(f"{number}", id=f"{number:03}") for number in range(60)]
        ndb.put_multi(made)
        for each in made:
            each.title = f"{int(each.title) + 1}"
        ndb.put_multi(made)
    assert Campaign.query(ancestor=ndb.Key(Owner, "ann")).count() == 60
    check_claims(Campaign)
    with userlock.global_lock("ann"):
        ndb.delete_multi([each.key for each in made])
    assert ClaimRow.query(namespace="").count() == 0


def test_put_twice_in_one_transaction() -> None:
    with userlock.global_lock("ann"):
        key = Note(id="k", owner="ann", title="x").put()

        def rename_and_put_again() -> None:
            note = key.get()
            note.title = "y"
            note.put()
            note.put()

        ndb.transaction(rename_and_put_again)
        assert problems(Note) == []
        Note(owner="ann", title="x").put()
        with pytest.raises(userlock.NotUnique):
            Note(owner="ann", title="y").put()


def test_a_transaction_does_not_wait_for_the_puts_of_new_entities() -> None:
    """Their ids are allocated at its commit. A plain entity beside them gets its key too."""

    class Plain(ndb.Model):
        pass

    @ndb.transactional()
    def begin_puts() -> list[Any]:
        new = [Campaign(parent=ndb.Key(Owner, "ann"), title="Summer"), Plain()]
        ndb.put_multi_async(new)
        return new

    with userlock.global_lock("ann"):
        assert [each.key.get(use_cache=False) is None for each in begin_puts()] == [False, False]
        with pytest.raises(userlock.NotUnique):
            begin_puts()
    assert Campaign.query().count() == Plain.query().count() == 1
    check_claims(Campaign)
