"""An entity whose lock id changes between read and put: it moves to another user."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")


class Project(userlock.UserModel):
    """Its owner is a property."""

    _lock_id = "owner"
    owner = ndb.StringProperty()
    title = ndb.StringProperty()


class Folder(userlock.UserModel):
    """Its owner is computed."""

    team = ndb.IntegerProperty()

    def _lock_id(self) -> str:
        return f"team-{self.team}"


class Numbered(userlock.UserModel):
    """Its owner is a number, which names the same lock as a string."""

    _lock_id = "owner"
    owner = ndb.IntegerProperty()


@pytest.fixture
def key(context: Any) -> ndb.Key:
    with userlock.global_lock("ann"):
        key = Project(id="p", owner="ann").put()
    context.clear_cache()
    return key


def owner_of(key: ndb.Key) -> str:
    owner: str = key.get(use_cache=False).owner
    return owner


BOTH = ("bob", "ann")


def give_to_bob(key: ndb.Key) -> None:
    with userlock.global_locks(BOTH):
        project = key.get()
        project.owner = "bob"
        project.put()


@pytest.mark.parametrize(
    ("read_under", "put_under", "refusal"),
    [
        (BOTH, BOTH, None),
        (("ann",), ("ann",), "'bob' is not held"),
        (("bob",), ("bob",), "'ann' is not held"),
        (("ann",), BOTH, None),
        (("bob",), BOTH, "'ann' was not held when it was read"),
        (BOTH, ("bob",), "'ann' is not held"),
    ],
)
def test_from_ann_to_bob(
    key: ndb.Key, read_under: Sequence[str], put_under: Sequence[str], refusal: str | None
) -> None:
    with contextlib.ExitStack() as held:
        for lock in read_under:
            if lock in put_under:
                held.enter_context(userlock.global_lock(lock))
        with contextlib.ExitStack() as released:
            for lock in read_under:
                released.enter_context(userlock.global_lock(lock))
            project = key.get()
        for lock in put_under:
            held.enter_context(userlock.global_lock(lock))
        project.owner = "bob"
        if refusal is None:
            project.put()
            assert owner_of(key) == "bob"
            return
        with pytest.raises(userlock.LockIdChanged) as caught:
            project.put()
    error = caught.value
    assert error.lock_id == "bob"
    assert "its lock was 'ann' when it was read and is 'bob' now" in str(error)
    assert refusal in str(error)
    assert "test_from_ann_to_bob" in str(error.read_at)
    assert "test_from_ann_to_bob" in str(error.put_at)
    assert "global_locks" in str(error)
    assert owner_of(key) == "ann"


def test_an_object_from_the_cache(key: ndb.Key) -> None:
    with userlock.global_lock("ann"):
        project = key.get()
        give_to_bob(key)
        assert key.get() is project
    assert owner_of(key) == "bob"


def test_and_put_again_under_the_new_one(key: ndb.Key) -> None:
    with userlock.global_lock("bob"):
        with userlock.global_lock("ann"):
            project = key.get()
            project.owner = "bob"
            project.put()
        project.title = "Moved"
        project.put()
    assert key.get(use_cache=False).title == "Moved"


def test_a_computed_owner() -> None:
    with userlock.global_locks(["team-1", "team-2"]):
        key = Folder(team=1).put()
        folder = key.get(use_cache=False)
        folder.team = 2
        folder.put()
        folder.team = 3
        with pytest.raises(userlock.LockIdChanged):
            folder.put()


def test_a_number_and_its_string_are_one_owner() -> None:
    with userlock.global_lock(17):
        key = Numbered(owner=17).put()
        numbered = key.get(use_cache=False)
        numbered.put()
        key.get(use_cache=False)
        numbered.put()


def test_the_old_owners_lease_runs_out_before_the_commit(key: ndb.Key, clock: ManualClock) -> None:
    def slowly() -> None:
        project = key.get()
        project.owner = "bob"
        project.put()
        clock.advance(6)

    with (
        userlock.global_lock("bob"),
        userlock.global_lock("ann", lock_timeout=5),
        pytest.raises(userlock.LeaseRanOut, match="about to commit"),
    ):
        ndb.transaction(slowly)
    assert owner_of(key) == "ann"


def test_both_locks_are_kept_until_the_put_has_landed(
    key: ndb.Key, store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("bob"):
        with userlock.global_lock("ann"):
            project = key.get()
            project.owner = "bob"
            future = project.put_async()
        assert future.done(), "the next holder of ann's lock must not find it under way"


def test_under_the_new_owners_lock_the_cache_does_not_answer(
    key: ndb.Key, elsewhere: Elsewhere
) -> None:
    """Its answer would name the former owner: it was read before the lock."""

    key.get()
    elsewhere(functools.partial(give_to_bob, key))
    with userlock.global_lock("bob"):
        assert key.get().owner == "bob"
        (found,) = Project.query(Project.owner == "bob").fetch()
        assert found.owner == "bob"


@pytest.mark.parametrize("run", [lambda work: work(), ndb.transaction], ids=["plain", "in one"])
def test_it_is_fetched_under_the_new_owners_lock(
    key: ndb.Key, elsewhere: Elsewhere, run: Callable[[Callable[[], None]], None]
) -> None:
    early = key.get()
    elsewhere(functools.partial(give_to_bob, key))

    def rename() -> None:
        with userlock.fetch_under_user_write_lock(early) as project:
            project.title = "X"
            project.put()

    run(rename)
    assert owner_of(key) == "bob"
    assert key.get(use_cache=False).title == "X"
    assert userlock.holder("ann") is userlock.holder("bob") is None
