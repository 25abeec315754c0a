"""One key object that is deleted from several places at once: each delete is its own write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.caches import EmptyGlobalCache

pytestmark = pytest.mark.usefixtures("context")

Elsewhere = Callable[[Callable[[], None]], None]


class Hooked(userlock.Model):
    """Protected by nothing but fencing. Its hook may delete more."""

    _write_policy = userlock.WritePolicy.unsafe("it is fencing that is tested")
    more: ClassVar[list[Any]] = []

    points = ndb.IntegerProperty(default=0)

    @classmethod
    def _pre_delete_hook(cls, key: Any) -> None:
        while cls.more:
            cls.more.pop().delete()


class Unwatched(ndb.Model):
    """Not watched."""


def read_and_changed(elsewhere: Elsewhere) -> Any:
    """Return the key of an entity that has changed since the context cache got it."""
    key = Hooked(id="ann").put()
    assert key.get() is not None

    def change() -> None:
        entity = key.get()
        entity.points = 50
        entity.put()

    elsewhere(change)
    return key


def test_by_two_threads(context: Any, elsewhere: Elsewhere) -> None:
    """
    ours                                         the other thread
    delete_async, of the version that was read
    (waits for the global cache)                 begins to delete, by the same object;
                                                 its transaction is rolled back
    sent: refused, for it is another version
    """

    def give_up() -> None:
        key.delete()
        raise ZeroDivisionError

    def begin_and_give_up() -> None:
        with contextlib.suppress(ZeroDivisionError):
            ndb.transaction(give_up)

    cache = EmptyGlobalCache()
    with context.new(global_cache=cache, cache=None).use():
        key = read_and_changed(elsewhere)
        deleting = key.delete_async()
        elsewhere(begin_and_give_up)
        with pytest.raises(userlock.StaleWriteError):
            deleting.result()
        assert key.get(use_cache=False, use_global_cache=False).points == 50


@pytest.mark.parametrize("more", ["the same object", "an equal key", "a key of no concern"])
def test_by_the_models_hook(elsewhere: Elsewhere, more: str) -> None:
    """It is in a transaction that is rolled back, so that it is only begun within the other."""
    key = read_and_changed(elsewhere)
    other = {
        "the same object": key,
        "an equal key": ndb.Key(Hooked, "ann"),
        "a key of no concern": ndb.Key(Unwatched, "ann"),
    }[more]
    Hooked.more.append(other)
    with pytest.raises(userlock.StaleWriteError):
        ndb.transaction(key.delete)
    assert key.get(use_cache=False).points == 50
