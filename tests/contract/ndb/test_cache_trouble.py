"""The global cache does not answer while a transaction writes: no half of it is committed.

ndb locks an entity in the global cache before it is written. If that fails, the write
does not get into the commit; and ndb drops the future of a delete in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import arranged
from userlock.ndb import stub
from userlock.ndb.transactions import finish_writes
from userlock.testing import allow_unlocked

pytestmark = [pytest.mark.usefixtures("context"), EACH_MODE]


class Medal(userlock.UserModel):
    _lock_id_from_key = userlock.root_id
    points = ndb.IntegerProperty(default=0)


class _SilentCache(ndb.global_cache._InProcessGlobalCache):
    """Has nothing, and takes nothing."""

    def get(self, keys: Any) -> Any:
        return [None] * len(keys)

    def _trouble(self, *_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError("nobody listens")

    set = delete = watch = set_if_not_exists = compare_and_swap = _trouble


@pytest.fixture
def badges(context: Any) -> list[Any]:
    return [arranged(Medal(id=name, parent=ndb.Key("User", "ann"))) for name in ("one", "two")]


@pytest.fixture(params=["under the lock", "without it"])
def _lock(context: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "without it":
        userlock.configure(enforcement="off")
        yield
    else:
        with userlock.global_lock("ann"):
            yield


def points(badge: Any) -> int | None:
    found = badge.key.get(use_cache=False, use_global_cache=False)
    return None if found is None else found.points


def change_and_delete(badges: list[Any]) -> None:
    """Change the first past the cache, and delete the second."""
    first = badges[0].key.get()
    first.points += 1
    first.put(use_global_cache=False)
    badges[1].key.delete()


def change_both(badges: list[Any]) -> None:
    """Do the same, with a put whose future is dropped."""
    first, second = (badge.key.get() for badge in badges)
    first.points += 1
    first.put(use_global_cache=False)
    second.points += 1
    second.put_async()


def without_the_cache(change: Callable[[], object]) -> None:
    with ndb.get_context().new(global_cache=_SilentCache(), cache=None).use():
        ndb.transaction(change)


@pytest.mark.usefixtures("_lock")
@pytest.mark.parametrize("change", [change_and_delete, change_both])
def test_a_write_that_fails_is_reported_and_nothing_is_committed(
    badges: list[Any], change: Callable[[list[Any]], None]
) -> None:
    with pytest.raises(ConnectionRefusedError):
        without_the_cache(lambda: change(badges))
    assert [points(badge) for badge in badges] == [0, 0]


def test_ndb_alone_commits_half_and_reports_nothing(
    badges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(stub, "raise_unseen", lambda *_: None)
    with allow_unlocked("shown without a lock"):
        without_the_cache(lambda: change_and_delete(badges))
    assert [points(badge) for badge in badges] == [1, 0]
    with pytest.raises(ConnectionRefusedError):
        finish_writes()


@pytest.mark.parametrize("_lock", ["under the lock"], indirect=True)
@pytest.mark.usefixtures("_lock")
def test_an_error_that_was_seen_is_not_raised_again(badges: list[Any]) -> None:
    def change() -> None:
        first = badges[0].key.get()
        first.points += 1
        first.put(use_global_cache=False)
        with pytest.raises(ConnectionRefusedError):
            badges[1].key.delete_async().get_result()

    without_the_cache(change)
    assert [points(badge) for badge in badges] == [1, 0]


@pytest.mark.parametrize("last", [lambda badge: badge.key.delete(), Medal.put_async])
def test_an_entity_may_be_deleted_and_written_again_in_one_turn(
    badges: list[Any], last: Callable[[Any], object]
) -> None:
    """ndb alone fails to lock it in the global cache twice, and drops the error of a delete."""

    def delete_and_write() -> None:
        badge = badges[0].key.get()
        badge.key.delete()
        last(Medal(key=badge.key))

    cache = ndb.global_cache._InProcessGlobalCache()
    with userlock.global_lock("ann"), ndb.get_context().new(global_cache=cache).use():
        ndb.transaction(delete_and_write)
    assert (points(badges[0]) is None) == (last is not Medal.put_async)
