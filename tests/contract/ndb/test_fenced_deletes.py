"""A delete is fenced by the version of the read, wherever the object is by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, change, stored
from tests.contract.ndb.models import Learner
from userlock.ndb import commits
from userlock.stores import MemoryStore

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture(autouse=True)
def _unchecked() -> None:
    userlock.configure(enforcement="off")


def within(levels: int, act: Callable[[], object]) -> None:
    """Do it in a context that is so many levels below this one."""
    if not levels:
        act()
        return
    with ndb.get_context().new(cache=None).use():
        within(levels - 1, act)


def run(act: Callable[[], object]) -> None:
    with userlock.global_lock("ann"):
        act()


def meanwhile(key: Any, store: MemoryStore, elsewhere: Elsewhere) -> None:
    """Let the lock fail, and change the entity as another request."""
    store.evict("ann")
    elsewhere(lambda: change(key, 1_000))


@pytest.mark.parametrize(("above", "below"), [(0, 0), (2, 3)])
def test_in_a_context_below_the_one_that_has_read_it(
    key: Any, above: int, below: int, store: MemoryStore, elsewhere: Elsewhere
) -> None:
    def read_and_delete() -> None:
        key.get()
        meanwhile(key, store, elsewhere)
        within(below, key.delete)

    with pytest.raises(userlock.StaleWriteError):
        run(lambda: within(above, read_and_delete))
    assert stored(key) == (1_000, None)


def test_a_second_delete_builds_on_nothing(key: Any) -> None:
    """Neither on the read before the first one, nor on the version that is gone."""

    def delete_twice() -> None:
        key.get()
        key.delete()
        key.delete()

    run(delete_twice)
    userlock.configure(enforcement="log")
    Learner(key=key).put()
    key.delete()
    key.delete()
    assert stored(key) is None


def test_an_object_that_was_deleted_can_be_put_again(key: Any) -> None:
    def delete_and_put() -> None:
        learner = key.get()
        key.delete()
        learner.put()

    run(delete_and_put)
    assert stored(key) == (0, None)


@pytest.mark.parametrize("writes", ["d", "pd", "ppd", "pdp", "pdpd"])
@pytest.mark.parametrize("again", [lambda put: put(), ndb.transaction])
def test_so_can_one_that_was_put_and_deleted_in_a_transaction(
    key: Any, writes: str, again: Callable[[Any], Any]
) -> None:
    def delete_and_put() -> None:
        learner = key.get()

        def act() -> None:
            for each in writes:
                learner.points += 1  # else a put would keep the version
                learner.put() if each == "p" else key.delete()

        ndb.transaction(act)
        learner.points = 5
        again(learner.put)

    run(delete_and_put)
    assert stored(key) == (5, None)


@pytest.mark.parametrize("blind_overwrites", ["raise", "off"])
@pytest.mark.parametrize("again", [lambda put: put(), ndb.transaction])
def test_but_not_over_an_entity_that_was_created_since(
    key: Any, overtake: Overtake, blind_overwrites: Any, again: Callable[[Any], Any]
) -> None:
    userlock.configure(blind_overwrites=blind_overwrites)

    def delete_and_put() -> None:
        learner = key.get()
        key.delete()
        overtake(lambda: Learner(key=key, points=7).put())
        learner.points = 5
        with pytest.raises(userlock.EntityExistsError):
            again(learner.put)

    run(delete_and_put)
    assert stored(key) == (7, None)


def rename_first(old: Any, entity: Any) -> None:
    entity.key = ndb.Key(Learner, "ann-renamed")
    entity.put()
    old.delete()


def delete_first(old: Any, entity: Any) -> None:
    entity.key = ndb.Key(Learner, "ann-renamed")
    old.delete()
    entity.put()


def delete_before(old: Any, entity: Any) -> None:
    old.delete()
    entity.key = ndb.Key(Learner, "ann-renamed")
    entity.put()


def in_a_transaction(rename: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def run(old: Any, entity: Any) -> None:
        ndb.transaction(lambda: rename(old, entity))

    run.__name__ = f"{rename.__name__}_in_a_transaction"
    return run


RENAMES = [rename_first, delete_first, delete_before]
EACH_RENAME = pytest.mark.parametrize(
    "rename", [*RENAMES, in_a_transaction(rename_first)], ids=lambda each: each.__name__
)


@EACH_RENAME
class TestRenames:
    def test_no_update_is_lost(
        self, key: Any, rename: Callable[[Any, Any], None], store: MemoryStore, elsewhere: Elsewhere
    ) -> None:
        def act() -> None:
            entity = key.get()
            meanwhile(key, store, elsewhere)
            rename(ndb.Key(Learner, "ann"), entity)

        with pytest.raises(userlock.StaleWriteError):
            run(act)
        assert stored(key) == (1_000, None)

    def test_without_a_rival_it_is_renamed(
        self, key: Any, rename: Callable[[Any, Any], None]
    ) -> None:
        run(lambda: rename(ndb.Key(Learner, "ann"), key.get()))
        assert stored(key) is None
        assert stored(ndb.Key(Learner, "ann-renamed")) == (0, None)


def test_without_the_fence_an_update_is_lost(
    key: Any, store: MemoryStore, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(commits, "build_on", lambda *_: None)

    def act() -> None:
        entity = key.get()
        meanwhile(key, store, elsewhere)
        rename_first(ndb.Key(Learner, "ann"), entity)

    run(act)
    assert stored(key) is None
