"""Attacks that have broken the model layer once, and must not again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Elsewhere, forget_reads
from userlock.ndb.model import _Creator
from userlock.testing import ManualClock
from userlock_emulator import Emulator

pytestmark = [pytest.mark.usefixtures("context", "quick_retries"), EACH_MODE]


class Attacked(userlock.Model):
    _write_policy = userlock.WritePolicy.unsafe("fenced all the same")
    notes = ndb.StringProperty(repeated=True)


class Careless(Attacked):
    """Creations of it overwrite."""

    _overwrites = True


class MovedWhileStored(ndb.StringProperty):
    """Gives its entity another parent at its conversion, after its put was checked."""

    def _to_base_type(self, value: str) -> str:
        entity = self.entities.pop() if self.entities else None
        if entity is not None:
            entity.key = ndb.Key("Parent", "other", *entity.key.flat())
        return value

    entities: ClassVar[list[Any]] = []


class Moving(userlock.Model):
    _write_policy = userlock.WritePolicy.unsafe("fenced all the same")
    moves = MovedWhileStored()


class AttackedHooked(Attacked):
    """Reads the entity, or puts it, before it is deleted."""

    before_delete: ClassVar[Callable[[Any], object]]

    @classmethod
    def _pre_delete_hook(cls, key: Any) -> None:
        cls.before_delete(key)


def notes(key: Any) -> list[str] | None:
    found = key.get(use_cache=False)
    return None if found is None else list(found.notes)


@pytest.fixture
def key(context: Any) -> Any:
    key = Attacked(id="ann", notes=["0"]).put()
    context.clear_cache()
    return key


def test_an_allocated_id_that_other_requests_know(elsewhere: Elsewhere) -> None:
    made: list[Any] = []
    second = ndb.Key(Attacked, "second")

    def work() -> None:
        new = Attacked(notes=["mine"])
        new.put()
        Attacked(key=second, notes=["mine"]).put()
        if not made:
            made.append(new.key)
            elsewhere(lambda: Attacked(key=new.key, notes=["theirs"]).put() and None)

    # Refused; or taken for contention and run again, with another id.
    refused = False
    try:
        ndb.transaction(work)
    except userlock.EntityExistsError:
        refused = True
    assert notes(made[0]) == ["theirs"]
    assert notes(second) == (None if refused else ["mine"])


def test_an_allocated_id_that_is_put_again(elsewhere: Elsewhere) -> None:
    """This holds for models that overwrite as well: the application did not choose this key."""
    new = Careless(notes=["mine"])

    def work() -> None:
        new.put()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ndb.transaction(work)
    elsewhere(lambda: Careless(key=new.key, notes=["theirs"]).put() and None)
    with pytest.raises(userlock.EntityExistsError):
        ndb.transaction(lambda: new.put() and None)
    assert notes(new.key) == ["theirs"]


def test_a_lost_transaction_that_deletes_a_missing_entity(datastore: Emulator) -> None:
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        ndb.Key(Attacked, "nobody").delete()
        Attacked(notes=["1"]).put_async()

    datastore.faults.unavailable(1, rpc="Commit")
    datastore.faults.abort()
    try:
        ndb.transaction(work)
    except userlock.CommitInDoubt:
        assert Attacked.query().count() == 0
    else:
        assert Attacked.query().count() == 1


def test_a_key_that_changes_after_the_put_was_checked() -> None:
    entity = Moving(id="ann", moves="away")
    MovedWhileStored.entities.append(entity)
    with pytest.raises(userlock.WriteNotFenced):
        entity.put()
    assert Moving.query().count() == 0


@pytest.mark.parametrize("apart", [{}, {"eventloop": None, "batches": None}])
def test_two_objects_in_one_transaction_in_contexts_of_their_own(
    key: Any, apart: dict[str, None]
) -> None:
    def work() -> None:
        first = key.get()
        first.notes.append("first")
        first.put()
        with ndb.get_context().new(cache=None, **apart).use() as within:
            second = key.get()
            second.notes.append("second")
            second.put_async()
            within.eventloop.run()

    with pytest.raises(userlock.StaleWriteError) as caught:
        ndb.transaction(work)
    assert notes(key) == ["0"]
    assert "put another object of it, at " in caught.value.__notes__[0]
    assert "test_attacks.py" in caught.value.__notes__[0]


def test_get_or_insert_overwrites_nothing(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request creates it between its look-up and its put, and its creations overwrite."""

    create = _Creator.__call__

    def create_late(creator: _Creator, **values: Any) -> Any:
        monkeypatch.setattr(_Creator, "__call__", create)
        elsewhere(lambda: Careless(id="cy", notes=["theirs"]).put() and None)
        return create(creator, **values)

    monkeypatch.setattr(_Creator, "__call__", create_late)
    assert Careless.get_or_insert("cy", notes=["mine"]).notes == ["theirs"]
    assert notes(ndb.Key(Careless, "cy")) == ["theirs"]


def test_get_or_insert_returns_no_other_entity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hook puts another entity that exists: that is not the requested one."""
    Attacked(id="other").put()
    monkeypatch.setattr(Careless, "_pre_put_hook", lambda _: Attacked(id="other").put())
    with pytest.raises(userlock.EntityExistsError):
        Careless.get_or_insert("cy")
    assert notes(ndb.Key(Careless, "cy")) is None


_IN_A_HOOK: list[Callable[[Any], object]] = [
    lambda key: key.get(use_cache=False),
    lambda key: key.get().put(),
]


class TestDeleteHooks:
    @pytest.mark.parametrize("act", [*_IN_A_HOOK, lambda key: key.get().put_async()])
    def test_a_delete_builds_on_what_its_hook_has_put(
        self, act: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def change(key: Any) -> None:
            for entity in [key.get()]:
                entity.notes.append("hook")
            act(key)

        monkeypatch.setattr(AttackedHooked, "before_delete", change, raising=False)
        hooked = AttackedHooked(id="ann", notes=["0"]).put()
        hooked.get(use_cache=False)
        hooked.delete()
        assert notes(hooked) is None

    @pytest.mark.parametrize("act", _IN_A_HOOK)
    def test_a_delete_does_not_build_on_the_put_of_another_request(
        self, act: Callable[[Any], object], elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        changed: list[bool] = []

        def add() -> None:
            other = hooked.get()
            other.notes.append("theirs")
            other.put()

        def change(key: Any) -> None:
            act(key)
            if not changed:
                changed.append(True)
                elsewhere(add)

        monkeypatch.setattr(AttackedHooked, "before_delete", change, raising=False)
        hooked = AttackedHooked(id="ann", notes=["0"]).put()
        hooked.get(use_cache=False)
        with pytest.raises(userlock.StaleWriteError):
            hooked.delete()
        assert notes(hooked) == ["0", "theirs"]


class LockedHooked(userlock.UserModel):
    """Does something before it is deleted."""

    _lock_id_from_key = userlock.key_id
    number = ndb.IntegerProperty(default=0)
    before_delete: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    @classmethod
    def _pre_delete_hook(cls, key: Any) -> None:
        cls.before_delete()


def add_one() -> None:
    with userlock.global_lock("ann"):
        entity = LockedHooked.get_by_id("ann")
        entity.number += 1
        entity.put()


@pytest.fixture
def locked() -> Any:
    with userlock.global_lock("ann"):
        key = LockedHooked(id="ann").put()
    forget_reads()
    return key


class TestLocksOfDeletes:
    """An entity that was never read has no version: its lock is all that protects it."""

    def test_a_hook_that_outlives_the_lease(
        self, locked: Any, clock: ManualClock, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def take_long() -> None:
            clock.advance(6)
            elsewhere(add_one)

        monkeypatch.setattr(LockedHooked, "before_delete", staticmethod(take_long))
        with userlock.global_lock("ann", lock_timeout=5), pytest.raises(userlock.WriteViolation):
            locked.delete()
        assert locked.get(use_cache=False).number == 1

    @pytest.mark.parametrize("several", [False, True])
    def test_a_hook_that_releases(
        self, locked: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, several: bool
    ) -> None:
        def release() -> None:
            userlock.release_lock("ann")
            elsewhere(add_one)

        monkeypatch.setattr(LockedHooked, "before_delete", staticmethod(release))
        with userlock.scope():
            userlock.acquire_lock("ann")
            with pytest.raises(userlock.DeletedWithoutLock):
                ndb.delete_multi([locked]) if several else locked.delete()
        assert locked.get(use_cache=False).number == 1

    def test_a_lease_that_is_over_before_it_is_sent(
        self, locked: Any, clock: ManualClock, elsewhere: Elsewhere
    ) -> None:
        with userlock.global_lock("ann", lock_timeout=5):
            future = locked.delete_async()
            clock.advance(6)
            elsewhere(add_one)
            with pytest.raises(userlock.LeaseRanOut, match="about to be sent"):
                future.result()
        assert locked.get(use_cache=False).number == 1

    def test_with_the_locks_unchecked_an_update_is_lost(
        self, locked: Any, clock: ManualClock, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr("userlock.ndb.writes.Write._lapses", lambda *_: iter(()))
        with userlock.global_lock("ann", lock_timeout=5):
            future = locked.delete_async()
            clock.advance(6)
            elsewhere(add_one)
            future.result()
        assert locked.get(use_cache=False) is None
