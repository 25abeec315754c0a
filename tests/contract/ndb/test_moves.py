"""An entity whose lock id changes between read and put: it moves to another user."""

from __future__ import annotations

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


def move(key: ndb.Key, owner: str = "bob") -> None:
    project = key.get()
    project.owner = owner
    project.put()


def owner_of(key: ndb.Key) -> str:
    owner: str = key.get(use_cache=False).owner
    return owner


class TestAllowed:
    def test_read_and_put_under_both(self, key: ndb.Key) -> None:
        with userlock.global_locks(["bob", "ann"]):
            move(key)
        assert owner_of(key) == "bob"

    def test_and_put_again_under_the_new_one(self, key: ndb.Key) -> None:
        with userlock.global_lock("bob"):
            with userlock.global_lock("ann"):
                project = key.get()
                project.owner = "bob"
                project.put()
            project.title = "Moved"
            project.put()
        assert key.get(use_cache=False).title == "Moved"

    def test_a_computed_owner(self) -> None:
        with userlock.global_locks(["team-1", "team-2"]):
            key = Folder(team=1).put()
            folder = key.get(use_cache=False)
            folder.team = 2
            folder.put()

    def test_a_number_and_its_string_are_one_owner(self) -> None:
        with userlock.global_lock(17):
            key = Numbered(owner=17).put()
            numbered = key.get(use_cache=False)
            numbered.put()
            key.get(use_cache=False)
            numbered.put()


class TestRefused:
    def check(self, caught: pytest.ExceptionInfo[userlock.LockIdChanged], detail: str) -> None:
        error = caught.value
        assert error.lock_id == "bob"
        assert "its lock was 'ann' when it was read and is 'bob' now" in str(error)
        assert detail in str(error)
        assert "move" in str(error.read_at)
        assert "move" in str(error.put_at)
        assert "global_locks" in str(error)

    def test_under_the_old_owners_lock_alone(self, key: ndb.Key) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.LockIdChanged) as caught:
            move(key)
        self.check(caught, "'bob' was not held when it is put")
        assert owner_of(key) == "ann"

    def test_under_the_new_owners_lock_alone(self, key: ndb.Key) -> None:
        with userlock.global_lock("bob"), pytest.raises(userlock.LockIdChanged) as caught:
            move(key)
        self.check(caught, "'ann' was not held when it is put")
        assert owner_of(key) == "ann"

    def test_the_new_owners_lock_is_taken_after_the_read(self, key: ndb.Key) -> None:
        with userlock.global_lock("ann"):
            project = key.get()
            project.owner = "bob"
            with (
                userlock.global_lock("bob"),
                pytest.raises(userlock.LockIdChanged, match="'bob' was not held when it was read"),
            ):
                project.put()

    def test_the_old_owners_lock_is_released_before_the_put(self, key: ndb.Key) -> None:
        with userlock.global_lock("bob"):
            with userlock.global_lock("ann"):
                project = key.get()
            project.owner = "bob"
            with pytest.raises(userlock.LockIdChanged, match="'ann' was not held when it is put"):
                project.put()

    def test_a_computed_owner(self) -> None:
        with userlock.global_lock("team-1"):
            key = Folder(team=1).put()
        with userlock.global_lock("team-2"):
            folder = key.get(use_cache=False)
            folder.team = 2
            with pytest.raises(userlock.LockIdChanged):
                folder.put()

    def test_the_old_owners_lease_runs_out_before_the_commit(
        self, key: ndb.Key, clock: ManualClock
    ) -> None:
        def slowly() -> None:
            move(key)
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
