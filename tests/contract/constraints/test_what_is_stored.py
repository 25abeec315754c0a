"""The claim is that of what is stored: in its namespace, below its parent, with its last value."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.constraints.models import Campaign, Owner, campaign, check_claims
from userlock.constraints import Unique
from userlock.constraints.audit import Audit
from userlock.constraints.claims import ClaimRow


class Note(userlock.UserModel):
    """New ones have no key until they are put."""

    _lock_id = "owner"
    _unique = (Unique("title", unless="archived"),)
    owner = ndb.StringProperty()
    title = ndb.StringProperty()
    archived = ndb.BooleanProperty(default=False)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedNote"


class Top(userlock.UserModel):
    """Has no parent: it is its own owner."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", per="parent"),)
    title = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedTop"


def problems(model: Any) -> list[str]:
    return [f"{each.what} {each.value}" for each in Audit().run(model)]


def test_each_namespace_has_its_own(
    ndb_client: ndb.Client, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
    for name in ("one", "two"):
        with ndb_client.context(namespace=name), userlock.global_lock("ann"):
            Note(owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                Note(owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                Note(id="a", owner="ann", title="x").put()
            with pytest.raises(userlock.NotUnique):
                ndb.transaction(lambda: Note(owner="ann", title="x").put())
            assert problems(Note) == []


@pytest.mark.usefixtures("context")
def test_one_scope_without_a_parent() -> None:
    Top(title="new").put()
    with userlock.global_locks(["a", "b"]):
        Top(id="a", title="x").put()
        for id_ in ("b", None):
            with pytest.raises(userlock.NotUnique):
                Top(id=id_, title="x").put()
    assert problems(Top) == []


@pytest.mark.usefixtures("context")
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


@pytest.mark.usefixtures("context")
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


@pytest.mark.usefixtures("context")
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


@pytest.mark.usefixtures("context")
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
